//! Messages as large as they come.

use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::support::process;

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn sixteen_mebibytes_each_way() {
    let (home, server) = (Home::new(), process("call write big 17MiB"));
    let mut host = Host::of(&home, &[], &server);
    host.initialize().await;
    host.echo(&"x".repeat(16 * MIB)).await;
    let answer = host.call("write", "x").await;
    let text = answer["result"]["content"][0]["text"].as_str().map(str::len);
    assert!(text.is_some_and(|len| len > 16 * MIB), "{text:?}");
    assert_eq!(server.ledger().unwrap().spawns(), 1, "no session was lost over it");
    assert_eq!(host.close().await, Some(0));
}

/// Its id is where a host writes it, in front or at the end; the session goes on.
#[tokio::test]
async fn what_is_too_large_is_refused_by_name() {
    let (home, server) = (Home::new(), process(""));
    let mut host = Host::of(&home, &[], &server);
    host.initialize().await;
    let text = "x".repeat(64 * MIB);
    let params = format!(r#"{{"name":"write","arguments":{{"text":"{text}"}}}}"#);
    let message = format!(r#"{{"method":"tools/call","params":{params},"jsonrpc":"2.0","id":77}}"#);
    let stdin = host.stdin.as_mut().unwrap();
    soon(stdin.write_all((message + "\n").as_bytes())).await.unwrap();
    let answer = host.answer(77).await;
    assert_eq!(answer["error"]["code"], -32600);
    assert_eq!(answer["error"]["message"], "the message is longer than 67108864 bytes");
    host.echo("still here").await;
    assert_eq!(server.ledger().unwrap().calls("write"), 0);
    assert_eq!(host.request("tools/list", json!({})).await["result"]["tools"].as_array().map(Vec::len), Some(2));
    assert_eq!(host.close().await, Some(0));
}
