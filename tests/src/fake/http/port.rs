//! A port that nobody else gets.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

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

    pub(crate) fn on(address: SocketAddr) -> io::Result<Self> {
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

    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        bound(self.address()?)?.listen(1024)
    }
}

fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
