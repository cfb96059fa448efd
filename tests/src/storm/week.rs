//! Random faults over many servers for a long time, every step under the checker.

mod faults;
mod tenant;

use std::time::Duration;

use mcp_reconnect_core::{
    Admission, Breaker, Epoch, Event, FailureClass, Input, Output, ParkReason, ReadyFlags, State, Status, WakeCause,
};

use super::agenda::Agenda;
use super::dice::Dice;
use super::entrance::{Entrance, Next};
use super::{Gating, HANDSHAKE, MILLI, PATIENCE, REFUSAL, SECOND, at, nanos};
use faults::{Answer, Mood};
use tenant::Tenant;

const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// How long a call waits for its answer.
const CALL_DEADLINE: u64 = 30 * SECOND;
/// After the last fault every server is back within this: the longest probe, its lateness, a hint and a long start.
const HEALED_WITHIN: u64 = HOUR;

/// Servers of one host, behind one gate of 32, with random faults: of each server, of the network, of the host, and of
/// people.
#[derive(Clone, Copy, Debug)]
pub struct Week {
    /// How many servers.
    pub servers: u32,
    /// How long faults happen.
    pub lasts: Duration,
    /// For the faults and all jitter.
    pub seed: u64,
}

/// What a [`Week`] has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Inputs given to machines.
    pub steps: u64,
    /// Dials that left the gate.
    pub dials: u64,
    /// Sessions that became ready.
    pub sessions: u64,
    /// Sessions and starts that the machines gave up by themselves: start deadline, no answer to pings.
    pub start_timeouts: u64,
    /// See [`start_timeouts`](Self::start_timeouts).
    pub unresponsive: u64,
    /// Parks for each reason: exhausted, flapping, permanent, needs auth, requested.
    pub parks: [u64; 5],
    /// Times that a breaker opened.
    pub breakers: u64,
    /// Times that the host slept.
    pub sleeps: u64,
    /// Times that every server was gone at once.
    pub blackouts: u64,
    /// The most slots of the gate in use at a time.
    pub slots: u32,
}

/// What is on the agenda.
enum What {
    /// A machine's timer, as it was noted for that time.
    Due(u32, u64),
    Gate,
    /// The server answers a dial.
    Answer(u32, Epoch, Answer),
    Gone(u32, Epoch),
    /// The answer to a ping or a listing that was sent then.
    Pong(u32, Epoch, u64),
    Listing(u32, Epoch, u64),
    /// Somebody calls, a call ends.
    Call(u32),
    Returned(u32, Epoch, u64),
    /// The server's mood changes.
    Turn(u32),
    /// Somebody does something to a connection.
    Somebody(u32),
    /// Who was parked on request is wanted again.
    Woken(u32),
    Sleep,
    Blackout,
    LightsOn,
}

struct Run {
    now: u64,
    agenda: Agenda<What>,
    dice: Dice,
    tenants: Vec<Tenant>,
    entrance: Entrance,
    /// The faults are over.
    healing: bool,
    seen: Seen,
}

impl Week {
    /// Runs it, then lets everything heal.
    ///
    /// # Panics
    ///
    /// With the number of a rule where a machine breaks one; where a server is not back an hour after the last fault.
    pub fn run(&self) -> Seen {
        let mut dice = Dice::new(self.seed);
        let mut run = Run {
            now: 0,
            agenda: Agenda::new(),
            tenants: (0..self.servers).map(|_| Tenant::new(&mut dice)).collect(),
            dice,
            entrance: Entrance::new(Gating::Gate, 32),
            healing: false,
            seen: Seen::default(),
        };
        for who in 0..self.servers {
            run.give(who, Input::Connect { until: at(0) });
            for what in [What::Turn(who), What::Call(who), What::Somebody(who)] {
                run.soon(2 * MINUTE, what);
            }
        }
        run.soon(16 * HOUR, What::Sleep);
        run.soon(6 * HOUR, What::Blackout);
        run.until(nanos(self.lasts));
        run.heal();
        Seen { slots: run.entrance.peak(), ..run.seen }
    }
}

impl Run {
    /// Some time within the next `most`.
    fn soon(&mut self, most: u64, what: What) {
        let wait = self.dice.up_to(most);
        self.agenda.add(self.now + wait, what);
    }

    fn until(&mut self, end: u64) {
        while let Some((due, what)) = self.agenda.next() {
            // After a sleep things are late.
            self.now = self.now.max(due);
            self.happen(what);
            if self.now >= end {
                return;
            }
        }
    }

