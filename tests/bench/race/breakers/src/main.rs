//! The machine and the circuit breakers of others, asked the same: may I call now?
//!
//! `breakers BATCHES`: measures everybody's answers in turn, batch by batch, and prints each batch as a JSON line.
//! `breakers WHO QUESTION COUNT`: asks one so often, for its instructions to be counted.
//!
//! All are set alike where they can be: five failures in a row open a breaker, for 30 s. Where failures are counted, no
//! number of them opens it: what is measured is a breaker that stays closed.

mod ours;
mod theirs;

use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Failures in a row that open a breaker, and for how long.
const STRIKES: u8 = 5;
const OPEN: Duration = Duration::from_secs(30);

/// How many calls are timed together.
const BATCH: u32 = 10_000;

/// Questions, each on a breaker in the state for it.
const QUESTIONS: [&str; 4] = [CLOSED, REFUSED, GOOD, FAILED];
/// Nothing but the state, of a closed one.
const CLOSED: &str = "closed";
/// A call that an open one refuses.
const REFUSED: &str = "refused";
/// A call that succeeds: asked, and told of it.
const GOOD: &str = "good";
/// A call that fails: asked, and told of it.
const FAILED: &str = "failed";

/// One that answers.
struct Breaker {
    who: &'static str,
    question: &'static str,
    /// Asks it so often.
    ask: Box<dyn FnMut(u32)>,
}

impl Breaker {
    fn new(who: &'static str, question: &'static str, mut once: impl FnMut() + 'static) -> Self {
        let ask = move |times| {
            for _ in 0..times {
                once();
            }
        };
        Self { who, question, ask: Box::new(ask) }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut all: Vec<Breaker> = ours::all().into_iter().chain(theirs::all()).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [batches] => {
            let Ok(batches) = batches.parse() else { return refuse(&all) };
            all.iter_mut().for_each(|breaker| (breaker.ask)(BATCH)); // warm
            for _ in 0..batches {
                for Breaker { who, question, ask } in &mut all {
                    let began = Instant::now();
                    ask(BATCH);
                    let nanos = began.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH);
                    println!(r#"{{"who":"{who}","question":"{question}","nanos":{nanos:.3}}}"#);
                }
            }
        }
        [who, question, count] => {
            let breaker = all.iter_mut().find(|breaker| breaker.who == who && breaker.question == question);
            let (Some(breaker), Ok(count)) = (breaker, count.parse()) else { return refuse(&all) };
            (breaker.ask)(count);
        }
        _ => return refuse(&all),
    }
    ExitCode::SUCCESS
}

fn refuse(all: &[Breaker]) -> ExitCode {
    eprintln!("usage: breakers BATCHES | WHO {} COUNT; WHO is one of:", QUESTIONS.join("|"));
    all.iter().filter(|breaker| breaker.question == GOOD).for_each(|breaker| eprintln!("  {}", breaker.who));
    ExitCode::from(2)
}
