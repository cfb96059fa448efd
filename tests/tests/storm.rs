//! Storms and faults in simulated time: `mcp_reconnect_tests::storm`. The long versions are commands of the program
//! `storm` of mcp-reconnect-bench.

use std::path::Path;
use std::time::Duration;

use mcp_reconnect_tests::storm::{Admits, Bar, Callers, Dead, Figures, Gating, Rule, Storm, Week, table};

const HOUR: Duration = Duration::from_secs(3_600);

/// What one process must do where a server refuses for 30 s: the ideal is 20 s.
const BAR: Bar = Bar { p99: Duration::from_secs(25), slots: 32, dials: 3 };
/// The same with a caller for each: what nobody listened to is tried again sooner.
const ASKED: Bar = Bar { dials: 4, ..BAR };

/// The whole table of one process and small ones beside it, as in the file; `UPDATE=1` writes it.
#[test]
fn ten_thousand_connections_are_back_soon_and_in_order() {
    let (refuses, [quiet, asked]) = table(&Storm::one_process(Dead::Refuses));
    quiet.meet(&BAR).unwrap();
    asked.meet(&ASKED).unwrap();
    let (silent, ours) = table(&Storm::one_process(Dead::Silent));
    for figures in &ours {
        assert!(figures.slots.is_some_and(|slots| slots <= BAR.slots), "{figures}");
        assert_eq!(figures.recoveries.len(), figures.dials.len(), "all are back at last: {figures}");
    }
    let ten = Storm {
        connections: 10_000,
        processes: 10,
        admits: Admits::evenly(5_000),
        ..Storm::one_process(Dead::Refuses)
    };
    let (processes, [quiet, asked]) = table(&ten);
    quiet.meet(&BAR).unwrap();
    asked.meet(&ASKED).unwrap();
    compare("tests/storm/table.txt", &[refuses, silent, processes].join("\n"));
}

/// The same seed, the same run; another, another.
#[test]
fn a_storm_follows_from_its_seed() {
    let run = |seed| {
        let small = Storm { connections: 500, seed, ..Storm::one_process(Dead::Silent) };
        small.run(Gating::Gate, Callers::Waiting)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// The bar tells a gate from none, and from one that failures give slots back to.
#[test]
fn a_gate_that_is_ignored_or_freed_by_failures_misses_the_bar() {
    let storm = Storm::one_process(Dead::Refuses);
    for gating in [Gating::None, Gating::FreedByFailure] {
        let figures = storm.run(gating, Callers::None);
        figures.meet(&BAR).expect_err("the bar does not look at the gate");
    }
}

/// Jitter alone, without a gate: the first redials are spread over `redial_spread`, later ones over the upper half of
/// their step, so that no 100 ms have more than a quarter of all.
#[test]
fn k21_redials_of_many_connections_spread() {
    for dead in [Dead::Refuses, Dead::HangsUp] {
        let storm = Storm { connections: 1_000, ..Storm::one_process(dead) };
        let ours = storm.run(Gating::None, Callers::None);
        assert!(ours.peak_dials <= 450, "{} of 1000 within 100 ms", ours.peak_dials);
        assert!(ours.peak_retries <= 250, "{} of 1000 within 100 ms", ours.peak_retries);
        let doubling = storm.run_by(Rule::Doubling);
        assert_eq!(doubling.peak_retries, 1_000, "without jitter all come at once");
    }
}

/// Twenty connections lose their host for a minute: their dials never bunch, and all are back without a user.
#[test]
fn k21_reboot_20() {
    for seed in 1..=20 {
        let storm = Storm {
            connections: 20,
            dead_for: Duration::from_secs(60),
            admits: Admits::evenly(20_000),
            seed,
            ..Storm::one_process(Dead::Refuses)
        };
        let quiet = storm.run(Gating::Gate, Callers::None);
        assert!(quiet.peak_dials <= 16, "seed {seed}: {} of 20 within 100 ms", quiet.peak_dials);
        let probed = Duration::from_secs(72); // `park_probe`, 20 % late
        assert!(quiet.percentile(100).is_some_and(|last| last <= probed), "seed {seed}: {quiet}");
        // The next caller, who brings the dial of a parked connection forward.
        let asked = storm.run(Gating::Gate, Callers::Waiting);
        let late = Duration::from_millis(15_050);
        assert!(asked.percentile(100).is_some_and(|last| last <= late), "seed {seed}: {asked}");
    }
}

/// A hundred machines and a server that is dead for a day, in three ways.
#[test]
fn a_dead_server_costs_106_dials_a_day() {
    assert!(Storm::config().max_dials_unasked(24 * HOUR) <= 106);
    for dead in [Dead::Refuses, Dead::Silent, Dead::HangsUp] {
        for window in [HOUR, 24 * HOUR] {
            let storm = Storm { ends_after: window, ..Storm::dead_day(dead) };
            let figures = storm.run(Gating::Gate, Callers::None);
            // A session that ends at once is redialled at once, the first time.
            let bound = Storm::config().max_dials_unasked(window) + u64::from(dead == Dead::HangsUp);
            let most = figures.most_dials();
            assert!(u64::from(most) <= bound.min(106), "{dead:?}: {most} dials in {window:?}, not {bound}");
            assert_eq!(figures.parked, Some(100), "{dead:?}");
            // At the latest every 18 min and a start deadline of 5 min.
            let least = window.as_secs() / (23 * 60);
            assert!(figures.dials.iter().all(|dials| u64::from(*dials) >= least), "{dead:?}: {:?}", figures.dials);
        }
    }
}

/// Random faults with every rule checked at every step, and everything well an hour after the last one.
#[test]
fn random_faults_break_no_rule_and_everything_heals() {
    let week = Week { servers: 100, lasts: 36 * HOUR, seed: 1 };
    let seen = week.run();
    assert!(seen.steps >= 1_000_000, "{seen:?}");
    assert!(seen.slots == 32, "a blackout fills the gate, and nothing overfills it: {seen:?}");
    assert!(seen.parks.iter().all(|parks| *parks > 0), "{seen:?}");
    let rest = [seen.start_timeouts, seen.unresponsive, seen.breakers, seen.sleeps, seen.blackouts];
    assert!(rest.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn a_week_follows_from_its_seed() {
    let run = |seed| Week { servers: 10, lasts: HOUR, seed }.run();
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// Percentiles and the bar themselves.
#[test]
fn a_connection_that_is_not_back_counts_as_the_slowest() {
    let recoveries = (1..=98).map(Duration::from_secs).collect();
    let figures =
        Figures { peak_dials: 1, peak_retries: 1, dials: vec![2; 100], recoveries, slots: Some(1), parked: Some(0) };
    assert_eq!(figures.percentile(50), Some(Duration::from_secs(50)));
    assert_eq!(figures.percentile(98), Some(Duration::from_secs(98)));
    assert_eq!(figures.percentile(99), None);
    let bar = Bar { p99: HOUR, slots: 1, dials: 2 };
    let missed = figures.meet(&bar).unwrap_err();
    assert!(missed.contains("p99"), "{missed}");
}

fn compare(path: &str, is: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE").is_some_and(|set| set == "1") {
        return std::fs::write(&path, is).unwrap();
    }
    let was = std::fs::read_to_string(&path).unwrap();
    assert!(was == is, "{} differs (UPDATE=1 writes it); it is now:\n{is}", path.display());
}
