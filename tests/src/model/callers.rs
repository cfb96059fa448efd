//! Servers and their callers, who all hold the same session when it breaks: R8 and R10.
//!
//! The servers are healthy but for that: every dial succeeds, in no time. The callers of one that saw epoch `n` fail report
//! it, each when it wants, also when a later epoch is up, and then ask for a session after `n` until they have one.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use mcp_reconnect_checker::{Checker, Draw, Frame};
use mcp_reconnect_core::{
    Admission, Config, Epoch, Failure, FailureClass, Input, Output, State, Timestamp, WakeCause, Want,
};
use stateright::{Checker as _, HasDiscoveries, Model, Property};

use super::action::{UNIT, missing};
use super::slice::Slice;

/// So many servers, each with so many callers.
pub struct Callers {
    slice: Slice,
    frame: Frame,
    servers: usize,
    callers: usize,
}

/// What one caller has come to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Caller {
    /// A call on the first session is open.
    Calls,
    /// It failed, and nobody was told yet.
    Saw,
    /// That was reported.
    Failed,
    /// A session was promised for later.
    Waits,
    /// It has a session after that.
    Served,
    /// It was given the session that it saw fail: never.
    Betrayed,
}

#[derive(Clone)]
struct Server {
    checker: Arc<Checker>,
    key: u64,
    /// How many epochs ago the callers' first session was; more than two is two.
    ago: u64,
    /// Dials since; more than two is two.
    dials: u8,
    /// Sorted: no rule knows one from another.
    callers: Vec<Caller>,
}

/// The servers with their callers.
#[derive(Clone)]
pub struct World(Vec<Server>);

/// What happens to one server, or to all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happens {
    /// The call of this caller fails.
    Fails(usize, usize),
    /// It reports so: broken, or nothing is left of it.
    Reports(usize, usize, Left),
    /// This caller asks for a session.
    Asks(usize, usize),
    /// The dial gets on by one flag.
    Reaches(usize),
    /// The close is over.
    Ends(usize),
    /// Somebody wakes it.
    Wakes(usize),
    /// A unit of time passes, for all.
    Time,
}

/// What is left of a session that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Something: it is reported as lost.
    Some,
    /// Nothing: it is reported as gone.
    Nothing,
}

const FAILURE: Failure = Failure::new(FailureClass::Transport);

impl Callers {
    /// A check of `servers` servers with `callers` callers each.
    pub fn new(servers: usize, callers: usize) -> Self {
        let slice = Slice::callers();
        Self { frame: slice.frame(), slice, servers, callers }
    }

    /// Looks at every state.
    ///
    /// # Errors
    ///
    /// What is wrong, and the steps that lead to it.
    pub fn check(self) -> Result<usize, String> {
        let checker = self.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let discoveries = checker.discoveries();
        for property in checker.model().properties() {
            let found = discoveries.get(property.name);
            if property.expectation.discovery_is_failure() == found.is_some() {
                let mut text = format!("{}\n", property.name);
                for (world, happens) in found.map(|path| path.clone().into_vec()).unwrap_or_default() {
                    let next = happens.map_or_else(String::new, |happens| format!("  {happens:?}\n"));
                    text += &format!("          {world:?}\n{next}");
                }
                return Err(text);
            }
        }
        Ok(checker.unique_state_count())
    }

    fn config(&self) -> Config {
        self.slice.configs.first().copied().unwrap_or_default()
    }

    fn server(&self) -> Server {
        let mut checker = self.slice.start();
        let now = checker.now();
        let mut input = Some(Input::Connect { until: now });
        while let Some(next) = input {
            let _carried_out = checker.step(now, next);
            input = missing(checker.machine());
        }
        let proven = now + self.config().stable_after();
        let _nothing = checker.step(proven, Input::Tick);
        Server { checker: Arc::new(checker), key: 0, ago: 0, dials: 0, callers: vec![Caller::Calls; self.callers] }
            .told(&self.frame, None, &[])
    }
}

impl Server {
    /// The epoch that the callers held first.
    fn first(&self) -> Epoch {
        let newest = self.checker.newest().map_or(0, Epoch::get);
        Epoch::new(newest.saturating_sub(self.ago)).unwrap_or(Epoch::FIRST)
    }

    /// The same, after these inputs at this time.
    fn told(&self, frame: &Frame, at: Option<Timestamp>, inputs: &[Input]) -> Self {
        let mut server = self.clone();
        let mut checker = Checker::clone(&self.checker);
        let at = at.unwrap_or(checker.now());
        for input in inputs {
            for output in checker.step(at, *input) {
                if let Output::Dial { .. } = output {
                    server.dials = (server.dials + 1).min(2);
                    server.ago = (server.ago + 1).min(2);
                }
            }
        }
        checker.normalise(frame);
        checker.draw(Draw::Least);
        server.key = checker.fingerprint();
        server.checker = Arc::new(checker);
        server
    }

    fn set(mut self, caller: usize, to: Caller) -> Self {
        self.callers[caller] = to;
        self.callers.sort_unstable();
        self
    }

