//! A proxy that makes tunnels.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The proxy. Dropping it closes every socket.
pub(crate) struct Tunnels {
    pub(crate) url: String,
    /// The request line of each request.
    pub(crate) asked: watch::Receiver<Vec<String>>,
    _tasks: JoinSet<()>,
}

/// A proxy whose tunnels all lead to `target`, whatever it is asked for.
pub(crate) async fn tunnels(target: SocketAddr) -> Tunnels {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (log, asked) = watch::channel(Vec::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let log = log.clone();
            connections.spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = client.read_u8().await else { return };
                    head.push(byte);
                }
                let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
                log.send_modify(|log| log.push(line));
                let Ok(mut server) = TcpStream::connect(target).await else { return };
                drop(client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await);
                drop(copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    Tunnels { url, asked, _tasks: tasks }
}
