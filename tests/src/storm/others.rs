use super::agenda::Agenda;
use super::dice::Dice;
use super::figures::{Figures, Tally};
use super::server::{Fate, Server};
use super::{HANDSHAKE, LOSS, REFUSAL, SECOND, Storm};

/// When others dial again. The first dial comes at the loss; there is no gate. Clients are named as far as their rule goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// gRPC connection backoff: 1 s × 1.6 ≤ 120 s, ± 20 %, counted from the start of the attempt, which has 20 s.
    Grpc,
    /// Anything up to 1 s × 2 ≤ 60 s ("full jitter").
    FullJitter,
    /// Anything from 1 s to three times the last wait, ≤ 60 s ("decorrelated jitter").
    Decorrelated,
    /// 30 s × 2 ≤ 300 s, ± 20 % (Codex, for apps).
    Codex,
    /// 5 s (langchain4j).
    Fixed,
    /// 1 s × 2 ≤ 30 s (ADK).
    DoublingTo30,
    /// 1 s × 2 ≤ 60 s.
    Doubling,
    /// 1 s × 2 ≤ 300 s (mcpproxy-go).
    DoublingTo300,
    /// 1 s × 2 ≤ 60 s, five times, then 300 s (hermes-agent).
    FiveThenParked,
}

impl Rule {
    /// Every one, in the order of the table.
    pub const ALL: [Self; 9] = [
        Self::Grpc,
        Self::FullJitter,
        Self::Decorrelated,
        Self::Codex,
        Self::Fixed,
        Self::DoublingTo30,
        Self::Doubling,
        Self::DoublingTo300,
        Self::FiveThenParked,
    ];

    /// Its name and its figures.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Grpc => "gRPC: 1 s x1.6 <= 120 s +-20 %",
            Self::FullJitter => "full jitter: 1 s x2 <= 60 s",
            Self::Decorrelated => "decorrelated jitter: 1 to 60 s",
            Self::Codex => "Codex: 30 s x2 <= 300 s +-20 %",
            Self::Fixed => "langchain4j: 5 s",
            Self::DoublingTo30 => "ADK: 1 s x2 <= 30 s",
            Self::Doubling => "doubling: 1 s x2 <= 60 s",
            Self::DoublingTo300 => "mcpproxy-go: 1 s x2 <= 300 s",
            Self::FiveThenParked => "hermes: 5 x doubling, then 300 s",
        }
    }

    /// How long an attempt may take. Where the rule does not say, as long as ours.
    const fn patience(self) -> u64 {
        match self {
            Self::Grpc => 20 * SECOND,
            _ => 30 * SECOND,
        }
    }

    /// When the next dial is due after one that began and failed then; `step` is the rule's own.
    fn next(self, step: &mut u64, began: u64, failed: u64, dice: &mut Dice) -> u64 {
        let wait = *step;
        match self {
            Self::Grpc => {
                *step = (wait * 8 / 5).min(120 * SECOND);
                failed.max(began + wait * 4 / 5 + dice.up_to(wait * 2 / 5))
            }
            Self::FullJitter => {
                *step = (wait * 2).min(60 * SECOND);
                failed + dice.up_to(wait)
            }
            Self::Decorrelated => {
                *step = (SECOND + dice.up_to(wait * 3 - SECOND)).min(60 * SECOND);
                failed + *step
            }
            Self::Codex => {
                let wait = (wait * 30).min(300 * SECOND);
                *step *= 2;
                failed + wait * 4 / 5 + dice.up_to(wait * 2 / 5)
            }
            Self::Fixed => failed + 5 * SECOND,
            Self::DoublingTo30 => failed + doubling(step, 30),
            Self::Doubling => failed + doubling(step, 60),
            Self::DoublingTo300 => failed + doubling(step, 300),
            Self::FiveThenParked => {
                *step *= 2;
                failed + if wait > 16 * SECOND { 300 * SECOND } else { wait }
            }
        }
    }
}

/// The wait of this step, and the next step.
fn doubling(step: &mut u64, most: u64) -> u64 {
    let wait = *step;
    *step = (wait * 2).min(most * SECOND);
    wait
}

pub(super) fn run(storm: &Storm, rule: Rule) -> Figures {
    let mut server = Server::of(storm);
    let mut tally = Tally::of(storm);
    let mut dice = Dice::new(storm.seed);
    let mut steps = vec![SECOND; storm.connections as usize];
    let mut dials = Agenda::new();
    for who in 0..storm.connections {
        dials.add(LOSS, who);
    }
    while let Some((now, who)) = dials.next()
        && now < storm.end()
    {
        tally.dialled(who, now);
        let failed = match server.dialled(now) {
            Fate::Ready => {
                tally.recovered(now + HANDSHAKE);
                continue;
            }
            Fate::Refused | Fate::TurnedAway => now + REFUSAL,
            Fate::HungUpOn => now + HANDSHAKE + REFUSAL,
            Fate::Silence => now + rule.patience(),
        };
        dials.add(rule.next(&mut steps[who as usize], now, failed, &mut dice), who);
    }
    tally.figures(None, None)
}
