//! Traces: written, read and replayed; what is wrong with one is told.

use std::io::{self, BufReader, Read};
use std::num::NonZeroU64;
use std::time::Duration;

use mcp_reconnect::core::{Config, Input, Timestamp};
use mcp_reconnect::trace::{self, Answer, Entry, Header, Step, Trace, TraceError};
use mcp_reconnect_checker::Walk;
use proptest::prelude::*;

/// A recorded life with most of what can happen.
const TOUR: &str = include_str!("trace/tour.jsonl");
const HEADER: &str = r#"{"format":"mcp-reconnect-trace","version":2,"name":"x","seed":1,"start":0}"#;

fn read(text: impl AsRef<[u8]>) -> Result<Trace, TraceError> {
    trace::read(text.as_ref())
}

fn tour() -> Trace {
    read(TOUR).expect("a trace")
}

/// What a machine is told on this walk, and what it answers, as a file.
fn walked(bytes: &[u8]) -> (Trace, String) {
    let mut walk = Walk::new(bytes);
    let header = Header {
        name: "a \"walk\"\n".into(),
        origin: Some(bytes.len() as u64),
        seed: walk.seed(),
        start: walk.start(),
        config: walk.config(),
        memory: None,
    };
    let mut machine = header.machine();
    let mut trace = Trace { header, entries: Vec::new(), cut: None };
    while let Some((at, input)) = walk.step(&machine) {
        let outputs = machine.handle(at, input);
        let answer = Answer { outputs: outputs.iter().collect(), wake_at: outputs.wake_at() };
        let line = 2 + 2 * trace.entries.len();
        trace.entries.push(Entry::Step(Step { line, at, input, answer: Some(answer) }));
    }
    let mut file = Vec::new();
    trace.write(&mut file).unwrap();
    (trace, String::from_utf8(file).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn trace_of_any_walk_is_read_as_it_was_and_replayed(bytes in proptest::collection::vec(any::<u8>(), 32..2_000)) {
        let (trace, file) = walked(&bytes);
        let read = read(&file).unwrap();
        prop_assert_eq!(&read, &trace);
        let verified = read.verify().map_err(|difference| TestCaseError::fail(difference.to_string()))?;
        prop_assert_eq!((verified.inputs, verified.compared, verified.gap), (trace.entries.len(), trace.entries.len(), None));
    }

    #[test]
    fn trace_that_is_garbage_is_an_error_or_a_trace(
        at in 0..TOUR.len(),
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut garbled = TOUR.as_bytes().to_vec();
        let end = (at + bytes.len()).min(garbled.len());
        garbled.splice(at..end, bytes);
        if let Ok(trace) = read(&garbled) {
            drop(trace.verify());
        }
    }
}

#[test]
fn trace_cut_anywhere_is_read_up_to_there() {
    let (whole, header) = (tour(), TOUR.find('\n').unwrap());
    let some = TOUR.match_indices('\n').nth(12).unwrap().0;
    for end in header..some {
        let text = &TOUR[..end];
        let trace = read(text).unwrap_or_else(|error| panic!("{end}: {error}"));
        // Whole lines, and a last one that only lacks its end.
        let (lines, rest) = text.rsplit_once('\n').unwrap_or((text, ""));
        let is_whole = TOUR[end..].starts_with('\n');
        let number = lines.lines().count() + 1;
        assert_eq!(trace.cut, (!rest.is_empty() && !is_whole).then_some(number), "{end}");
        let known = whole.entries.iter().take(trace.entries.len());
        for (entry, known) in trace.entries.iter().zip(known) {
            match (entry, known) {
                // The last one may have lost its answer.
                (Entry::Step(step), Entry::Step(known)) => assert_eq!((step.at, step.input), (known.at, known.input)),
                other => panic!("{other:?}"),
            }
        }
        trace.verify().unwrap_or_else(|difference| panic!("{end}: {difference}"));
    }
}

#[test]
fn trace_errors_say_what_is_wrong_and_where() {
    let after = |line: &str| format!("{HEADER}\n{line}\n");
    let long = "x".repeat(64 * 1024 + 1);
    for (text, wanted) in [
        (String::new(), "it is empty"),
        ("\n\n".into(), "it is empty"),
        ("hello\n".into(), "it is no trace: line 1: it is no JSON object"),
        ("\n[]\n".into(), "it is no trace: line 2: it is no JSON object"),
        ("{,\n".into(), "it is no trace: line 1, column 2: key must be a string"),
        ("{}\n".into(), "it is no trace: its first line names no format"),
        (r#"{"format":7}"#.into(), "it is no trace: its format is 7"),
        (r#"{"format":"pcap","version":1}"#.into(), r#"it is no trace: its format is "pcap""#),
        (r#"{"format":"mcp-reconnect-trace"}"#.into(), "it is no trace: its first line names no version"),
        (HEADER.replace("\"version\":2", "\"version\":3"), "it is a trace of version 3; versions 1 to 2 can be read"),
        (HEADER.replace("\"version\":2", "\"version\":0"), "it is a trace of version 0; versions 1 to 2 can be read"),
        (
            HEADER.replace("\"version\":2", "\"version\":\"1.5\""),
            "it is a trace of version \"1.5\"; versions 1 to 2 can be read",
        ),
        (HEADER.replace("\"seed\":1,", ""), "line 1, column 65: missing field `seed`"),
        (
            HEADER.replace("\"start\":0", "\"start\":0,\"config\":{\"keepalive\":0}"),
            "line 1, column 99: `keepalive` is zero",
        ),
        (after("{"), "line 2, column 1: EOF while parsing an object"),
        (after("\n{"), "line 3, column 1: EOF while parsing an object"),
        (after("[0,\"tick\",null,null,null]"), "line 2: it is no JSON object"),
        (after("{\"at\":0}"), "line 2: neither `at` with `in`"),
        (after("{\"in\":\"tick\"}"), "line 2: neither `at` with `in`"),
        (after("{\"at\":0,\"in\":\"tick\",\"out\":[]}"), "line 2: neither `at` with `in`"),
        (after("{\"at\":0,\"in\":\"tick\",\"wake_at\":1}"), "line 2: neither `at` with `in`"),
        (after("{\"at\":0,\"in\":\"tock\"}"), "line 2, column 19: unknown variant `tock`"),
        (after("{\"at\":-1,\"in\":\"tick\"}"), "line 2, column 8: invalid value: integer `-1`"),
        (
            after("{\"at\":0,\"in\":{\"reached\":{\"epoch\":0,\"flag\":\"started\"}}}"),
            "line 2, column 34: invalid value",
        ),
        (after("{\"at\":0,\"inn\":\"tick\"}"), "line 2, column 13: unknown field `inn`"),
        (after("{\"out\":[]}"), "line 2: outputs that follow no input"),
        (after("{\"dropped\":3}\n{\"out\":[]}"), "line 3: outputs that follow no input"),
        (after("{\"at\":0,\"in\":\"tick\"}\n{\"out\":[]}\n{\"out\":[]}"), "line 4: outputs that follow no input"),
        (after("{\"dropped\":0}"), "line 2, column 12: invalid value: integer `0`"),
        (after(&long), "line 2: it is longer than 65536 bytes"),
        (format!("{HEADER}\n{long}"), "line 2: it is longer than 65536 bytes"),
    ] {
        let error = read(&text).expect_err(&text).to_string();
        assert!(error.starts_with(wanted), "{error}\n  of {}", &text[..text.len().min(200)]);
    }
    let bad_utf8 = [HEADER.as_bytes(), b"\n{\"at\":0,\"in\":\"\xff\"}\n"].concat();
    assert!(read(bad_utf8).unwrap_err().to_string().starts_with("line 2, column "));
}

#[test]
fn trace_errors_of_the_reader_are_told() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let error = trace::read(BufReader::new(HEADER.as_bytes().chain(&b"\n"[..]).chain(Broken))).unwrap_err();
    assert!(matches!(error, TraceError::Io(_)), "{error:?}");
    assert_eq!(error.to_string(), "it cannot be read: the disk is gone");
}

#[test]
fn trace_may_leave_out_what_has_a_default() {
    let trace = read(format!("{HEADER}\r\n\n  {{\"at\":5,\"in\":\"tick\"}}\r\n")).unwrap();
    let old = Config::builder().demand_backoff(Duration::ZERO).refused_interval(Duration::ZERO).build().unwrap();
    assert_eq!(trace.header.config, old, "the knobs that version 1 did not have are off");
    assert_eq!((trace.header.memory, trace.header.origin), (None, None));
    let tick = Step { line: 3, at: Timestamp::from_nanos(5), input: Input::Tick, answer: None };
    assert_eq!(trace.entries, [Entry::Step(tick)]);
    assert_eq!(trace.verify().unwrap().compared, 0);
}

/// The tour with a change, which must show.
fn changed(change: impl FnOnce(&mut Vec<Entry>)) -> String {
    let mut trace = tour();
    change(&mut trace.entries);
    trace.verify().expect_err("it must show").to_string()
}

fn step(entry: &mut Entry) -> &mut Step {
    match entry {
        Entry::Step(step) => step,
        Entry::Dropped { .. } => panic!("{entry:?}"),
    }
}

/// The first place at which this holds.
fn find(entries: &mut [Entry], wanted: impl Fn(&Step) -> bool) -> usize {
    (0..entries.len()).find(|at| wanted(step(&mut entries[*at]))).expect("it is in the tour")
}

/// Traces that version 0.1.0 recorded, and the first line that is answered otherwise since then: unanswered pings are
/// followed by a listing.
const OF_VERSION_1: [(&str, &str, Option<usize>); 6] = [
    ("k12_silence", include_str!("trace/v1/k12_silence.jsonl"), Some(20)),
    ("k13_deaf_after_wake", include_str!("trace/v1/k13_deaf_after_wake.jsonl"), Some(22)),
    ("k20_breaker", include_str!("trace/v1/k20_breaker.jsonl"), None),
    ("k21_rate_limited", include_str!("trace/v1/k21_rate_limited.jsonl"), None),
    ("restored_parked", include_str!("trace/v1/restored_parked.jsonl"), None),
    ("retuned", include_str!("trace/v1/retuned.jsonl"), None),
];

/// Answers change with the rules; that they can be read, and what was told, does not.
#[test]
fn traces_of_version_1_are_read_and_replayed() {
    let mut differ = Vec::new();
    for (name, text, _) in OF_VERSION_1 {
        assert!(text.starts_with("{\"format\":\"mcp-reconnect-trace\",\"version\":1,"), "{name}");
        let trace = read(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(trace.header.config.demand_backoff(), Duration::ZERO, "{name}");
        assert_eq!(trace.header.config.refused_interval(), Duration::ZERO, "{name}");
        let inputs = text.lines().filter(|line| line.contains("\"in\":")).count();
        assert_eq!(trace.entries.len(), inputs, "{name}");
        differ.push((name, trace.verify().err().map(|difference| difference.line)));
        // Without what was answered, all of it is replayed.
        let mut told = trace.clone();
        told.entries.iter_mut().for_each(|entry| step(entry).answer = None);
        assert_eq!(told.verify().unwrap().inputs, inputs, "{name}");
        // Written again, it is of the version that is written, and says the same.
        let mut again = Vec::new();
        trace.write(&mut again).unwrap();
        assert!(again.starts_with(b"{\"format\":\"mcp-reconnect-trace\",\"version\":2,"), "{name}");
        assert_eq!(read(again).unwrap(), trace, "{name}");
    }
    assert_eq!(differ, OF_VERSION_1.map(|(name, _, line)| (name, line)));
}

#[test]
fn trace_that_is_not_what_happened_is_found_out() {
    let lost: fn(&Step) -> bool = |step| matches!(step.input, Input::Lost { .. });
    let parked: fn(&Step) -> bool = |step| matches!(step.input, Input::Park);
    let retuned: fn(&Step) -> bool = |step| matches!(step.input, Input::Retune(_));
    let several = |step: &Step| step.answer.as_ref().is_some_and(|answer| answer.outputs.len() > 1);
    // An input that is missing, a time that is wrong, a retune that was forgotten.
    for place in [parked, retuned] {
        changed(|entries| {
            let at = find(entries, place);
            entries.remove(at);
        });
    }
    changed(|entries| {
        let at = find(entries, lost);
        let lost = step(&mut entries[at]);
        lost.at = Timestamp::from_nanos(lost.at.as_nanos() + 1);
    });
    // Outputs in another order, one too many, one too few, another deadline.
    let error = changed(|entries| {
        let at = find(entries, several);
        step(&mut entries[at]).answer.as_mut().unwrap().outputs.swap(0, 1);
    });
    let wanted = "line 2: output 1: recorded was {\"admit\":{\"wait\":{\"next\":null}}}, the machine says {\"dial\":";
    assert!(error.starts_with(wanted), "{error}");
    let error = changed(|entries| step(&mut entries[0]).answer.as_mut().unwrap().outputs.truncate(2));
    assert!(error.starts_with("line 2: output 3: recorded was nothing, the machine says {\"event\""), "{error}");
    let error = changed(|entries| step(&mut entries[0]).answer.as_mut().unwrap().wake_at = None);
    assert_eq!(error, "line 2: wake_at: recorded was nothing, the machine says 300000000000");
    let mut seeded = tour();
    seeded.header.seed += 1;
    seeded.verify().expect_err("other jitter");
}

#[test]
fn trace_is_replayed_up_to_a_gap_and_no_further() {
    let mut trace = tour();
    let count = NonZeroU64::new(3).unwrap();
    trace.entries.splice(4..7, [Entry::Dropped { line: 0, count }]);
    let mut file = Vec::new();
    trace.write(&mut file).unwrap();
    let trace = read(file).unwrap();
    let verified = trace.verify().expect("the same until there");
    assert_eq!((verified.inputs, verified.compared), (4, 4));
    let gap = verified.gap.expect("a gap");
    assert_eq!((gap.line, gap.count), (10, count));
    let mut replay = trace.replay();
    assert_eq!((replay.by_ref().count(), replay.gap(), replay.next()), (4, Some(gap), None));
}
