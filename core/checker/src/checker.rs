use mcp_reconnect_core::{Config, ConfigBuilder, ConnectionMachine, Input, Outputs, Timestamp};

use super::model::{Expected, Model, Step};
use super::rules;

/// Which rules a [`Checker`] checks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rules(u32);

impl Rules {
    /// Every rule.
    pub const ALL: Self = Self(!0);

    /// One rule, by its number (1 to 24).
    #[must_use]
    pub const fn only(number: u8) -> Self {
        Self(1 << number)
    }

    /// All of these but one.
    #[must_use]
    pub const fn without(self, number: u8) -> Self {
        Self(self.0 & !(1 << number))
    }

    /// Whether this rule is checked.
    pub const fn contains(self, number: u8) -> bool {
        self.0 & 1 << number != 0
    }
}

/// A machine, and a check of each of its steps against the rules.
///
/// The expected outputs come from a model that sees inputs and outputs alone. Rules that compare two courses (a stale
/// report and a tick, say) try both on copies of the machine.
#[derive(Clone, Debug)]
pub struct Checker {
    pub(super) machine: ConnectionMachine,
    /// Given the same inputs: R4.
    twin: Option<ConnectionMachine>,
    /// Given the same inputs, with another breaker: R21.
    pub(super) patient: Option<ConnectionMachine>,
    pub(super) model: Model,
    rules: Rules,
}

/// One step, as a rule sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    /// The machine before the step.
    pub(super) machine: &'a ConnectionMachine,
    /// The machine after it.
    pub(super) next: &'a ConnectionMachine,
    /// The model before the step.
    pub(super) before: &'a Model,
    /// The model after it.
    pub(super) after: &'a Model,
    pub(super) step: &'a Step,
    pub(super) want: &'a Expected,
    /// The time as given.
    pub(super) given: Timestamp,
}

impl Checker {
    /// A new machine under these rules.
    pub fn new(config: Config, seed: u64, now: Timestamp, rules: Rules) -> Self {
        let machine = ConnectionMachine::new(config, seed, now);
        let other = if config.breaker_strikes() == u8::MAX { 1 } else { u8::MAX };
        let patient = ConfigBuilder::from(config).breaker_strikes(other).build();
        Self {
            twin: rules.contains(4).then(|| machine.clone()),
            patient: patient
                .ok()
                .filter(|_| rules.contains(21))
                .map(|config| ConnectionMachine::new(config, seed, now)),
            machine,
            model: Model::new(config, now),
            rules,
        }
    }

    /// The machine.
    pub const fn machine(&self) -> &ConnectionMachine {
        &self.machine
    }

    /// Gives the machine this input.
    ///
    /// # Panics
    ///
    /// With the number of a rule and a sentence, where the rule does not hold.
    pub fn step(&mut self, given: Timestamp, input: Input) -> Outputs {
        let machine = self.machine.clone();
        let before = self.model;
        let now = before.now.max(given.min(Timestamp::MAX));
        let out = self.machine.handle(given, input);
        let step = Step { now, input, out, after: self.machine.snapshot() };
        let want = self.model.apply(&step);
        let look = Look {
            machine: &machine,
            next: &self.machine,
            before: &before,
            after: &self.model,
            step: &step,
            want: &want,
            given,
        };
        for (number, rule) in (1..).zip(rules::ALL) {
            if self.rules.contains(number) {
                rule(&look);
            }
        }
        if let Some(twin) = &mut self.twin {
            let same = twin.handle(given, input);
            assert!(same == out && *twin == self.machine, "R4: the same inputs gave {same:?} and {out:?}");
        }
        if let Some(patient) = &mut self.patient {
            rules::breaker_leaves_dialling_alone(&out, &patient.handle(given, input));
        }
        out
    }
}
