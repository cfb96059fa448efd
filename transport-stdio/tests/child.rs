//! Real children: every way to end, and nothing left of any.

mod support;

use std::fs::OpenOptions;
use std::future::Future;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_stdio::{
    CloseGraces, LEFTOVER_LIMIT, Ladder, ReadError, STDERR_LINES, Server, ServerCommand, ServerControl, SpawnError,
};
use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, test_kill_process_group, waitid};
use support::{HOUR, Hold, LONG, SHORT, close, close_by, gone, in_time, script, shell};
use tokio::runtime::Runtime;

/// Holds `$HOLD`, says so, and lives on through EOF, by a child that is in no hurry.
const DEAF: &str = r#"exec 3<>"$HOLD"; echo '{"ready":1}'; sleep 1000"#;
/// Lives on through TERM as well.
const STUBBORN: &str = r#"trap '' TERM; exec 3<>"$HOLD"; echo '{"ready":1}'; sleep 1000"#;
/// Ends on EOF, while a child that ignores TERM holds `$HOLD` and stdout.
const WRAPPER: &str = r#"(trap '' TERM; exec 3<>"$HOLD"; echo '{"ready":1}'; exec sleep 1000) & exec cat >/dev/null"#;

/// Starts a server whose stderr a task drains, and waits for its first frame.
async fn start(command: &ServerCommand) -> Server {
    let mut server = spawn(command);
    assert_eq!(next(&mut server).await.as_deref(), Some(r#"{"ready":1}"#));
    server
}

fn spawn(command: &ServerCommand) -> Server {
    // Orphans come to us, so that it does not matter how soon this machine's init reaps them.
    set_child_subreaper(Some(getpid())).expect("Linux");
    let server = command.spawn().expect("a good command");
    let control = Arc::clone(&server.control);
    tokio::spawn(async move { control.drain_stderr().await });
    server
}

async fn next(server: &mut Server) -> Option<Box<str>> {
    in_time(server.stdout.next()).await.expect("no overflow")
}

/// Without a task that keeps the control.
async fn start_undrained(command: &ServerCommand) -> Server {
    let mut server = command.spawn().expect("a good command");
    assert_eq!(next(&mut server).await.as_deref(), Some(r#"{"ready":1}"#));
    server
}

fn group_is_empty(control: &ServerControl) -> bool {
    test_kill_process_group(pid(control)).is_err()
}

fn pid(control: &ServerControl) -> Pid {
    Pid::from_raw(control.pid().cast_signed()).expect("not zero")
}

/// Waits until a process that has ended or is about to is no zombie either. The kernel does not tell when a zombie goes.
fn wait_until_reaped(pid: Pid) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_ok() {
        assert!(Instant::now() < give_up, "a zombie is left");
        thread::yield_now();
    }
}

#[tokio::test]
async fn a_server_that_exits_is_told_with_its_status_and_last_words() {
    let hold = Hold::new();
    let mut server = spawn(&script("read line; echo \"$line\"; echo oops >&2; exit 3", &hold, [LONG; 3]));
    in_time(server.stdin.write(r#"{"id":1}"#)).await.expect("it reads");
    assert_eq!(next(&mut server).await.as_deref(), Some(r#"{"id":1}"#));
    assert_eq!(next(&mut server).await, None);
    assert_eq!(in_time(server.control.exited()).await.and_then(|status| status.code()), Some(3));
    let exit = close(&server.control, server.stdin).await;
    assert_eq!(exit.to_string(), "exited with status 3; stderr: oops");
    assert!(group_is_empty(&server.control));
}

#[tokio::test]
async fn a_server_that_is_killed_is_told_with_its_signal() {
    let server = spawn(&script("kill -9 $$", &Hold::new(), [LONG; 3]));
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "killed by signal 9 (SIGKILL)");
}

#[tokio::test]
async fn k16_a_server_that_ends_with_its_input_is_not_signalled() {
    let hold = Hold::new();
    let server = start(&script("echo '{\"ready\":1}'; cat >/dev/null; exit 4", &hold, [LONG; 3])).await;
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "exited with status 4");
    assert!(group_is_empty(&server.control));
}

#[tokio::test]
async fn k16_a_server_that_takes_three_seconds_to_end_gets_them() {
    let hold = Hold::new();
    let mut command = script("echo '{\"ready\":1}'; cat >/dev/null; sleep 3; exit 4", &hold, [LONG; 3]);
    command.graces = CloseGraces::default();
    let server = start(&command).await;
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "exited with status 4");
}

#[tokio::test]
async fn k16_a_server_deaf_to_the_end_of_its_input_is_terminated() {
    let hold = Hold::new();
    let held = hold.open();
    let server = start(&script(DEAF, &hold, [SHORT, LONG, LONG])).await;
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "killed by signal 15 (SIGTERM)");
    assert!(group_is_empty(&server.control));
    gone(held).await;
}

#[tokio::test]
async fn k16_a_stubborn_server_is_killed_with_all_its_children() {
    let hold = Hold::new();
    let held = hold.open();
    let server = start(&script(STUBBORN, &hold, [SHORT, SHORT, LONG])).await;
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "killed by signal 9 (SIGKILL)");
    assert!(group_is_empty(&server.control));
    gone(held).await;
}

#[tokio::test]
async fn k16_a_wedged_server_is_terminated_at_once_and_killed_after_its_grace() {
    let hold = Hold::new();
    for (text, term, end) in
        [(DEAF, LONG, "killed by signal 15 (SIGTERM)"), (STUBBORN, SHORT, "killed by signal 9 (SIGKILL)")]
    {
        let held = hold.open();
        // The grace for the end of its input would outlast the test.
        let server = start(&script(text, &hold, [HOUR, term, LONG])).await;
        assert_eq!(close_by(Ladder::Wedged, &server.control, server.stdin).await.to_string(), end);
        assert!(group_is_empty(&server.control));
        gone(held).await;
    }
}

#[tokio::test]
async fn k16_a_wedged_server_sees_the_end_of_its_input_too() {
    let hold = Hold::new();
    let text = "trap '' TERM; echo '{\"ready\":1}'; cat >/dev/null; exit 4";
    let server = start(&script(text, &hold, [HOUR, LONG, LONG])).await;
    assert_eq!(close_by(Ladder::Wedged, &server.control, server.stdin).await.to_string(), "exited with status 4");
}

#[tokio::test]
async fn k14_a_grandchild_does_not_outlive_its_wrapper() {
    let hold = Hold::new();
    let held = hold.open();
    let server = start(&script(WRAPPER, &hold, [LONG, SHORT, LONG])).await;
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "exited with status 0");
    assert!(group_is_empty(&server.control));
    gone(held).await;
}

#[tokio::test]
async fn k14_a_grandchild_that_heeds_term_is_not_killed() {
    let hold = Hold::new();
    let text = r#"(trap 'echo bye >&2; exit' TERM; echo '{"ready":1}'; while :; do sleep 1000 & wait; done) &
        exec cat >/dev/null"#;
    let server = start(&script(text, &hold, [LONG; 3])).await;
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "exited with status 0; stderr: bye");
    assert!(group_is_empty(&server.control));
}

