use mcp_reconnect_core::{
    Config, ConnectionMachine, Epoch, Event, FailureClass, Input, Output, ReadyFlags, State, Status,
};

use super::agenda::Agenda;
use super::dice::Dice;
use super::entrance::{Entrance, Next, Pass};
use super::figures::{Figures, Tally};
use super::server::{Fate, Server};
use super::{Callers, Gating, HANDSHAKE, LOSS, MILLI, PATIENCE, REFUSAL, Storm, at};

/// How long it takes to close what hangs.
const CLOSE: u64 = 50 * MILLI;

/// Real machines in a storm.
struct Herd {
    now: u64,
    agenda: Agenda<What>,
    server: Server,
    tally: Tally,
    connections: Vec<Connection>,
    entrances: Vec<Entrance>,
    per_entrance: u32,
    parked: u32,
}

struct Connection {
    machine: ConnectionMachine,
    /// The earliest look at the machine that is on the agenda.
    looks_at: Option<u64>,
    pass: Option<Pass>,
    back: bool,
    parked: bool,
}

enum What {
    /// A machine's timer.
    Due(u32),
    /// Nothing is left of a dial or a session: it was refused, cut or closed.
    Gone(u32, Epoch, FailureClass),
    /// A handshake is complete; the server may hang up then.
    Answered(u32, Epoch, Fate),
    /// The next caller asks, if there still is something to ask for.
    Caller(u32),
    /// A slot falls free by itself.
    Gate(usize),
}

pub(super) fn run(storm: &Storm, config: Config, gating: Gating, callers: Callers) -> Figures {
    let mut seeds = Dice::new(storm.seed);
    let mut herd = Herd {
        now: LOSS,
        agenda: Agenda::new(),
        server: Server::of(storm),
        tally: Tally::of(storm),
        connections: (0..storm.connections).map(|_| Connection::proven(config, seeds.roll())).collect(),
        entrances: (0..storm.processes).map(|_| Entrance::new(gating, storm.max_dials)).collect(),
        per_entrance: storm.connections.div_ceil(storm.processes),
        parked: 0,
    };
    for who in 0..storm.connections {
        herd.give(who, Input::Gone { epoch: Epoch::FIRST, failure: FailureClass::Transport.into() });
        if callers == Callers::Waiting {
            herd.happen(What::Caller(who));
        }
    }
    while let Some((now, what)) = herd.agenda.next()
        && now < storm.end()
        && !herd.tally.is_over()
    {
        herd.now = now;
        herd.happen(what);
    }
    let slots = herd.entrances.iter().map(Entrance::peak).max();
    herd.tally.figures(slots, Some(herd.parked))
}

impl Connection {
    /// With a session that is proven at the time of the loss.
    fn proven(config: Config, seed: u64) -> Self {
        let mut machine = ConnectionMachine::new(config, seed, at(0));
        let registered = machine.handle(at(0), Input::Connect { until: at(0) });
        debug_assert!(registered.iter().any(|output| matches!(output, Output::Dial { .. })));
        for flag in ReadyFlags::ALL {
            let _ready = machine.handle(at(HANDSHAKE), Input::Reached { epoch: Epoch::FIRST, flag });
        }
        Self { machine, looks_at: None, pass: None, back: false, parked: false }
    }
}

impl Herd {
    fn happen(&mut self, what: What) {
        match what {
            What::Due(who) => {
                let connection = &mut self.connections[who as usize];
                if connection.looks_at == Some(self.now) {
                    connection.looks_at = None;
                }
                self.give(who, Input::Tick);
            }
            What::Gone(who, epoch, class) => {
                if let Some(pass) = self.connections[who as usize].pass.take() {
                    let entrance = self.entrance(who);
                    self.entrances[entrance].failed(pass);
                    self.serve(entrance);
                }
                self.give(who, Input::Gone { epoch, failure: class.into() });
            }
            What::Answered(who, epoch, fate) => self.answered(who, epoch, fate),
            What::Caller(who) => {
                if !self.connections[who as usize].back {
                    let until = self.now + PATIENCE;
                    self.agenda.add(until, What::Caller(who));
                    self.give(who, Input::Connect { until: at(until) });
                }
            }
            What::Gate(entrance) => self.serve(entrance),
        }
    }

