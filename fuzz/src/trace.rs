//! Traces of a connection.

use mcp_reconnect::trace::{Trace, read};

/// Any text is read or refused with a reason; what is read is written as what it is, and can be replayed.
pub fn trace(data: &[u8]) {
    let trace = match read(data) {
        Ok(trace) => trace,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let text = text(&trace);
    let again = read(&*text).unwrap_or_else(|error| panic!("its own text: {error}"));
    assert!(self::text(&again) == text, "read and written again: {again:?}");
    let verified = trace.verify();
    assert!(trace.verify() == verified, "replayed twice");
    assert!(trace.replay().all(|turn| turn.difference().is_none()) || verified.is_err());
}

fn text(trace: &Trace) -> Vec<u8> {
    let mut text = Vec::new();
    trace.write(&mut text).unwrap_or_else(|error| panic!("into memory: {error}"));
    text
}
