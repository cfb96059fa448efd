//! The chaos soak (`mcp_reconnect_tests::soak`) in small. It runs in a process of its own, whose tasks, descriptors and
//! children are its alone.

use tokio::process::Command;

#[tokio::test]
async fn a_few_seconds_of_random_faults() {
    let mut soak = Command::new(env!("CARGO_BIN_EXE_soak"));
    soak.args(["4s", "--servers", "2"]).kill_on_drop(true);
    let output = soak.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}
