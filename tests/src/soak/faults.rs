//! What is done to a server from outside.

use std::io;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::Server;
use super::stage::signal;
use crate::chaos::{ChaosProxy, Cut, Direction, End, Faults, Flow};
use crate::storm::dice::Dice;

/// How long it is between two faults of one server at most, in milliseconds, on top of what the last one takes.
const PAUSE: u64 = 700;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    /// SIGSTOP, and SIGCONT later: unless the client has it killed before.
    Freeze,
    /// What its script does about a signal.
    Signal(Signal, &'static str),
    Network(Network),
}

/// What the proxy does; all but the first two go on for a while.
#[derive(Clone, Copy, Debug)]
enum Network {
    Reset,
    Cut,
    FrozenConnections,
    BlackHole,
    HeldResponses,
    Refused,
    ResetAtAccept,
    Slow,
}

/// Does one fault after another until then, and undoes the last.
pub(super) async fn inject(server: &Server, until: Instant, mut dice: Dice) -> io::Result<()> {
    loop {
        let pause = Duration::from_millis(dice.up_to(PAUSE));
        if Instant::now() + pause >= until {
            return Ok(());
        }
        sleep(pause).await;
        let fault = draw(server, &mut dice);
        let longest = dice.one([300, 300, 300, 300, 2_500]);
        let lasting = Duration::from_millis(50 + dice.up_to(longest));
        carry_out(server, fault, lasting, &mut dice).await?;
    }
}

fn draw(server: &Server, dice: &mut Dice) -> Fault {
    if server.proxy.is_some() && dice.once_in(2) {
        return Fault::Network(dice.one([
            Network::Reset,
            Network::Cut,
            Network::FrozenConnections,
            Network::BlackHole,
            Network::HeldResponses,
            Network::Refused,
            Network::ResetAtAccept,
            Network::Slow,
        ]));
    }
    match dice.index(8) {
        0..=2 => Fault::Kill,
        3 | 4 => Fault::Freeze,
        other => {
            let (signal, name) = server.stage.nature.on_signal[other - 5];
            Fault::Signal(signal, name)
        }
    }
}

async fn carry_out(server: &Server, fault: Fault, lasting: Duration, dice: &mut Dice) -> io::Result<()> {
    let stage = &server.stage;
    if let Fault::Network(fault) = fault {
        let Some(proxy) = &server.proxy else { return Ok(()) };
        stage.count(network(proxy, fault, lasting, dice).await?);
        return Ok(());
    }
    let Some(process) = stage.process() else { return Ok(()) };
    match fault {
        Fault::Kill if signal(&process, Signal::KILL) => stage.count("SIGKILL"),
        Fault::Freeze if signal(&process, Signal::STOP) => {
            stage.count("frozen");
            sleep(lasting).await;
            signal(&process, Signal::CONT);
        }
        Fault::Signal(number, name) if signal(&process, number) => {
            stage.count(name);
            // Nobody else ends an HTTP server that reads nothing any more.
            if stage.nature.http && name == "deaf" {
                sleep(lasting).await;
                signal(&process, Signal::KILL);
            }
        }
        _ => {}
    }
    Ok(())
}

async fn network(proxy: &ChaosProxy, fault: Network, lasting: Duration, dice: &mut Dice) -> io::Result<&'static str> {
    let (name, faults) = match fault {
        Network::Reset => {
            proxy.reset().await?;
            return Ok("connections reset");
        }
        Network::Cut => {
            let end = dice.one([End::Close, End::Reset]);
            let cut = Flow::Cut(Cut { after: dice.up_to(400), end, once: true });
            proxy.set(Faults::only(dice.one([Direction::Requests, Direction::Responses]), cut)).await?;
            return Ok("connection cut");
        }
        Network::FrozenConnections => {
            proxy.freeze().await?;
            sleep(lasting).await;
            proxy.set(Faults::PASS).await?;
            return Ok("connections frozen");
        }
        Network::BlackHole => ("black hole in front", Faults::BLACK_HOLE),
        Network::HeldResponses => ("responses held", Faults::only(Direction::Responses, Flow::Hold)),
        Network::Refused => ("refused", Faults::REFUSE),
        Network::ResetAtAccept => ("reset at accept", Faults::RESET_AT_ACCEPT),
        Network::Slow => ("slow network", Faults::delay(Duration::from_millis(20 + dice.up_to(100)))),
    };
    proxy.set(faults).await?;
    sleep(lasting).await;
    proxy.set(Faults::PASS).await?;
    Ok(name)
}
