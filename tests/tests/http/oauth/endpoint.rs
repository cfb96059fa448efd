//! A token endpoint on loopback that answers as it is told.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

/// What a request is answered with.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Tokens(serde_json::Value),
    Status(u16, &'static str),
    /// Nothing, and the connection ends.
    Close,
}

impl Reply {
    pub(super) fn tokens(access: &str, refresh: Option<&str>, expires_in: u64) -> Self {
        let mut tokens = serde_json::json!({"access_token": access, "token_type": "bearer", "expires_in": expires_in});
        if let Some(refresh) = refresh {
            tokens["refresh_token"] = refresh.into();
        }
        Self::Tokens(tokens)
    }

    pub(super) fn scope(&mut self, scope: &str) {
        if let Self::Tokens(tokens) = self {
            tokens["scope"] = scope.into();
        }
    }
}

/// Ends with this value, its connections too.
pub(super) struct TokenEndpoint {
    shared: Arc<Shared>,
    address: std::net::SocketAddr,
    _accepts: AbortOnDropHandle<()>,
}

struct Shared {
    /// One for each request; the last one stays.
    replies: Mutex<Vec<Reply>>,
    /// The bodies of the requests.
    asked: watch::Sender<Vec<String>>,
    answered: watch::Sender<usize>,
    leave: Semaphore,
}

const ENOUGH: usize = 1000;

impl TokenEndpoint {
    pub(super) fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let shared = Arc::new(Shared {
            replies: Mutex::new(replies.into_iter().collect()),
            asked: watch::Sender::default(),
            answered: watch::Sender::default(),
            leave: Semaphore::new(ENOUGH),
        });
        let accepting = shared.clone();
        let accepts = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = accepting.clone();
                connections.spawn(async move { shared.answer(stream).await });
            }
        });
        Self { shared, address, _accepts: AbortOnDropHandle::new(accepts) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/token", self.address)
    }

    /// Answers with these from now on.
    pub(super) fn answer(&self, replies: impl IntoIterator<Item = Reply>) {
        *self.shared.replies.lock().unwrap() = replies.into_iter().collect();
    }

    /// Answers nothing any more but what is [released](Self::release).
    pub(super) fn hold(&self) {
        self.shared.leave.forget_permits(ENOUGH);
    }

    pub(super) fn release(&self, answers: usize) {
        self.shared.leave.add_permits(answers);
    }

    pub(super) fn asked(&self) -> usize {
        self.shared.asked.borrow().len()
    }

    pub(super) async fn until_asked(&self, times: usize) {
        self.shared.asked.subscribe().wait_for(|asked| asked.len() >= times).await.unwrap();
    }

    /// Waits until the client has closed the connection of every request: it has read the answer.
    pub(super) async fn until_idle(&self) {
        let asked = self.asked();
        self.shared.answered.subscribe().wait_for(|answered| *answered >= asked).await.unwrap();
    }

    /// Which refresh tokens it was asked with.
    pub(super) fn refresh_tokens(&self) -> Vec<String> {
        let asked = self.shared.asked.borrow();
        let tokens =
            asked.iter().flat_map(|body| body.split('&').filter_map(|pair| pair.strip_prefix("refresh_token=")));
        tokens.map(ToOwned::to_owned).collect()
    }
}

impl Shared {
    async fn answer(&self, mut stream: TcpStream) {
        let Some(body) = read(&mut stream).await else { return };
        self.asked.send_modify(|asked| asked.push(body));
        let Ok(leave) = self.leave.acquire().await else { return };
        leave.forget();
        let reply = {
            let mut replies = self.replies.lock().unwrap();
            if replies.len() > 1 { replies.remove(0) } else { replies[0].clone() }
        };
        let (status, body) = match reply {
            Reply::Tokens(tokens) => (200, tokens.to_string()),
            Reply::Status(status, body) => (status, body.to_owned()),
            Reply::Close => return,
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n");
        let answer = format!("{head}connection: close\r\n\r\n{body}");
        // A client that is gone already needs no answer, and one that has it closes.
        if stream.write_all(answer.as_bytes()).await.is_ok() {
            stream.read_exact(&mut [0]).await.ok();
        }
        self.answered.send_modify(|answered| *answered += 1);
    }
}

/// The body of the one request of a connection.
async fn read(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            if body.len() >= length.unwrap_or(0) {
                let start = bytes.len() - body.len();
                return Some(String::from_utf8_lossy(&bytes[start..]).into_owned());
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
