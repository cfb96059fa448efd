//! What recording does to a connection: nothing, whatever the writer does.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use mcp_reconnect::core::{Input, ReadyFlag, Status};
use mcp_reconnect::trace::{self, Recorder};

use super::{Memory, dropped, steps};
use crate::k08::Warnings;
use crate::support::*;

/// Real time, for a thread that should long have done it.
const HANG: Duration = Duration::from_secs(60);

/// A file that takes nothing before it is released, and tells when it is closed.
struct Stuck {
    file: Memory,
    release: Receiver<()>,
    _closed: Sender<()>,
}

impl Stuck {
    fn new() -> (Self, Memory, Sender<()>, Receiver<()>) {
        let (file, (release, released), (close, closed)) = (Memory::default(), channel(), channel());
        (Self { file: file.clone(), release: released, _closed: close }, file, release, closed)
    }
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // An error says that it was released for good; or who waits for it must fail, not hang.
        _ = self.release.recv_timeout(HANG);
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is full after so many bytes.
struct Full(Memory, usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.bytes().len() + bytes.len() > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A life of which a part is as long as is wanted: a connection that is told of so many suspends, parked, and woken.
async fn told(recorder: Recorder, suspends: usize) -> mcp_reconnect::Connection {
    // Without pongs, which are reported: so a suspend is one input.
    let server = memory("ping never");
    let connection = builder(&server).record(recorder).build().unwrap();
    let mut events = connection.events();
    until_ready(&mut events).await;
    (0..suspends).for_each(|_| connection.resumed());
    connection.park();
    until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
    connection.wake(mcp_reconnect::core::WakeCause::Operator);
    until_ready(&mut events).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "well")).await), "well");
    connection
}

#[tokio::test(start_paused = true)]
async fn traces_slow_writer_blocks_nobody_and_what_it_misses_is_counted() {
    let reference = Memory::default();
    told(reference.clone().into(), 1).await.shutdown().await;
    let all_but_one_suspend = steps(&reference.trace()).len() - 1;

    const SUSPENDS: usize = 10_000;
    let (stuck, file, release, _closed) = Stuck::new();
    let connection = told(Recorder::new(stuck).outputs(true), SUSPENDS).await;
    assert!(file.bytes().is_empty(), "it could not write a byte");
    drop(release);
    connection.shutdown().await;

    let trace = file.trace();
    let missed = usize::try_from(dropped(&trace)).unwrap();
    assert!(missed > 1_000 && missed < SUSPENDS, "the queue is bounded, and not small: {missed}");
    assert_eq!(steps(&trace).len() + missed, all_but_one_suspend + SUSPENDS);
    // What came before the gap can be replayed, and the replay says where it must stop.
    let verified = trace.verify().expect("the same machine");
    let gap = verified.gap.expect("inputs are missing");
    assert_eq!((verified.inputs, verified.compared), (gap.line / 2 - 1, gap.line / 2 - 1));
    assert!(gap.to_string().contains("nothing after it can be replayed"), "{gap}");
}

#[tokio::test(start_paused = true)]
async fn traces_the_end_waits_a_while_for_a_writer_that_is_stuck() {
    let (warnings, _guard) = Warnings::of_this_thread();
    let (stuck, file, release, closed) = Stuck::new();
    let connection = told(Recorder::new(stuck), 1).await;
    connection.shutdown().await;
    assert!(file.bytes().is_empty());
    let logged = warnings.logged();
    assert_eq!(logged.get("the trace is still being written: it may be cut"), Some(&1), "{logged:?}");
    // It is written all the same, should the process live on.
    drop(release);
    assert!(closed.recv_timeout(HANG).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Disconnected));
    assert_eq!(
        steps(&file.trace()).last().unwrap().input,
        Input::Gone { epoch: epoch(2), failure: mcp_reconnect::core::FailureClass::Transport.into() }
    );
}

