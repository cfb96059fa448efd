//! `ss -K`: the kernel destroys one connection that is established.

use std::collections::BTreeSet;

use mcp_reconnect_tests::fake::{Event, HttpEvent, Ledger};
use tokio::process::Command;

use crate::Shown;
use crate::front::{Server, answered, connect, ensure, statuses};

/// Whose socket is destroyed; the other side gets a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Client,
    Server,
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Stream,
    Pooled,
}

/// Runs `ss`; its lines.
async fn ss(args: &[&str]) -> Result<Vec<String>, String> {
    let output = Command::new("ss").args(args).output().await.map_err(|error| format!("ss: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.success() && stderr.is_empty(), || format!("ss {}: {}", args.join(" "), stderr.trim()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The local ports of the clients of this port.
async fn clients(port: u16) -> Result<Vec<u16>, String> {
    let lines = ss(&["-Htn", "state", "established", "dport", "=", &format!(":{port}")]).await?;
    let local = |line: &String| line.split_whitespace().nth(2)?.rsplit_once(':')?.1.parse().ok();
    let mut ports: Vec<u16> = lines.iter().filter_map(local).collect();
    ports.sort_unstable();
    Ok(ports)
}

/// Destroys one side of the connection between these ports; whether there was one.
async fn kill(side: Side, client: u16, server: u16) -> Result<bool, String> {
    let (source, destination) = match side {
        Side::Client => (client, server),
        Side::Server => (server, client),
    };
    let (source, destination) = (format!(":{source}"), format!(":{destination}"));
    let filter = ["-K", "-Htn", "state", "established", "sport", "=", &source, "and", "dport", "=", &destination];
    ss(&filter).await.map(|lines| !lines.is_empty())
}

/// The connections that ended, and whether each was that of a GET.
fn ended(ledger: &Ledger) -> Vec<Kind> {
    let streams: BTreeSet<u64> =
        ledger.asked().filter(|asked| asked.verb == "GET").map(|asked| asked.connection).collect();
    let ended = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Event::Http(HttpEvent::Disconnected { connection }) => Some(*connection),
        _ => None,
    });
    ended.map(|number| if streams.contains(&number) { Kind::Stream } else { Kind::Pooled }).collect()
}

/// One connection of an idle session is destroyed, and a call follows at once. `None`: `ss -K` does not work.
async fn round(side: Side, pick: usize) -> Result<Option<Kind>, String> {
    let mut server = Server::start("").await?;
    let kind = hit(&server, side, pick).await;
    server.kill().await?;
    kind
}

async fn hit(server: &Server, side: Side, pick: usize) -> Result<Option<Kind>, String> {
    let port = server.port()?;
    let (connection, mut events) = connect(server, port).await?;
    answered(&connection, "echo", "warm").await?;
    let idle = |ledger: &Ledger| ledger.open_requests() == 1 && ledger.open_streams() == 1;
    server.until("nothing but the stream", idle).await?;
    let clients = clients(port).await?;
    ensure(clients.len() >= 2, || format!("only {clients:?} are connected"))?;
    let victim = clients[pick % clients.len()];
    if !kill(side, victim, port).await? {
        return Ok(None);
    }
    answered(&connection, "write", "once").await?;
    let ledger = server.until("the end of a connection", |ledger| !ended(ledger).is_empty()).await?;
    let kind = ended(&ledger)[0];
    server.until("the stream is open again", |ledger| ledger.open_streams() == 1).await?;
    answered(&connection, "write", "twice").await?;
    let ledger = server.ledger()?;
    let counts = (ledger.calls("write"), ledger.executions("write"), ledger.initializes());
    ensure(counts == (2, 2, 1), || format!("{kind:?}, {side:?}: calls, runs, initializes: {counts:?}"))?;
    let gets = if kind == Kind::Stream { 2 } else { 1 };
    ensure(ledger.gets() == gets, || format!("{kind:?}, {side:?}: {} GETs", ledger.gets()))?;
    let told = statuses(&connection, &mut events).await?;
    ensure(told.is_empty(), || format!("{kind:?}, {side:?}: told of the session: {told:?}"))?;
    Ok(Some(kind))
}

/// Either side of the stream and of a pooled connection: one session, each call run once.
pub(crate) async fn idle_connections_are_killed() -> Result<Shown, String> {
    let mut seen = BTreeSet::new();
    for pick in 0..8 {
        for side in [Side::Client, Side::Server] {
            let kind = match round(side, pick).await {
                Ok(Some(kind)) => kind,
                Ok(None) => return Ok(Shown::NotRun(unavailable("the kernel destroys no socket"))),
                Err(why) if why.starts_with("ss") && seen.is_empty() => return Ok(Shown::NotRun(unavailable(&why))),
                Err(why) => return Err(why),
            };
            seen.insert((side, kind));
        }
        if seen.len() == 4 {
            return Ok(Shown::Held(
                "client's and server's end, of the stream and of a pooled connection: one session, \
                                   each call run once"
                    .into(),
            ));
        }
    }
    Err(format!("of the stream and the pooled connection only {seen:?} were hit"))
}

fn unavailable(why: &str) -> String {
    format!("{why}; the scenarios `front_…` of the test suite reset connections through the chaos proxy instead")
}
