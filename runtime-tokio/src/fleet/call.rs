//! Calls to tools by their names in the list of all.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject};

use super::Fleet;
use super::tools::LookupError;
use crate::call::CallOptions;
use crate::error::CallError;

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

    /// The same with everything that a call can have. `params.name` is the name in the list of all.
    ///
    /// # Errors
    ///
    /// See [`FleetCallError`].
    pub async fn call_tool_with(
        &self,
        mut params: CallToolRequestParams,
        options: Option<&CallOptions>,
    ) -> Result<CallToolResponse, FleetCallError> {
        let (server, connection) = {
            let servers = self.0.lock();
            let tool = match servers.tools.lookup(&params.name) {
                Ok(tool) => tool,
                Err(why) => return Err(FleetCallError::NotOffered { name: params.name.as_ref().into(), why }),
            };
            let connection = servers.by_name.get(&tool.server).and_then(|server| server.connection().cloned());
            let found = (tool.server.clone(), connection);
            params.name = tool.tool().name.clone();
            found
        };
        let error = |error| FleetCallError::Call { server: server.clone(), error };
        // What is offered has a connection.
        let connection = connection.ok_or_else(|| error(CallError::Closed))?;
        let called = match options {
            Some(options) => connection.call_tool_with(params, options).await,
            None => connection.call_tool(params).await,
        };
        called.map_err(error)
    }
}
