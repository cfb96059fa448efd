//! The chaos soak (`mcp_reconnect_tests::soak`) in small. It runs in a process of its own, whose tasks, descriptors and
//! children are its alone.

use std::process::Stdio;
use std::time::Duration;

use mcp_reconnect_tests::fake::{Event, FakeProcess, Ledger};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

#[tokio::test]
async fn a_few_seconds_of_random_faults() {
    let mut soak = Command::new(env!("CARGO_BIN_EXE_soak"));
    soak.args(["4s", "--servers", "2"]).kill_on_drop(true);
    let output = soak.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}

/// The whole tree holds the lock by which the soak tells that a server is alone.
#[tokio::test]
async fn a_server_is_crowded_while_anything_of_the_last_one_lives() {
    let fake = FakeProcess::new(env!("CARGO_BIN_EXE_fake-server"), "spawn 1:\n start grandchild").unwrap();
    let lock = Removed(std::env::temp_dir().join(format!("alone-{}", std::process::id())));
    let start = || -> Child {
        let mut command = Command::new(fake.program());
        command.args(fake.args()).arg("--alone").arg(&lock.0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let crowded = |ledger: &Ledger| -> Vec<u32> {
        ledger.entries().iter().filter(|entry| entry.event == Event::Crowded).map(|entry| entry.spawn).collect()
    };
    timeout(Duration::from_secs(60), async {
        let mut first = start();
        let ledger = fake.watch().wait_until(|ledger| ledger.pids().len() == 2).await;
        first.kill().await.unwrap();
        let mut second = start();
        // The end of its input is its end, which comes after what it finds at its start.
        drop(second.stdin.take());
        second.wait().await.unwrap();
        let grandchild = Pid::from_raw(ledger.pids()[1].cast_signed()).unwrap();
        kill_process(grandchild, Signal::KILL).unwrap();
        // The lock is free when it is gone.
        let file = std::fs::File::open(&lock.0).unwrap();
        tokio::task::spawn_blocking(move || rustix::fs::flock(file, rustix::fs::FlockOperation::LockExclusive))
            .await
            .unwrap()
            .unwrap();
        let mut third = start();
        drop(third.stdin.take());
        third.wait().await.unwrap();
        assert_eq!(crowded(&fake.ledger().unwrap()), [2]);
    })
    .await
    .unwrap();
}

struct Removed(std::path::PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // What cannot be removed lies in the system's temporary directory.
        drop(std::fs::remove_file(&self.0));
    }
}
