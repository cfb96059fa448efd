//! Steps and admissions of the machine, and who else is asked whether a call may go.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use mcp_reconnect_bench::count::{self, CYCLE, Work};
use serde::Deserialize;

use crate::report::{Cell, Section, Table, median, time};
use crate::{Race, child};

/// How often each is measured, and how many of it are timed together.
const BATCHES: usize = 101;
const BATCH: u64 = 10_000;
/// How often the others' program runs: between two runs others may have the processor.
const RUNS: usize = 7;
const BATCHES_OF_A_RUN: &str = "15";
/// Rounds whose difference is counted.
const ROUNDS: (u64, u64) = (1_000, 11_000);

const ADMISSION: Duration = Duration::from_nanos(20);
const STEP: Duration = Duration::from_nanos(100);

pub(crate) async fn run(race: &Race) -> Result<Section, String> {
    let mut section = Section::new(
        "machine",
        "The machine: a step, and \u{201c}may I call now?\u{201d}",
        format!(
            "Batches of {BATCH} in turn, the median of {BATCHES} (the second table: {RUNS} runs of {BATCHES_OF_A_RUN} \
             batches); instructions by callgrind. The machine is told the time; the others read the clock where they \
             need it, so it is shown with that as well. A connection asks the published snapshot, and a call that goes \
             well tells the machine nothing; good and failed calls are what a user of the core alone would do. Breakers: \
             five failures in a row, 30 s; set never to open where failures are counted."
        ),
    );
    steps(&mut section);
    let breakers = race.installed.join("breakers/release/breakers");
    if breakers.is_file() {
        others(&mut section, &breakers).await?;
    } else {
        section.not_run("failsafe, recloser, circuitbreaker-rs, tower-resilience", "`.ci/race install` builds them");
    }
    Ok(section)
}

fn steps(section: &mut Section) {
    let all = [
        ("`snapshot` and `admission`", Work::Admission, 1, ADMISSION),
        ("`handle(Tick)`, nothing due", Work::MachineTick, 1, STEP),
        ("`handle(Traffic)`", Work::MachineTraffic, 1, STEP),
        ("a step from a loss to the next session", Work::MachineCycle, CYCLE, STEP),
    ];
    let mut nanos = all.map(|_| Vec::with_capacity(BATCHES));
    for _ in 0..BATCHES {
        for ((_, work, each, _), nanos) in all.iter().zip(&mut nanos) {
            let began = Instant::now();
            work.run(BATCH);
            nanos.push(began.elapsed().as_secs_f64() * 1e9 / (BATCH * each) as f64);
        }
    }
    let mut table = Table::new("The machine", &["", "time", "instructions"]);
    for ((what, work, each, aim), nanos) in all.into_iter().zip(nanos) {
        let (took, aim) = (median(&nanos).unwrap_or_default() * 1e-9, aim.as_secs_f64());
        let counted = count::instructions(work).map(|counted| counted / each as f64);
        table.row(what, [Cell::Time { seconds: took }, counted.ok().into()]);
        section.goal(what, format!("≤ {}", time(aim)), time(took), took <= aim);
    }
    section.tables.push(table);
    if let Err(why) = count::valgrind() {
        section.not_run("instruction counts", why);
    }
    match count::allocations(Work::MachineCycle) {
        Ok(blocks) => {
            section.goal("allocations from a loss to the next session", "0", blocks.to_string(), blocks == 0.0)
        }
        Err(why) => section.not_run("allocation counts", why),
    }
}

/// A batch of the others' program.
#[derive(Deserialize)]
struct Batch {
    who: String,
    question: String,
    nanos: f64,
}

/// Questions to each, with the words of the table.
const QUESTIONS: [(&str, &str); 4] = [
    ("closed", "closed: a look"),
    ("refused", "open: a call refused"),
    ("good", "a good call"),
    ("failed", "a failed call"),
];

async fn others(section: &mut Section, breakers: &Path) -> Result<(), String> {
    let mut who: Vec<String> = Vec::new();
    let mut batches: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for _ in 0..RUNS {
        for batch in child::lines::<Batch>(breakers, &[BATCHES_OF_A_RUN]).await? {
            if !who.contains(&batch.who) {
                who.push(batch.who.clone());
            }
            batches.entry((batch.who, batch.question)).or_default().push(batch.nanos);
        }
    }
    let columns = QUESTIONS.map(|(_, column)| column);
    let columns: Vec<&str> = std::iter::once("").chain(columns).collect();
    let mut times = Table::new("The same question to circuit breakers: time", &columns);
    let mut counts = Table::new("The same: instructions", &columns);
    for who in who {
        let measured = |question: &str| batches.get(&(who.clone(), question.to_owned()));
        let took = |question| measured(question).and_then(|nanos| median(nanos));
        times.row(
            &*who,
            QUESTIONS.map(|(question, _)| took(question).map(|nanos| Cell::Time { seconds: nanos * 1e-9 }).into()),
        );
        let counted = |question| {
            measured(question)?;
            count::instructions_of(breakers, &[&who, question], ROUNDS).ok()
        };
        counts.row(&*who, QUESTIONS.map(|(question, _)| counted(question).into()));
    }
    section.tables.extend([times, counts]);
    Ok(())
}
