//! `fake-server --script FILE --ledger FILE [--notify SOCKET] [--http PORT] [--alone FILE]`: plays a script as an
//! MCP server over stdio or HTTP.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{self, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use mcp_reconnect_tests::fake::{
    Event, Exit, Grandchild, Host, Inbound, Output, Route, Script, Signal, SpawnClaim, serve, serve_http,
};
use rustix::fs::FlockOperation;
use rustix::io::{Errno, FdFlags};
use rustix::process::Signal as OsSignal;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};

/// How long a process lives that nothing else may end: one that is deaf, that ignores the end of its input, or a
/// grandchild. Tests end them long before; this is for tests that fail to.
const LIFETIME_CAP: Duration = Duration::from_secs(120);
/// The exit code of one that reached the cap.
const CAPPED: i32 = 96;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    if args.next_if(|arg| arg == "grandchild").is_some() {
        return grandchild(args.any(|arg| arg == "ignore-TERM")).await;
    }
    match run(args).await {
        Ok(exit) => carry_out(exit),
        Err(error) => {
            eprintln!("fake-server: {error}");
            ExitCode::from(95)
        }
    }
}

async fn run(args: impl Iterator<Item = OsString>) -> io::Result<Exit> {
    let mut options = options(args)?;
    let mut required = |name: &str| options.remove(name).ok_or_else(|| invalid(format!("{name} is missing")));
    let (script, ledger) = (required("--script")?, required("--ledger")?);
    let notify = options.remove("--notify");
    let alone = options.remove("--alone").map(alone).transpose()?;
    let listener = match options.remove("--http") {
        Some(port) => {
            let port = port.to_str().and_then(|port| port.parse().ok());
            let port: u16 = port.ok_or_else(|| invalid("--http needs a port".into()))?;
            Some(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?)
        }
        None => None,
    };
    let script = std::fs::read_to_string(script)?;
    let script = Script::parse(&script).map_err(|error| invalid(error.to_string()))?;

    // A signal may come as soon as the spawn is in the ledger.
    let (sender, signals) = mpsc::unbounded_channel();
    for kind in script.signals() {
        listen(kind, sender.clone())?;
    }
    let claim = SpawnClaim::new(&ledger)?;
    let plan = script.plan(claim.spawn(), claim.since_first());
    let writer = claim.record(notify.as_deref())?;
    if let Some((_, false)) = alone {
        writer.record(Event::Crowded)?;
    }
    if let Some(listener) = listener {
        cap(); // nothing ends it but a signal or its script
        println!("{}", listener.local_addr()?.port());
        return Ok(serve_http(plan, writer, signals, listener).await);
    }
    let (lines, frames) = mpsc::channel::<Box<str>>(1);
    let deaf = Arc::new(Notify::new());
    tokio::spawn(read(lines, Arc::clone(&deaf)));
    let output = tokio::sync::Mutex::new(tokio::io::stdout());
    let host = StdioHost { ledger, bound: Mutex::default(), output, closed: AtomicBool::new(false), deaf };
    Ok(serve(plan, writer, Inbound { frames, signals }, Arc::new(host)).await)
}

/// Whether nobody held the lock of this file. Grandchildren inherit it, so that it stands for the whole tree.
fn alone(path: PathBuf) -> io::Result<(File, bool)> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            rustix::io::fcntl_setfd(&file, FdFlags::empty())?;
            Ok((file, true))
        }
        Err(Errno::WOULDBLOCK) => Ok((file, false)),
        Err(error) => Err(error.into()),
    }
}

fn options(mut args: impl Iterator<Item = OsString>) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut options = BTreeMap::new();
    while let Some(name) = args.next() {
        let name = name.to_string_lossy().into_owned();
        if !["--script", "--ledger", "--notify", "--http", "--alone"].contains(&&*name) {
            return Err(invalid(format!("unknown option {name}")));
        }
        let value = args.next().ok_or_else(|| invalid(format!("{name} needs a value")))?;
        options.insert(name, value.into());
    }
    Ok(options)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Ends this process as the script wants it, whatever its other threads wait for.
fn carry_out(exit: Exit) -> ! {
    let by_signal = |signal| {
        // To itself this cannot fail, and the signal is delivered before the call returns.
        rustix::process::kill_process(rustix::process::getpid(), signal).ok();
        128 + signal.as_raw()
    };
    process::exit(match exit {
        Exit::Code(code) => code,
        Exit::Killed => by_signal(OsSignal::KILL),
        // Its handler cannot be taken back; the shell's code for it is as near as one gets.
        Exit::Terminated(signal) => 128 + kind(signal).as_raw_value(),
    })
}

