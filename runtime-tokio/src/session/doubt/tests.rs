use mcp_reconnect_core::FailureClass;

use super::*;

const TOOL: Asked<'_> =
    Asked { method: "tools/call", tool: Some("act"), known: false, busy: false, process: false, own: false };

fn said(status: impl Into<Option<u16>>, code: impl Into<Option<i64>>, text: &str) -> Said {
    Said::new(status.into(), code.into(), text)
}

fn refusal(status: u16, code: Option<i64>, message: &str) -> Refusal {
    Refusal { status: Some(status), code, message: message.into(), gate: false }
}

fn error(code: i64, message: &str) -> RpcError {
    RpcError { code, message: message.into(), data: None, json: "null".into() }
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A session's suspicion and the connection's history, and a clock.
struct Bench {
    suspicion: Suspicion,
    history: History,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self { suspicion: Suspicion::default(), history: History::default(), now: Instant::now() }
    }

    fn hear(&mut self, asked: Asked<'_>, outcome: Outcome<'_>) -> (Option<Doubt>, Option<Order>) {
        self.suspicion.hear(&mut self.history, asked, outcome, self.now)
    }

    fn doubts(&mut self, error: &RpcError) -> bool {
        self.hear(TOOL, Outcome::Error(error)).0.is_some()
    }

    fn result(&mut self) {
        assert_eq!(self.hear(TOOL, Outcome::Result(&raw(r#"{"content":[],"isError":false}"#))), (None, None));
    }
}

#[test]
fn ids_in_a_text_are_masked() {
    for (text, expected) in [
        ("Session 3f2a-99 not found", "S#ion #-# not found"),
        ("request 1073741826 failed", "request # f#iled"),
        ("tab 3", "tab #"),
        ("", ""),
    ] {
        // Words of hexadecimal digits are masked as well: compared is what is left.
        let expected = expected.replace("S#ion", "Session").replace("f#iled", "failed");
        assert_eq!(&*masked(text), expected, "{text}");
    }
    assert_eq!(masked("deadbeef x"), masked("0123abcd x"));
    assert_ne!(masked("tab 3 of a"), masked("tab 3 of b"));
}

#[test]
fn the_answer_to_an_ask_decides() {
    use Reply::{Answered, Broken, Ended, Limited, Refused, Silent};
    let doubted = said(404, -32001, "Session A1 not found");
    let same = said(404, -32001, "other words");
    let other = said(404, -32000, "Session A1 not found");
    let unknown = said(None, METHOD_NOT_FOUND, "Method not found");
    let well = Step::Verdict(Verdict::Well);
    let broken = Broken(FailureClass::Transport.into(), "refused".into());
    let asked = |pinged, reply: &Reply| judge(&doubted, pinged, true, false, reply);
    assert_eq!(asked(false, &Answered { empty: false }), well);
    assert_eq!(asked(false, &Answered { empty: true }), Step::Again);
    assert_eq!(judge(&doubted, false, true, true, &Answered { empty: true }), Step::Ping);
    assert_eq!(judge(&doubted, false, false, false, &Answered { empty: true }), well);
    assert_eq!(asked(false, &Refused(same.clone())), Step::Verdict(Verdict::Gone(Some(Arc::new(same)))));
    assert_eq!(asked(false, &Refused(other.clone())), Step::Ping, "another code is another way");
    assert_eq!(asked(false, &Refused(said(400, -32001, ""))), Step::Ping, "another status is another way");
    assert_eq!(asked(false, &Refused(unknown.clone())), Step::Ping, "a list that was answered before");
    assert_eq!(asked(true, &Refused(unknown.clone())), well, "a server that knows no pings refuses nothing");
    assert_eq!(asked(false, &broken), Step::Verdict(Verdict::Lost));
    assert_eq!(asked(false, &Limited), Step::Verdict(Verdict::Silent));
    assert_eq!(asked(false, &Silent), Step::Verdict(Verdict::Silent));
    assert_eq!(asked(false, &Ended), Step::Verdict(Verdict::Ended));
    for (reply, verdict) in [
        (Answered { empty: false }, Verdict::Well),
        (Refused(unknown), Verdict::Well),
        (Refused(other), Verdict::Gone(None)),
        (broken, Verdict::Lost),
        (Limited, Verdict::Silent),
        (Silent, Verdict::Silent),
        (Ended, Verdict::Ended),
    ] {
        assert_eq!(judge_ping(&reply), verdict, "{reply:?}");
    }
}

#[test]
fn what_is_no_refusal_is_refused_as_nothing_is() {
    let broken = said(None, None, "the connection broke");
    assert_eq!(judge(&broken, false, true, false, &Reply::Refused(said(503, None, ""))), Step::Ping);
    let nothing = said(200, None, "HTTP 200 without an answer");
    let found = judge(&nothing, false, true, false, &Reply::Refused(nothing.clone()));
    assert_eq!(found, Step::Verdict(Verdict::Gone(Some(Arc::new(nothing)))));
}

#[test]
fn never_run_needs_a_gate_and_the_same_words() {
    let refusal = |gate| Refusal { gate, ..refusal(400, Some(-32000), "No session 1234") };
    let gone = |text: &str| Verdict::Gone(Some(Arc::new(said(400, -32000, text))));
    assert!(Doubt::of("tools/call", &refusal(true)).never_ran(&gone("No session 5678")));
    assert!(!Doubt::of("tools/call", &refusal(false)).never_ran(&gone("No session 5678")), "no gate is known for it");
    assert!(!Doubt::of("tools/call", &refusal(true)).never_ran(&gone("unknown tool")));
    for verdict in [Verdict::Gone(None), Verdict::Well, Verdict::Silent, Verdict::Lost, Verdict::Ended] {
        assert!(!Doubt::of("tools/call", &refusal(true)).never_ran(&verdict), "{verdict:?}");
    }
}

#[test]
fn an_error_is_doubted_for_its_words_or_as_the_second_in_a_row() {
    for words in ["Session not found", "server not INITIALIZED", "no transport for this id", "session_expired"] {
        assert!(Bench::new().doubts(&error(-32603, words)), "{words}");
    }
    let with_data = RpcError { data: Some(serde_json::json!({"reason": "sessionExpired"})), ..error(-32000, "no") };
    assert!(Bench::new().doubts(&with_data));
    let mut bench = Bench::new();
    assert!(!bench.doubts(&error(-32602, "wrong arguments")));
    assert!(bench.doubts(&error(-32005, "no such page")));
    bench.result();
    assert!(!bench.doubts(&error(-32602, "wrong arguments")));
    let failed = raw(r#"{"content":[{"type":"text","text":"no such file"}],"isError":true}"#);
    assert!(bench.hear(TOOL, Outcome::Result(&failed)).0.is_some(), "an error in a result is one");
}

#[test]
fn words_of_a_result_without_error_raise_no_doubt() {
    let text = raw(r#"{"content":[{"type":"text","text":"session not found, \"isError\":true"}],"isError":false}"#);
    assert_eq!(Bench::new().hear(TOOL, Outcome::Result(&text)), (None, None));
}

#[test]
fn versions_headers_and_capabilities() {
    assert!(Bench::new().doubts(&error(UNSUPPORTED_VERSION, "no")));
    for code in [HEADER_MISMATCH, MISSING_CAPABILITY] {
        let mut bench = Bench::new();
        assert!(!bench.doubts(&error(code, "session")) && !bench.doubts(&error(code, "session")));
    }
}

#[test]
fn an_error_to_a_list_that_was_answered_is_settled_by_a_ping() {
    let list = Asked { method: "tools/list", tool: None, known: true, own: true, ..TOOL };
    let mut suspicion = Suspicion::default();
    assert!(suspicion.hear_rpc(list, &error(-32603, "out of order")).unwrap().by_ping);
    let other = Asked { known: false, ..list };
    for _ in 0..3 {
        assert_eq!(suspicion.hear_rpc(other, &error(METHOD_NOT_FOUND, "Method not found")), None, "is no refusal");
    }
}

#[test]
fn a_session_is_asked_six_times_a_minute_and_once_about_each_text() {
    let mut bench = Bench::new();
    let mut ask = |at: u64, text: &str| bench.suspicion.may_ask(&said(400, None, text), bench.now + seconds(at));
    assert!(ask(0, "no session 1111"));
    assert!(!ask(30, "no session 2222"), "the same but for an id");
    for text in ["a", "b", "c", "d", "e"] {
        assert!(ask(31, text));
    }
    assert!(!ask(32, "f"), "six in a minute");
    assert!(ask(60, "f"), "the first is a minute old");
    assert!(!ask(60, "no session 3333"), "six again");
    assert!(ask(92, "no session 3333"));
}

#[test]
fn broken_exchanges_are_asked_about_each_time_and_counted() {
    let mut bench = Bench::new();
    let broken = Refusal { status: None, ..refusal(0, None, "the connection was reset") };
    let broken = Said::refusal(&broken);
    let asked = (0..10).filter(|_| bench.suspicion.may_ask(&broken, bench.now)).count();
    assert_eq!(asked, 6);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut bench = Bench::new();
    for number in 0..10_000_u64 {
        let text: String = number.to_string().chars().map(|digit| char::from(b'g' + digit as u8 - b'0')).collect();
        bench.now += seconds(5);
        let _ = bench.suspicion.may_ask(&said(400, None, &text), bench.now);
        bench.hear(Asked { tool: Some(&text), ..TOOL }, Outcome::Result(&raw("{}")));
    }
    assert!(bench.suspicion.asks.len() <= ASKS && bench.suspicion.texts.len() <= TEXTS);
    assert_eq!(bench.history.served.len(), NAMES);
}

#[test]
fn three_answers_of_nothing_rebuild_once_until_a_call_has_a_result() {
    let nothing = refusal(202, None, "HTTP 202 without an answer");
    let mut bench = Bench::new();
    let orders = |bench: &mut Bench, calls: usize| {
        let mut order = |_| bench.hear(TOOL, Outcome::Refused(&nothing)).1.is_some() && bench.history.spend();
        (0..calls).map(&mut order).collect::<Vec<_>>()
    };
    assert_eq!(orders(&mut bench, 3), [false, false, true]);
    bench.suspicion = Suspicion::default();
    assert_eq!(orders(&mut bench, 9), [false; 9], "over sessions");
    bench.result();
    assert_eq!(orders(&mut bench, 3), [false, false, true]);
}

/// Calls of a tool, so many seconds apart, that get this error; the orders.
fn refused(bench: &mut Bench, asked: Asked<'_>, calls: usize, apart: u64) -> Vec<Order> {
    let mut orders = Vec::new();
    for number in 0..calls {
        bench.now += seconds(if number == 0 { 0 } else { apart });
        let (doubt, order) = bench.hear(asked, Outcome::Error(&error(-32050, "out of order")));
        if doubt.is_some_and(|doubt| bench.suspicion.may_ask(&doubt.said, bench.now)) {
            assert_eq!(bench.suspicion.asked(&Verdict::Well, false), None);
        }
        orders.extend(order.filter(|_| bench.history.spend()));
    }
    orders
}

#[test]
fn nothing_but_one_error_for_a_minute_rebuilds_once_over_http() {
    let mut bench = Bench::new();
    assert_eq!(refused(&mut bench, TOOL, 20, 20), [], "none of these tools ever had a result");
    bench.result();
    assert_eq!(refused(&mut bench, TOOL, 20, 2), [], "within a minute");
    bench.result();
    assert_eq!(refused(&mut bench, TOOL, 4, 30), [], "fewer than five calls");
    bench.result();
    assert_eq!(refused(&mut bench, Asked { busy: true, ..TOOL }, 20, 20), [], "another call is open");
    bench.result();
    let orders = refused(&mut bench, TOOL, 20, 20);
    assert!(matches!(&*orders, [Order::Rebuild(_)]), "{orders:?}");
    assert_eq!(refused(&mut bench, TOOL, 20, 20), [], "not again before a result");
    bench.result();
    let process = Asked { process: true, ..TOOL };
    assert_eq!(refused(&mut bench, process, 20, 20), [Order::Suspect(-32050)]);
}

#[test]
fn three_silent_asks_in_a_row_end_a_session() {
    let mut bench = Bench::new();
    assert!(bench.suspicion.holds());
    assert_eq!(bench.suspicion.asked(&Verdict::Silent, false), None);
    assert!(!bench.suspicion.holds(), "nobody is held for a session that does not answer");
    assert_eq!(bench.suspicion.asked(&Verdict::Silent, false), None);
    assert_eq!(bench.suspicion.asked(&Verdict::Silent, true), None, "an older call was open");
    for _ in 0..2 {
        assert_eq!(bench.suspicion.asked(&Verdict::Silent, false), None);
    }
    bench.result();
    assert!(bench.suspicion.holds());
    assert_eq!(bench.suspicion.asked(&Verdict::Silent, false), None, "a result was between");
    assert_eq!(bench.suspicion.asked(&Verdict::Well, false), None);
    for ends in [false, false, true] {
        assert_eq!(bench.suspicion.asked(&Verdict::Silent, false).is_some(), ends);
    }
}

#[test]
fn a_limit_of_everything_is_one_fresh_session() {
    let mut bench = Bench::new();
    let mut told = |at: u64, limited: bool| {
        bench.suspicion.limited(&mut bench.history, limited, seconds(900), bench.now + seconds(at))
    };
    assert!(!told(0, true) && !told(899, true) && !told(900, false), "something else came");
    assert!(!told(1_000, true) && !told(1_899, true));
    assert!(told(1_900, true));
    assert!(!told(4_000, true), "once");
}