#[tokio::test(start_paused = true)]
async fn traces_a_write_error_is_one_warning() {
    let (warnings, _guard) = Warnings::of_this_thread();
    let file = Memory::default();
    let connection = told(Full(file.clone(), 2_000).into(), 500).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "well")).await), "well");
    connection.shutdown().await;
    let logged = warnings.logged();
    assert_eq!(logged.get("the trace cannot be written: it ends here"), Some(&1), "{logged:?}");
    assert!(file.bytes().len() <= 2_000);
}

/// A fast call tells the machine nothing, so recording adds nothing to it.
#[tokio::test(start_paused = true)]
async fn traces_fast_calls_leave_no_mark() {
    let mut traces = Vec::new();
    for calls in [0, 1_000] {
        let (file, server) = (Memory::default(), memory(""));
        let connection = builder(&server).record(Recorder::new(file.clone()).outputs(true)).build().unwrap();
        connection.session().await.unwrap();
        for _ in 0..calls {
            assert_eq!(text(connection.call_tool(tool_with("write", "fast")).await), "fast");
        }
        connection.shutdown().await;
        traces.push(file.trace().entries);
    }
    assert_eq!(traces[0], traces[1]);
}

/// Whoever drops the runtime under a connection has a whole trace.
#[test]
fn traces_end_with_their_runtime() {
    let (stuck, file, release, closed) = Stuck::new();
    drop(release);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let connection = runtime.block_on(async {
        let connection = builder(&memory("")).record(stuck).build().unwrap();
        connection.session().await.unwrap();
        connection
    });
    drop(runtime);
    assert!(closed.recv_timeout(HANG).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Disconnected));
    drop(connection);
    assert_eq!(steps(&file.trace()).last().unwrap().input, Input::Shutdown);
}

/// A process that is killed leaves all that it had to say when it was last idle.
#[tokio::test(start_paused = true)]
async fn traces_are_written_while_the_connection_lives() {
    struct Telling(Memory, Sender<()>);
    impl Write for Telling {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.1.send(()).map_err(io::Error::other)
        }
    }
    let (file, (flushed, flushes)) = (Memory::default(), channel());
    let connection = builder(&memory("")).record(Telling(file.clone(), flushed)).build().unwrap();
    connection.session().await.unwrap();
    let last = Input::Reached { epoch: epoch(1), flag: ReadyFlag::Catalogue };
    loop {
        flushes.recv_timeout(HANG).expect("the last line is flushed while nothing follows");
        let trace = trace::read(&file.bytes()[..]).unwrap();
        assert_eq!(trace.cut, None);
        if steps(&trace).last().is_some_and(|step| step.input == last) {
            break;
        }
    }
    connection.shutdown().await;
}

/// A host that says it slept is heard before anything that became due meanwhile: a ping that was under way is no
/// verdict.
#[tokio::test(start_paused = true)]
async fn traces_tell_of_a_suspend_before_what_was_due_in_it() {
    let (file, server) = (Memory::default(), memory("ping delay 60s, ok"));
    let impatient = config(|config| config.ping_misses(1));
    let connection = builder(&server).config(impatient).record(file.clone()).build().unwrap();
    connection.session().await.unwrap();
    server.watch().wait_until(|ledger| ledger.requests("ping") == 1).await;
    tokio::time::sleep(secs(1)).await;
    connection.resumed();
    tokio::time::advance(secs(8 * 3600)).await;
    tokio::time::sleep(secs(5)).await;
    assert_eq!(connection.snapshot().status, Status::Ready(epoch(1)));
    connection.shutdown().await;
    let trace = file.trace();
    let woken = steps(&trace)
        .into_iter()
        .position(|step| step.input == Input::Resumed { by_call: false })
        .expect("it was told");
    let (before, resumed) = (steps(&trace)[woken - 1].at, steps(&trace)[woken].at);
    assert!(resumed.since(before) >= secs(8 * 3600), "{before:?} {resumed:?}");
}