fn kind(signal: Signal) -> SignalKind {
    match signal {
        Signal::Term => SignalKind::terminate(),
        Signal::Hup => SignalKind::hangup(),
        Signal::Usr1 => SignalKind::user_defined1(),
        Signal::Usr2 => SignalKind::user_defined2(),
    }
}

fn listen(for_signal: Signal, to: mpsc::UnboundedSender<Signal>) -> io::Result<()> {
    let mut arrivals = signal(kind(for_signal))?;
    tokio::spawn(async move { while arrivals.recv().await.is_some() && to.send(for_signal).is_ok() {} });
    Ok(())
}

/// Passes lines on until the input ends or the engine does not want them any more; then the input is closed. Once
/// deaf, it keeps the input open and reads nothing.
async fn read(lines: mpsc::Sender<Box<str>>, deaf: Arc<Notify>) {
    {
        let mut passing = pin!(pass_on(&lines));
        tokio::select! {
            () = lines.closed() => {}
            () = deaf.notified() => lines.closed().await,
            () = &mut passing => {}
        }
    }
    // The pipe is closed with `passing`; descriptor 0 is the other handle of it.
    if lines.is_closed()
        && let Ok(null) = File::open("/dev/null")
    {
        rustix::stdio::dup2_stdin(null).ok();
    }
}

async fn pass_on(lines: &mpsc::Sender<Box<str>>) {
    let Ok(input) = input() else { return };
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        if lines.send(text.trim_end_matches(['\n', '\r']).into()).await.is_err() {
            return;
        }
    }
}

/// A pipe is read without a thread, so that closing it takes effect at once.
fn input() -> io::Result<Box<dyn AsyncRead + Send + Unpin>> {
    let descriptor = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(match pipe::Receiver::from_owned_fd(descriptor) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(tokio::io::stdin()),
    })
}

struct StdioHost {
    ledger: PathBuf,
    bound: Mutex<Vec<TcpListener>>,
    output: tokio::sync::Mutex<tokio::io::Stdout>,
    closed: AtomicBool,
    deaf: Arc<Notify>,
}

impl Host for StdioHost {
    async fn write(&self, _: &Route, output: Output) {
        let mut stdout = self.output.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let bytes = match output {
            Output::Frame(frame) | Output::Answer(frame) => (frame + "\n").into_bytes(),
            Output::Raw(bytes) => bytes,
            Output::Http(_) => return,
        };
        // A client that reads no more is no reason to end: that comes with the end of the input.
        if stdout.write_all(&bytes).await.is_ok() {
            drop(stdout.flush().await);
        }
    }

    async fn stderr(&self, bytes: Vec<u8>) {
        let mut stderr = tokio::io::stderr();
        if stderr.write_all(&bytes).await.is_ok() {
            drop(stderr.flush().await);
        }
    }

    fn close_stdout(&self) {
        self.closed.store(true, Ordering::Release);
        if let Ok(null) = File::options().write(true).open("/dev/null") {
            rustix::stdio::dup2_stdout(null).ok();
        }
    }

    fn grandchild(&self, grandchild: Grandchild) -> io::Result<Option<u32>> {
        let mut command = Command::new(std::env::current_exe()?);
        // The ledger's path tells whose grandchild it is.
        command.arg("grandchild").arg(&self.ledger);
        if grandchild.ignore_term {
            command.arg("ignore-TERM");
        }
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command.stdout(if grandchild.hold_stdout { Stdio::inherit() } else { Stdio::null() });
        let mut child = command.spawn()?;
        // It closes its error output when it is ready for signals.
        if let Some(mut ready) = child.stderr.take() {
            ready.read_to_end(&mut Vec::new())?;
        }
        Ok(Some(child.id()))
    }

    fn bind(&self, port: u16) -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
        Ok(())
    }

    fn deaf(&self) {
        self.deaf.notify_one();
    }

    fn unattended(&self) {
        cap();
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own, which nothing else may keep from its end")]
fn cap() {
    thread::spawn(|| {
        thread::sleep(LIFETIME_CAP);
        process::exit(CAPPED);
    });
}

async fn grandchild(ignore_term: bool) -> ExitCode {
    let handler = if ignore_term { signal(SignalKind::terminate()).ok() } else { None };
    let Ok(null) = File::options().write(true).open("/dev/null") else { return ExitCode::FAILURE };
    rustix::stdio::dup2_stderr(null).ok(); // tells the parent that the handler is there
    tokio::time::sleep(LIFETIME_CAP).await;
    drop(handler);
    process::exit(CAPPED)
}
