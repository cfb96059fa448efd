//! How names become addresses, where the system's resolver is not to be asked.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolving};

/// Resolves host names in the place of the system's resolver.
#[async_trait]
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of this host: the server, or the proxy to it. Asked whenever a connection is made to a host that is
    /// no address itself; nothing is remembered.
    ///
    /// All of them are tried within one dial, those of the first one's family first, the other family's 300 ms later or
    /// when those have failed. Ports are those of the URL.
    ///
    /// # Errors
    ///
    /// Why the name cannot be resolved now; no address is an error too. The attempt fails and is made again later.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The hook, as reqwest asks it.
pub(crate) struct Hook(pub(crate) Arc<dyn Resolve>);

impl reqwest::dns::Resolve for Hook {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.0.clone();
        Box::pin(async move {
            let addresses = resolver.resolve(name.as_str()).await?;
            if addresses.is_empty() {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address").into());
            }
            // Port 0: that of the URL, or of its scheme.
            Ok(Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}