    fn heal(&mut self) {
        self.healing = true;
        for who in 0..self.tenants.len() as u32 {
            let tenant = &mut self.tenants[who as usize];
            tenant.mood = Mood::Well;
            tenant.deaf = false;
            let cause = match tenant.status() {
                Status::Parked(ParkReason::Requested) => WakeCause::Operator,
                Status::Parked(ParkReason::NeedsAuth) => WakeCause::Credentials,
                Status::Parked(_)
                | Status::Idle
                | Status::Connecting
                | Status::Ready(_)
                | Status::TransientFailure
                | Status::Shutdown => continue,
            };
            self.give(who, Input::Wake(cause));
        }
        self.until(self.now + HEALED_WITHIN);
        // One that was put to rest is well, and so is one that is renewed just now, if it was not a minute later.
        let unwell = |run: &Self| -> Vec<usize> {
            let is_well = |tenant: &Tenant| matches!(tenant.status(), Status::Ready(_) | Status::Idle);
            (0..run.tenants.len()).filter(|who| !is_well(&run.tenants[*who])).collect()
        };
        let first = unwell(self);
        self.until(self.now + MINUTE);
        for who in unwell(self) {
            let snapshot = self.tenants[who].checker.machine().snapshot();
            assert!(!first.contains(&who), "server {who} is not back after an hour without faults: {snapshot:?}");
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Due(who, noted) => self.due(who, noted),
            What::Gate => self.serve(),
            What::Answer(who, epoch, answer) => self.answer(who, epoch, answer),
            What::Gone(who, epoch) => {
                self.tenants[who as usize].pass = None;
                self.give(who, Input::Gone { epoch, failure: FailureClass::Transport.into() });
            }
            What::Pong(who, epoch, asked) => self.pong(who, epoch, asked),
            What::Listing(who, epoch, asked) => self.listing(who, epoch, asked),
            What::Call(who) => self.call(who),
            What::Returned(who, epoch, sent) => self.returned(who, epoch, sent),
            What::Woken(who) => {
                self.give(who, Input::Wake(WakeCause::Operator));
            }
            What::Turn(who) if !self.healing => self.turn(who),
            What::Somebody(who) if !self.healing => self.somebody(who),
            What::Sleep if !self.healing => self.sleep(),
            What::Blackout if !self.healing => self.blackout(),
            What::LightsOn if !self.healing => self.tenants.iter_mut().for_each(|tenant| tenant.mood = Mood::Well),
            What::Turn(_) | What::Somebody(_) | What::Sleep | What::Blackout | What::LightsOn => {}
        }
    }

    /// Gives a machine an input now, and carries out its orders. The answer, where it was a `Connect`.
    fn give(&mut self, who: u32, input: Input) -> Option<Admission> {
        let mut admission = None;
        self.seen.steps += 1;
        for output in self.tenants[who as usize].checker.step(at(self.now), input) {
            match output {
                Output::Dial { epoch, .. } => {
                    self.entrance.enqueue(who, epoch);
                    self.serve();
                }
                Output::Close { epoch, cause } => {
                    self.closes(cause);
                    let takes = self.dice.one([1, 50, 50, 8_000, 20_000]);
                    self.agenda.add(self.now + takes * MILLI, What::Gone(who, epoch));
                }
                Output::Ping { epoch } => self.agenda.add(self.now + 20 * MILLI, What::Pong(who, epoch, self.now)),
                Output::Ask { epoch } => self.agenda.add(self.now + 20 * MILLI, What::Listing(who, epoch, self.now)),
                Output::Admit(answer) => admission = Some(answer),
                Output::Publish { .. } => self.seen.sessions += 1,
                Output::Event(Event::StatusChanged { status: Status::Parked(reason), .. }) => {
                    self.seen.parks[reason as usize] += 1;
                }
                Output::Event(Event::BreakerChanged { open_until: Some(_) }) => self.seen.breakers += 1,
                Output::Withdraw | Output::Event(_) => {}
            }
        }
        self.note_timer(who);
        admission
    }

    fn note_timer(&mut self, who: u32) {
        let tenant = &mut self.tenants[who as usize];
        if let Some(due) = tenant.checker.machine().next_timeout().map(|due| due.as_nanos())
            && tenant.looks_at.is_none_or(|looks_at| due < looks_at)
        {
            tenant.looks_at = Some(due);
            self.agenda.add(due, What::Due(who, due));
        }
    }

    /// A machine's timer, unless an earlier one took its place or it was put off.
    fn due(&mut self, who: u32, noted: u64) {
        let tenant = &mut self.tenants[who as usize];
        if tenant.looks_at != Some(noted) {
            return;
        }
        tenant.looks_at = None;
        if tenant.checker.machine().next_timeout().is_some_and(|due| due <= at(self.now)) {
            self.sample(who);
            self.give(who, Input::Tick);
        } else {
            self.note_timer(who);
        }
    }

    /// What a driver reports of a live session before it gives a tick or a `NoReply`.
    fn sample(&mut self, who: u32) {
        let tenant = &mut self.tenants[who as usize];
        if let State::Ready { epoch, since, .. } = tenant.checker.machine().snapshot().state {
            tenant.inbound = tenant.inbound.max(since.as_nanos());
            let answered = std::mem::take(&mut tenant.answered);
            let (inbound, oldest) = (at(tenant.inbound), tenant.call.map(at));
            let answered_to = tenant.answered_to.take().map(at);
            self.give(who, Input::Traffic { epoch, inbound, answered, served: answered, answered_to, oldest });
        }
    }

