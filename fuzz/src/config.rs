//! The servers of a fleet, as a file.

use mcp_reconnect::config::{FleetConfig, Parsed, Problem};

use crate::cursor::Cursor;

/// What variables hold that are set; no problem may tell it. It can be no part of a URL's origin, which is told.
const SECRET: &str = "hush/3f9c";

/// Any text is read or refused with a reason, the same each time; what is read can be used; and no problem tells what a
/// variable holds.
///
/// Bytes: the environment, the text.
pub fn config(data: &[u8]) {
    let mut data = Cursor(data);
    let set = data.byte();
    let text = String::from_utf8_lossy(data.0);
    // A bit for each variable, by its length.
    let env = |name: &str| (set >> (name.len() % 8) & 1 != 0).then(|| SECRET.to_owned());
    let parse = |text: &str| FleetConfig::parse(text, "file", env);
    let read = parse(&text);
    assert_eq!(parse(&text), read, "read twice");
    if read.is_ok() {
        assert_eq!(parse(&format!("/* \" */{text}\n// \"}} ,\n/* ]{{ */")), read, "a comment says nothing");
    }
    let problems: Vec<&Problem> = match &read {
        Ok(parsed) => parsed.warnings.iter().collect(),
        Err(errors) => {
            assert!(!errors.problems.is_empty() && !errors.to_string().is_empty());
            errors.problems.iter().chain(&errors.warnings).collect()
        }
    };
    for problem in problems {
        let told = format!("{problem} {problem:?}");
        assert!(text.contains(SECRET) || !told.contains(SECRET), "{told}");
        assert!(!problem.text.is_empty() && &*problem.source == "file", "{told}");
        assert!(!problem.to_string().contains(['\n', '\r']), "one line for each: {told}");
    }
    if let Ok(Parsed { config, .. }) = read {
        assert!((1..=128).contains(&config.max_dials));
        for (name, server) in &config.servers {
            assert!(!name.trim().is_empty() && !name.contains(char::is_control));
            assert!(server.machine.close_timeout() > server.connector().close_bound());
            let digest = server.digest();
            assert!(digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
            let builder = server.builder(name);
            drop(format!("{server:?} {builder:?}"));
        }
    }
}
