//! K14: no child process is leaked.

use std::future::Future;
use std::net::TcpListener;
use std::time::Duration;

use mcp_reconnect::core::{Config, ConfigBuilder, Status};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{Builder, CallError, CloseGraces, Connection, Session};
use mcp_reconnect_tests::fake::{Event as Seen, FakeProcess, Ledger};
use mcp_reconnect_tests::link::process_command;

use crate::support::*;

/// A guard against hanging; nothing is measured.
async fn guarded<T>(scenario: impl Future<Output = T>) -> T {
    tokio::time::timeout(secs(60), scenario).await.unwrap()
}

/// A connection that closes and redials without much ado.
fn brisk(server: &FakeProcess) -> Builder {
    let mut command = process_command(server);
    command.graces = CloseGraces { eof: millis(30), term: millis(30), ..CloseGraces::default() };
    Connection::builder(StdioConnector::new(command)).config(brisk_config(secs(30))).name("fake").seed(7)
}

fn brisk_config(connect_timeout: Duration) -> Config {
    brisk_knobs(connect_timeout).build().unwrap()
}

fn brisk_knobs(connect_timeout: Duration) -> ConfigBuilder {
    Config::builder()
        .connect_timeout(connect_timeout)
        .backoff(millis(20))
        .backoff_max(millis(20))
        .min_dial_interval(millis(10))
        .stable_after(Duration::from_nanos(1))
        .park_after(secs(3600))
}

/// Everything that was ever started has ended, and every server was waited for.
fn nothing_is_left(server: &FakeProcess) {
    let ledger = server.ledger().unwrap();
    assert_eq!(ledger.live_pids(), [0_u32; 0], "{:?}", ledger.exits());
    let servers = server_pids(&ledger);
    assert!(!ledger.zombies().iter().any(|zombie| servers.contains(zombie)), "{:?}", ledger.zombies());
}

fn server_pids(ledger: &Ledger) -> Vec<u32> {
    let pids = ledger.entries().iter().filter_map(|entry| match entry.event {
        Seen::Spawned { pid } => pid,
        _ => None,
    });
    pids.collect()
}

/// Whatever was started before this spawn has ended.
fn only_spawn(server: &FakeProcess, spawn: u32) {
    for earlier in 1..spawn {
        assert_eq!(
            server.ledger().unwrap().of_spawn(earlier).live_pids(),
            [0_u32; 0],
            "spawn {earlier} lives on beside {spawn}"
        );
    }
}

/// Also R052.
#[tokio::test]
async fn k14_port_hog() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = process(&format!(
        "start bind {port}
         spawn 1..5:
          start bind {port}, grandchild hold stdout ignore TERM
          discover never
          initialize never
          ignore EOF
          ignore TERM"
    ));
    let connection = brisk(&server).config(brisk_config(millis(200))).build().unwrap();
    let mut events = connection.events();
    guarded(async {
        for spawn in 2..=6 {
            server.watch().wait_until(|ledger| ledger.spawns() >= spawn as usize).await;
            only_spawn(&server, spawn);
        }
        until_ready(&mut events).await;
        let ledger = server.ledger().unwrap();
        assert_eq!((ledger.spawns(), ledger.live_pids().len()), (6, 1));
        // Who finds the port taken says so.
        assert_eq!(ledger.exits(), []);
        connection.shutdown().await;
        nothing_is_left(&server);
    })
    .await;
}

/// Also R054.
#[tokio::test]
async fn k14_wrapper() {
    let server = process("start grandchild hold stdout ignore TERM");
    let connection = brisk(&server).build().unwrap();
    guarded(async {
        connection.session().await.unwrap();
        let ledger = server.watch().wait_until(|ledger| ledger.pids().len() == 2).await;
        assert_eq!(ledger.live_pids().len(), 2);
        connection.shutdown().await;
        nothing_is_left(&server);
        assert_eq!(server.ledger().unwrap().exits(), [(1, "eof")]);
    })
    .await;
}

