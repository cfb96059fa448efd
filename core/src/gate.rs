use core::fmt;
use core::time::Duration;

use crate::time::Timestamp;

/// How long a dial that does not become ready holds its slot.
const HOLD: Duration = Duration::from_secs(1);

/// Bounds how many dials of many connections start at once: a fixed number of slots, each held until its dial is
/// ready or one second has passed, whichever is first.
///
/// So dials that fail or hang start at most `max_dials` times a second, dials that succeed flow as fast as they end,
/// and no server holds a slot for longer than a second. A failed dial does *not* give its slot back early: a gate
/// that did would bound nothing while servers refuse.
///
/// The gate counts; the queue is its owner's: keep waiting dials in order, and [`admit`](Self::admit) the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DialGate {
    /// When each slot in use was taken.
    taken: [Option<Timestamp>; Self::MAX_DIALS as usize],
    max_dials: u8,
}

/// A slot of a [`DialGate`]: give it back with [`DialGate::release`] when the dial is ready.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    index: u8,
    taken: Timestamp,
}

/// The answer of a [`DialGate`] to the first in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gate {
    /// Dial now.
    Go(Slot),
    /// Every slot is taken: ask again then, or when one was released.
    Wait {
        /// When the oldest slot falls free by itself; later than now.
        until: Timestamp,
    },
}

/// A number of slots that a [`DialGate`] cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaxDialsError(pub u8);

impl fmt::Display for MaxDialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`max_dials` is {}, not between 1 and {}", self.0, DialGate::MAX_DIALS)
    }
}

impl core::error::Error for MaxDialsError {}

impl Default for DialGate {
    /// 32 slots.
    fn default() -> Self {
        Self { taken: [None; Self::MAX_DIALS as usize], max_dials: 32 }
    }
}

impl DialGate {
    /// The most slots a gate can have.
    pub const MAX_DIALS: u8 = 128;

    /// A gate with `max_dials` slots, all free.
    ///
    /// # Errors
    ///
    /// `max_dials` is zero or above [`DialGate::MAX_DIALS`].
    pub const fn new(max_dials: u8) -> Result<Self, MaxDialsError> {
        if max_dials == 0 || max_dials > Self::MAX_DIALS {
            return Err(MaxDialsError(max_dials));
        }
        Ok(Self { taken: [None; Self::MAX_DIALS as usize], max_dials })
    }

    /// Another number of slots from now on. Dials that have one keep it.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); then nothing has changed.
    pub const fn resize(&mut self, max_dials: u8) -> Result<(), MaxDialsError> {
        if max_dials == 0 || max_dials > Self::MAX_DIALS {
            return Err(MaxDialsError(max_dials));
        }
        self.max_dials = max_dials;
        Ok(())
    }

    /// Takes a slot for a dial that starts now, or says when to ask again.
    pub fn admit(&mut self, now: Timestamp) -> Gate {
        let mut until = Timestamp::MAX + HOLD;
        let (mut used, mut free) = (0, None);
        // All of them: after a resize more may be in use than there are now.
        for (slot, index) in self.taken.iter_mut().zip(0..) {
            match *slot {
                Some(taken) if now < taken + HOLD => {
                    used += 1;
                    until = until.min(taken + HOLD);
                }
                Some(_) | None => free = free.or(Some((slot, index))),
            }
        }
        match free {
            Some((slot, index)) if used < self.max_dials => {
                *slot = Some(now);
                Gate::Go(Slot { index, taken: now })
            }
            Some(_) | None => Gate::Wait { until },
        }
    }

    /// Gives a slot back early. Nothing happens where its second has passed and another dial has it.
    pub fn release(&mut self, slot: Slot) {
        if let Some(taken) = self.taken.get_mut(usize::from(slot.index))
            && *taken == Some(slot.taken)
        {
            *taken = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::{DialGate, Gate, HOLD, MaxDialsError, Slot, Timestamp};

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_origin(Duration::from_millis(millis))
    }

    fn go(gate: &mut DialGate, now: Timestamp) -> Slot {
        let Gate::Go(slot) = gate.admit(now) else { panic!("refused at {now:?}: {gate:?}") };
        slot
    }

    #[test]
    fn dials_that_hang_start_at_most_max_dials_times_a_second() {
        let mut gate = DialGate::new(2).unwrap();
        go(&mut gate, at(0));
        go(&mut gate, at(300));
        assert_eq!(gate.admit(at(999)), Gate::Wait { until: at(1000) });
        go(&mut gate, at(1000));
        assert_eq!(gate.admit(at(1000)), Gate::Wait { until: at(1300) });
    }

    #[test]
    fn a_ready_dial_gives_its_slot_back_once() {
        let mut gate = DialGate::new(1).unwrap();
        let first = go(&mut gate, at(0));
        gate.release(first);
        let second = go(&mut gate, at(5));
        gate.release(first); // its second start is not the first's to give back
        assert_eq!(gate.admit(at(6)), Gate::Wait { until: at(1005) });
        gate.release(second);
        go(&mut gate, at(6));
    }

    #[test]
    fn dials_that_succeed_flow_as_fast_as_they_end() {
        let mut gate = DialGate::new(2).unwrap();
        for millis in 0..1_000 {
            let slot = go(&mut gate, at(millis));
            gate.release(slot);
        }
    }

    #[test]
    fn fewer_slots_count_those_that_are_still_in_use() {
        let mut gate = DialGate::new(4).unwrap();
        let slots = [0, 100, 200, 300].map(|millis| go(&mut gate, at(millis)));
        gate.resize(2).unwrap();
        gate.release(slots[0]);
        assert_eq!(gate.admit(at(400)), Gate::Wait { until: at(1100) }, "three of two are in use");
        gate.release(slots[1]);
        assert_eq!(gate.admit(at(400)), Gate::Wait { until: at(1200) });
        gate.release(slots[2]);
        go(&mut gate, at(400));
        gate.resize(4).unwrap();
        go(&mut gate, at(400));
        go(&mut gate, at(400));
        assert_eq!(gate.admit(at(400)), Gate::Wait { until: at(1300) });
    }

    #[test]
    fn slots_fall_free_at_the_end_of_time_too() {
        let mut gate = DialGate::new(1).unwrap();
        go(&mut gate, Timestamp::MAX);
        assert_eq!(gate.admit(Timestamp::MAX), Gate::Wait { until: Timestamp::MAX + HOLD });
    }

    #[test]
    fn a_number_of_slots_that_cannot_be_is_refused_by_name() {
        let mut gate = DialGate::new(3).unwrap();
        for wrong in [0, 129, 255] {
            assert_eq!(DialGate::new(wrong), Err(MaxDialsError(wrong)));
            assert_eq!(gate.resize(wrong), Err(MaxDialsError(wrong)));
        }
        assert_eq!(Ok(gate), DialGate::new(3));
        for right in [1, 128] {
            let mut gate = DialGate::new(right).unwrap();
            assert_eq!(gate.resize(right), Ok(()));
            for _ in 0..right {
                go(&mut gate, at(0));
            }
            assert_eq!(gate.admit(at(0)), Gate::Wait { until: at(1_000) });
        }
    }

    #[test]
    fn there_are_32_slots_unless_another_number_is_asked_for() {
        assert_eq!(Ok(DialGate::default()), DialGate::new(32));
    }
}
