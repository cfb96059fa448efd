//! The requests that may be sent again after their link failed: a pure table.
//!
//! Source of the rule that a tool call is not repeated by default: MCP's tool annotations (`readOnlyHint`,
//! `idempotentHint`), whose absence means "may change things, and a second run may change them again".

/// How far a request got before its link failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Sent {
    /// No byte of it left us.
    No,
    /// The session gate refused it; no handler ran.
    Refused,
    /// Any byte of it may have reached the server: it may have run.
    Maybe,
}

/// The effect of a second run of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Effect {
    /// Nothing: listing and reading requests of the protocol itself.
    Listing,
    /// Nothing that counts: a tool annotated read-only or idempotent by the epoch that sent it.
    Annotated,
    /// Unknown: a tool without such an annotation, or a request nobody knows.
    Unknown,
}

/// Which requests the caller allows to be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum ReplayPolicy {
    /// Only what provably did not run.
    NotRun,
    /// Requests that did not run, listing requests, and tools annotated read-only or idempotent.
    #[default]
    Annotated,
    /// Everything: the caller vouches that a second run does no harm.
    Always,
}

/// The decision about a request whose link failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReplayDecision {
    /// Send it once more, on a fresh session.
    Resend,
    /// Tell the caller that nothing ran.
    NotSent,
    /// Tell the caller that it may have run.
    OutcomeUnknown,
}

impl ReplayPolicy {
    /// Decides about a request that got as far as `sent` when its link failed.
    ///
    /// `effect` is what a second run does, by the epoch that sent it. `resends` counts how often the request has been
    /// sent again already: what reached a server is sent again once, what never left us again and again (each time
    /// needs a fresh session, so the machine paces it). `round` is the `input_required` round, counted from 1: from
    /// the second on the request ran in part, whatever became of this round's frame.
    pub const fn decide(self, sent: Sent, effect: Effect, resends: u32, round: u32) -> ReplayDecision {
        let sent = if round > 1 { Sent::Maybe } else { sent };
        let allowed = match (sent, self, effect) {
            (Sent::No, ..) => return ReplayDecision::Resend,
            (Sent::Refused, ..) | (_, Self::Always, _) | (_, Self::Annotated, Effect::Listing | Effect::Annotated) => {
                true
            }
            (Sent::Maybe, Self::NotRun, _) | (Sent::Maybe, Self::Annotated, Effect::Unknown) => false,
        };
        match (allowed && resends == 0, sent) {
            (true, _) => ReplayDecision::Resend,
            (false, Sent::No | Sent::Refused) => ReplayDecision::NotSent,
            (false, Sent::Maybe) => ReplayDecision::OutcomeUnknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Effect, ReplayDecision, ReplayPolicy, Sent};

    const EFFECTS: [Effect; 3] = [Effect::Listing, Effect::Annotated, Effect::Unknown];
    const REPLAYS: [ReplayPolicy; 3] = [ReplayPolicy::NotRun, ReplayPolicy::Annotated, ReplayPolicy::Always];

    #[test]
    fn what_never_left_is_sent_again_and_what_was_refused_once() {
        for effect in EFFECTS {
            for replay in REPLAYS {
                assert_eq!(replay.decide(Sent::No, effect, 7, 1), ReplayDecision::Resend);
                assert_eq!(replay.decide(Sent::Refused, effect, 0, 1), ReplayDecision::Resend);
                assert_eq!(replay.decide(Sent::Refused, effect, 1, 1), ReplayDecision::NotSent);
            }
        }
    }

    #[test]
    fn what_may_have_run_is_sent_again_only_by_annotation_or_leave() {
        for effect in EFFECTS {
            assert_eq!(ReplayPolicy::NotRun.decide(Sent::Maybe, effect, 0, 1), ReplayDecision::OutcomeUnknown);
            assert_eq!(ReplayPolicy::Always.decide(Sent::Maybe, effect, 0, 1), ReplayDecision::Resend);
            for replay in REPLAYS {
                assert_eq!(replay.decide(Sent::Maybe, effect, 1, 1), ReplayDecision::OutcomeUnknown);
            }
        }
        assert_eq!(ReplayPolicy::Annotated.decide(Sent::Maybe, Effect::Unknown, 0, 1), ReplayDecision::OutcomeUnknown);
        assert_eq!(ReplayPolicy::Annotated.decide(Sent::Maybe, Effect::Annotated, 0, 1), ReplayDecision::Resend);
        assert_eq!(ReplayPolicy::Annotated.decide(Sent::Maybe, Effect::Listing, 0, 1), ReplayDecision::Resend);
    }

    #[test]
    fn a_second_input_required_round_has_run_in_any_case() {
        for sent in [Sent::No, Sent::Refused, Sent::Maybe] {
            assert_eq!(ReplayPolicy::Annotated.decide(sent, Effect::Unknown, 0, 2), ReplayDecision::OutcomeUnknown);
        }
    }
}
