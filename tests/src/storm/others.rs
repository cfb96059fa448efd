use super::agenda::Agenda;
use super::dice::Dice;
use super::figures::{Figures, Tally};
use super::server::{Fate, Server};
use super::{HANDSHAKE, LOSS, REFUSAL, SECOND, Storm};

/// When others dial again. The first dial comes at the loss; there is no gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// gRPC connection backoff: 1 s × 1.6 ≤ 120 s, ± 20 %, counted from the start of the attempt, which has 20 s.
    Grpc,
    /// Anything up to 1 s × 2 ≤ 60 s ("full jitter").
    FullJitter,
    /// 5 s.
    Fixed,
    /// 1 s × 2 ≤ 60 s.
    Doubling,
}

impl Rule {
    /// Every one, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Grpc, Self::FullJitter, Self::Fixed, Self::Doubling];

    /// Its name and its figures.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Grpc => "gRPC: 1 s x1.6 <= 120 s +-20 %",
            Self::FullJitter => "full jitter: 1 s x2 <= 60 s",
            Self::Fixed => "fixed: 5 s",
            Self::Doubling => "doubling: 1 s x2 <= 60 s",
        }
    }

    /// How long an attempt may take. Where the rule does not say, as long as ours.
    const fn patience(self) -> u64 {
        match self {
            Self::Grpc => 20 * SECOND,
            Self::FullJitter | Self::Fixed | Self::Doubling => 30 * SECOND,
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
            Self::Fixed => failed + 5 * SECOND,
            Self::Doubling => {
                *step = (wait * 2).min(60 * SECOND);
                failed + wait
            }
        }
    }
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
            Fate::Refused => now + REFUSAL,
            Fate::HungUpOn => now + HANDSHAKE + REFUSAL,
            Fate::Silence => now + rule.patience(),
        };
        dials.add(rule.next(&mut steps[who as usize], now, failed, &mut dice), who);
    }
    tally.figures(None, None)
}
