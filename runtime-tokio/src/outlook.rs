//! Which changes of a connection's state wake those who wait for one.

use std::mem::{Discriminant, discriminant};

use mcp_reconnect_core::{Breaker, Snapshot, State, Status, Timestamp};

/// All that a waiter goes by: snapshots that are the same in this admit, refuse and keep waiting the same callers. How far
/// a dial has got, and what goes on in a session, is not in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outlook {
    status: Status,
    state: Discriminant<State>,
    next_dial: Option<Timestamp>,
    breaker_open: Option<Timestamp>,
}

impl Outlook {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        Self {
            status: snapshot.status,
            state: discriminant(&snapshot.state),
            next_dial: snapshot.state.next_dial(),
            breaker_open: match snapshot.breaker {
                Breaker::Open { until } => Some(until),
                Breaker::Closed { .. } => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mcp_reconnect_core::testing::Walk;
    use mcp_reconnect_core::{Config, ConnectionMachine, Epoch, Input, ReadyFlag, Want};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::shared::needs_asking;

    /// What callers with all sorts of wishes are told.
    fn answers(
        snapshot: &Snapshot,
        now: Timestamp,
        near: Option<Timestamp>,
        live: Option<Epoch>,
    ) -> Vec<impl PartialEq + std::fmt::Debug + use<>> {
        let later = |nanos| now + Duration::from_nanos(nanos);
        let near =
            near.map(|at| [at, at + Duration::from_nanos(1), Timestamp::from_nanos(at.as_nanos().saturating_sub(1))]);
        let until =
            [now, later(1), later(15_000_000_000), Timestamp::MAX].into_iter().chain(near.into_iter().flatten());
        let epochs = live.into_iter().chain([Epoch::FIRST]);
        let wants: Vec<_> = epochs.map(Want::SessionAfter).chain([Want::Session]).collect();
        until.flat_map(|at| wants.iter().map(move |want| snapshot.admission(*want, at)).collect::<Vec<_>>()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })] // what is rare counts here

        /// A change that wakes nobody is none that anybody waits for.
        #[test]
        fn what_keeps_the_outlook_settles_nobody(bytes in vec(any::<u8>(), 32..4_000)) {
            let mut walk = Walk::new(&bytes);
            let mut machine = ConnectionMachine::new(walk.config(), walk.seed(), walk.start());
            while let Some((now, input)) = walk.step(&machine) {
                let before = machine.snapshot();
                let _orders = machine.handle(now, input);
                let after = machine.snapshot();
                if Outlook::of(&before) == Outlook::of(&after) {
                    let (near, live) = (before.state.next_dial(), before.state.live_epoch());
                    let told = [before, after].map(|snapshot| answers(&snapshot, now, near, live));
                    prop_assert_eq!(&told[0], &told[1], "{:?}", input);
                    prop_assert_eq!(needs_asking(&before), needs_asking(&after), "{:?}", input);
                }
            }
        }
    }

    #[test]
    fn a_dial_under_way_and_a_session_at_work_wake_nobody() {
        let mut now = Timestamp::ZERO;
        let mut machine = ConnectionMachine::new(Config::default(), 7, now);
        let mut told = |input| {
            now = now + Duration::from_secs(1);
            let before = machine.snapshot();
            let _orders = machine.handle(now, input);
            (before != machine.snapshot(), Outlook::of(&before) != Outlook::of(&machine.snapshot()))
        };
        let epoch = Epoch::FIRST;
        let reached = |flag| Input::Reached { epoch, flag };
        assert_eq!(told(Input::Connect { until: Timestamp::MAX }), (true, true));
        for flag in [ReadyFlag::Started, ReadyFlag::Transport, ReadyFlag::Initialized] {
            assert_eq!(told(reached(flag)), (true, false), "{flag:?}");
        }
        assert_eq!(told(reached(ReadyFlag::Catalogue)), (true, true));
        let inbound = Timestamp::from_origin(Duration::from_secs(6));
        assert_eq!(
            told(Input::Traffic { epoch, inbound, answered: true, served: true, answered_to: None, oldest: None }),
            (true, false)
        );
        assert_eq!(told(Input::NoReply { epoch, sent: inbound }), (true, false));
        assert_eq!(told(Input::Park), (true, true));
    }
}
