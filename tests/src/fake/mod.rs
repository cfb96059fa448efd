//! The scripted fake server: an MCP server that fails exactly as it is told, and keeps the ground truth.
//!
//! A [`Script`] says, line by line, what each spawn of a server does. The engine ([`serve`]) plays it over an abstract
//! pair of pipes on tokio's clock, so one script runs
//!
//! - in memory, as tasks of the test, on paused time: [`FakeServer`];
//! - as real processes with real exits, signals and grandchildren: [`FakeProcess`] and the binary `fake-server`;
//! - as a streamable HTTP server on a loopback port: [`FakeHttp`], and the binary with `--http`.
//!
//! Whatever a spawn reads, runs and decides goes to its [`Ledger`] *before* its effect can be seen, and a test can wait
//! for an entry ([`LedgerWatch::wait_until`]) instead of looking for it again and again. The engine shares no code with
//! the crates under test: it is the independent witness.
//!
//! # Example
//!
//! A server that runs a call, dies before it answers, and is back as its second spawn:
//!
//! ```
//! # use mcp_reconnect_tests::fake::{Exit, FakeServer};
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = FakeServer::new(
//!     r#"server:
//!          tools echo(readOnly), write
//!        spawn 1:
//!          call write commit, delay 10s, exit 1
//!        spawn 2..:
//!          initialize delay 500ms"#,
//! )?;
//! let mut link = server.spawn();
//! let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write"}}"#;
//! link.to_server.send(call.into()).await?;
//! assert_eq!(link.from_server.recv().await, None); // ten virtual seconds later
//! assert_eq!(link.handle.ended().await, Exit::Code(1));
//! let ledger = server.ledger();
//! assert_eq!((ledger.calls("write"), ledger.executions("write")), (1, 1));
//! assert_eq!(ledger.exits(), [(1, "exit 1")]);
//! # Ok(())
//! # }
//! ```
//!
//! # The language
//!
//! The empty script is a well-behaved server of the legacy era (up to 2025-11-25) named `fake` `1`, with the tools
//! `echo` (read-only) and `write` (no annotation). It answers everything at once; a call's answer is its argument
//! `text`, or all its arguments as JSON. It exits with 0 at the end of its input. Each line changes something.
//!
//! A line is made of words, `"text"` (with `\n \r \t \0 \\ \" \xHH`) and `'JSON'`; indentation means nothing, and a `#`
//! at the start of a word begins a comment. Durations are `500ms`, `70s`, `5m`, `1h`; sizes `1000`, `65KiB`, `1MiB+1`.
//!
//! ## Headings
//!
//! Lines before any heading are as if under `server:`. A line for some spawns beats one for all; among equals the later
//! one holds.
//!
//! | heading | the lines below hold for |
//! |---|---|
//! | `server:` | every spawn |
//! | `spawn 1:` | the first spawn |
//! | `spawn 2..4:` | these; `2..:` for all from there |
//! | `until 60s:` | spawns that start less than this after the first one |
//! | `from 60s:` | spawns that start this long after the first one, or later |
//!
//! ## Settings
//!
//! | line | the server |
//! |---|---|
//! | `tools a, b(readOnly), c(idempotent=false, desc "v2"), d(destructive)` | offers these; also `readOnly=false`, `idempotent`; `tools none` for no tool |
//! | `prompts a, b(desc "x")` | offers these prompts; none by default |
//! | `resources file:///a` | offers these resources; none by default |
//! | `templates file:///{name}` | offers these resource templates; none by default |
//! | `paging 3` | splits each list into three pages |
//! | `paging repeat` | answers each list request with everything and the same cursor for more |
//! | `paging endless` | has one more page for ever, each with a new cursor |
//! | `capabilities tools(listChanged), resources(subscribe), logging` | declares these; also `prompts`, `completions`, `none`. By default `tools`, and what it has lists of |
//! | `info other 2` | says that this is its name and version |
//! | `era both` | speaks `legacy` (default: `server/discover` is unknown), `modern` (2026-07-28: `initialize` is unknown) or both |
//! | `versions 2025-06-18, 2024-11-05` | speaks these, best first; by default all. `initialize` with another gets the first; a modern request with another gets -32022 and `data.supported` |
//! | `serial` | reads its next message when the last request's actions are over |
//! | `exit-unless-initialize` | exits with 1 when its first request is not `initialize` |
//! | `ignore EOF` | lives on after the end of its input |
//! | `ignore TERM` | lives on after SIGTERM |
//!
//! ## Requests
//!
//! A request line is a request and the actions that are carried out for it, one after another. They run beside those of
//! other requests unless the server is `serial`. When none of them settles the request, `ok` follows by itself.
//!
//! | line | for |
//! |---|---|
//! | `initialize delay 70s` | `initialize` |
//! | `discover never` | `server/discover` |
//! | `list error -32603 "broken"` | `tools/list` |
//! | `ping error "Unknown method: ping"` | `ping` |
//! | `call write commit, kill` | calls of this tool |
//! | `call * ok, exit 0` | calls of any tool |
//! | `resources/read delay 1s` | any other method, by its name with a slash |
//! | `call write#2 never` | the second of them in a spawn; `#2..` and `#2..4` for more. `call *#2` counts all calls |
//!
//! A number beats none, a tool's name beats `*`.
//!
//! ## Events
//!
//! | line | when |
//! |---|---|
//! | `start stdout "banner\n"` | the spawn starts |
//! | `after 1h exit 7` | this time after the start; any number of such lines |
//! | `on initialized delay 1s, exit 0` | `notifications/initialized` was read |
//! | `on cancelled stop` | `notifications/cancelled` was read (it is in the ledger without any line) |
//! | `on notifications/roots/list_changed request roots` | any other notification was read |
//! | `on EOF delay 3s, exit 0` | the input ended; without a line: exit with 0 |
//! | `on TERM exit 9` | SIGTERM; without a line: the signal's default. Also `HUP`, `USR1`, `USR2` |
//!
//! ## Actions that settle a request
//!
//! A call that gets a result counts as run: it is committed to the ledger first, unless the line has a `commit` of its
//! own. Errors and `is-error` do not commit.
//!
//! | action | the answer |
//! |---|---|
//! | `ok` | of a well-behaved server |
//! | `reply "text"` | a call's result with this text; without the text the same as `ok` |
//! | `result '{"tools":[]}'` | this result |
//! | `error -32000 "Server not initialized" '{"more":1}'` | a JSON-RPC error; code or text may be left out, data too |
//! | `is-error "no such file"` | a call's result with `isError` |
//! | `version 2025-03-26` | `initialize` only: this version, whatever was asked for |
//! | `only 2025-06-18 2025-03-26` | as `ok` if one of these was asked for, else an error with `data.supported` (-32602 for `initialize`, -32022 for the others) |
//! | `big 1MiB-1` | a call's result as a message of this size, without the line end |
//! | `wrong-id` | a result with an id that nobody used |
//! | `bad-shape` | a result whose members have the wrong types |
//! | `duplicate` | as `ok`, twice |
//! | `input-required '{"name":{"method":"roots/list"}}'` | an `input_required` round (since 2026-07-28) with these or default requests; the request that continues it gets `ok` |
//! | `task` | a task; `tasks/get` and `tasks/result` then say that it is completed |
//! | `endless` | bytes without a line end, for ever |
//! | `never` | none |
//! | `exit 1` | none: the spawn exits with this code |
//! | `kill` | none: the spawn kills itself with SIGKILL |
//!
//! ## Other actions
//!
//! | action | |
//! |---|---|
//! | `commit` | the tool runs: one execution in the ledger |
//! | `delay 10s` | wait |
//! | `progress 10 every 20s` | wait and notify of progress, this many times; silent without a token in the request. `foreign` at the end: with a token that nobody gave |
//! | `hold 1000` | wait until this many requests are held, then go on with each in turn, the last first |
//! | `replay-old` | answer every call that the earlier spawns were asked, with its old id |
//! | `notify tools/list_changed x30 every 3ms` | send this notification, once or so often; `'JSON'` after the name for its params, `standing` at the end for the standing stream of HTTP |
//! | `request sampling wait` | send a request (`sampling`, `elicitation`, `roots`, `ping`); its answer goes to the ledger. `wait`: and wait for it; `standing` at the end as above |
//! | `set-tools a b(readOnly)` | from now on offer these tools |
//! | `stop` | `on cancelled` only: the cancelled request's actions end here, without an answer |
//! | `stdout "noise \xff\r\n"` | write these bytes, between messages |
//! | `stderr "last words\n"` | write these bytes to the error output |
//! | `stderr 1MiB` | write this many bytes without a line end |
//! | `close stdout` | end the output, and live on |
//! | `close stdin` | end the input, and live on |
//! | `deaf` | read nothing any more; the pipe fills |
//! | `mute` | write nothing any more; what is read still goes to the ledger |
//! | `grandchild hold stdout ignore TERM` | start a process that does nothing and does not end with its parent; both attributes may be left out. In memory nothing happens |
//! | `bind 4000` | listen on this loopback port for life; exit with 98 if it is taken. In memory nothing happens |
//!
//! # Over HTTP
//!
//! The same lines hold for a streamable HTTP server. A spawn is one incarnation of it; all its sessions share the
//! counters and the tools. `initialize` answers with the header `mcp-session-id`: `A1`, `A2` in the first spawn, `B1`
//! in the second. A request goes through these gates, each with lines of its own, before its message is read:
//! its verb, its token, the headers it must have, its session. Requests of 2026-07-28 have no session, but must have
//! the standard headers that agree with the message; without, they get 400 and -32020.
//!
//! An answer is a stream of events, and what its turn sends before it comes in the same stream. What no request is the
//! reason for, what comes after the answer, and all but the answer with `answers json`, goes to the standing
//! streams of the session, or of all sessions where a line is about none. What finds no stream is in the ledger as
//! undelivered. The order of what one line does is what the client sees, an exit behind an answer too.
//!
//! Where stdio has a pipe, HTTP has this: `stdout` writes into the body; `close stdout` ends all standing streams;
//! `deaf` reads and writes nothing any more and accepts connections; `exit` and `kill` close every connection and the
//! port. There is no end of input, and `grandchild` and `bind` do nothing. Over stdio an action of HTTP ends the spawn
//! with 98.
//!
//! ## Settings of HTTP
//!
//! | line | the server |
//! |---|---|
//! | `sessions none` | issues no session id and asks for none; `required` is the default |
//! | `answers json` | answers with one JSON document; `sse` (events) is the default |
//! | `content-type text/html` | says this of all that has status 200, whatever it is; `none` for no such header |
//! | `require-header mcp-protocol-version 2025-06-18 -> 400` | refuses every request without it, but the one that begins; `*` for any value; any number of such lines |
//! | `token T1 until 1h, T2` | wants one of these as bearer token, each until this long after the start |
//! | `respawn 100ms` | [`FakeHttp`] only: is back as its next spawn this long after its script ended it |
//!
//! ## Requests of HTTP
//!
//! Request lines as above, `#2` included. `ok` lets the request through to the next gate, and follows by itself; then
//! the line's other actions go on, so that `get ok, delay 1s, cut` cuts a standing stream. `error` answers the message
//! with status 200.
//!
//! | line | for | without a line |
//! |---|---|---|
//! | `post status 503` | every POST | `ok` |
//! | `get status 405` | every GET without `last-event-id` | `ok`: a standing stream |
//! | `resume headers-only` | every GET with `last-event-id` | `ok`: the rest of the stream of that event; a standing stream where the id is unknown |
//! | `delete never` | every DELETE | `ok`: 200, the session and its streams end |
//! | `unauthorized status 403` | requests without a good token | 401 with a challenge |
//! | `missing status 400 "Session ID is required"` | requests without a session id | 400 -32000 |
//! | `stale status 404 "Session not found"` | requests with an id that the server does not know | 404 -32001 |
//! | `stale-initialize ok` | of these, `initialize` | as `stale` |
//! | `stale-get status 405` | of these, GETs | as `stale` |
//! | `stale-delete status 202` | of these, DELETEs | as `stale` |
//!
//! ## Actions of HTTP that settle a request
//!
//! | action | the answer |
//! |---|---|
//! | `status 429 "slow down" header retry-after 7` | this status; the body as `"text"`, as `'JSON'` with its content type, or empty; headers as below. Behind the head of a stream: a cut |
//! | `headers-only` | the head of a stream, then a cut |
//! | `end` | the well-formed end of a stream, without the answer |
//! | `cut` | the connection is closed, whatever is missing |
//! | `reset` | the connection is reset |
//! | `black-hole` | nothing, and the connection is never read again |
//!
//! ## Other actions of HTTP
//!
//! | action | |
//! |---|---|
//! | `with-status 500` | the answer that follows has this status, and is a JSON document |
//! | `header x-hint "a b"` | the answer has this header; `none` leaves it out, `date 7s` is the date in so long |
//! | `retry-after 7` | the same for `retry-after`; also `date 7s` or any text |
//! | `cut after 1000` | closes the connection after so many bytes of the body that follows |
//! | `headers` | send the head of a stream now |
//! | `event-id e1` | send an empty event with this id now. When the stream ends before the answer, the rest waits for the GET that names it |
//! | `retry 100ms` | send this reconnection time |
//! | `forget` | the session is gone: from now on its id is stale, while its streams stay. In a line about no session: all of them |
//! | `set-token T2` | from now on only this token is good |
//! | `disconnect` | every connection is reset, that of this request too |
//!
//! `forget` and `set-token` belong before the answer: behind it, the client may be faster.
//!
//! # In a process
//!
//! `fake-server --script FILE --ledger FILE [--notify SOCKET] [--http PORT] [--alone FILE]`; [`FakeProcess`] makes the files and the
//! arguments. With `--alone` it takes the lock of that file, which it and its grandchildren hold as long as one of them
//! lives; if it is held already, `crowded` goes to the ledger, and nothing else comes of it. Many
//! processes share one ledger file: JSON lines, each appended in one write, and the number of a spawn is taken from
//! the file under its lock. After each line an empty datagram goes to the socket, if one is given, without ever
//! waiting. With `--http` it listens on this loopback port, or on any for 0, and writes the port as its first line. The
//! exit codes of the binary itself: 95 for arguments or files that it cannot use, 96 for a process that
//! nothing else ended within two minutes (deaf, ignoring EOF, HTTP, or a grandchild), 97 for a ledger that cannot be written.

mod answer;
mod engine;
mod host;
mod http;
mod ledger;
mod lex;
mod memory;
mod parse;
mod play;
mod process;
mod script;

pub use engine::{Inbound, serve};
pub use host::{Exit, Frame, Grandchild, Host, Output, Route};
pub(crate) use http::Door;
pub use http::{Asked, FakeHttp, HttpEvent, HttpOutput, ReservedPort, serve_http};
pub use ledger::{Entry, Event, Ledger, LedgerWatch, LedgerWriter, SpawnClaim};
pub use lex::ScriptError;
pub(crate) use lex::duration;
pub use memory::{FakeHandle, FakeLink, FakeServer};
pub use process::FakeProcess;
pub use script::{Plan, Script, SharedPlan, Signal};
