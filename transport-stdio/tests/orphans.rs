//! Orphans of a server's group: reaped by init, or by this process where it adopts them, as the first process of a
//! container does. In a binary of its own, since that is a property of the process.

mod support;

use std::time::{Duration, Instant};

use mcp_reconnect_stdio::Server;
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};
use support::{Hold, LONG, SHORT, close, gone, in_time, script};

const SECOND: Duration = Duration::from_secs(1);
/// Ends on EOF, while a child that ignores TERM holds `$HOLD`.
const WRAPPER: &str = r#"(trap '' TERM; exec 3<>"$HOLD"; echo '{"ready":1}'; exec sleep 1000) & exec cat >/dev/null"#;

async fn start(hold: &Hold) -> Server {
    let mut server = script(WRAPPER, hold, [LONG, SHORT, SECOND]).spawn().expect("a good command");
    assert!(in_time(server.stdout.next()).await.is_ok_and(|frame| frame.is_some()));
    server
}

#[tokio::test]
async fn k14_orphans_are_gone_and_those_that_come_to_us_are_reaped() {
    let hold = Hold::new();

    let held = hold.open();
    let server = start(&hold).await;
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "exited with status 0");
    gone(held).await;
    assert_eq!(children(WaitIdOptions::NOHANG), Err(Errno::CHILD), "a zombie is left");

    set_child_subreaper(Some(getpid())).expect("Linux");
    let held = hold.open();
    let server = start(&hold).await;
    assert_eq!(close(&server.control, server.stdin).await.to_string(), "exited with status 0");
    gone(held).await;
    assert_eq!(children(WaitIdOptions::NOHANG), Err(Errno::CHILD), "a zombie is left");

    let held = hold.open();
    let server = start(&hold).await;
    drop(server.stdin);
    in_time(server.control.exited()).await;
    drop(server.control);
    gone(held).await;
    // A thread reaps it. The kernel does not tell when a zombie goes.
    let give_up = Instant::now() + Duration::from_secs(60);
    while children(WaitIdOptions::NOHANG) != Err(Errno::CHILD) {
        assert!(Instant::now() < give_up, "a zombie is left");
        std::thread::yield_now();
    }
}

/// Waits for any child of this process, without reaping it.
fn children(options: WaitIdOptions) -> Result<(), Errno> {
    waitid(WaitId::All, options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).map(drop)
}
