//! What a spawn does wrong by itself, drawn for each.

use rustix::process::Signal;

use crate::storm::dice::Dice;

/// A fault of one call: its name, and the actions of the line.
type InCall = (&'static str, &'static str);

const IN_CALLS: [InCall; 9] = [
    ("killed before it ran", "kill"),
    ("killed after it ran", "commit, kill"),
    ("exit before it ran", "exit 1"),
    ("no answer", "never"),
    ("no answer, though it ran", "commit, never"),
    ("slow answer", "commit, delay 900ms"),
    ("two answers", "duplicate"),
    ("answer to nobody", "wrong-id"),
    ("answer of a wrong shape", "bad-shape"),
];
const IN_CALLS_STDIO: [InCall; 8] = [
    ("half an answer", r#"commit, stdout "{\"jsonrpc\":\"2.0\",\"id\":", exit 1"#),
    ("noise", r#"stdout "debug: called\n\xff\xfe\n""#),
    ("close stdout", "close stdout"),
    ("close stdout after it ran", "commit, close stdout"),
    ("close stdin", "close stdin"),
    ("stuck writes", "deaf"),
    ("mute", "mute"),
    ("mute after it ran", "commit, mute"),
];
const IN_CALLS_HTTP: [InCall; 13] = [
    ("404", "status 404"),
    ("400", r#"status 400 "Bad Request""#),
    ("503", r#"status 503 "busy""#),
    ("503 after it ran", r#"commit, status 503 "busy""#),
    ("429", r#"retry-after 1, status 429 "slow down""#),
    ("reset", "reset"),
    ("reset after it ran", "commit, reset"),
    ("cut answer", "cut after 20"),
    ("stream without answer", "commit, end"),
    ("headers only", "headers-only"),
    ("black hole", "black-hole"),
    ("session forgotten", "forget"),
    ("disconnect", "commit, disconnect"),
];
const STALE: [&str; 3] = [
    "",
    r#"stale status 400 '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}'"#,
    "stale status 400 '{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32000,\"message\":\"Bad Request: Server not initialized\"},\"id\":null}'\n\
     stale-initialize ok",
];

/// What one server is like in all its spawns.
#[derive(Clone, Debug)]
pub(super) struct Nature {
    pub(super) http: bool,
    base: String,
    /// What a signal does to it.
    pub(super) on_signal: [(Signal, &'static str); 3],
}

impl Nature {
    pub(super) fn of(server: usize, http: bool) -> Self {
        let era = ["legacy", "modern", "both"][server % 3];
        let lines: [(Signal, &str, &str, &str); 3] = if http {
            [
                (Signal::HUP, "HUP", "session forgotten", "forget"),
                (Signal::USR1, "USR1", "disconnect", "disconnect"),
                (Signal::USR2, "USR2", "deaf", "deaf"),
            ]
        } else {
            let last = [
                ("stuck writes", "deaf"),
                ("mute", "mute"),
                ("half a line", r#"stdout "{\"jsonrpc\":\"2.0\",\"method\":", exit 1"#),
            ][server / 3 % 3];
            [
                (Signal::HUP, "HUP", "noise", r#"stdout "cleaning up\n\xff\n""#),
                (Signal::USR1, "USR1", "close stdout", "close stdout"),
                (Signal::USR2, "USR2", last.0, last.1),
            ]
        };
        let mut base = format!("era {era}\ntools echo(readOnly), put(idempotent), write\n");
        for (_, signal, _, actions) in lines {
            base.push_str(&format!("on {signal} {actions}\n"));
        }
        Self { http, base, on_signal: lines.map(|(signal, _, name, _)| (signal, name)) }
    }

    /// A spawn that does nothing wrong.
    pub(super) fn benign(&self) -> Plan {
        Plan { script: self.base.clone(), at_start: Vec::new(), in_calls: Vec::new() }
    }

    /// A spawn that does.
    pub(super) fn draw(&self, dice: &mut Dice) -> Plan {
        let mut plan = self.benign();
        self.draw_start(dice, &mut plan);
        if self.http {
            plan.line(STALE[dice.index(STALE.len())]);
        } else {
            // Only SIGKILL ends these.
            if dice.once_in(4) {
                plan.line("ignore EOF\nignore TERM");
            }
        }
        let kinds = IN_CALLS.len() + if self.http { IN_CALLS_HTTP.len() } else { IN_CALLS_STDIO.len() };
        let mut call = 0;
        for _ in 0..4 {
            call += 2 + dice.index(10);
            let of_both = |kind: usize| IN_CALLS.get(kind).copied();
            let own: &[InCall] = if self.http { &IN_CALLS_HTTP } else { &IN_CALLS_STDIO };
            let kind = dice.index(kinds);
            let (name, actions) = of_both(kind).unwrap_or_else(|| own[kind - IN_CALLS.len()]);
            plan.line(&format!("call *#{call} {actions}"));
            plan.in_calls.push((call, name));
        }
        plan
    }

    fn draw_start(&self, dice: &mut Dice, plan: &mut Plan) {
        let mut start = Vec::new();
        if !self.http && dice.once_in(5) {
            start.push("grandchild hold stdout ignore TERM");
        }
        let (name, lines) = match dice.index(12) {
            0 => ("slow start", "initialize delay 700ms\ndiscover delay 700ms"),
            // Nobody ends an HTTP server for that.
            1 if self.http => ("silent start", "initialize#1..2 never\ndiscover#1..2 never"),
            1 => ("silent start", "initialize never\ndiscover never"),
            2 => {
                start.extend([r#"stderr "no database\n""#, "exit 3"]);
                ("crash at start", "")
            }
            3 if self.http => ("503 at start", "post#1..2 status 503"),
            3 => {
                start.push(r#"stdout "Server v1.2 is ready\n""#);
                ("banner", "")
            }
            4 => ("list fails", "list#1 error -32603 \"not yet\""),
            _ => ("", ""),
        };
        plan.line(lines);
        if !start.is_empty() {
            plan.line(&format!("start {}", start.join(", ")));
        }
        plan.at_start.extend(Some(name).filter(|name| !name.is_empty()));
    }
}

/// The script of one spawn, and the faults in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) script: String,
    /// Those that happen whatever the client does.
    pub(super) at_start: Vec<&'static str>,
    /// Those that happen at a call, which is counted from 1.
    pub(super) in_calls: Vec<(usize, &'static str)>,
}

impl Plan {
    fn line(&mut self, line: &str) {
        self.script.push_str(line);
        self.script.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fake::Script;

    #[test]
    fn every_script_follows_the_grammar_and_every_kind_is_drawn() {
        for http in [false, true] {
            let (mut dice, mut seen) = (Dice::new(1), BTreeSet::new());
            for server in 0..9 {
                let nature = Nature::of(server, http);
                Script::parse(&nature.benign().script).unwrap();
                for _ in 0..200 {
                    let plan = nature.draw(&mut dice);
                    Script::parse(&plan.script).unwrap_or_else(|error| panic!("{error}\n{}", plan.script));
                    seen.extend(plan.at_start);
                    seen.extend(plan.in_calls.into_iter().map(|(_, name)| name));
                }
            }
            let own = if http { IN_CALLS_HTTP.len() } else { IN_CALLS_STDIO.len() };
            assert_eq!(seen.len(), IN_CALLS.len() + own + 5, "{seen:?}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_plans() {
        let draw = |seed| Nature::of(0, false).draw(&mut Dice::new(seed));
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
