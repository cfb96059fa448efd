//! Instructions in the dev profile, held to committed limits. The dev profile compiles all but core without optimization, so the
//! figures show work that was added or taken away, not speed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use mcp_reconnect_bench::count::{Caller, Work, instructions};

/// Most instructions of each round: the highest measured figure (it differs by the folder of the build, which changes inlining),
/// and 5 % for another compiler.
const LIMITS: [(Work, f64); 10] = [
    (Work::MachineTick, 592.0),
    (Work::MachineTraffic, 678.0),
    (Work::MachineCycle, 3_336.0),
    (Work::Admission, 255.0),
    (Work::Calls(Caller::Service), 449_000.0),
    (Work::Calls(Caller::CallTool), 244_500.0),
    (Work::Calls(Caller::Request), 350_500.0),
    (Work::Calls(Caller::Raw), 176_000.0),
    (Work::Calls64(Caller::Service), 375_000.0),
    (Work::Calls64(Caller::CallTool), 204_500.0),
];

/// One work beside another at most, the server's share in both.
const RATIOS: [(Work, Work, f64); 6] = [
    (Work::Calls(Caller::Service), Work::Calls(Caller::Rmcp), 1.2),
    (Work::Calls(Caller::CallTool), Work::Calls(Caller::Service), 0.57),
    (Work::Calls(Caller::Request), Work::Calls(Caller::Service), 0.82),
    (Work::Calls(Caller::Raw), Work::Calls(Caller::Rmcp), 0.48),
    (Work::Calls64(Caller::Service), Work::Calls(Caller::Service), 1.02),
    (Work::Calls64(Caller::CallTool), Work::Calls(Caller::CallTool), 1.02),
];

/// Prints what was measured beside its limits; whether all of it held.
pub(crate) fn hold() -> Result<bool, String> {
    let measured = measure()?;
    let of = |work: Work| measured.iter().find(|(known, _)| *known == work).map_or(f64::NAN, |(_, figure)| *figure);
    let (mut passed, mut failed) = (0, 0);
    let mut line = |what: String, figure: f64, limit: f64, digits: usize| {
        let held = figure <= limit;
        *(if held { &mut passed } else { &mut failed }) += 1;
        let verdict = if held { "" } else { "**above**" };
        println!("| {what} | {figure:.digits$} | {limit:.digits$} | {verdict} |");
    };
    println!("| instructions of each, dev profile | measured | limit | |\n|---|---|---|---|");
    for (work, limit) in LIMITS {
        line(format!("`{}`", work.name()), of(work), limit, 0);
    }
    for (work, beside, limit) in RATIOS {
        line(format!("`{}` / `{}`", work.name(), beside.name()), of(work) / of(beside), limit, 3);
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

/// All that is held to something, two at a time: what is counted does not depend on what else runs.
fn measure() -> Result<Vec<(Work, f64)>, String> {
    let mut works: Vec<_> = LIMITS.iter().map(|&(work, _)| work).collect();
    works.push(Work::Calls(Caller::Rmcp)); // to compare with
    let (next, measured) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some(&work) = works.get(next.fetch_add(1, Ordering::Relaxed)) {
            let figure = instructions(work)?;
            measured.lock().map_err(|error| error.to_string())?.push((work, figure));
        }
        Ok::<_, String>(())
    };
    thread::scope(|scope| {
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked".to_owned())?)
    })?;
    measured.into_inner().map_err(|error| error.to_string())
}
