//! The corpus: recordings of every scene, kept in `traces/`, and what they must still say.
//!
//! `UPDATE=1` records them anew; the difference is for the reviewer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use mcp_reconnect::trace;

use super::scenes::SCENES;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")
}

fn path(scene: &str) -> PathBuf {
    folder().join(scene).with_extension("jsonl")
}

fn update() -> bool {
    std::env::var_os("UPDATE").is_some()
}

/// The machine answers as it did when they were recorded: what it does in the field has not changed unnoticed.
#[test]
fn traces_are_answered_as_they_were_recorded() {
    if update() {
        return; // what is being recorded anew is not there yet
    }
    let mut wrong = Vec::new();
    for scene in SCENES {
        let file = fs::read(path(scene.name)).unwrap_or_default();
        match trace::read(&file[..]).map(|trace| trace.verify()) {
            Ok(Ok(verified)) => {
                assert_eq!((verified.inputs, verified.gap), (verified.compared, None), "{}", scene.name);
            }
            Ok(Err(difference)) => wrong.push(format!("{}: {difference}", scene.name)),
            Err(error) => wrong.push(format!("{}: {error}", scene.name)),
        }
    }
    assert!(wrong.is_empty(), "another machine than was recorded:\n{}", wrong.join("\n"));
}

/// The runtime tells its machine the same as when they were recorded, to the nanosecond.
#[test]
fn traces_are_recorded_as_they_were() {
    let mut wrong = Vec::new();
    for scene in SCENES {
        let mut trace = trace::read(&scene.record()[..]).unwrap_or_else(|error| panic!("{}: {error}", scene.name));
        assert!(trace.header.origin.take().is_some(), "the wall clock");
        let mut recorded = Vec::new();
        trace.write(&mut recorded).unwrap();
        let recorded = String::from_utf8(recorded).unwrap();
        if update() {
            fs::write(path(scene.name), &recorded).unwrap();
            continue;
        }
        let kept = fs::read_to_string(path(scene.name)).unwrap_or_default();
        let (mut was, mut is) = (kept.lines(), recorded.lines());
        for line in 1.. {
            match (was.next(), is.next()) {
                (None, None) => break,
                (was, is) if was == is => {}
                (was, is) => {
                    wrong.push(format!("{}, line {line}:\n  was {was:?}\n  is  {is:?}", scene.name));
                    break;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "if that is meant, record anew with UPDATE=1:\n{}", wrong.join("\n"));
}

/// Every kind of input, order, status and failure is in one of them, nothing else is kept, and none is large.
#[test]
fn traces_cover_what_a_machine_is_told_and_orders() {
    if update() {
        return; // what is being recorded anew is not there yet
    }
    let names: BTreeSet<_> = SCENES.iter().map(|scene| path(scene.name)).collect();
    let files: BTreeSet<_> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files, names);
    let mut all = String::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.len() < 32 * 1024, "{}: {}", file.display(), text.len());
        all.push_str(&text);
    }
    let inputs = "connect wake retune resumed reached lost gone traffic no_reply ping_unsupported pong";
    let inputs = inputs.split(' ').map(|input| format!("\"in\":{{\"{input}\""));
    let plain = ["tick", "park", "shutdown"].map(|input| format!("\"in\":\"{input}\""));
    let causes = ["operator", "config", "credentials"].map(|cause| format!("{{\"wake\":\"{cause}\"}}"));
    let outputs = "dial close ping ask publish withdraw admit go wait refuse status_changed breaker_changed failed idle \
                   lifetime parked ready transport session_gone rate_limited needs_auth permanent start_timeout \
                   unresponsive exhausted flapping requested not_in_time breaker_open";
    let outputs = outputs.split_whitespace().map(|output| format!("\"{output}\""));
    for wanted in inputs.chain(plain).chain(causes).chain(outputs) {
        assert!(all.contains(&wanted), "no trace with {wanted}");
    }
    // Causes in words are for the log; they may tell secrets.
    for words in ["exited", "killed by", "a caller says so", "2031-01-01", "refused"] {
        assert!(!all.contains(words), "{words}");
    }
}
