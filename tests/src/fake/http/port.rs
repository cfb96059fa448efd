//! A port that nobody else gets.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rustix::net::Shutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// A loopback port that is ours as long as this lives, whoever of us listens on it, or nobody: then connections are
/// refused.
///
/// It is a socket that is bound and never listens. Others can bind the port as well if they allow its reuse, as the
/// binary `fake-server` does; the system gives it to nobody who asks for any port.
#[derive(Debug)]
pub struct ReservedPort(TcpSocket);

impl ReservedPort {
    /// Any port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn new() -> io::Result<Self> {
        Self::on((Ipv4Addr::LOCALHOST, 0).into())
    }

    fn on(address: SocketAddr) -> io::Result<Self> {
        bound(address).map(Self)
    }

    /// The address.
    ///
    /// # Errors
    ///
    /// The system does not say it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn listen(&self) -> io::Result<TcpListener> {
        bound(self.address()?)?.listen(1024)
    }
}

fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// The port of a server, which stays its own while nobody listens.
#[derive(Debug)]
pub(crate) struct Door {
    port: ReservedPort,
    listener: Option<TcpListener>,
}

impl Door {
    /// Closed.
    pub(crate) fn on(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { port: ReservedPort::on(address)?, listener: None })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.port.address()
    }

    /// The next connection. Cancel safe.
    pub(crate) async fn accept(&self) -> io::Result<TcpStream> {
        match &self.listener {
            Some(listener) => listener.accept().await.map(|(stream, _)| stream),
            None => pending().await,
        }
    }

    pub(crate) fn open(&mut self) -> io::Result<()> {
        if self.listener.is_none() {
            self.listener = Some(self.port.listen()?);
        }
        Ok(())
    }

    pub(crate) fn close(&mut self) {
        if let Some(listener) = self.listener.take() {
            // A process that is just being forked may hold the socket too. Where this does not work on a listener, it
            // listens until that process has started its program.
            rustix::net::shutdown(&listener, Shutdown::Both).ok();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}
