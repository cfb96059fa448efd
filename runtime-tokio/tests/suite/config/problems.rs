//! Everything that can be wrong with a config, and how it is told.

use mcp_reconnect::config::ProblemKind;

use super::parse;

/// A file with this one server.
fn one(server: &str) -> String {
    format!(r#"{{"mcpServers":{{"x":{server}}}}}"#)
}

/// The errors of a text, a line each, without the name of the file.
fn errors(text: &str) -> Vec<String> {
    let errors = parse(text).map(|parsed| parsed.config).expect_err(text);
    errors.to_string().lines().map(|line| line.strip_prefix("mcp.json: ").expect("the file").to_owned()).collect()
}

/// The same for the warnings of a text that is read.
fn warnings(text: &str) -> Vec<String> {
    let parsed = parse(text).unwrap_or_else(|errors| panic!("{text}: {errors}"));
    let lines = parsed.warnings.iter().map(ToString::to_string);
    lines.map(|line| line.strip_prefix("mcp.json: ").expect("the file").to_owned()).collect()
}

#[test]
fn what_is_no_config_is_told_with_its_place() {
    for (text, told) in [
        ("", "is no JSON: EOF while parsing a value at line 1 column 0"),
        ("{\n \"mcpServers\": {,}\n}", "is no JSON: key must be a string at line 2 column 17"),
        ("[]", "is an array, not an object"),
        ("{}", "has no `mcpServers`"),
        (r#"{"mcpServers":null}"#, "has no `mcpServers`"),
        (r#"{"mcpServers":[]}"#, "`mcpServers`: is an array, not an object"),
        (r#"{"mcp":7}"#, "`mcp`: is a number, not an object"),
        (r#"{"mcpServers":{},"mcpServers":{}}"#, "`mcpServers`: is there twice"),
        (r#"{"mcpServers":{},"mcp-reconnect":[]}"#, "`mcp-reconnect`: is an array, not an object"),
        (
            r#"{"mcpServers":{},"mcp-reconnect":{"max_dials":129}}"#,
            "`mcp-reconnect.max_dials`: 129 is no whole number from 1 to 128",
        ),
    ] {
        assert_eq!(errors(text), [told], "{text}");
    }
    let problem = &parse("{\n  x").unwrap_err().problems[0];
    assert_eq!(problem.kind, ProblemKind::Syntax { line: 2, column: 3 });
}

#[test]
fn each_mistake_in_a_server_is_told() {
    for (server, told) in [
        ("7", "is a number, not an object"),
        ("null", "is null, not an object"),
        ("{}", "has no `command` or `url`"),
        (r#"{"type":"http"}"#, "has no `url`"),
        (r#"{"type":"stdio"}"#, "has no `command`"),
        (r#"{"command":"a","url":"http://b/"}"#, "`command`: stands beside `url`: a server has one of them"),
        (r#"{"command":"a","type":"http"}"#, "`command`: contradicts the `type`, which wants a `url`"),
        (r#"{"url":"http://b/","type":"stdio"}"#, "`url`: contradicts the `type`, which wants a `command`"),
        (r#"{"url":"http://b/","httpUrl":"http://b/"}"#, "`httpUrl`: the server has another URL already"),
        (r#"{"url":"http://b/","type":"http","transport":"sse"}"#, "`transport`: contradicts `type`, or a synonym"),
        (
            r#"{"command":"a","type":"pipe"}"#,
            "`type`: \"pipe\" is none of `\"stdio\"`, `\"http\"`, `\"streamable-http\"`",
        ),
        (r#"{"command":"a","command":"b"}"#, "`command`: is there twice"),
        (r#"{"command":""}"#, "`command`: is empty"),
        (r#"{"command":"${EMPTY}"}"#, "`command`: is empty"),
        (r#"{"command":[]}"#, "`command`: is an array, not a string, or an array of strings that is not empty"),
        (r#"{"command":["a",1]}"#, "`command[1]`: is a number, not a string"),
        (r#"{"command":"a","args":"b"}"#, "`args`: is a string, not an array of strings"),
        (r#"{"command":"a","args":["b",8080]}"#, "`args[1]`: is a number, not a string"),
        (r#"{"command":"a","env":[]}"#, "`env`: is an array, not an object"),
        (r#"{"command":"a","env":{"A":true}}"#, "`env.A`: is a boolean, not a string"),
        (r#"{"command":"a","env":{"A":"1","A":"2"}}"#, "`env.A`: is there twice"),
        (r#"{"command":"a","env":{"A":"1"},"environment":{"A":"2"}}"#, "`environment.A`: is there twice"),
        (r#"{"command":"a","env":{"A=B":"1"}}"#, "`env.A=B`: is no name for a variable"),
        (r#"{"command":"a","env":{"":"1"}}"#, "`env.`: is no name for a variable"),
        (r#"{"command":"a","env":{"A":"${NUL}"}}"#, "`env.A`: holds a NUL character"),
        (r#"{"command":"a","cwd":""}"#, "`cwd`: is empty"),
        (r#"{"command":"a","cwd":1}"#, "`cwd`: is a number, not a string"),
        (r#"{"url":1}"#, "`url`: is a number, not a string"),
        (r#"{"url":"ftp://b/"}"#, "`url`: \"ftp://b\": the server's URL is no http or https URL"),
        (r#"{"url":"b/mcp"}"#, "`url`: the server's URL cannot be read: relative URL without a base"),
        (r#"{"url":"http://b/","headers":"c"}"#, "`headers`: is a string, not an object"),
        (r#"{"url":"http://b/","headers":{"c":1}}"#, "`headers.c`: is a number, not a string"),
        (r#"{"url":"http://b/","headers":{"c":"1","C":"2"}}"#, "`headers.C`: is there twice"),
        (r#"{"url":"http://b/","headers":{"c d":"1"}}"#, "`headers.c d`: the header `c d` or its value is invalid"),
        (
            r#"{"url":"http://b/","headers":{"Accept":"1"}}"#,
            "`headers.Accept`: the header `accept` belongs to the protocol",
        ),
        (r#"{"command":"a","disabled":"yes"}"#, "`disabled`: \"yes\" is not `true` or `false`"),
        (r#"{"command":"a","disabled":true,"enabled":true}"#, "`disabled`: contradicts `enabled`"),
        (
            r#"{"command":"a","timeout":"soon"}"#,
            "`timeout`: \"soon\" is no duration: write `\"250ms\"`, `\"30s\"`, `\"15m\"`, `\"1h\"` or a number of seconds, at most 30 days",
        ),
        (r#"{"command":"a","timeout":0}"#, "`timeout`: 0: `timeout` is zero"),
        (r#"{"command":"a","tools":7}"#, "`tools`: is a number, not an object"),
        (r#"{"command":"a","tools":["b",""]}"#, "`tools[1]`: is empty"),
        (r#"{"command":"a","tools":["b"],"includeTools":["b"]}"#, "`includeTools`: stands beside `tools`"),
        (r#"{"command":"a","disabledTools":{}}"#, "`disabledTools`: is an object, not an array of strings"),
        (r#"{"command":"a","mcp-reconnect":7}"#, "`mcp-reconnect`: is a number, not an object"),
        (
            r#"{"command":"${NOT_SET}"}"#,
            "`command`: the variable `NOT_SET` is not set; `${NOT_SET:-default}` gives it a default",
        ),
        (
            r#"{"command":"a","env":{"A":"${input:key}"}}"#,
            "`env.A`: `${input:key}` is asked for by the editor; use an environment variable",
        ),
        (
            r#"{"command":"a","cwd":"${workspaceFolder}"}"#,
            "`cwd`: `${workspaceFolder}` is known to editors only; write a path, or use an environment variable",
        ),
    ] {
        assert_eq!(errors(&one(server)), [format!("server `x`: {told}")], "{server}");
    }
}

#[test]
fn each_mistake_in_a_setting_is_told() {
    let duration =
        "is no duration: write `\"250ms\"`, `\"30s\"`, `\"15m\"`, `\"1h\"` or a number of seconds, at most 30 days";
    for (setting, told) in [
        (r#""keepalive":"30""#, format!("keepalive`: \"30\" {duration}")),
        (r#""keepalive":-1"#, format!("keepalive`: -1 {duration}")),
        (r#""keepalive":1e300"#, format!("keepalive`: 1e+300 {duration}")),
        (r#""keepalive":true"#, format!("keepalive`: true {duration}")),
        (r#""keepalive":"off""#, format!("keepalive`: \"off\" {duration}")),
        (r#""keepalive":0"#, "keepalive`: 0: `keepalive` is zero".into()),
        (r#""keepalive":"31d""#, "keepalive`: \"31d\": `keepalive` is 2678400s, longer than 2592000s".into()),
        (r#""idle_timeout":"0s""#, "idle_timeout`: \"0s\": `idle_timeout` is zero".into()),
        (r#""call_timeout":0"#, "call_timeout`: 0: `call_timeout` is zero".into()),
        (
            r#""call_max_wait":"31d""#,
            "call_max_wait`: \"31d\": `call_max_wait` is 2678400s, longer than 2592000s".into(),
        ),
        (r#""ping_misses":0"#, "ping_misses`: 0 is no whole number from 1 to 255".into()),
        (r#""breaker_strikes":256"#, "breaker_strikes`: 256 is no whole number from 1 to 255".into()),
        (r#""max_in_flight":1.5"#, "max_in_flight`: 1.5 is no whole number from 1 to 4294967295".into()),
        (r#""clean_env":1"#, "clean_env`: 1 is not `true` or `false`".into()),
        (r#""connect":"lazy""#, "connect`: \"lazy\" is none of `\"eager\"`, `\"on-demand\"`".into()),
        (r#""era":7"#, "era`: 7 is none of `\"auto\"`, `\"legacy\"`, `\"modern\"`".into()),
        (r#""backoff_max":"500ms""#, "backoff_max`: `backoff_max` is 500ms, below `backoff` (1s)".into()),
        (r#""backoff":"2m""#, "backoff`: `backoff_max` is 60s, below `backoff` (120s)".into()),
        (r#""backoff":"900ms""#, "backoff`: `backoff / 2` is 450ms, below `min_dial_interval` (500ms)".into()),
        (
            r#""min_dial_interval":"2s""#,
            "min_dial_interval`: `backoff / 2` is 500ms, below `min_dial_interval` (2s)".into(),
        ),
        (
            r#""close_timeout":"8s""#,
            "close_timeout`: `close_timeout` is 8s, not above the close ladder of the transport (8.1s)".into(),
        ),
        (
            r#""close_eof":"9s""#,
            "close_timeout`: `close_timeout` is 10s, not above the close ladder of the transport (12.1s)".into(),
        ),
        (
            r#""call_timeout":"2m","call_max_timeout":"1m""#,
            "call_max_timeout`: `call_max_timeout` is 60s, below `call_timeout` (120s)".into(),
        ),
        (r#""era":"auto","era":"auto""#, "era`: is there twice".into()),
        (r#""tools":["a"]"#, "tools`: is an array, not an object".into()),
        (r#""tools":{"include":"a"}"#, "tools.include`: is a string, not an array of strings".into()),
    ] {
        let server = format!(r#"{{"command":"a","mcp-reconnect":{{{setting}}}}}"#);
        assert_eq!(errors(&one(&server)), [format!("server `x`: `mcp-reconnect.{told}")], "{setting}");
    }
    let server = r#"{"url":"http://b/","mcp-reconnect":{"proxy":"nowhere"}}"#;
    assert_eq!(
        errors(&one(server)),
        ["server `x`: `mcp-reconnect.proxy`: the proxy's URL cannot be read: relative URL without a base"]
    );
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = r#"{
        "mcp-reconnect": { "keepalive": 0, "backoff_max": "100ms", "park_probe": "20m", "max_dials": 0 },
        "mcpServers": {
            "": { "command": "a" },
            "a\nb": { "command": "a" },
            "one": { "command": 1, "args": [2, "${NOT_SET} ${NOR_THIS}"], "env": { "A": false }, "cwd": 3, "disabled": 4 },
            "two": { "url": "nowhere", "headers": { "a b": "c", "Host": "d" }, "tools": 1 },
            "two": { "command": "b" },
            "good": { "command": "b" }
        }
    }"#;
    assert_eq!(
        errors(text).join("\n"),
        r#"`mcp-reconnect.max_dials`: 0 is no whole number from 1 to 128
`mcp-reconnect.keepalive`: 0: `keepalive` is zero
`mcp-reconnect.backoff_max`: `backoff_max` is 100ms, below `backoff` (1s)
`mcp-reconnect.park_probe`: `park_probe_max` is 900s, below `park_probe` (1200s)
server ``: a name must not be empty, nor hold control characters
server `a\nb`: a name must not be empty, nor hold control characters
server `one`: `disabled`: 4 is not `true` or `false`
server `one`: `command`: is a number, not a string, or an array of strings that is not empty
server `one`: `args[0]`: is a number, not a string
server `one`: `args[1]`: the variable `NOT_SET` is not set; `${NOT_SET:-default}` gives it a default
server `one`: `args[1]`: the variable `NOR_THIS` is not set; `${NOR_THIS:-default}` gives it a default
server `one`: `env.A`: is a boolean, not a string
server `one`: `cwd`: is a number, not a string
server `two`: `url`: the server's URL cannot be read: relative URL without a base
server `two`: `headers.Host`: the header `host` belongs to the protocol
server `two`: `headers.a b`: the header `a b` or its value is invalid
server `two`: `tools`: is a number, not an object
server `two`: is there twice"#
    );
}

#[test]
fn what_is_ignored_is_told() {
    for (server, told) in [
        (r#""comand":"b""#, "`comand`: is not known and was ignored; did you mean `command`?"),
        (r#""whatever":1"#, "`whatever`: is not known and was ignored"),
        (r#""keepalive":1"#, "`keepalive`: is not known here and was ignored; it belongs into `mcp-reconnect`"),
        (r#""envFile":".env""#, "`envFile`: is not read: name its variables under `env`"),
        (r#""headers":{}"#, "`headers`: has no meaning for a child process"),
        (r#""cwd":"~/x""#, "`cwd`: `~` stands for itself; write `${HOME}` for the home directory"),
        (
            r#""args":["$TOKEN"]"#,
            "`args[0]`: looks like a variable and was taken as it stands; variables are written `${NAME}`",
        ),
        (
            r#""mcp-reconnect":{"keepAlive":1}"#,
            "`mcp-reconnect.keepAlive`: is not known and was ignored; did you mean `keepalive`?",
        ),
        (r#""mcp-reconnect":{"max_dials":1}"#, "`mcp-reconnect.max_dials`: is not known and was ignored"),
        (r#""mcp-reconnect":{"proxy":"http://p/"}"#, "`mcp-reconnect.proxy`: has no meaning for a child process"),
        (r#""tools":{"includes":[]}"#, "`tools.includes`: is not known and was ignored; did you mean `include`?"),
        (
            r#""timeout":60"#,
            "`timeout`: 60 was read as 60s (seconds, as every number up to 3600), for clients do not agree on the unit; `mcp-reconnect.call_timeout` has one",
        ),
        (
            r#""timeout":60000"#,
            "`timeout`: 60000 was read as 60s (milliseconds, as every number above 3600), for clients do not agree on the unit; `mcp-reconnect.call_timeout` has one",
        ),
    ] {
        let server = format!(r#"{{"command":"a",{server}}}"#);
        assert_eq!(warnings(&one(&server)), [format!("server `x`: {told}")], "{server}");
    }
    let http = r#"{"url":"http://b/","env":{},"mcp-reconnect":{"close_eof":"1s"}}"#;
    assert_eq!(
        warnings(&one(http)),
        [
            "server `x`: `env`: has no meaning for a server behind HTTP",
            "server `x`: `mcp-reconnect.close_eof`: has no meaning for a server behind HTTP",
        ]
    );
    for (text, told) in [
        (
            r#"{"mcpServer":{},"mcpServers":{}}"#,
            "`mcpServer`: is not known and was ignored; did you mean `mcpServers`?",
        ),
        (
            r#"{"mcp_reconnect":{},"mcpServers":{}}"#,
            "`mcp_reconnect`: is not known and was ignored; did you mean `mcp-reconnect`?",
        ),
        (r#"{"servers":{},"mcpServers":{}}"#, "`servers`: is not read beside `mcpServers`"),
        (r#"{"context_servers":{},"servers":{}}"#, "`context_servers`: is not read beside `servers`"),
    ] {
        assert_eq!(warnings(text), [told], "{text}");
    }
    let silent = r#"{"command":"a","description":"d","icon":"i","alwaysAllow":[],"_note":1,"cwd":null,"timeout":"5s"}"#;
    assert_eq!(warnings(&one(silent)), [""; 0]);
    assert_eq!(warnings(r#"{"mcp":{"excluded":[]},"other":1,"mcpServers":{}}"#), [""; 0]);
}

#[test]
fn defaults_that_were_told_wrong_once_are_not_told_again() {
    let text = r#"{"mcp-reconnect":{"backoff_max":"1ms"},"mcpServers":{"a":{"command":"a"},"b":{"url":"http://b/"}}}"#;
    assert_eq!(errors(text).len(), 1);
}

#[test]
fn a_disabled_server_need_not_be_complete() {
    let server = r#"{"command":"a","env":{"A":"${NOT_SET}"},"disabled":true}"#;
    let parsed = parse(&one(server)).unwrap();
    assert!(!parsed.config.servers["x"].enabled);
    assert_eq!(warnings(&one(server)).len(), 1);
    assert_eq!(errors(&one(&server.replace("true", "false"))).len(), 1);
}

#[test]
fn a_problem_is_one_line_whatever_the_files_names_hold() {
    let text = r#"{ "mcpServers": { "x": { "url": "https://a/", "headers": { "X-\nKey": "v" } } } }"#;
    let errors = super::parse(text).unwrap_err();
    assert_eq!(errors.problems.len(), 1, "{errors}");
    assert_eq!(errors.to_string().lines().count(), 1, "{errors}");
    assert!(errors.to_string().contains(r"`X-\nKey`"), "{errors}");
}
