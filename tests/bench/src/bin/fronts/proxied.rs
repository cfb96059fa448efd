//! nginx between a connection and its server.

use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use mcp_reconnect::core::Status;
use mcp_reconnect::{Connection, Event, Events};
use mcp_reconnect_tests::fake::{Event as Seen, HttpEvent, Ledger};
use rustix::process::Signal;

use crate::Shown;
use crate::front::{Outcome, Server, answered, call, connect, ensure, next, ready_after, statuses, unknown};
use crate::nginx::{Nginx, READ_TIMEOUT, Setup};

/// How many callers wait while the server is away, half of them with a tool that is not annotated.
const CALLERS: usize = 50;

/// A server, nginx before it, and a connection through both.
pub(crate) struct Fronted {
    connection: Connection,
    events: Events,
    nginx: Nginx,
    server: Server,
}

/// Sets all of it up for a check, and ends it afterwards, whatever came of it.
pub(crate) async fn fronted(
    setup: Setup,
    script: &str,
    check: impl for<'a> FnOnce(&'a mut Fronted) -> BoxFuture<'a, Result<String, String>>,
) -> Result<Shown, String> {
    let mut server = Server::start(script).await?;
    let mut nginx = Nginx::start(setup, server.port()?).await?;
    let shown = match connect(&server, nginx.port()?).await {
        Ok((connection, events)) => {
            let mut front = Fronted { connection, events, nginx, server };
            let shown = check(&mut front).await;
            front.connection.shutdown().await;
            (nginx, server) = (front.nginx, front.server);
            shown
        }
        Err(why) => Err(why),
    };
    nginx.kill().await.and(server.kill().await)?;
    shown.map(Shown::Held)
}

impl Fronted {
    fn status(&self) -> Status {
        self.connection.snapshot().status
    }

    fn is_first_session(&self) -> bool {
        matches!(self.status(), Status::Ready(epoch) if epoch.get() == 1)
    }

    /// Waits until the connection says that it is down, and gives the cause.
    async fn until_down(&mut self) -> Result<String, String> {
        let down = |event: &Event| match event {
            Event::Status { status: Status::TransientFailure, cause, .. } => {
                Some(cause.as_deref().unwrap_or_default().to_owned())
            }
            _ => None,
        };
        next(&mut self.events, down).await
    }

    /// Starts so many calls, `write` and `echo` in turn.
    fn callers(&self, name: &str) -> Vec<tokio::task::JoinHandle<Result<Outcome, String>>> {
        let callers = (0..CALLERS).map(|number| {
            let (connection, said) = (self.connection.clone(), format!("{name}-{number}"));
            let tool = if number % 2 == 0 { "write" } else { "echo" };
            tokio::spawn(async move { call(&connection, tool, &said).await })
        });
        callers.collect()
    }
}

/// Every caller's outcome: how many were answered, how many of those with `write`, and how many do not know.
async fn outcomes(
    callers: Vec<tokio::task::JoinHandle<Result<Outcome, String>>>,
) -> Result<(usize, usize, usize), String> {
    let (mut answered, mut writes, mut unknown) = (0, 0, 0);
    for (number, outcome) in join_all(callers).await.into_iter().enumerate() {
        match outcome.map_err(|error| error.to_string())?? {
            Outcome::Answered => {
                answered += 1;
                writes += usize::from(number % 2 == 0);
            }
            Outcome::Unknown(_) => unknown += 1,
        }
    }
    Ok((answered, writes, unknown))
}

/// The shortest time between two GETs.
fn shortest_gap(ledger: &Ledger) -> Option<Duration> {
    let gets: Vec<u64> = ledger
        .entries()
        .iter()
        .filter(|entry| matches!(&entry.event, Seen::Http(HttpEvent::Asked(asked)) if asked.verb == "GET"))
        .map(|entry| entry.at)
        .collect();
    gets.windows(2).map(|pair| Duration::from_millis(pair[1].saturating_sub(pair[0]))).min()
}

/// Again and again, after three seconds: the stream is opened again, and that is all.
pub(crate) async fn idle_stream_is_cut(front: &mut Fronted) -> Result<String, String> {
    let cuts = 6;
    for number in 1..=cuts {
        let again = |ledger: &Ledger| ledger.gets() == number + 1 && ledger.open_streams() == 1;
        front.server.until("the stream is open again", again).await?;
        answered(&front.connection, "write", &number.to_string()).await?;
        ensure(front.is_first_session(), || format!("{:?} after {number} cuts", front.status()))?;
    }
    let ledger = front.server.ledger()?;
    let gap = shortest_gap(&ledger).unwrap_or_default();
    // The front's patience, and a second before the stream is opened again; its clock may be a little off.
    let least = Duration::from_millis(u64::from(READ_TIMEOUT) * 1000 + 800);
    ensure(gap >= least, || format!("opened again {gap:?} after it was opened"))?;
    let pings = ledger.posts_of("ping");
    ensure(pings <= cuts, || format!("{pings} pings for {cuts} cuts"))?;
    let counts = (ledger.initializes(), ledger.executions("write"), ledger.calls("write"));
    ensure(counts == (1, cuts, cuts), || format!("initializes, runs, calls: {counts:?}"))?;
    let told = statuses(&front.connection, &mut front.events).await?;
    ensure(told.is_empty(), || format!("told of the session: {told:?}"))?;
    Ok(format!("{cuts} cuts, {pings} probes, one session, every call answered; shortest gap {gap:.1?}"))
}

