//! nginx in front of a server: in the foreground, with a folder of its own, gone with its handle.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use mcp_reconnect_tests::fake::ReservedPort;
use tokio::process::Command;

use mcp_reconnect_bench::programs::{PATIENCE, Process};

/// How long it waits for a server to say something, in seconds.
pub(crate) const READ_TIMEOUT: u32 = 3;

/// How it is set up, beside its timeouts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setup {
    /// As it should be before streams: it passes on what it has.
    Unbuffered,
    /// As it comes: what is a little waits for more, the heads of streams included.
    Buffered,
    /// It keeps connections to the server open, and finds out at the next request that they are dead.
    Keepalive,
}

/// Where Debian and others put it, which is not in every user's path.
const PROGRAMS: [&str; 3] = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/local/nginx/sbin/nginx"];

/// Dropping it kills it and removes its folder.
pub(crate) struct Nginx {
    // In this order: it is killed before its folder goes.
    process: Option<Process>,
    folder: Folder,
    port: ReservedPort,
}

impl Nginx {
    /// In front of the server at this loopback port.
    pub(crate) async fn start(setup: Setup, upstream: u16) -> Result<Self, String> {
        let port = ReservedPort::new().map_err(|error| error.to_string())?;
        let mut nginx = Self { process: None, folder: Folder::new()?, port };
        let config = config(setup, nginx.port()?, upstream);
        fs::write(nginx.folder.0.join("nginx.conf"), config).map_err(|error| error.to_string())?;
        nginx.start_again().await?;
        Ok(nginx)
    }

    pub(crate) fn port(&self) -> Result<u16, String> {
        self.port.address().map(|address| address.port()).map_err(|error| error.to_string())
    }

    /// After [`kill`](Self::kill).
    pub(crate) async fn start_again(&mut self) -> Result<(), String> {
        let program = PROGRAMS.into_iter().find(|program| Path::new(program).exists()).unwrap_or("nginx");
        let mut command = Command::new(program);
        command.arg("-p").arg(&self.folder.0).args(["-e", "stderr", "-c", "nginx.conf", "-g", "daemon off;"]);
        // It listens before it starts its workers.
        self.process = Some(Process::start(&mut command, "start worker process ").await?);
        Ok(())
    }

    pub(crate) async fn kill(&mut self) -> Result<(), String> {
        match self.process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }

    /// How many requests of this verb it has answered with this status.
    pub(crate) fn answered(&self, status: u16, verb: &str) -> usize {
        let line = line(status, verb);
        self.process.as_ref().map_or(0, |process| process.count(&line))
    }

    /// Waits until it has answered so many.
    pub(crate) async fn until_answered(&self, status: u16, verb: &str, wanted: usize) -> Result<(), String> {
        let line = line(status, verb);
        let enough = |lines: &[String]| lines.iter().filter(|said| said.contains(&line)).count() >= wanted;
        self.process.as_ref().ok_or("nginx does not run")?.until(PATIENCE, enough).await
    }
}

/// Line of its access log for such an answer.
fn line(status: u16, verb: &str) -> String {
    format!("answered {status} {verb} ")
}

fn config(setup: Setup, listen: u16, upstream: u16) -> String {
    let buffering = if setup == Setup::Buffered { "on" } else { "off" };
    let keepalive = if setup == Setup::Keepalive { "keepalive 4;" } else { "" };
    format!(
        r#"worker_processes 1;
pid nginx.pid;
error_log stderr notice;
events {{ worker_connections 512; }}
http {{
    log_format brief 'answered $status $request_method $body_bytes_sent';
    access_log /dev/stdout brief;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream mcp {{
        server 127.0.0.1:{upstream} max_fails=0;
        {keepalive}
    }}
    server {{
        listen 127.0.0.1:{listen};
        location / {{
            proxy_pass http://mcp;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering {buffering};
            proxy_connect_timeout {READ_TIMEOUT}s;
            proxy_read_timeout {READ_TIMEOUT}s;
        }}
    }}
}}
"#
    )
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("nginx-front-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.0) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => eprintln!("{}: {error}", self.0.display()),
        }
    }
}
