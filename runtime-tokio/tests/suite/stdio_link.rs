//! A child process as a link: how frames, failures and the end of the process come through.

use std::ffi::OsString;
use std::fs;
use std::future::Future;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mcp_reconnect::link::{Attempt, Connector, Fate, Link, Outbound, SendFailure};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Epoch, FailureClass};
use mcp_reconnect_stdio::{CloseGraces, ServerCommand};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::{self, Receiver};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A frame that no pipe holds.
fn huge() -> Box<str> {
    format!("{{{}}}", " ".repeat(1 << 20)).into()
}

fn script(text: &str) -> ServerCommand {
    let mut command = ServerCommand::new("sh");
    command.args = ["-c", text].map(OsString::from).into();
    let long = Duration::from_secs(30);
    command.graces = CloseGraces { eof: long, term: long, kill: long };
    command
}

async fn connect(command: ServerCommand) -> (Link, Attempt) {
    let attempt = Attempt {
        epoch: Epoch::FIRST,
        interactive: false,
        cancel: CancellationToken::new(),
        tasks: TaskTracker::new(),
    };
    attempt.tasks.close();
    let link = StdioConnector::new(command).connect(attempt.clone()).await.expect("a good command");
    (link, attempt)
}

/// The test fails rather than hangs.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), future).await.expect("the test hangs")
}

async fn next(link: &mut Link) -> Option<Box<str>> {
    in_time(link.inbound.recv()).await
}