    fn serve(&mut self) {
        loop {
            let tenants = &self.tenants;
            match self.entrance.next(self.now, |who, epoch| tenants[who as usize].is_dialling(epoch)) {
                Next::Start { who, epoch, pass } => {
                    self.seen.dials += 1;
                    self.tenants[who as usize].pass = Some(pass);
                    self.give(who, Input::Reached { epoch, flag: ReadyFlags::ALL[0] });
                    self.dialled(who, epoch);
                }
                Next::Look { at } => return self.agenda.add(at, What::Gate),
                Next::Nothing => return,
            }
        }
    }

    fn answer(&mut self, who: u32, epoch: Epoch, answer: Answer) {
        if !self.tenants[who as usize].is_dialling(epoch) {
            return;
        }
        match answer {
            Answer::Fails(failure) => {
                self.tenants[who as usize].pass = None;
                self.give(who, Input::Gone { epoch, failure });
            }
            Answer::Ready { hangs_up } => {
                for flag in ReadyFlags::ALL.into_iter().skip(1) {
                    self.give(who, Input::Reached { epoch, flag });
                }
                let now = self.now;
                let tenant = &mut self.tenants[who as usize];
                tenant.began(now);
                if let Some(pass) = tenant.pass.take() {
                    self.entrance.ready(now, pass);
                    self.serve();
                }
                if hangs_up {
                    let lasts = self.dice.one([REFUSAL, SECOND, 9 * SECOND]);
                    self.agenda.add(self.now + lasts, What::Gone(who, epoch));
                }
            }
        }
    }

    fn pong(&mut self, who: u32, epoch: Epoch, asked: u64) {
        let tenant = &mut self.tenants[who as usize];
        if tenant.session() != Some(epoch) || tenant.deaf || tenant.call.is_some() {
            return;
        }
        if tenant.knows_pings {
            tenant.inbound = self.now;
            tenant.answered_to = Some(asked);
            self.sample(who);
            self.give(who, Input::Pong { epoch });
        } else if tenant.says_so {
            tenant.inbound = self.now;
            self.give(who, Input::PingUnsupported { epoch });
        }
    }

    /// A listing is answered, unless the server is deaf or at work.
    fn listing(&mut self, who: u32, epoch: Epoch, asked: u64) {
        let tenant = &mut self.tenants[who as usize];
        if tenant.session() == Some(epoch) && !tenant.deaf && tenant.call.is_none() {
            tenant.inbound = self.now;
            tenant.answered_to = Some(asked);
            let took = Duration::from_nanos(self.now - asked);
            self.give(who, Input::Listed { epoch, took });
        }
    }

    fn call(&mut self, who: u32) {
        let often = self.tenants[who as usize].calls_every;
        self.soon(2 * often, What::Call(who));
        if self.tenants[who as usize].call.is_some() {
            return;
        }
        let snapshot = self.tenants[who as usize].checker.machine().snapshot();
        let epoch = match (snapshot.state, snapshot.breaker) {
            (State::Ready { epoch, .. }, Breaker::Closed { strikes: 0 }) => epoch,
            _ => match self.give(who, Input::Connect { until: at(self.now + PATIENCE) }) {
                Some(Admission::Go(epoch)) => epoch,
                Some(Admission::Wait { .. } | Admission::Refuse { .. }) | None => return,
            },
        };
        let takes = match self.tenants[who as usize].deaf {
            true => CALL_DEADLINE,
            false if self.dice.once_in(100) => self.dice.up_to(10 * MINUTE),
            false => self.dice.up_to(SECOND),
        };
        self.tenants[who as usize].call = Some(self.now);
        self.agenda.add(self.now + takes, What::Returned(who, epoch, self.now));
    }

    fn returned(&mut self, who: u32, epoch: Epoch, sent: u64) {
        let tenant = &mut self.tenants[who as usize];
        if tenant.session() != Some(epoch) || tenant.call != Some(sent) {
            return;
        }
        tenant.call = None;
        if tenant.deaf {
            self.sample(who);
            self.give(who, Input::NoReply { epoch, sent: at(sent) });
            return;
        }
        tenant.inbound = self.now;
        tenant.answered = true;
        tenant.answered_to = tenant.answered_to.max(Some(sent));
        // The first answer while there are strikes is told at once.
        if tenant.checker.machine().snapshot().breaker != (Breaker::Closed { strikes: 0 }) {
            self.sample(who);
        }
    }

    fn dialled(&mut self, who: u32, epoch: Epoch) {
        let mood = self.tenants[who as usize].mood;
        let takes = if matches!(mood, Mood::Well | Mood::Deaf) { HANDSHAKE } else { REFUSAL };
        if let Some(answer) = mood.answers(&mut self.dice) {
            self.agenda.add(self.now + takes, What::Answer(who, epoch, answer));
        }
    }
}