    /// A caller asks, as a runtime does: the machine is told, and the snapshot says whether the session is late enough.
    fn asked(&self, frame: &Frame, caller: usize) -> Self {
        let now = self.checker.now();
        let until = now + UNIT * 2;
        let server = self.told(frame, None, &[Input::Connect { until }]);
        let got = server.checker.machine().snapshot().admission(Want::SessionAfter(server.first()), until);
        let to = match (got, self.callers[caller]) {
            (Admission::Go(epoch), _) if epoch <= server.first() => Caller::Betrayed,
            (_, Caller::Saw) => Caller::Saw, // it has yet to report
            (Admission::Go(_), _) => Caller::Served,
            (Admission::Wait { .. }, _) => Caller::Waits,
            (Admission::Refuse { .. }, _) => Caller::Failed,
        };
        server.set(caller, to)
    }
}

impl Model for Callers {
    type State = World;
    type Action = Happens;

    fn init_states(&self) -> Vec<World> {
        vec![World(vec![self.server(); self.servers])]
    }

    fn actions(&self, world: &World, all: &mut Vec<Happens>) {
        let mut all_may_wait = true;
        for (index, server) in world.0.iter().enumerate() {
            for (caller, is) in server.callers.iter().enumerate() {
                if caller > 0 && server.callers[caller - 1] == *is {
                    continue; // as the one before
                }
                match is {
                    Caller::Calls => all.push(Happens::Fails(index, caller)),
                    Caller::Saw => {
                        all.push(Happens::Asks(index, caller));
                        all.extend([Left::Some, Left::Nothing].map(|left| Happens::Reports(index, caller, left)));
                    }
                    Caller::Failed | Caller::Waits => all.push(Happens::Asks(index, caller)),
                    Caller::Served | Caller::Betrayed => {}
                }
            }
            all.push(Happens::Wakes(index));
            match server.checker.machine().snapshot().state {
                State::Connecting { .. } => {
                    all_may_wait = false;
                    all.push(Happens::Reaches(index));
                }
                State::Closing { .. } => all.push(Happens::Ends(index)),
                State::Idle
                | State::Ready { .. }
                | State::TransientFailure { .. }
                | State::Parked { .. }
                | State::Shutdown => {}
            }
        }
        if all_may_wait {
            all.push(Happens::Time);
        }
    }

    fn next_state(&self, world: &World, happens: Happens) -> Option<World> {
        let mut next = world.clone();
        let frame = &self.frame;
        match happens {
            Happens::Fails(server, caller) => next.0[server] = world.0[server].clone().set(caller, Caller::Saw),
            Happens::Reports(server, caller, left) => {
                let of = &world.0[server];
                let epoch = of.first();
                let input = match left {
                    Left::Some => Input::Lost { epoch, failure: FAILURE },
                    Left::Nothing => Input::Gone { epoch, failure: FAILURE },
                };
                next.0[server] = of.told(frame, None, &[input]).set(caller, Caller::Failed);
            }
            Happens::Asks(server, caller) => next.0[server] = world.0[server].asked(frame, caller),
            Happens::Reaches(server) => {
                let of = &world.0[server];
                next.0[server] = of.told(frame, None, &[missing(of.checker.machine())?]);
            }
            Happens::Ends(server) => {
                let of = &world.0[server];
                let epoch = of.checker.newest()?;
                next.0[server] = of.told(frame, None, &[Input::Gone { epoch, failure: FAILURE }]);
            }
            Happens::Wakes(server) => {
                next.0[server] = world.0[server].told(frame, None, &[Input::Wake(WakeCause::Config)]);
            }
            Happens::Time => {
                for server in &mut next.0 {
                    *server = server.told(frame, Some(server.checker.now() + UNIT), &[Input::Tick]);
                }
            }
        }
        next.0.sort_by_cached_key(|server| (server.callers.clone(), server.key)); // nor one server from another
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("R8: however many callers saw an epoch fail, it is dialled once", |_, world: &World| {
                world.0.iter().all(|server| server.dials <= 1)
            }),
            Property::always("R8: a session that nobody saw fail is kept", |_, world: &World| {
                let unheard = |caller: &Caller| matches!(caller, Caller::Calls | Caller::Saw);
                let untouched = |server: &Server| server.callers.iter().all(unheard);
                world.0.iter().all(|server| !untouched(server) || server.dials == 0)
            }),
            Property::always("R10: nobody is given the session that it saw fail", |_, world: &World| {
                world.0.iter().all(|server| !server.callers.contains(&Caller::Betrayed))
            }),
            Property::always("R22: while it is well but for that, nobody is refused", |model, world: &World| {
                world.0.iter().all(|server| {
                    let failed = server.callers.iter().position(|is| *is == Caller::Failed);
                    failed.is_none_or(|caller| server.asked(&model.frame, caller).callers != server.callers)
                })
            }),
            Property::sometimes("everybody is served", |_, world: &World| {
                world.0.iter().all(|server| server.callers.iter().all(|caller| *caller == Caller::Served))
            }),
        ]
    }
}

impl World {
    fn keys(&self) -> impl Iterator<Item = (u64, u64, u8, &[Caller])> {
        self.0.iter().map(|server| (server.key, server.ago, server.dials, &*server.callers))
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.keys().eq(other.keys())
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for key in self.keys() {
            key.hash(state);
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = |server: &Server| format!("{} {:?}", server.checker.machine().snapshot().status, server.callers);
        f.write_str(&self.0.iter().map(seen).collect::<Vec<_>>().join("; "))
    }
}
