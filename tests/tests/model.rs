//! The model check of the core, whole: see [`mcp_reconnect_tests::model`].

use mcp_reconnect_tests::model::callers::Callers;
use mcp_reconnect_tests::model::{Coverage, Slice, Space, no_such_timer, slices, walk};

/// One test for all slices: they come through every state, input, timer and output together. The figures are printed:
/// `cargo test --test main model -- --nocapture`.
#[test]
fn every_state_of_every_slice_obeys_the_rules() {
    let coverage = Coverage::default();
    for slice in slices() {
        let report = Space::new(slice).check().unwrap_or_else(|counterexample| panic!("{counterexample}"));
        println!("{report}");
        coverage.join(&report.coverage);
    }
    let missing = coverage.missing();
    let missing: Vec<_> = missing.iter().filter(|name| !no_such_timer(name)).collect();
    assert!(missing.is_empty(), "not come through: {missing:#?}");
}

/// What makes one state stand for many: walks that are long, and longer than any age or counter is kept.
#[test]
fn a_machine_and_its_normalised_twin_do_the_same() {
    for slice in slices() {
        for seed in 0..20 {
            walk(&slice, seed, 200).unwrap_or_else(|difference| panic!("{}: {difference}", slice.name));
        }
    }
    for seed in 0..400 {
        walk(&Slice::random(seed), seed, 200).unwrap_or_else(|difference| panic!("knobs {seed}: {difference}"));
    }
}

#[test]
fn callers_of_one_failed_session_reconnect_once_and_wait() {
    for (servers, callers) in [(1, 5), (2, 2)] {
        let states = Callers::new(servers, callers).check().unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("{servers} servers with {callers} callers each: {states} states");
    }
}