/// The wrapper dies in mid-session; nothing that it started outlives it into the next epoch, and its stdout, which
/// somebody still holds open, keeps nobody from seeing that it died.
#[tokio::test]
async fn k14_wrapper_dies_and_its_stdout_stays_open() {
    let server = process(
        "spawn 1:
          start grandchild hold stdout ignore TERM
          call write commit, exit 3",
    );
    let connection = brisk(&server).build().unwrap();
    guarded(async {
        server.watch().wait_until(|ledger| ledger.pids().len() == 2).await;
        match connection.call_tool(tool("write")).await {
            Err(CallError::OutcomeUnknown { cause, .. }) => assert!(cause.contains("status 3"), "{cause}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(connection.session_after(epoch(1)).await.unwrap().epoch(), epoch(2));
        only_spawn(&server, 2);
        assert_eq!(server.ledger().unwrap().live_pids().len(), 1);
        connection.shutdown().await;
        nothing_is_left(&server);
    })
    .await;
}

/// The other way round: the link is dead, the process is not, and does not want to be.
#[tokio::test]
async fn k14_link_dies_and_the_process_lives_on() {
    for death in ["call write commit, close stdout", "call write commit, close stdin, close stdout"] {
        let server = process(&format!("spawn 1:\n ignore EOF\n ignore TERM\n {death}"));
        let connection = brisk(&server).build().unwrap();
        guarded(async {
            let result = connection.call_tool(tool("write")).await;
            assert!(matches!(result, Err(CallError::OutcomeUnknown { .. })), "{result:?}");
            connection.session_after(epoch(1)).await.unwrap();
            only_spawn(&server, 2);
            connection.shutdown().await;
            nothing_is_left(&server);
        })
        .await;
    }
}

/// Also R053: twenty rebuilds, forced by a host or by pings that are slower than their deadline. Neither descriptors
/// nor tasks grow with them.
#[test]
fn k14_slow_ping_restart() {
    alone("k14::k14_slow_ping_restart", async {
        let server = process("ping delay 60s");
        let config = brisk_knobs(secs(30)).ping_timeout(millis(20)).build().unwrap();
        let connection = brisk(&server).config(config).build().unwrap();
        let mut session = connection.session().await.unwrap();
        let mut usual = None;
        for rebuild in 1..=20 {
            if rebuild <= 2 {
                connection.resumed()
            } else {
                connection.invalidate(session.epoch(), "a test")
            }
            session = next(&connection, &session).await;
            only_spawn(&server, rebuild + 1);
            let now = (descriptors(), tokio::runtime::Handle::current().metrics().num_alive_tasks());
            assert_eq!(now, *usual.get_or_insert(now), "after {rebuild} rebuilds");
        }
        assert_eq!(server.ledger().unwrap().of_spawn(1).requests("ping"), 2);
        assert_eq!(server.ledger().unwrap().spawns(), 21);
        connection.shutdown().await;
        nothing_is_left(&server);
    });
}

/// The session after this one, set up and calm: a call has gone through it.
async fn next(connection: &Connection, old: &Session) -> std::sync::Arc<Session> {
    let session = connection.session_after(old.epoch()).await.unwrap();
    assert_eq!(text(connection.call_tool(tool_with("echo", "calm")).await), "calm");
    session
}

/// Nothing is left after a shutdown: no descriptor, no task, no process, wherever the connection was.
#[test]
fn k16_processes_leave_nothing() {
    alone("k14::k16_processes_leave_nothing", async {
        let stages = [
            ("", 0),
            ("discover never\ninitialize never\nignore EOF\nignore TERM", 0),
            ("list never\nstart grandchild hold stdout ignore TERM", 1),
            ("start grandchild hold stdout ignore TERM\nspawn 1:\n on initialized delay 10ms, kill", 2),
            ("on initialized stderr 1MiB, close stdin\nignore TERM", 0),
        ];
        // The first round loads what stays loaded.
        let mut before = None;
        for (script, pids) in [("", 0)].into_iter().chain(stages) {
            {
                let server = process(script);
                let connection = brisk(&server).build().unwrap();
                server
                    .watch()
                    .wait_until(|ledger| ledger.requests("server/discover") > 0 && ledger.pids().len() > pids)
                    .await;
                connection.shutdown().await;
                nothing_is_left(&server);
            }
            // The fake server's own task ends with it.
            while tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
                tokio::task::yield_now().await;
            }
            let now = descriptors();
            assert_eq!(now, *before.get_or_insert(now), "{script}");
        }
    });
}

/// How many files this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs a scenario in a process of its own, where nobody else opens files.
fn alone(test: &str, scenario: impl Future<Output = ()>) {
    const MARK: &str = "MCP_RECONNECT_TEST_ALONE";
    if std::env::var_os(MARK).is_none() {
        let this = std::env::current_exe().unwrap();
        let run =
            std::process::Command::new(this).args([test, "--exact", "--nocapture"]).env(MARK, "").output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
        return;
    }
    runtime().block_on(guarded(scenario));
}

/// Dropping the last handle closes politely too; nobody has to wait for it.
#[tokio::test]
async fn k14_dropped_handle() {
    let server = process("start grandchild hold stdout ignore TERM");
    let connection = brisk(&server).build().unwrap();
    guarded(async {
        connection.session().await.unwrap();
        server.watch().wait_until(|ledger| ledger.pids().len() == 2).await;
        let mut events = connection.events();
        drop(connection);
        // The end of the events is the end of the connection.
        while events.next().await.is_some() {}
        nothing_is_left(&server);
        assert_eq!(server.ledger().unwrap().exits(), [(1, "eof")]);
    })
    .await;
}

/// A runtime that goes down takes the processes with it, politeness or not.
#[test]
fn k14_dropped_runtime() {
    runtime().block_on(guarded(async {
        let (server, connection) = outlived().await;
        drop(connection);
        for pid in server.ledger().unwrap().pids() {
            ended(pid).await;
        }
    }));
}

/// So it does when somebody still holds a handle, who is not left in the dark until his deadline either.
#[test]
fn k14_dropped_runtime_and_a_handle_is_left() {
    runtime().block_on(guarded(async {
        let (server, connection) = outlived().await;
        let result = connection.call_tool_with(tool("write"), &within(secs(5))).await;
        assert!(matches!(result, Err(CallError::Closed | CallError::NotSent { .. })), "{result:?}");
        for pid in server.ledger().unwrap().pids() {
            tokio::time::timeout(secs(5), ended(pid)).await.expect("a process that outlives its runtime");
        }
    }));
}

/// A stubborn server, and a connection to it that outlived its runtime.
async fn outlived() -> (FakeProcess, Connection) {
    let server = process("start grandchild hold stdout ignore TERM\nignore EOF\nignore TERM");
    let (connect, watch) = (brisk(&server), server.watch());
    let life = move || {
        runtime().block_on(async {
            let connection = connect.build().unwrap();
            connection.session().await.unwrap();
            watch.wait_until(|ledger| ledger.pids().len() == 2).await;
            connection
        })
    };
    // On a thread of its own, which has no runtime.
    let life = std::thread::spawn(life);
    let connection = tokio::task::spawn_blocking(move || life.join().unwrap()).await.unwrap();
    (server, connection)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits for the end of a process that is not ours to wait for.
async fn ended(pid: u32) {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    // An error says that it is gone already.
    if let Ok(process) = pidfd_open(pid, PidfdFlags::NONBLOCK) {
        #[expect(deprecated, reason = "what replaces it is unsafe; an owned descriptor is fine here")]
        let process = tokio::io::unix::AsyncFd::new(process).unwrap();
        drop(process.readable().await.unwrap());
    }
}

/// A start that fails leaves nothing, however it fails.
#[tokio::test]
async fn k14_failed_starts() {
    let server = process(
        "start grandchild hold stdout ignore TERM
         spawn 1:
          initialize exit 1
         spawn 2:
          initialize error -32603 \"no\"
         spawn 3:
          start grandchild ignore TERM
          initialize close stdout
          ignore EOF
         spawn 4:
          list exit 1
         spawn 5:
          list error -32603 \"no\"
          ignore EOF
          ignore TERM",
    );
    let connection = brisk(&server).build().unwrap();
    let mut events = connection.events();
    guarded(async {
        until_ready(&mut events).await;
        only_spawn(&server, 6);
        assert_eq!(server.ledger().unwrap().spawns(), 6);
        connection.shutdown().await;
        nothing_is_left(&server);
        assert_eq!(connection.snapshot().status, Status::Shutdown);
    })
    .await;
}