    fn entrance(&self, who: u32) -> usize {
        (who / self.per_entrance) as usize
    }

    /// Gives a machine an input now, and carries out its orders.
    fn give(&mut self, who: u32, input: Input) {
        let now = at(self.now);
        for output in self.connections[who as usize].machine.handle(now, input) {
            match output {
                Output::Dial { epoch, .. } => {
                    let entrance = self.entrance(who);
                    self.entrances[entrance].enqueue(who, epoch);
                    self.serve(entrance);
                }
                Output::Close { epoch, .. } => {
                    self.agenda.add(self.now + CLOSE, What::Gone(who, epoch, FailureClass::Transport));
                }
                Output::Event(Event::StatusChanged { status: Status::Parked(_), .. }) => {
                    let connection = &mut self.connections[who as usize];
                    self.parked += u32::from(!connection.parked);
                    connection.parked = true;
                }
                // Who is back is not looked at any more, so nobody pings; callers wait, whatever they are told.
                Output::Ping { .. }
                | Output::Ask { .. }
                | Output::Publish { .. }
                | Output::Withdraw
                | Output::Admit(_)
                | Output::Event(_) => {}
            }
        }
        let connection = &mut self.connections[who as usize];
        if let Some(due) = connection.machine.next_timeout().map(|due| due.as_nanos())
            && !connection.back
            && connection.looks_at.is_none_or(|looks_at| due < looks_at)
        {
            connection.looks_at = Some(due);
            self.agenda.add(due, What::Due(who));
        }
    }

    /// Lets dials begin while the gate lets them.
    fn serve(&mut self, entrance: usize) {
        loop {
            let connections = &self.connections;
            let wanted = |who, epoch| is_dialling(&connections[who as usize], epoch);
            match self.entrances[entrance].next(self.now, wanted) {
                Next::Start { who, epoch, pass } => self.start(who, epoch, pass),
                Next::Look { at } => return self.agenda.add(at, What::Gate(entrance)),
                Next::Nothing => return,
            }
        }
    }

    fn start(&mut self, who: u32, epoch: Epoch, pass: Pass) {
        self.connections[who as usize].pass = Some(pass);
        self.tally.dialled(who, self.now);
        match self.server.dialled(self.now) {
            Fate::Refused => self.agenda.add(self.now + REFUSAL, What::Gone(who, epoch, FailureClass::Refused)),
            Fate::TurnedAway => self.agenda.add(self.now + REFUSAL, What::Gone(who, epoch, FailureClass::Transport)),
            fate @ (Fate::Ready | Fate::HungUpOn) => {
                self.agenda.add(self.now + HANDSHAKE, What::Answered(who, epoch, fate));
            }
            Fate::Silence => {}
        }
        self.give(who, Input::Reached { epoch, flag: ReadyFlags::ALL[0] });
    }

    fn answered(&mut self, who: u32, epoch: Epoch, fate: Fate) {
        if !is_dialling(&self.connections[who as usize], epoch) {
            return;
        }
        if fate == Fate::HungUpOn {
            self.agenda.add(self.now + REFUSAL, What::Gone(who, epoch, FailureClass::Transport));
        } else {
            self.connections[who as usize].back = true;
            self.tally.recovered(self.now);
        }
        for flag in ReadyFlags::ALL.into_iter().skip(1) {
            self.give(who, Input::Reached { epoch, flag });
        }
        let entrance = self.entrance(who);
        if let Some(pass) = self.connections[who as usize].pass.take() {
            self.entrances[entrance].ready(self.now, pass);
            self.serve(entrance);
        }
    }
}

fn is_dialling(connection: &Connection, epoch: Epoch) -> bool {
    matches!(connection.machine.snapshot().state, State::Connecting { epoch: live, .. } if live == epoch)
}
