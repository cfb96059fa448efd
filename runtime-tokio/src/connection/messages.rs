//! The messages to the owner of a connection: the commands of its handles, and the notes of its epochs.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::{Admission, Epoch, Failure, Input, ReadyFlag};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::connection::Event;
use crate::session::Session;
use crate::session::catalogue::Catalogue;

/// A request of the handles to the owner.
#[derive(Debug)]
pub(crate) enum Command {
    /// A caller waits for a session until then.
    Connect { until: Instant, reply: oneshot::Sender<Admission> },
    /// Something for the machine as it is.
    Input(Input),
    /// A call got no reply; it was sent then. Its caller hears of it when the machine has.
    NoReply { epoch: Epoch, sent: Instant, noted: oneshot::Sender<()> },
    /// A call was answered while there were strikes.
    Answered,
    /// A call found the session silent for longer than `keepalive`: the host may have slept.
    Silent,
    /// Answered when what was asked for before has been done.
    Turn(oneshot::Sender<()>),
    /// A session is broken, and a caller saw it.
    Lost { epoch: Epoch, failure: Failure, cause: Arc<str> },
}

/// A report of an epoch's tasks.
pub(crate) struct Note {
    pub(crate) epoch: Epoch,
    pub(crate) what: What,
}

pub(crate) enum What {
    Reached(ReadyFlag),
    /// The session is set up: the last flag.
    Established(Arc<Session>),
    /// Broken; the epoch waits to be closed.
    Lost(Failure, Arc<str>),
    /// Nothing is left.
    Gone(Failure, Arc<str>),
    /// A ping was answered.
    Pong,
    /// A question was answered, or refused by a server that is there.
    Alive,
    /// The handshake met another server than the last one did.
    OtherServer,
    /// The server is not the one that the session began with.
    Renew,
    /// The server knows no pings.
    PingUnsupported,
    /// The session's catalogue was listed anew.
    Relisted(Arc<Catalogue>),
    /// A page of a list took so long, longer than any before in this session.
    Listed(Duration),
    /// For the subscribers.
    Tell(Event),
}
