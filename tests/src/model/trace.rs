//! Counterexamples, to read: the same steps with a fresh machine, its own times and epochs.

use std::any::Any;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::action::Action;
use super::recovery;
use super::slice::Slice;

/// What the panic says.
pub(super) fn sentence(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("a panic without words").to_owned()
}

/// The rule that a sentence begins with; what panics otherwise breaks R1.
pub(super) fn rule(sentence: &str) -> u8 {
    let number = sentence.strip_prefix('R').and_then(|rest| rest.split(':').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(1)
}

/// Every input with its time, what it ordered, and the state after it; then what is wrong.
pub(super) fn tell(slice: &Slice, broken: &str, actions: &[Action]) -> String {
    let mut checker = slice.start();
    let mut text = format!("{broken}\nBroken in the slice `{}`, {} steps from the start:\n", slice.name, actions.len());
    for action in actions {
        let mut told = String::new();
        let taken = catch_unwind(AssertUnwindSafe(|| {
            action.take(&mut checker, |_, now, input| {
                let _written = write!(told, "\n  {now:>6?}  {input:?}");
            })
        }));
        text += told.trim_start_matches('\n');
        text.push('\n');
        match taken {
            Ok(outcomes) => {
                for output in outcomes.into_iter().flat_map(|outcome| outcome.outputs) {
                    let _written = writeln!(text, "            -> {output:?}");
                }
            }
            Err(panic) => {
                let state = checker.machine().snapshot().state;
                let _written = writeln!(text, "          {state:?}\n          broken: {}", sentence(&*panic));
                return text;
            }
        }
        let snapshot = checker.machine().snapshot();
        let _written = writeln!(text, "          {:?}, {}", snapshot.state, snapshot.status);
    }
    if let Err(states) = recovery::run(checker.machine(), checker.now()) {
        text += "  and then, with a healthy server, never Ready:\n";
        for state in states {
            let _written = writeln!(text, "          {state:?}");
        }
    }
    text
}
