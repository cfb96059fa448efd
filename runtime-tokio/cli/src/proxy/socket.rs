//! The socket on which a running front tells how it stands: each client gets one JSON document, and the end.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect::front::{FrontSnapshot, FrontStatus};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Time for either side to pass the document.
const PATIENCE: Duration = Duration::from_secs(5);
/// The value of `--status-socket` for a socket in the [`folder`].
const AUTO: &str = "auto";

#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    pid: u32,
    /// In seconds.
    uptime: f64,
    #[serde(flatten)]
    snapshot: FrontSnapshot,
}

/// A socket that answers; when this is dropped it is removed.
pub(super) struct StatusSocket {
    path: PathBuf,
    /// The file's identity: another one may have taken its place.
    inode: (u64, u64),
    _tasks: JoinSet<()>,
}

impl StatusSocket {
    /// Begins to answer at this path, or at one of its own for [`AUTO`].
    ///
    /// # Errors
    ///
    /// Somebody answers there already, it is no socket, or the path cannot be used.
    pub(super) fn open(path: &Path, name: &Arc<str>, status: FrontStatus) -> io::Result<Self> {
        let path = if path == Path::new(AUTO) { own(name)? } else { path.to_owned() };
        SocketAddr::from_pathname(&path)?; // where it comes to be it may be too long
        match fs::symlink_metadata(&path) {
            Ok(file) if !file.file_type().is_socket() => {
                return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
            }
            Ok(_) if !is_stale(&path) => {
                return Err(io::Error::new(ErrorKind::AddrInUse, "another process answers there"));
            }
            Ok(_) | Err(_) => {} // the next step tells what is wrong with the path
        }
        // In its place only when nobody else can connect any more.
        let nascent = path.with_file_name(format!(".{}", std::process::id()));
        let listener = UnixListener::bind(&nascent)?;
        let placed = fs::set_permissions(&nascent, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&nascent, &path))
            .and_then(|()| fs::symlink_metadata(&path));
        let file = placed.inspect_err(|_| _ = fs::remove_file(&nascent))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(answer(listener, name.clone(), status));
        Ok(Self { path, inode: (file.dev(), file.ino()), _tasks: tasks })
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.inode) {
            _ = fs::remove_file(&self.path); // a socket that is left is stale, and found to be
        }
    }
}

async fn answer(listener: UnixListener, name: Arc<str>, status: FrontStatus) {
    let began = Instant::now();
    let mut clients = JoinSet::new();
    loop {
        let mut client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, "the status socket fails: nobody is answered any more");
                return;
            }
        };
        while clients.try_join_next().is_some() {}
        let snapshot = status.snapshot();
        let uptime = began.elapsed().as_secs_f64();
        let document = serde_json::to_vec(&Document { name: &name, pid: std::process::id(), uptime, snapshot });
        clients.spawn(async move {
            // A client that does not read gets nothing.
            drop(timeout(PATIENCE, client.write_all(&document.unwrap_or_default())).await);
        });
    }
}

/// Asks the front at this socket; the answer is JSON text.
///
/// # Errors
///
/// Nobody answers, or not in time.
pub(crate) fn ask(path: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut document = String::new();
    match stream.read_to_string(&mut document) {
        Ok(_) => Ok(document),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(io::Error::new(ErrorKind::TimedOut, "no answer")),
        Err(error) => Err(error),
    }
}

/// Whether a socket is left over from a process that is gone.
fn is_stale(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// The folder of sockets with names of their own: in the user's runtime folder.
pub(crate) fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("mcp-reconnect"),
        None => std::env::temp_dir().join(format!("mcp-reconnect-{}", rustix::process::getuid().as_raw())),
    }
}

/// The sockets in the [`folder`], by name.
pub(crate) fn sockets() -> io::Result<Vec<PathBuf>> {
    let files = match fs::read_dir(folder()) {
        Ok(files) => files,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let paths = files.map(|file| file.map(|file| file.path()));
    let mut sockets: Vec<_> = paths.collect::<io::Result<_>>()?;
    sockets.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    sockets.sort_unstable();
    Ok(sockets)
}

/// A path in the [`folder`], which is made, and rid of stale sockets.
fn own(name: &str) -> io::Result<PathBuf> {
    let folder = folder();
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let found = fs::symlink_metadata(&folder)?;
    let (owner, user) = (found.uid(), rustix::process::getuid().as_raw());
    if !found.is_dir() || owner != user || found.mode() & 0o077 != 0 {
        let why = format!("{} is not for this user alone", folder.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    for socket in sockets()?.into_iter().filter(|path| is_stale(path)) {
        _ = fs::remove_file(socket); // somebody else may have been faster
    }
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(32).collect();
    Ok(folder.join(format!("{name}-{}.sock", std::process::id())))
}