#[tokio::test]
async fn a_stuck_write_holds_up_neither_kill_nor_close() {
    let frame = format!("{{{}}}", " ".repeat(1 << 20));
    let hold = Hold::new();

    let Server { mut stdin, control, .. } = start(&script(DEAF, &hold, [LONG; 3])).await;
    let mut write = pin!(stdin.write(&frame));
    assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "stuck");
    control.kill();
    assert_eq!(in_time(write).await.expect_err("the reader was killed").sent, Sent::Maybe);
    assert_eq!(in_time(control.exited()).await.and_then(|status| status.signal()), Some(9));
    control.kill();

    // This one reads again when its input is closed, and must then see the end of it.
    let text = "echo '{\"ready\":1}'; sleep 1; cat >/dev/null; exit 5";
    let Server { mut stdin, control, stdout } = start(&script(text, &hold, [LONG; 3])).await;
    let mut write = pin!(stdin.write(&frame));
    assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "stuck");
    let (exit, written) = in_time(async { tokio::join!(control.close(Ladder::Polite), write) }).await;
    assert_eq!(written.expect_err("given up").sent, Sent::Maybe);
    assert_eq!(exit.to_string(), "exited with status 5");
    drop(stdout);
}

#[tokio::test]
async fn a_waiter_that_is_not_polled_holds_no_other_up() {
    let hold = Hold::new();
    let server = start(&script(DEAF, &hold, [SHORT, LONG, LONG])).await;
    let mut idle = pin!(server.control.exited());
    assert!(idle.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let exit = close(&server.control, server.stdin).await;
    assert_eq!(exit.to_string(), "killed by signal 15 (SIGTERM)");
    assert_eq!(in_time(idle).await, exit.status);
}

#[tokio::test]
async fn k14_dropping_the_control_kills_and_reaps_the_group() {
    let hold = Hold::new();
    for text in [STUBBORN, WRAPPER] {
        let held = hold.open();
        let Server { stdout, stdin, control } = start_undrained(&script(text, &hold, [LONG; 3])).await;
        let pid = pid(&control);
        drop(control);
        gone(held).await;
        wait_until_reaped(pid);
        drop((stdout, stdin));
    }
}

#[tokio::test]
async fn k14_dropping_the_control_kills_what_outlived_the_leader() {
    let hold = Hold::new();
    let held = hold.open();
    let Server { stdin, control, .. } = start_undrained(&script(WRAPPER, &hold, [LONG; 3])).await;
    drop(stdin);
    assert!(in_time(control.exited()).await.is_some_and(|status| status.success()));
    assert!(!group_is_empty(&control));
    drop(control);
    gone(held).await;
}

#[test]
fn k14_nothing_outlives_the_runtime_nor_a_drop_after_it() {
    let hold = Hold::new();
    let watcher = Runtime::new().expect("a runtime");
    for with_runtime in [true, false] {
        let held = watcher.block_on(async { hold.open() });
        let runtime = Runtime::new().expect("a runtime");
        let server = runtime.block_on(start_undrained(&script(STUBBORN, &hold, [LONG; 3])));
        let pid = pid(&server.control);
        if with_runtime {
            runtime.spawn(async move {
                server.control.exited().await;
            });
            drop(runtime);
        } else {
            drop(runtime);
            drop(server);
        }
        watcher.block_on(gone(held));
        wait_until_reaped(pid);
    }
}

#[tokio::test]
async fn k22_a_flood_on_stderr_freezes_nothing_and_stays_bounded() {
    let text = "head -c 1048576 /dev/zero | tr '\\0' x >&2; echo '{\"ready\":1}'; echo the end >&2; exit 1";
    let server = start(&script(text, &Hold::new(), [LONG; 3])).await;
    let exit = close(&server.control, server.stdin).await;
    assert!(exit.stderr.len() <= STDERR_LINES + 1);
    assert!(exit.to_string().ends_with("the end") && exit.to_string().len() < 2000, "{exit}");
}

#[tokio::test]
async fn k22_noise_is_counted_and_a_line_over_the_limit_is_an_end() {
    let text = r#"printf '\357\273\277{"id":"\377"}\nhello\r\n\n42\n[{"id":1}]\r\n'; head -c 100000 /dev/zero; cat >/dev/null"#;
    let mut command = script(text, &Hold::new(), [LONG; 3]);
    command.frame_limit = 1000;
    let mut server = spawn(&command);
    assert_eq!(next(&mut server).await.as_deref(), Some("{\"id\":\"\u{fffd}\"}"));
    assert_eq!(next(&mut server).await.as_deref(), Some(r#"{"id":1}"#));
    assert_eq!(server.control.noise(), 3);
    assert!(server.control.last_byte().is_some());
    for _ in 0..2 {
        let error = in_time(server.stdout.next()).await.expect_err("too long");
        assert!(matches!(error, ReadError::Overflow { limit: 1000 }));
        assert_eq!(error.to_string(), "a line on stdout exceeds the frame limit of 1000 bytes");
    }
    drop(server.stdout);
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "exited with status 0");
}

#[tokio::test]
async fn the_first_byte_counts_on_either_pipe() {
    for text in ["read -r line; echo >&2; sleep 1000", "read -r line; echo; sleep 1000"] {
        let Server { mut stdin, mut stdout, control } = spawn(&script(text, &Hold::new(), [SHORT, LONG, LONG]));
        let mut first = pin!(control.first_byte());
        assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        in_time(stdin.write("{}")).await.expect("it reads");
        tokio::select! {
            () = in_time(first) => {}
            frame = stdout.next() => panic!("no frame was written: {frame:?}"),
        }
        close(&control, stdin).await;
    }
}

#[tokio::test]
async fn output_is_read_though_a_grandchild_holds_the_pipe() {
    let hold = Hold::new();
    let mut server = spawn(&script(r#"sleep 1000 & printf '{"id":1}\nnoise\n{"id":2}'"#, &hold, [LONG; 3]));
    assert!(in_time(server.control.exited()).await.is_some());
    let mut leftover = || server.stdout.leftover().expect("no overflow");
    assert_eq!(leftover().as_deref(), Some(r#"{"id":1}"#));
    assert_eq!(leftover().as_deref(), Some(r#"{"id":2}"#));
    assert_eq!(leftover(), None);
    assert_eq!(next(&mut server).await, None);
    assert_eq!(server.control.noise(), 1);
    close(&server.control, server.stdin).await;

    let mut endless = spawn(&script("yes '{}' & exit 0", &hold, [LONG; 3]));
    assert!(in_time(endless.control.exited()).await.is_some());
    let mut read = 0;
    while let Some(frame) = endless.stdout.leftover().expect("no overflow") {
        read += frame.len() + 1;
    }
    assert!(read <= LEFTOVER_LIMIT, "{read}");
    close(&endless.control, endless.stdin).await;
}

#[tokio::test]
async fn a_server_may_go_on_writing_while_it_is_closed() {
    let text = "echo '{\"ready\":1}'; cat >/dev/null; head -c 300000 /dev/zero || exit 9; exit 4";
    let Server { stdout, stdin, control } = start_undrained(&script(text, &Hold::new(), [LONG; 3])).await;
    drop(stdout);
    assert_eq!(close(&control, stdin).await.to_string(), "exited with status 4");
}

#[tokio::test]
async fn the_server_gets_arguments_environment_and_directory() {
    let hold = Hold::new();
    let mut command =
        script(r#"printf '{"%s":"%s","%s":"%s"}\n' "$PWD" "$0" "$TOKEN" "${HOME-none}""#, &hold, [LONG; 3]);
    command.args.push("first".into());
    command.cwd = Some("/".into());
    command.env.insert("TOKEN".into(), Some("secret".into()));
    command.env.insert("HOME".into(), None);
    let mut server = spawn(&command);
    assert_eq!(next(&mut server).await.as_deref(), Some(r#"{"/":"first","secret":"none"}"#));
    close(&server.control, server.stdin).await;
}

#[tokio::test]
async fn k04_a_failed_start_names_the_setting_that_is_wrong() {
    let hold = Hold::new();
    let dir = hold.dir().display().to_string();
    shell(&format!(
        "cd {dir}; echo x > plain; printf '#!/no/such/interpreter\\n' > orphan; echo binary > format; \
         printf '#!/bin/sh\\n' > busy; chmod +x orphan format busy"
    ));
    let refused = |program: &str, cwd: Option<&str>| -> SpawnError {
        let mut command = ServerCommand::new(program);
        command.cwd = cwd.map(|cwd| cwd.into());
        command.env.insert("PATH".into(), Some(dir.clone().into()));
        command.spawn().map(drop).expect_err("it cannot be started")
    };
    let permanent = [
        (refused("nope", None), format!("command \"nope\": not found in PATH {dir:?}")),
        (refused("plain", None), format!("command \"plain\": {dir}/plain: Permission denied (os error 13)")),
        (refused("./nope", Some("/")), "command \"./nope\": /./nope: No such file or directory (os error 2)".into()),
        (refused("sh", Some("/no/such")), "cwd \"/no/such\": No such file or directory (os error 2)".into()),
        (refused("sh", Some("/bin/sh")), "cwd \"/bin/sh\": not a directory".into()),
        (
            refused("orphan", None),
            format!(
                "command \"orphan\" ({dir}/orphan): No such file or directory (os error 2); \
                 is the interpreter of its first line there?"
            ),
        ),
        (refused("format", None), format!("command \"format\" ({dir}/format): Exec format error (os error 8)")),
    ];
    for (error, text) in permanent {
        assert_eq!((error.to_string(), error.class), (text, FailureClass::Permanent));
    }

    let writing = OpenOptions::new().append(true).open(hold.dir().join("busy")).expect("our own file");
    let busy = refused("busy", None);
    assert_eq!(busy.class, FailureClass::Transport, "{busy}");
    drop(writing);
}
