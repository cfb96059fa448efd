//! `mcp-reconnect replay`, as a user runs it. `UPDATE=1` writes its output anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A recorded connection with most kinds of events, which the library's own tests read too.
const TOUR: &str = include_str!("../../../tests/suite/trace/tour.jsonl");
const HEADER: &str = r#"{"format":"mcp-reconnect-trace","version":1,"name":"x","seed":1,"start":0}"#;

fn tour() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/suite/trace/tour.jsonl")
}

/// The folder of expected outputs.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/replay")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-reconnect"));
    command.args(args).env_remove("MCP_RECONNECT_LOG").env_remove("CLICOLOR_FORCE").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().expect("the command starts")
}

fn golden(name: &str, is: &str) {
    let path = folder().join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, is).expect("written");
    }
    let was = fs::read_to_string(&path).unwrap_or_default();
    assert!(was == is, "{name} is no longer what it was; if that is meant, write it anew with UPDATE=1. Now:\n{is}");
}

fn stdout(output: &Output) -> &str {
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn file(dir: &TempDir, text: &str) -> String {
    let path = dir.path().join("trace.jsonl");
    fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn trace_timeline() {
    let output = run(&["replay", tour().to_str().unwrap()]);
    golden("tour.txt", stdout(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn trace_json_lines() {
    let output = run(&["replay", "--json", tour().to_str().unwrap()]);
    golden("tour.events.jsonl", stdout(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn trace_drawing() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("tour.svg");
    let named = TOUR.replacen("\"name\":\"tour\"", "\"name\":\"<tour> & \\\"more\\\"\\u0007\"", 1);
    let output = run(&["replay", &file(&dir, &named), "--svg", svg.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.contains("&lt;tour&gt; &amp; &quot;more&quot;\u{fffd}</text>"));
    golden("tour.svg", &svg);
}

/// Every element is closed by its own name, and no text holds a bare `<` or `&`.
#[test]
fn trace_drawing_is_xml() {
    let svg = fs::read_to_string(folder().join("tour.svg")).unwrap();
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "{text}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().expect("a name")),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let entities = ["amp;", "lt;", "gt;", "quot;"];
    assert!(svg.split('&').skip(1).all(|text| entities.iter().any(|entity| text.starts_with(entity))));
}

#[test]
fn trace_difference_is_told_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let other = file(&dir, &TOUR.replacen("\"wake_at\":300000000000", "\"wake_at\":300000000001", 1));
    let output = run(&["replay", &other]);
    assert_eq!(output.status.code(), Some(1));
    let last = stdout(&output).lines().last().unwrap();
    assert_eq!(last, "line 2: wake_at: recorded was 300000000001, the machine says 300000000000");

    let output = run(&["replay", "--json", &other]);
    assert_eq!(output.status.code(), Some(1));
    let events: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["trace", "turn", "difference", "summary"]);
    assert_eq!((&events[2]["line"], &events[2]["recorded"]["wake_at"]), (&2.into(), &300_000_000_001_u64.into()));
    assert_eq!(events[3]["ok"], false);
}

#[test]
fn trace_with_a_gap_and_a_cut_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (head, _) = TOUR.split_at(TOUR.match_indices('\n').nth(4).unwrap().0);
    let damaged = file(&dir, &format!("{head}\n{{\"dropped\":12}}\n{{\"at\":0,\"in\":\"tick\"}}\n{{\"at\":"));
    let output = run(&["replay", &damaged]);
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<_> = stdout(&output).lines().rev().take(3).collect();
    assert_eq!(
        lines,
        [
            "the 2 answers that were recorded are the same",
            "line 8, the last, is cut: it is left out",
            "line 6: 12 inputs are missing, so that nothing after it can be replayed",
        ]
    );
    let output = run(&["replay", "--json", &damaged]);
    let text = stdout(&output);
    assert!(text.contains(r#"{"count":12,"event":"gap","line":6}"#), "{text}");
    assert!(text.contains(r#"{"event":"cut","line":8}"#), "{text}");
}

#[test]
fn trace_without_answers_is_not_compared() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["replay", &file(&dir, &format!("{HEADER}\n{{\"at\":0,\"in\":\"tick\"}}\n"))]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).ends_with("no answers were recorded, so none were compared\n"));
    // Nor is one of nothing but a header.
    let svg = dir.path().join("empty.svg");
    let output = run(&["replay", &file(&dir, HEADER), "--svg", svg.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(fs::read_to_string(svg).unwrap().ends_with("</svg>\n"));
}

#[test]
fn trace_comes_from_standard_input_too() {
    let tour = fs::File::open(tour()).unwrap();
    let output = command(&["replay", "-"]).stdin(tour).output().unwrap();
    golden("tour.txt", stdout(&output));
}

#[test]
fn trace_that_cannot_be_read_or_drawn_is_an_error_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let good = file(&dir, TOUR);
    let nowhere = dir.path().join("not/there");
    let nowhere = nowhere.to_str().unwrap();
    let bad = dir.path().join("bad.jsonl");
    fs::write(&bad, HEADER.replace("\"version\":1", "\"version\":2")).unwrap();
    let bad = bad.to_str().unwrap();
    for (args, what) in [
        (vec!["replay", nowhere], "No such file"),
        (vec!["replay", bad], "it is a trace of version 2; only version 1 can be read"),
        (vec!["replay", &good, "--svg", nowhere], "No such file"),
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.starts_with("error: ") && error.contains(what), "{error}");
        assert!(error.contains(args.last().unwrap()), "the file is named: {error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn trace_of_a_demo_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.jsonl");
    let path = path.to_str().unwrap();
    let output = run(&["demo", "--faults", "kill", "--json", "--record", path]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = run(&["replay", "--json", path]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let summary: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert!(summary["sessions"].as_u64() >= Some(2), "{summary}");
    assert_eq!(summary["inputs"], summary["compared"]);
    // The last thing it was told is that nothing is left.
    let last = fs::read_to_string(path).unwrap();
    assert!(last.lines().rev().nth(1).unwrap().contains("gone"), "{last}");
    let output = run(&["demo", "--record", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "a directory is no file: {output:?}");
}
