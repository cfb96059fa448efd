use std::collections::VecDeque;

use mcp_reconnect_core::{DialGate, Epoch, Gate, Slot};

use super::{Gating, SECOND, at};

/// The queue of one process in front of its gate: first come, first served.
///
/// Keeps an account of its own of the slots in use: dials younger than a second that have not become ready.
pub(super) struct Entrance {
    gating: Gating,
    gate: DialGate,
    queue: VecDeque<(u32, Epoch)>,
    /// When the queue is looked at again.
    asks_at: Option<u64>,
    started: VecDeque<Started>,
    dials: u64,
    in_use: u32,
    peak: u32,
}

struct Started {
    number: u64,
    at: u64,
    ready: bool,
}

/// What a dial that may begin gives back at its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    slot: Option<Slot>,
    number: u64,
}

/// What follows a look at the queue.
pub(super) enum Next {
    /// This dial begins.
    Start { who: u32, epoch: Epoch, pass: Pass },
    /// Look again then.
    Look { at: u64 },
    /// Nobody waits, or the next look is settled.
    Nothing,
}

impl Entrance {
    /// # Panics
    ///
    /// If a gate cannot have so many slots.
    pub(super) fn new(gating: Gating, max_dials: u8) -> Self {
        Self {
            gating,
            gate: DialGate::new(max_dials).expect("a number of slots that a gate can have"),
            queue: VecDeque::new(),
            asks_at: None,
            started: VecDeque::new(),
            dials: 0,
            in_use: 0,
            peak: 0,
        }
    }

    pub(super) fn enqueue(&mut self, who: u32, epoch: Epoch) {
        self.queue.push_back((who, epoch));
    }

    /// Lets the first in the queue go, if the gate does. Who is not `wanted` any more has left the queue.
    pub(super) fn next(&mut self, now: u64, wanted: impl Fn(u32, Epoch) -> bool) -> Next {
        while let Some(&(who, epoch)) = self.queue.front() {
            if !wanted(who, epoch) {
                self.queue.pop_front();
                continue;
            }
            let slot = match self.gating {
                Gating::None => None,
                Gating::Gate | Gating::FreedByFailure => match self.gate.admit(at(now)) {
                    Gate::Go(slot) => Some(slot),
                    Gate::Wait { until } if self.asks_at.is_some_and(|at| now < at && at <= until.as_nanos()) => {
                        return Next::Nothing;
                    }
                    Gate::Wait { until } => {
                        self.asks_at = Some(until.as_nanos());
                        return Next::Look { at: until.as_nanos() };
                    }
                },
            };
            self.queue.pop_front();
            return Next::Start { who, epoch, pass: Pass { slot, number: self.count(now) } };
        }
        Next::Nothing
    }

    fn count(&mut self, now: u64) -> u64 {
        while let Some(first) = self.started.front()
            && first.at + SECOND <= now
        {
            self.in_use -= u32::from(!first.ready);
            self.started.pop_front();
        }
        self.dials += 1;
        self.started.push_back(Started { number: self.dials, at: now, ready: false });
        self.in_use += 1;
        self.peak = self.peak.max(self.in_use);
        self.dials
    }

    pub(super) fn ready(&mut self, now: u64, pass: Pass) {
        if let Some(slot) = pass.slot {
            self.gate.release(slot);
        }
        if let Ok(index) = self.started.binary_search_by_key(&pass.number, |started| started.number)
            && let Some(started) = self.started.get_mut(index)
            && now < started.at + SECOND
        {
            started.ready = true;
            self.in_use -= 1;
        }
    }

    pub(super) fn failed(&mut self, pass: Pass) {
        if let (Gating::FreedByFailure, Some(slot)) = (self.gating, pass.slot) {
            self.gate.release(slot);
        }
    }

    /// The most slots that were in use at a time, by the account.
    pub(super) const fn peak(&self) -> u32 {
        self.peak
    }
}