/// The server has said that it is ready.
async fn ready(link: &mut Link) {
    assert_eq!(next(link).await.as_deref(), Some(r#"{"ready":1}"#));
}

async fn queue(link: &Link, frame: impl Into<Box<str>>) -> Fate {
    let (frame, fate) = Outbound::new(frame.into());
    assert!(in_time(link.outbound.send(frame)).await.is_ok(), "the link is open");
    fate
}

async fn failure(fate: Fate) -> SendFailure {
    in_time(fate).await.expect_err("not sent")
}

#[tokio::test]
async fn frames_go_both_ways_and_the_facts_are_told() {
    let (mut link, attempt) = connect(script("echo hello; cat; echo bye >&2; exit 0")).await;
    in_time(link.control.first_byte()).await;
    let fate = queue(&link, r#"{"id":1}"#).await;
    assert_eq!(in_time(fate).await, Ok(()));
    assert_eq!(next(&mut link).await.as_deref(), Some(r#"{"id":1}"#));
    let facts = link.control.facts();
    assert_eq!((facts.noise, facts.pid.is_some(), facts.last_byte.is_some()), (1, true, true));
    assert_eq!(&*in_time(link.control.close()).await.cause, "exited with status 0; stderr: bye");
    in_time(attempt.tasks.wait()).await;
}

#[tokio::test]
async fn k01_the_exit_ends_the_link_though_a_grandchild_has_its_pipes() {
    // As many frames as the channel does not hold, all of which are delivered.
    let text = r#"sleep 1000 2>&- & i=0; while [ $i -lt 500 ]; do echo '{}'; i=$((i+1)); done; echo oops >&2; exit 3"#;
    let mut command = script(text);
    // The grandchild's init may be slow to reap it.
    (command.graces.term, command.graces.kill) = (Duration::from_secs(1), Duration::from_secs(1));
    let (mut link, attempt) = connect(command).await;
    let mut frames = 0;
    while next(&mut link).await.is_some() {
        frames += 1;
    }
    assert_eq!(frames, 500);
    let why = in_time(link.control.why()).await;
    assert_eq!((why.failure.class, &*why.cause), (FailureClass::Transport, "exited with status 3; stderr: oops"));
    in_time(link.outbound.closed()).await;
    in_time(link.control.close()).await;
    in_time(attempt.tasks.wait()).await;
}

#[tokio::test]
async fn k05_a_link_that_can_only_speak_one_way_is_an_ended_one() {
    let (mut link, attempt) = connect(script("echo oops >&2; exec <&-; echo '{\"ready\":1}'; exec sleep 1000")).await;
    ready(&mut link).await;
    assert!(link.control.survives());
    // A child that another test starts just now may hold the other end for a moment, until it executes its program.
    let refused = loop {
        if let Err(refused) = in_time(queue(&link, "{}").await).await {
            break refused;
        }
    };
    assert!(!link.control.survives(), "known as soon as the failure is");
    assert_eq!(refused.sent, Sent::No);
    assert!(refused.cause.starts_with("writing to stdin failed: Broken pipe"), "{refused:?}");
    assert_eq!(next(&mut link).await, None);
    let why = in_time(link.control.why()).await.cause;
    assert_eq!(*why, format!("{}, though the process runs on; stderr: oops", refused.cause));
    link.control.kill();
    assert_eq!(&*in_time(link.control.close()).await.cause, "killed by signal 9 (SIGKILL); stderr: oops");
    in_time(attempt.tasks.wait()).await;
}

#[tokio::test]
async fn an_end_by_itself_with_status_0_has_a_class_of_its_own() {
    for (text, class, cause) in [
        ("echo bye >&2; exit 0", FailureClass::Finished, "exited with status 0; stderr: bye"),
        ("exit 1", FailureClass::Transport, "exited with status 1"),
        ("kill -TERM $$", FailureClass::Transport, "killed by signal 15 (SIGTERM)"),
    ] {
        let (mut link, _attempt) = connect(script(text)).await;
        assert_eq!(next(&mut link).await, None);
        let why = in_time(link.control.why()).await;
        assert_eq!((why.failure.class, &*why.cause), (class, cause));
    }
    // What was closed from here has not ended by itself.
    let (link, _attempt) = connect(script("cat >/dev/null")).await;
    for ended in [in_time(link.control.close()).await, in_time(link.control.why()).await] {
        assert_eq!((ended.failure.class, &*ended.cause), (FailureClass::Transport, "exited with status 0"));
    }
}

#[tokio::test]
async fn k05_a_begun_frame_may_have_arrived_and_a_queued_one_has_not() {
    let (mut link, attempt) = connect(script("head -c 1 >/dev/null; echo '{\"ready\":1}'; exec sleep 1000")).await;
    let (begun, waiting) = (queue(&link, huge()).await, queue(&link, "{}").await);
    ready(&mut link).await;
    link.control.kill();
    assert_eq!(failure(begun).await.sent, Sent::Maybe);
    assert_eq!(failure(waiting).await.sent, Sent::No);
    in_time(link.control.close()).await;
    in_time(attempt.tasks.wait()).await;
}

#[tokio::test]
async fn a_frame_that_was_given_up_is_left_out() {
    let (mut link, _attempt) = connect(script("cat")).await;
    drop(queue(&link, r#"{"id":1}"#).await);
    let kept = queue(&link, r#"{"id":2}"#).await;
    assert_eq!(in_time(kept).await, Ok(()));
    assert_eq!(next(&mut link).await.as_deref(), Some(r#"{"id":2}"#));
}

#[tokio::test]
async fn k22_a_line_over_the_limit_ends_the_link_and_says_so() {
    let mut command = script("echo '{\"ready\":1}'; head -c 2000 /dev/zero; exec sleep 1000");
    command.frame_limit = 1000;
    let (mut link, _attempt) = connect(command).await;
    ready(&mut link).await;
    assert_eq!(next(&mut link).await, None);
    let why = in_time(link.control.why()).await;
    assert_eq!(&*why.cause, "a line on stdout exceeds the frame limit of 1000 bytes");
    assert_eq!(why.failure.class, FailureClass::Transport);
}

#[tokio::test]
async fn an_unheard_reader_does_not_keep_the_server_from_ending() {
    let (mut link, attempt) = connect(script("yes '{}' | head -c 1000000; exit 4")).await;
    assert!(next(&mut link).await.is_some());
    assert_eq!(&*in_time(link.control.close()).await.cause, "exited with status 4");
    in_time(attempt.tasks.wait()).await;
}

#[tokio::test]
async fn a_wedged_server_does_not_get_the_grace_for_the_end_of_its_input() {
    let mut command = script("echo '{\"ready\":1}'; exec sleep 1000");
    command.graces.eof = Duration::from_secs(3600);
    let (mut link, attempt) = connect(command).await;
    ready(&mut link).await;
    assert_eq!(&*in_time(link.control.close_wedged()).await.cause, "killed by signal 15 (SIGTERM)");
    in_time(attempt.tasks.wait()).await;
}

#[tokio::test]
async fn a_cancelled_attempt_has_no_tasks_whatever_they_were_stuck_in() {
    let (mut link, attempt) = connect(script("head -c 1 >/dev/null; echo '{\"ready\":1}'; exec sleep 1000")).await;
    let (stuck, waiting) = (queue(&link, huge()).await, queue(&link, "{}").await);
    ready(&mut link).await;
    attempt.cancel.cancel();
    assert!(!link.control.survives());
    in_time(attempt.tasks.wait()).await;
    assert_eq!(failure(stuck).await.sent, Sent::Maybe);
    assert_eq!(failure(waiting).await.sent, Sent::No);
    assert_eq!(next(&mut link).await, None);
    link.control.kill();
    assert_eq!(&*in_time(link.control.close()).await.cause, "killed by signal 9 (SIGKILL)");
}

#[tokio::test]
async fn k14_a_link_that_is_dropped_leaves_no_process_and_no_task() {
    let hold = Hold::new();
    let text = format!(
        "trap '' TERM; exec 3<>{}; (echo '{{\"ready\":1}}'; exec sleep 1000) & sleep 1000",
        hold.fifo.display()
    );
    let mut held = hold.open();
    let (mut link, attempt) = connect(script(&text)).await;
    ready(&mut link).await;
    drop(link);
    in_time(held.read_to_end(&mut Vec::new())).await.expect("readable");
    in_time(attempt.tasks.wait()).await;
}

#[tokio::test]
async fn k04_a_command_that_cannot_be_started_is_permanent() {
    let attempt = Attempt {
        epoch: Epoch::FIRST,
        interactive: false,
        cancel: CancellationToken::new(),
        tasks: TaskTracker::new(),
    };
    let error = StdioConnector::new(ServerCommand::new("/no/such/server")).connect(attempt).await.expect_err("refused");
    assert_eq!(error.failure.class, FailureClass::Permanent);
    assert_eq!(error.to_string(), "command \"/no/such/server\": No such file or directory (os error 2)");
}

/// A pipe that a process tree holds open: its end tells that the whole tree is gone.
struct Hold {
    dir: PathBuf,
    fifo: PathBuf,
}

impl Hold {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("mcp-reconnect-link-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(unique);
        fs::create_dir(&dir).expect("a new directory");
        let fifo = dir.join("hold");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("there is a mkfifo").success());
        Self { dir, fifo }
    }

    fn open(&self) -> Receiver {
        pipe::OpenOptions::new().open_receiver(&self.fifo).expect("the FIFO is there")
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.dir));
    }
}
