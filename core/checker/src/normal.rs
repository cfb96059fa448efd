//! Checkers up to what no later step can tell apart.

use core::hash::{Hash, Hasher};

use mcp_reconnect_core::normal::{Draw, Frame, View};
use mcp_reconnect_core::{ConfigBuilder, Epoch, PingSupport, Timestamp};

use crate::checker::Checker;
use crate::model::{Model, Pace, Phase};

impl Model {
    fn normalise(&mut self, frame: &Frame) {
        let view = View::new(frame, self.now, self.last.map(|(epoch, _)| epoch));
        let mut begun = None;
        if let (Some(life), Phase::Up { since, .. }) = (&mut self.life, self.phase) {
            life.served |= life.heard.since(since) >= frame.stable;
            let question = life.asked.map(|asked| asked.since).or(life.resumed);
            let [heard, ..] = view.ranked([Some(life.heard), life.open, question]);
            begun = Some(view.begun(since, life.heard, heard.unwrap_or(View::NOW), life.served));
        }
        self.phase = match self.phase {
            Phase::Nothing => Phase::Nothing,
            Phase::Dialling { epoch, deadline, flags } => {
                Phase::Dialling { epoch: view.epoch(epoch), deadline: view.due(deadline), flags }
            }
            Phase::Up { epoch, since } => Phase::Up { epoch: view.epoch(epoch), since: begun.unwrap_or(since) },
            Phase::Closing { epoch, deadline } => {
                Phase::Closing { epoch: view.epoch(epoch), deadline: view.due(deadline) }
            }
        };
        if let Some(next) = &mut self.next {
            next.from = view.due(next.from);
            next.to = view.due(next.to);
            next.pace = Pace::AtOnce; // which rule speaks, not what it says
        }
        self.ladder = self.ladder.min(frame.ladder);
        self.outage = self.outage.map(|at| view.past(at, frame.outage));
        self.hint_until = view.future(self.hint_until);
        self.class = self.class.map(|class| view.class(class));
        self.refused &= frame.quick && self.last.is_some_and(|(_, at)| self.now.since(at) < frame.pace);
        self.demand = view.future(self.demand);
        self.last = self.last.map(|(epoch, at)| (view.epoch(epoch), view.past(at, frame.pace)));
        self.probes = self.probes.min(frame.probes.into());
        self.asks = self.asks.min(frame.asks.into());
        self.listing = view.listing(self.listing);
        self.open_until = self.open_until.map(|at| view.due(at));
        self.struck = self.struck.map(|at| view.sent(at));
        if let Some(life) = &mut self.life {
            let question = life.asked.map(|asked| asked.since).or(life.resumed);
            let [heard, open, question] = view.ranked([Some(life.heard), life.open, question]);
            life.heard = heard.unwrap_or(View::NOW);
            life.open = open;
            life.answered_to = life.answered_to.map(|at| view.sent(at));
            let question = question.unwrap_or(View::NOW);
            if let Some(asked) = &mut life.asked {
                asked.since = question;
                asked.deadline = view.due(asked.deadline);
            }
            life.resumed = life.resumed.map(|_| question);
            life.next = life.next.map(|(from, to)| (view.question(from), view.question(to)));
            life.rest_at = life.rest_at.map(|at| view.due(at));
            life.renew_at = life.renew_at.map(|at| view.due(at));
        }
        self.status = view.status(self.status);
        // The newest epoch is dead, or the one before: that there was none before the first changes nothing.
        self.dead = self.last.and(self.dead.map(|epoch| view.epoch(epoch)).or(Epoch::new(View::NEWEST - 1)));
        self.now = View::NOW;
    }
}

impl Checker {
    /// Makes this checker, its machine and what its rules know, the one that stands for all that no later step tells
    /// apart from it.
    pub fn normalise(&mut self, frame: &Frame) {
        self.machine.normalise(frame);
        self.model.normalise(frame);
        if let Some(patient) = &mut self.patient {
            let config = self.machine.config();
            let strikes = patient.config().breaker_strikes();
            let other = ConfigBuilder::from(*config).breaker_strikes(strikes).build().unwrap_or(*config);
            *patient = self.machine.with_breaker_of(other);
        }
    }

    /// Times and epochs as this checker's normalised twin names them.
    pub const fn view<'a>(&self, frame: &'a Frame) -> View<'a> {
        View::new(frame, self.now(), self.newest())
    }

    /// The last time that it was told.
    pub const fn now(&self) -> Timestamp {
        self.model.now
    }

    /// The epoch of the last dial.
    pub const fn newest(&self) -> Option<Epoch> {
        self.machine.newest()
    }

    /// Decides the next draw of the jitter, where at most three values are possible.
    pub const fn draw(&mut self, draw: Draw) {
        self.machine.draw(draw);
        if let Some(patient) = &mut self.patient {
            patient.draw(draw);
        }
    }

    /// The server is known to refuse pings.
    #[must_use]
    pub const fn without_pings(mut self) -> Self {
        self.machine.set_pings(PingSupport::Refuses);
        if let Some(patient) = &mut self.patient {
            patient.set_pings(PingSupport::Refuses);
        }
        self.model.pings = PingSupport::Refuses;
        self
    }

    /// A number for what the machine and its rules know; another one for another state, but for one chance in 2^64.
    pub fn fingerprint(&self) -> u64 {
        let mut words = Words(0);
        self.machine.hash(&mut words);
        self.model.hash(&mut words);
        words.finish()
    }
}

/// The folded products of the words of a state.
struct Words(u64);

impl Words {
    const fn word(&mut self, word: u64) {
        let product = (self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xbf58_476d_1ce4_e5b9;
        self.0 = (product as u64 ^ (product >> 64) as u64).rotate_left(23);
    }
}

impl Hasher for Words {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.word(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.word(word);
    }
}
