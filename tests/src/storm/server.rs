use super::{SECOND, Storm};

/// What a server does to dials while it is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dead {
    /// It refuses them.
    Refuses,
    /// It answers nothing, not even when it is back.
    Silent,
    /// It completes the handshake and ends the session at once.
    HangsUp,
}

impl Dead {
    /// As in "a server that refuses".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refuses => "refuses",
            Self::Silent => "is silent",
            Self::HangsUp => "hangs up",
        }
    }
}

/// How many connects a server admits.
#[derive(Clone, Copy, Debug)]
pub struct Admits {
    rate: u32,
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    /// A token bucket that holds a tenth of a second.
    Bucket,
    /// So many in each second of the clock.
    Second,
}

impl Admits {
    /// So many per second, at most a tenth of them at once: a token bucket.
    pub const fn evenly(rate: u32) -> Self {
        Self { rate, by: By::Bucket }
    }

    /// The first so many of each second, as rate limiters with a counter do; it tells against all who come in bursts.
    pub const fn by_the_second(rate: u32) -> Self {
        Self { rate, by: By::Second }
    }

    pub(super) const fn rate(self) -> u32 {
        self.rate
    }

    pub(super) const fn manner(self) -> &'static str {
        match self.by {
            By::Bucket => "evenly",
            By::Second => "by the second",
        }
    }
}

/// How a dial fares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Ready,
    /// Nobody listens.
    Refused,
    /// There is no room for it now.
    TurnedAway,
    Silence,
    HungUpOn,
}

/// The server of a storm.
pub(super) struct Server {
    dead: Dead,
    back: u64,
    admits: Admits,
    /// When the bucket is full again, or the second of the clock that is counted.
    mark: u64,
    admitted: u32,
}

impl Server {
    pub(super) fn of(storm: &Storm) -> Self {
        Self { dead: storm.dead, back: storm.back(), admits: storm.admits, mark: 0, admitted: 0 }
    }

    pub(super) fn dialled(&mut self, now: u64) -> Fate {
        match self.dead {
            _ if now >= self.back => {
                if self.admit(now) {
                    Fate::Ready
                } else {
                    Fate::TurnedAway
                }
            }
            Dead::Refuses => Fate::Refused,
            Dead::Silent => Fate::Silence,
            Dead::HangsUp => Fate::HungUpOn,
        }
    }

    fn admit(&mut self, now: u64) -> bool {
        match self.admits.by {
            By::Bucket => {
                let full = self.mark.max(now);
                let token = SECOND / u64::from(self.admits.rate);
                let room = full + token - now <= SECOND / 10;
                if room {
                    self.mark = full + token;
                }
                room
            }
            By::Second => {
                let second = (now - self.back) / SECOND;
                if second != self.mark {
                    self.mark = second;
                    self.admitted = 0;
                }
                self.admitted += 1;
                self.admitted <= self.admits.rate
            }
        }
    }
}
