//! The states of a [`Slice`], for stateright.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mcp_reconnect_checker::{Checker, Draw, Frame, Rules};
use stateright::{Checker as _, HasDiscoveries, Model, Property};

use super::action::{Action, actions};
use super::coverage::Coverage;
use super::slice::Slice;
use super::{recovery, trace};

/// Every rule of a single machine but R4: one that decides what its jitter draws is trivially its own twin.
pub(super) const RULES: Rules = Rules::ALL.without(4);

/// A checked machine, normalised, or what was wrong with the step to it.
#[derive(Clone)]
pub struct Node {
    checker: Arc<Checker>,
    key: u64,
    /// The rule that the step broke.
    broken: Option<u8>,
}

impl Node {
    fn new(checker: Checker, broken: Option<u8>) -> Self {
        let key = checker.fingerprint().wrapping_add(broken.unwrap_or(0).into());
        Self { checker: Arc::new(checker), key, broken }
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.key);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.checker.machine().snapshot().state, self.broken)
    }
}

/// A slice as a model: its states are normalised machines, its steps the inputs of its alphabet.
pub struct Space {
    slice: Slice,
    frame: Frame,
    coverage: Coverage,
    /// The first state where something is wrong: stateright goes on for a while, and would tell of the last.
    first: OnceLock<u64>,
}

/// The whole of a slice was looked at, and every rule held.
#[derive(Debug)]
pub struct Report {
    /// Its name.
    pub slice: &'static str,
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
    /// How long it took.
    pub seconds: f64,
    /// What was come through.
    pub coverage: Coverage,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slice, states, steps, depth, seconds, .. } = self;
        write!(f, "{slice:<10} {states:>9} states {steps:>11} steps, depth {depth:>3}, {seconds:>6.1} s")
    }
}

impl Space {
    /// All states and steps of `slice`.
    pub fn new(slice: Slice) -> Self {
        let frame = slice.frame();
        Self { slice, frame, coverage: Coverage::default(), first: OnceLock::new() }
    }

    /// Looks at every state and every step.
    ///
    /// # Errors
    ///
    /// The shortest way to a step that breaks a rule, to read.
    pub fn check(self) -> Result<Report, String> {
        let started = Instant::now();
        let checker = self.checker().finish_when(HasDiscoveries::Any).spawn_bfs().join();
        let space = checker.model();
        if let Some((rule, path)) = checker.discoveries().into_iter().next() {
            return Err(trace::tell(&space.slice, rule, &path.into_actions()));
        }
        Ok(Report {
            slice: space.slice.name,
            states: checker.unique_state_count(),
            steps: checker.state_count(),
            depth: checker.max_depth(),
            seconds: started.elapsed().as_secs_f64(),
            coverage: space.coverage.clone(),
        })
    }

    fn is_first(&self, node: &Node) -> bool {
        *self.first.get_or_init(|| node.key) == node.key
    }

    fn step(&self, node: &Node, action: Action) -> Option<Node> {
        let mut checker = Checker::clone(&node.checker);
        let mut last = None;
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            action.take(&mut checker, |before, now, input| last = Some((before.machine().snapshot(), now, input)))
        }));
        match stepped {
            Ok(outcomes) if outcomes.is_empty() => return None,
            Ok(outcomes) => {
                if let Some((before, now, input)) = last {
                    let outputs = outcomes.into_iter().flat_map(|outcome| outcome.outputs);
                    self.coverage.step(&before, now, &input, outputs);
                }
            }
            Err(panic) => {
                let rule = trace::rule(&trace::sentence(&*panic));
                return Some(Node::new(Checker::clone(&node.checker), Some(rule)));
            }
        }
        checker.normalise(&self.frame);
        checker.draw(Draw::Least); // the environment decides anew
        Some(Node::new(checker, None))
    }
}

impl Model for Space {
    type State = Node;
    type Action = Action;

    fn init_states(&self) -> Vec<Node> {
        let mut checker = self.slice.start();
        checker.normalise(&self.frame);
        checker.draw(Draw::Least);
        vec![Node::new(checker, None)]
    }

    fn actions(&self, node: &Node, all: &mut Vec<Action>) {
        if node.broken.is_none() {
            actions(node.checker.machine(), node.checker.now(), &self.slice.alphabet, all);
        }
    }

    fn next_state(&self, node: &Node, action: Action) -> Option<Node> {
        self.step(node, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("R1: total, and a report of another epoch than the live one is a tick", holds::<1>),
            Property::always("R2: the next wake-up is later than now, and an early tick changes nothing", holds::<2>),
            Property::always("R3: time never goes back, and each timer fires once", holds::<3>),
            Property::always("R5: a deadline in every state that waits, and it is left when that passes", holds::<5>),
            Property::always(
                "R5: with a healthy server Ready is reached, after one wake where that is allowed",
                recovers,
            ),
            Property::always("R6: one live epoch at most, and epochs only grow", holds::<6>),
            Property::always("R7: every dial ends once", holds::<7>),
            Property::always("R8: one rebuild per lost epoch, which is never handed out again", holds::<8>),
            Property::always("R9: Ready needs every flag and ends with the loss", holds::<9>),
            Property::always("R10: only a later epoch is a session after this one", holds::<10>),
            Property::always("R11: callers and wakes leave what is live alone, and are remembered", holds::<11>),
            Property::always("R12: the ladder and the hint", holds::<12>),
            Property::always("R13: only a proven session refunds", holds::<13>),
            Property::always("R14: dials keep their distance", holds::<14>),
            Property::always("R15: a start that times out doubles the start deadline", holds::<15>),
            Property::always("R16: when it parks, and what is withdrawn and published", holds::<16>),
            Property::always("R17: probes, and one event per change of status", holds::<17>),
            Property::always("R18: a suspend is no outage", holds::<18>),
            Property::always("R19: pings and the verdict", holds::<19>),
            Property::always("R20: a call without a reply makes it ping", holds::<20>),
            Property::always("R21: the breaker", holds::<21>),
            Property::always("R22: a caller is answered by the state after its step", holds::<22>),
            Property::always("R23: shutdown is terminal and bounded", holds::<23>),
            Property::always("R24: rest and renewal wait for open calls", holds::<24>),
        ]
    }
}

fn holds<const RULE: u8>(space: &Space, node: &Node) -> bool {
    node.broken != Some(RULE) || !space.is_first(node)
}

fn recovers(space: &Space, node: &Node) -> bool {
    let run = || recovery::run(node.checker.machine(), node.checker.now()).is_ok();
    node.broken.is_some() || catch_unwind(AssertUnwindSafe(run)).unwrap_or(false) || !space.is_first(node)
}
