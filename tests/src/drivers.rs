//! What the example drivers (`examples/driver_*.rs`) share, so that their files hold only what differs from one executor
//! to the next: who waits for a session, a machine that writes down its steps, a scripted server, and virtual time.

mod clock;
mod scenario;
mod server;
mod trace;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::{CloseCause, Config, Epoch, Event, Input, Timestamp};

pub use clock::{Agenda, Happening, VirtualClock, World, whole_millis};
pub use scenario::{Act, Deed, SCENARIOS, Scenario};
pub use server::{Dialled, Life, Plan, Scripted, Server, Step};
pub use trace::{Machine, Trace};
pub use waiting::{Answer, Caller, Message, Refused, Reply, Waiting};

/// What a driver asks of a transport. Each of these begins and returns; what comes of it is reported as an [`Input`], by
/// the way that the executor has for that.
pub trait Transport: Send {
    /// Dials, and reports how far it gets, and its end.
    fn dial(&self, epoch: Epoch, timeout: Duration, interactive: bool);

    /// Closes, and reports when nothing is left.
    fn close(&self, epoch: Epoch, cause: CloseCause);

    /// Asks for a sign of life.
    fn ping(&self, epoch: Epoch);

    /// Asks for the first thing that the session has answered before: a listing, or a ping where nothing can be listed.
    fn ask(&self, epoch: Epoch);

    /// A sample of a session's traffic, as [`Input::Traffic`].
    fn traffic(&self, epoch: Epoch) -> Input;
}

/// The program around a driver.
pub trait Host: Send + Sync {
    /// The tools of this epoch may be offered; `None`: what was offered is taken back.
    fn offer(&self, epoch: Option<Epoch>);

    /// Something to tell.
    fn tell(&self, event: Event);

    /// Whether the host slept since this was last asked.
    fn slept(&self) -> bool;
}

/// What the examples show: a server that dies twice and is reached again, printed as it happens.
pub fn story(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> (Machine, Arc<Server>) {
    let trace = Trace::echoing();
    let config = Config::builder().stable_after(Duration::from_millis(400)).build().unwrap_or_default();
    let machine = Machine::new(config, 1, now(), trace.clone());
    let dies = Dialled::Up(Life::Ends(Duration::from_millis(600)));
    (machine, Server::new(&[dies, dies, Dialled::Up(Life::Healthy)], trace, now))
}
