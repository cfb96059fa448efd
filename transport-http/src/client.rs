//! One session's client: what is known of the session.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderMap, HeaderValue};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use crate::headers::{STANDARD_HEADERS, ToolHeaders};
use crate::proxy::Way;
use crate::send::SESSION_ID;
use crate::server::HttpServer;

/// The client of one session: frames go out with [`exchange`](Self::exchange), one request each.
///
/// It spawns nothing; a future that is dropped ends its exchange on the wire. Once the server has disowned the session
/// nothing is sent that carries its id.
pub struct HttpClient {
    pub(crate) server: HttpServer,
    pub(crate) http: reqwest::Client,
    pub(crate) way: Arc<Way>,
    interactive: AtomicBool,
    state: Mutex<State>,
    probes: AtomicU64,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) session: SessionId,
    /// The id of a session that was given up, where the server has not said that it does not know it.
    left: Option<HeaderValue>,
    pub(crate) version: Option<String>,
    pub(crate) tools: HashMap<String, ToolHeaders>,
    /// The parameters of the last `server/discover`: a probe asks the same again.
    pub(crate) discover: Option<Box<RawValue>>,
    last_byte: Option<Instant>,
}

#[derive(Clone, Default)]
pub(crate) enum SessionId {
    #[default]
    None,
    Held(HeaderValue),
    Gone,
}

impl HttpClient {
    pub(crate) fn new(server: HttpServer, http: reqwest::Client, way: Arc<Way>, interactive: bool) -> Self {
        Self {
            server,
            http,
            way,
            interactive: AtomicBool::new(interactive),
            state: Mutex::default(),
            probes: AtomicU64::new(0),
        }
    }

    /// A client for another session, over the connections of this one: for a server that was there to say that it knows
    /// this session no more. `interactive` as for [`HttpServer::open`].
    pub fn another(&self, interactive: bool) -> Self {
        Self::new(self.server.clone(), self.http.clone(), self.way.clone(), interactive)
    }

    /// The handshake settled on this version: it is said in a header from now on, and no user is asked to log in any
    /// more.
    pub fn negotiated(&self, version: &str) {
        self.interactive.store(false, Ordering::Release);
        self.state().version = Some(version.to_owned());
    }

    /// The session id, while it is good.
    pub fn session_id(&self) -> Option<Arc<str>> {
        match &self.state().session {
            SessionId::Held(id) => id.to_str().ok().map(Into::into),
            SessionId::None | SessionId::Gone => None,
        }
    }

    /// When the last byte came in.
    pub fn last_byte(&self) -> Option<Instant> {
        self.state().last_byte
    }

    /// Gives the session up, as lost: nothing with its id is sent from now on, but what may
    /// [`release`](Self::release) it.
    pub fn disown(&self) {
        let mut state = self.state();
        if let SessionId::Held(id) = &state.session {
            state.left = Some(id.clone());
            state.session = SessionId::Gone;
        }
    }

    /// The server has said that it does not know the session: there is nothing to release.
    pub(crate) fn denied(&self) {
        self.disown();
        self.state().left = None;
    }

    /// The id of a session that was given up though the server may still hold it: to be
    /// [released](Self::release) by the client of the next session, once that is up.
    pub fn left_behind(&self) -> Option<Arc<str>> {
        self.state().left.as_ref()?.to_str().ok().map(Into::into)
    }

    /// Notes a tool that the server lists, as it is listed: some of its arguments may be wanted as headers.
    ///
    /// # Errors
    ///
    /// Why the tool must not be offered: its `x-mcp-header` annotations are invalid.
    pub fn note_tool(&self, tool: &str) -> Result<(), String> {
        if !self.is_modern() {
            return Ok(());
        }
        if let Some((name, headers)) = ToolHeaders::of_tool(tool)? {
            self.state().tools.insert(name, headers);
        }
        Ok(())
    }

    /// Ends the session at the server, if there is one to end. Bounded by
    /// [`HttpServer::close_timeout`](crate::HttpServer::close_timeout); whatever the server answers is fine.
    pub async fn close(&self) {
        let session = std::mem::replace(&mut self.state().session, SessionId::Gone);
        if let SessionId::Held(id) = session {
            self.delete(id).await;
        }
    }

    /// Ends another session at the server, by its id: one that an earlier client has
    /// [left behind](Self::left_behind). Bounded as [`close`](Self::close) is.
    pub async fn release(&self, id: &str) {
        if let Ok(id) = HeaderValue::from_str(id) {
            self.delete(id).await;
        }
    }

    async fn delete(&self, id: HeaderValue) {
        let ended = async {
            let mut headers = self.headers();
            headers.insert(SESSION_ID, id);
            self.authorize(&mut headers).await;
            let request = self.http.delete(self.server.url.clone()).headers(headers);
            // 405, 404, whatever it is: the id is not used any more.
            drop(request.send().await);
        };
        // Silence is an answer too.
        drop(timeout(self.server.close_timeout, ended).await);
    }

    /// Whether what was negotiated is of the modern era (2026-07-28 on): without sessions.
    pub fn is_modern(&self) -> bool {
        self.state().version.as_deref().is_some_and(is_modern)
    }

    /// Whether the handshake is over.
    pub(crate) fn is_established(&self) -> bool {
        self.state().version.is_some()
    }

    pub(crate) fn is_interactive(&self) -> bool {
        self.interactive.load(Ordering::Acquire)
    }

    pub(crate) fn holds_session(&self) -> bool {
        matches!(self.state().session, SessionId::Held(_))
    }

    /// Takes the session id of a 2xx answer to `initialize`.
    pub(crate) fn begin_session(&self, headers: &HeaderMap) {
        if let Some(id) = headers.get(SESSION_ID) {
            self.state().session = SessionId::Held(id.clone());
        }
    }

    pub(crate) fn touch(&self) {
        self.state().last_byte = Some(Instant::now());
    }

    /// A request that only asks whether the session is alive.
    pub(crate) fn probe_frame(&self) -> String {
        let number = self.probes.fetch_add(1, Ordering::Relaxed);
        let discover = self.is_modern().then(|| self.state().discover.clone()).flatten();
        match discover {
            Some(params) => {
                format!(r#"{{"jsonrpc":"2.0","id":"probe-{number}","method":"server/discover","params":{params}}}"#)
            }
            None => format!(r#"{{"jsonrpc":"2.0","id":"probe-{number}","method":"ping"}}"#),
        }
    }

    /// Where requests go, and by which proxy: for words about failures.
    pub fn target(&self) -> String {
        self.way.words()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Versions are dates: they compare as text.
pub(crate) fn is_modern(version: &str) -> bool {
    version >= STANDARD_HEADERS
}
