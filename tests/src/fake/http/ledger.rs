//! What the ledger knows of HTTP.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fake::ledger::{Event, Ledger};

/// What happened to a fake HTTP server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "http", rename_all = "kebab-case")]
pub enum HttpEvent {
    /// It accepted a connection.
    Connected {
        /// Its number.
        connection: u64,
    },
    /// A connection is closed, whoever closed it.
    Disconnected {
        /// Its number.
        connection: u64,
    },
    /// It read a request of HTTP, before it decided anything about it.
    Asked(Asked),
    /// It answers a request with this status.
    Answered {
        /// The number of the request.
        exchange: u64,
        /// The status.
        status: u16,
    },
    /// It opens the stream that a GET asked for.
    StreamOpened {
        /// The number of the GET.
        exchange: u64,
    },
    /// A request is over: its answer is complete, or never will be.
    Finished {
        /// The number of the request.
        exchange: u64,
        /// `answered`, `cut`, `reset`, `abandoned` by the client, or `ended` with the server.
        how: String,
    },
    /// A client was told of a fresh session.
    SessionCreated {
        /// Its id.
        session: String,
    },
    /// A session is no more: from now on its id is stale.
    SessionEnded {
        /// Its id.
        session: String,
        /// Whether a DELETE ended it.
        deleted: bool,
    },
    /// A message went to nobody: no stream was there for it, or its request was over.
    Undelivered {
        /// The message.
        message: Value,
    },
}

/// A request of HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Its number, different for all in a spawn.
    pub exchange: u64,
    /// The connection that it came on.
    pub connection: u64,
    /// `POST`, `GET`, `DELETE`, ….
    pub verb: String,
    /// The path, with its query.
    pub path: String,
    /// The session id that it carries.
    pub session: Option<String>,
    /// The method of its JSON-RPC message.
    pub method: Option<String>,
    /// Every header by its name in lower case, but what `authorization` says is not kept.
    pub headers: BTreeMap<String, String>,
}

impl Asked {
    /// What this header says; the name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

impl Ledger {
    fn http(&self) -> impl Iterator<Item = (u32, &HttpEvent)> {
        self.entries().iter().filter_map(|entry| match &entry.event {
            Event::Http(event) => Some((entry.spawn, event)),
            _ => None,
        })
    }

    fn count_http(&self, fits: impl Fn(&HttpEvent) -> bool) -> usize {
        self.http().filter(|(_, event)| fits(event)).count()
    }

    /// Every request of HTTP, in the order of reading.
    pub fn asked(&self) -> impl Iterator<Item = &Asked> {
        self.http().filter_map(|(_, event)| match event {
            HttpEvent::Asked(asked) => Some(asked),
            _ => None,
        })
    }

    /// How many POSTs were read.
    pub fn posts(&self) -> usize {
        self.asked().filter(|asked| asked.verb == "POST").count()
    }

    /// How many GETs were read.
    pub fn gets(&self) -> usize {
        self.asked().filter(|asked| asked.verb == "GET").count()
    }

    /// How many POSTs of this JSON-RPC method were read, those that a gate refused included.
    pub fn posts_of(&self, method: &str) -> usize {
        self.asked().filter(|asked| asked.verb == "POST" && asked.method.as_deref() == Some(method)).count()
    }

    /// The requests that carried this session id.
    pub fn requests_with_session(&self, session: &str) -> usize {
        self.asked().filter(|asked| asked.session.as_deref() == Some(session)).count()
    }

    /// How many `initialize` carried a session id.
    pub fn initializes_with_session(&self) -> usize {
        self.asked().filter(|asked| asked.method.as_deref() == Some("initialize") && asked.session.is_some()).count()
    }

    /// The session ids of every DELETE that was read; empty for one without an id.
    pub fn deletes(&self) -> Vec<&str> {
        let deletes = self.asked().filter(|asked| asked.verb == "DELETE");
        deletes.map(|asked| asked.session.as_deref().unwrap_or_default()).collect()
    }

    /// The id of every session that a client was told of.
    pub fn sessions(&self) -> Vec<&str> {
        let created = self.http().filter_map(|(_, event)| match event {
            HttpEvent::SessionCreated { session } => Some(&**session),
            _ => None,
        });
        created.collect()
    }

    /// Those of [`sessions`](Self::sessions) that live: not ended, of the last spawn.
    pub fn live_sessions(&self) -> Vec<&str> {
        let last = self.http().map(|(spawn, _)| spawn).max();
        let created = self.http().filter_map(|(spawn, event)| match event {
            HttpEvent::SessionCreated { session } if Some(spawn) == last => Some(&**session),
            _ => None,
        });
        let ended: BTreeSet<&str> = self
            .http()
            .filter_map(|(_, event)| match event {
                HttpEvent::SessionEnded { session, .. } => Some(&**session),
                _ => None,
            })
            .collect();
        created.filter(|session| !ended.contains(session)).collect()
    }

    /// How many streams were ever opened by a GET.
    pub fn streams(&self) -> usize {
        self.count_http(|event| matches!(event, HttpEvent::StreamOpened { .. }))
    }

    /// How many streams that a GET opened are open now.
    pub fn open_streams(&self) -> usize {
        self.open(|event| match event {
            HttpEvent::StreamOpened { exchange } => Some(*exchange),
            _ => None,
        })
    }

    /// How many requests of HTTP wait for the end of their answer now, streams included.
    pub fn open_requests(&self) -> usize {
        self.open(|event| match event {
            HttpEvent::Asked(asked) => Some(asked.exchange),
            _ => None,
        })
    }

    /// How many `subscriptions/listen` are open now.
    pub fn open_listens(&self) -> usize {
        self.open(|event| match event {
            HttpEvent::Asked(asked) if asked.method.as_deref() == Some("subscriptions/listen") => Some(asked.exchange),
            _ => None,
        })
    }

    fn open(&self, opened: impl Fn(&HttpEvent) -> Option<u64>) -> usize {
        let mut open = BTreeSet::new();
        for (spawn, event) in self.http() {
            if let HttpEvent::Finished { exchange, .. } = event {
                open.remove(&(spawn, *exchange));
            } else if let Some(exchange) = opened(event) {
                open.insert((spawn, exchange));
            }
        }
        open.len()
    }

    /// How many connections were ever accepted.
    pub fn connections(&self) -> usize {
        self.count_http(|event| matches!(event, HttpEvent::Connected { .. }))
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> usize {
        self.connections() - self.count_http(|event| matches!(event, HttpEvent::Disconnected { .. }))
    }

    /// How many requests the clients gave up before they were answered whole.
    pub fn abandoned(&self) -> usize {
        self.count_http(|event| matches!(event, HttpEvent::Finished { how, .. } if how == "abandoned"))
    }

    /// How many answers had this status.
    pub fn answered(&self, status: u16) -> usize {
        self.count_http(|event| matches!(event, HttpEvent::Answered { status: s, .. } if *s == status))
    }

    /// The messages that went to nobody.
    pub fn undelivered(&self) -> Vec<&Value> {
        let messages = self.http().filter_map(|(_, event)| match event {
            HttpEvent::Undelivered { message } => Some(message),
            _ => None,
        });
        messages.collect()
    }
}
