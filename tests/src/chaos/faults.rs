//! What a [`ChaosProxy`](super::ChaosProxy) does wrong.

use std::time::Duration;

/// Everything that goes wrong at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// What becomes of new connections.
    pub door: Door,
    /// What becomes of the bytes from clients.
    pub requests: Flow,
    /// What becomes of the bytes from the upstream.
    pub responses: Flow,
}

/// What becomes of a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Door {
    /// It is accepted.
    #[default]
    Open,
    /// It is accepted and reset at once.
    Reset,
    /// It is refused: nobody listens. The port stays the proxy's.
    Refuse,
}

/// What becomes of the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// They pass.
    #[default]
    Pass,
    /// They wait, and the connection stays open.
    Hold,
    /// Each piece waits this long from when it was read. Pieces of one direction wait one after another, so this slows
    /// large bodies down as well.
    Delay(Duration),
    /// They pass up to a number; then their connection is ended.
    Cut(Cut),
}

/// Where and how a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// After how many bytes on a connection, counted from when the fault was set. With 0 the first byte does not pass.
    pub after: u64,
    /// How.
    pub end: End,
    /// Only the first connection that gets there; then everything passes.
    pub once: bool,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// FIN.
    #[default]
    Close,
    /// RST.
    Reset,
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the upstream.
    Requests,
    /// From the upstream to the client.
    Responses,
}

impl Faults {
    /// Nothing goes wrong.
    pub const PASS: Self = Self { door: Door::Open, requests: Flow::Pass, responses: Flow::Pass };
    /// Connections are accepted and stay open; nothing passes either way.
    pub const BLACK_HOLE: Self = Self { door: Door::Open, requests: Flow::Hold, responses: Flow::Hold };
    /// New connections are reset at once.
    pub const RESET_AT_ACCEPT: Self = Self { door: Door::Reset, ..Self::PASS };
    /// New connections are refused.
    pub const REFUSE: Self = Self { door: Door::Refuse, ..Self::PASS };

    /// This flow in one direction, nothing else.
    #[must_use]
    pub const fn only(direction: Direction, flow: Flow) -> Self {
        match direction {
            Direction::Requests => Self { requests: flow, ..Self::PASS },
            Direction::Responses => Self { responses: flow, ..Self::PASS },
        }
    }

    /// Each piece waits this long, in either direction.
    #[must_use]
    pub const fn delay(time: Duration) -> Self {
        Self { requests: Flow::Delay(time), responses: Flow::Delay(time), ..Self::PASS }
    }

    /// Every connection is closed after so many bytes of its response.
    #[must_use]
    pub const fn cut(after: u64) -> Self {
        Self::only(Direction::Responses, Flow::Cut(Cut { after, end: End::Close, once: false }))
    }

    pub(super) const fn flow(&self, direction: Direction) -> Flow {
        match direction {
            Direction::Requests => self.requests,
            Direction::Responses => self.responses,
        }
    }

    pub(super) const fn flow_mut(&mut self, direction: Direction) -> &mut Flow {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Responses => &mut self.responses,
        }
    }
}
