//! Calls to tools by their names in the list of all.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use mcp_reconnect_core::Status;
use rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject};

use super::Fleet;
use super::tools::LookupError;
use crate::connection::Connection;
use crate::error::CallError;
use crate::options::CallOptions;

/// Why a call by name brought no result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FleetCallError {
    /// No tool may be called by this name; nothing was sent.
    NotOffered {
        /// The name.
        name: Arc<str>,
        /// Why.
        why: LookupError,
    },
    /// The call failed at its server.
    Call {
        /// The server.
        server: Arc<str>,
        /// How.
        error: CallError,
    },
}

impl fmt::Display for FleetCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOffered { name, why } => write!(f, "`{name}` cannot be called: {why}"),
            Self::Call { server, error } => write!(f, "{server}: {error}"),
        }
    }
}

impl Error for FleetCallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NotOffered { why, .. } => Some(why),
            Self::Call { error, .. } => Some(error),
        }
    }
}

impl Fleet {
    /// Calls the tool that is offered under this name, with its server's own options.
    ///
    /// # Errors
    ///
    /// See [`FleetCallError`].
    pub async fn call_tool(
        &self,
        name: &str,
        arguments: Option<JsonObject>,
    ) -> Result<CallToolResponse, FleetCallError> {
        let mut params = CallToolRequestParams::new(name.to_owned());
        params.arguments = arguments;
        self.call_tool_with(params, None).await
    }

    /// Calls a tool with all its parameters and options. `params.name` is the name in the list of all.
    ///
    /// Of a server that lists nothing now (it was just replaced, is dialled on demand and was never asked, or is parked) a
    /// call waits for a session, as calls do, before it is told that there is no such tool. A tool that was never listed is
    /// taken to be of the server that its name begins with.
    ///
    /// # Errors
    ///
    /// See [`FleetCallError`].
    pub async fn call_tool_with(
        &self,
        mut params: CallToolRequestParams,
        options: Option<&CallOptions>,
    ) -> Result<CallToolResponse, FleetCallError> {
        let name = params.name.clone();
        let (mut waited, mut closed) = (false, false);
        loop {
            let (server, connection, tool) = match self.find(&name) {
                Ok(found) => found,
                Err(why) => match self.unlisted(&name, &why) {
                    Some((server, connection)) if !waited => {
                        waited = true;
                        let session = connection.session().await;
                        session.map_err(|error| FleetCallError::Call { server, error })?;
                        continue;
                    }
                    Some(_) | None => return Err(FleetCallError::NotOffered { name: name.as_ref().into(), why }),
                },
            };
            params.name = tool;
            let called = match options {
                Some(options) => connection.call_tool_with(params.clone(), options).await,
                None => connection.call_tool(params.clone()).await,
            };
            match called {
                // Replaced while the call was on its way to it.
                Err(CallError::Closed)
                    if !closed && self.connection(&server).is_some_and(|now| !now.is(Some(&connection))) =>
                {
                    closed = true;
                }
                called => return called.map_err(|error| FleetCallError::Call { server, error }),
            }
        }
    }

    /// Where a tool is called, and its server's name of it.
    fn find(&self, name: &str) -> Result<(Arc<str>, Connection, Cow<'static, str>), LookupError> {
        let servers = self.0.lock();
        let tool = servers.tools.lookup(name)?;
        let not_offered =
            || LookupError::NotOffered { server: tool.server.clone(), tool: tool.tool().name.as_ref().into() };
        let connection = servers.by_name.get(&tool.server).and_then(|server| server.connection().cloned());
        Ok((tool.server.clone(), connection.ok_or_else(not_offered)?, tool.tool().name.clone()))
    }

    /// The server that this tool must be of, if that lists nothing now.
    fn unlisted(&self, name: &str, why: &LookupError) -> Option<(Arc<str>, Connection)> {
        let servers = self.0.lock();
        let server = match why {
            LookupError::NotOffered { server, .. } => server.clone(),
            LookupError::Unknown => {
                let separator = servers.tools.naming().separator();
                let begins =
                    |server: &&Arc<str>| name.strip_prefix(&***server).is_some_and(|rest| rest.starts_with(separator));
                servers.by_name.keys().find(begins)?.clone()
            }
            _ => return None,
        };
        let connection = servers.by_name.get(&server)?.connection()?.clone();
        let lists_nothing = connection.snapshot().status != Status::Shutdown && connection.catalogue().is_none();
        (lists_nothing).then_some((server, connection))
    }
}