/// A call that takes longer than the front waits: told as what it is, and the session is not to blame. Progress is
/// something to say.
pub(crate) async fn slow_calls(front: &mut Fronted) -> Result<String, String> {
    let cause = unknown(&front.connection, "write", "slow").await?;
    ensure(cause.contains("504"), || format!("a 504 is told as {cause}"))?;
    answered(&front.connection, "echo", "slow at first").await?;
    answered(&front.connection, "write", "slow with progress").await?;
    let ledger = front.server.ledger()?;
    let runs = (ledger.executions("write"), ledger.calls("write"), ledger.calls("echo"), ledger.initializes());
    ensure(runs == (2, 2, 2, 1), || format!("runs and calls of write, calls of echo, initializes: {runs:?}"))?;
    ensure(front.nginx.answered(504, "POST") == 2, || "not two 504".to_owned())?;
    let told = statuses(&front.connection, &mut front.events).await?;
    ensure(told.is_empty(), || format!("told of the session: {told:?}"))?;
    Ok("unannotated: outcome unknown, run once; annotated: answered at the second try; same session".into())
}

/// 502 in HTML until it is back.
pub(crate) async fn dead_server(front: &mut Fronted) -> Result<String, String> {
    let in_flight = |tool| {
        let connection = front.connection.clone();
        tokio::spawn(async move { call(&connection, tool, "in flight").await })
    };
    let (write, echo) = (in_flight("write"), in_flight("echo"));
    let running = |ledger: &Ledger| (ledger.executions("write"), ledger.executions("echo")) == (1, 1);
    front.server.until("two calls in flight", running).await?;
    front.server.kill().await?;
    let outcome = write.await.map_err(|error| error.to_string())??;
    ensure(matches!(outcome, Outcome::Unknown(_)), || format!("the write in flight: {outcome:?}"))?;
    let cause = front.until_down().await?;
    let waiting = front.callers("waiting");
    let seen = front.nginx.answered(502, "POST");
    front.nginx.until_answered(502, "POST", seen + 3).await?;
    let status = front.status();
    ensure(matches!(status, Status::TransientFailure | Status::Connecting), || format!("{status:?} while it is away"))?;
    front.server.start_again().await?;
    let (served, writes, unknown) = outcomes(waiting).await?;
    ensure((served, unknown) == (CALLERS, 0), || format!("{served} answered, {unknown} unknown"))?;
    let outcome = echo.await.map_err(|error| error.to_string())??;
    ensure(matches!(outcome, Outcome::Answered), || format!("the echo in flight: {outcome:?}"))?;
    let runs = front.server.ledger()?.of_spawn(2).executions("write");
    ensure(runs == writes, || format!("{writes} answered, {runs} runs"))?;
    Ok(format!("down ({cause}); {served} of {CALLERS} answered when it was back, {runs} runs of write"))
}

/// SIGSTOP: 504 until it goes on.
pub(crate) async fn frozen_server(front: &mut Fronted) -> Result<String, String> {
    front.server.signal(Signal::STOP)?;
    let patient = tokio::spawn({
        let connection = front.connection.clone();
        async move { answered(&connection, "echo", "patient").await }
    });
    let cause = unknown(&front.connection, "write", "frozen").await?;
    let down = front.until_down().await?;
    ensure(front.nginx.answered(504, "POST") > 0, || "no 504".to_owned())?;
    front.server.signal(Signal::CONT)?;
    let epoch = ready_after(&mut front.events, None).await?;
    patient.await.map_err(|error| error.to_string())??;
    for number in 0..5 {
        answered(&front.connection, "write", &format!("after-{number}")).await?;
    }
    let runs = front.server.ledger()?.executions("write");
    ensure((5..=6).contains(&runs), || format!("{runs} runs of five calls and one of unknown outcome"))?;
    Ok(format!("outcome unknown ({cause}), down ({down}), session {epoch} when it went on; {runs} runs"))
}

/// It forgets its sessions, and nginx hides that it was away.
pub(crate) async fn restarts(front: &mut Fronted) -> Result<String, String> {
    // Idle.
    front.server.kill().await?;
    front.server.start_again().await?;
    let second = ready_after(&mut front.events, None).await?;
    answered(&front.connection, "write", "after the first").await?;
    // Called at the same time.
    front.server.until("a standing stream", |ledger| ledger.of_spawn(2).open_streams() == 1).await?;
    front.server.kill().await?;
    front.server.start_again().await?;
    let (served, writes, unknown) = outcomes(front.callers("at-once")).await?;
    let ledger = front.server.ledger()?;
    let runs = ledger.executions("write") - 1;
    ensure((writes..=writes + unknown).contains(&runs), || {
        format!("{writes} answered, {unknown} unknown, {runs} runs")
    })?;
    ensure(ledger.initializes_with_session() == 0, || "an initialize with an old session".to_owned())?;
    Ok(format!(
        "idle: noticed, session {second}; {CALLERS} at once: {served} answered, {unknown} unknown, none doubled"
    ))
}

/// The front itself goes away and comes back; the server keeps its sessions.
pub(crate) async fn front_restarts(front: &mut Fronted) -> Result<String, String> {
    front.nginx.kill().await?;
    let cause = front.until_down().await?;
    let waiting = front.callers("waiting");
    let dials = front.connection.snapshot().stats.dials;
    while front.connection.snapshot().stats.dials < dials + 2 {
        next(&mut front.events, |event| matches!(event, Event::Status { .. }).then_some(())).await?;
    }
    front.nginx.start_again().await?;
    let (served, writes, unknown) = outcomes(waiting).await?;
    ensure((served, unknown) == (CALLERS, 0), || format!("{served} answered, {unknown} unknown"))?;
    let runs = front.server.ledger()?.executions("write");
    ensure(runs == writes, || format!("{writes} answered, {runs} runs"))?;
    Ok(format!("down ({cause}); {served} of {CALLERS} answered when it was back, {runs} runs"))
}
