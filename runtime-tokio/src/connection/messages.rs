//! The messages to the owner of a connection: the commands of its handles, and the notes of its epochs.

use std::sync::Arc;

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
    /// A call was dropped by its caller after a silence; it was sent then.
    Silence { epoch: Epoch, sent: Instant },
    /// A call was answered while there were strikes.
    Answered,
    /// A call found that the host had slept. It goes on when the session has been asked.
    Resumed(oneshot::Sender<()>),
    /// Answered when what was asked for before has been done.
    Turn(oneshot::Sender<()>),
    /// For the subscribers.
    Tell(Event),
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
    /// A ping was answered, or refused by a server that is there.
    Pong,
    /// The server knows no pings.
    PingUnsupported,
    /// The session's catalogue was listed anew.
    Relisted(Arc<Catalogue>),
    /// For the subscribers.
    Tell(Event),
}
