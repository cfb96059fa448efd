//! A machine and its normalised twin do the same: what makes the states of a check stand for all others.

use mcp_reconnect_checker::Draw;
use mcp_reconnect_core::Output;

use super::action::{Action, What, actions};
use super::slice::Slice;

/// Walks `steps` steps at random with a machine that is left as it is and a twin that is normalised after every step.
///
/// # Errors
///
/// The first step whose outputs, or what they lead to, are not the same.
pub fn walk(slice: &Slice, seed: u64, steps: usize) -> Result<(), String> {
    let frame = slice.frame();
    let mut plain = slice.start();
    let mut twin = plain.clone();
    twin.normalise(&frame);
    let mut random = Random(seed);
    let mut way: Vec<Action> = Vec::new();
    let mut choices = Vec::new();
    for _ in 0..steps {
        choices.clear();
        actions(plain.machine(), plain.now(), &slice.alphabet, &mut choices);
        if random.below(2) == 0 {
            choices.retain(|action| action.what == What::Tick && action.after > 0); // so that things grow old
        }
        let action = choices[random.below(choices.len())];
        way.push(action);
        let mut outputs = [Vec::new(), Vec::new()];
        for (checker, outputs) in [&mut plain, &mut twin].into_iter().zip(&mut outputs) {
            let outcomes = action.take(checker, |_, _, _| {});
            let view = checker.view(&frame);
            let seen = |output: Output| view.output(output);
            *outputs = outcomes.into_iter().flat_map(|outcome| outcome.outputs.into_iter().map(seen)).collect();
        }
        twin.normalise(&frame);
        let mut normal = plain.clone();
        normal.normalise(&frame);
        for checker in [&mut normal, &mut twin] {
            checker.draw(Draw::Least);
        }
        if outputs[0] != outputs[1] || normal.fingerprint() != twin.fingerprint() {
            let [of_plain, of_twin] = outputs;
            return Err(format!(
                "{way:#?}\nordered {of_plain:?}\nthe twin {of_twin:?}\nled to {:?}\nthe twin to {:?}",
                normal, twin
            ));
        }
    }
    Ok(())
}

/// SplitMix64: the same walks every time.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((u128::from(z ^ (z >> 31)) * limit as u128) >> 64).unwrap_or(0)
    }
}
