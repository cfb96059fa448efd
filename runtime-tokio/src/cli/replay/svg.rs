//! The drawing of a replay: states as bands over time, and below them what was dialled, lost, asked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use mcp_reconnect::core::{Breaker, CloseCause, Input, Output, Snapshot, State, Status, Timestamp};
use mcp_reconnect::trace::Turn;

use super::Played;
use super::words::{clock, told};

/// Pixels: the labels on the left, the lanes, and what is around them.
const LEFT: u64 = 96;
const WIDTH: u64 = 1080;
const RIGHT: u64 = 24;
const TOP: u64 = 40;
const LANE: u64 = 26;
const BAND: u64 = 18;
/// How wide a letter of a label is, about.
const LETTER: u64 = 9;
/// The most labels under the axis.
const LABELS: u64 = 10;

const STYLE: &str = "text{font:12px sans-serif;fill:#202124}.name{font-size:14px;font-weight:bold}\
    .axis{stroke:#dadce0}.in{fill:#fff}.mark{stroke-width:2}";

const SECOND: u64 = 1_000_000_000;

/// Draws it, the same for the same trace.
pub(super) fn draw(played: &Played<'_>) -> String {
    let start = played.trace.header.start;
    let end = played.turns.last().map_or(start, |turn| turn.step.at);
    let mut drawing = Drawing { start, span: nanos(end.since(start)).max(1_000_000), y: TOP, body: String::new() };
    drawing.states(played);
    drawing.band_lane("offered", "#a8c7fa", played, |snapshot| snapshot.published);
    for (lane, colour, marks) in marks(played) {
        drawing.marks_lane(lane, colour, marks);
    }
    drawing.band_lane("breaker", "#d93025", played, |snapshot| matches!(snapshot.breaker, Breaker::Open { .. }));
    drawing.finish(played)
}

struct Drawing {
    start: Timestamp,
    /// Nanoseconds that the lanes show.
    span: u64,
    y: u64,
    body: String,
}

/// The times, with words, of a lane's marks.
type Marks = Vec<(Timestamp, String)>;

fn marks(played: &Played<'_>) -> [(&'static str, &'static str, Marks); 7] {
    let [mut dials, mut losses, mut callers, mut no_replies, mut pings, mut sleeps, mut orders] =
        [const { Marks::new() }; 7];
    let mut before = played.trace.header.machine().snapshot().state;
    let mut config = played.trace.header.config;
    for Turn { step, answer, snapshot, .. } in &played.turns {
        let at = step.at;
        let words = || told(at, &step.input, &before, &config).to_string();
        let lane = match step.input {
            Input::Connect { .. } => Some(&mut callers),
            Input::NoReply { .. } => Some(&mut no_replies),
            Input::Resumed { .. } => Some(&mut sleeps),
            Input::Gone { epoch, .. } if begins_a_loss(&before) && before.live_epoch() == Some(epoch) => {
                Some(&mut losses)
            }
            Input::Wake(_) | Input::Park | Input::Shutdown | Input::Retune(_) => Some(&mut orders),
            Input::Tick
            | Input::Reached { .. }
            | Input::Lost { .. }
            | Input::Gone { .. }
            | Input::Traffic { .. }
            | Input::PingUnsupported { .. }
            | Input::Pong { .. }
            | Input::Listed { .. }
            | Input::Renew { .. }
            | Input::ServerChanged { .. }
            | Input::Silence { .. } => None,
        };
        if let Some(lane) = lane {
            lane.push((at, words()));
        }
        for output in &answer.outputs {
            match *output {
                Output::Dial { epoch, .. } => dials.push((at, format!("dial #{epoch}"))),
                Output::Ping { epoch } => pings.push((at, format!("ping #{epoch}"))),
                Output::Ask { epoch } => pings.push((at, format!("ask #{epoch}"))),
                Output::Close { epoch, cause: CloseCause::Failed(class) } => {
                    losses.push((at, format!("#{epoch} lost: {class}")));
                }
                Output::Close { .. }
                | Output::Publish { .. }
                | Output::Withdraw
                | Output::Admit(_)
                | Output::Event(_) => {}
            }
        }
        if let Input::Retune(new) = step.input {
            config = new;
        }
        before = snapshot.state;
    }
    [
        ("dials", "#1a73e8", dials),
        ("losses", "#d93025", losses),
        ("callers", "#5f6368", callers),
        ("no replies", "#e8710a", no_replies),
        ("pings", "#188038", pings),
        ("suspends", "#9334e6", sleeps),
        ("orders", "#202124", orders),
    ]
}

/// Whether an end in this state is a loss, and not the end of a close.
const fn begins_a_loss(state: &State) -> bool {
    matches!(state, State::Connecting { .. } | State::Ready { .. })
}

impl Drawing {
    fn states(&mut self, played: &Played<'_>) {
        self.label("state");
        let first = played.trace.header.machine().snapshot();
        let mut instants = BTreeMap::new();
        for (from, to, status) in self.stretches(played, &first, |snapshot| snapshot.status) {
            let (name, colour) = (status.to_string(), colour(status));
            match self.pixels(to) - self.pixels(from) {
                0 => drop(instants.entry((self.pixels(from), colour)).or_insert((from, to, name))),
                width => {
                    let text = if width > LETTER * name.len() as u64 { &*name } else { "" };
                    self.band(from, to, colour, &name, text);
                }
            }
        }
        // On top, or the next would hide it; one for each pixel.
        for ((_, colour), (from, to, name)) in instants {
            self.band(from, to, colour, &name, "");
        }
        self.y += LANE;
    }

    fn band_lane(&mut self, lane: &str, colour: &str, played: &Played<'_>, shown: impl Fn(&Snapshot) -> bool) {
        self.label(lane);
        let first = played.trace.header.machine().snapshot();
        for (from, to, is_shown) in self.stretches(played, &first, shown) {
            if is_shown {
                self.band(from, to, colour, lane, "");
            }
        }
        self.y += LANE;
    }

    /// From when to when something was what.
    fn stretches<T: PartialEq>(
        &self,
        played: &Played<'_>,
        first: &Snapshot,
        what: impl Fn(&Snapshot) -> T,
    ) -> Vec<(Timestamp, Timestamp, T)> {
        let mut stretches = vec![(self.start, self.start, what(first))];
        for turn in &played.turns {
            let (at, now) = (turn.step.at, what(&turn.snapshot));
            let same = stretches.last_mut().is_some_and(|(_, to, then)| {
                *to = at;
                *then == now
            });
            if !same {
                stretches.push((at, at, now));
            }
        }
        stretches
    }

    fn band(&mut self, from: Timestamp, to: Timestamp, colour: &str, title: &str, text: &str) {
        let (x, y) = (self.x(from), self.y);
        // What lasts no time is seen as well.
        let width = tenths((self.tenths(to) - self.tenths(from)).max(10));
        let times = format!("{title}, {} to {}", clock(to_start(from, self)), clock(to_start(to, self)));
        let title = escape(&times);
        let rect = format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{BAND}\" fill=\"{colour}\">");
        line(&mut self.body, format_args!("{rect}<title>{title}</title></rect>"));
        if !text.is_empty() {
            let (x, y) = (tenths(self.tenths(from) + 40), y + 13);
            line(&mut self.body, format_args!("<text class=\"in\" x=\"{x}\" y=\"{y}\">{}</text>", escape(text)));
        }
    }

    /// One mark for each pixel that something happened in.
    fn marks_lane(&mut self, lane: &str, colour: &str, marks: Marks) {
        self.label(lane);
        let mut pixels = BTreeMap::<u64, Marks>::new();
        for (at, what) in marks {
            pixels.entry(self.pixels(at)).or_default().push((at, what));
        }
        for marks in pixels.values() {
            let Some((at, what)) = marks.first() else { continue };
            let more = if marks.len() > 1 { format!(", and {} more", marks.len() - 1) } else { String::new() };
            let title = escape(&format!("{}  {what}{more}", clock(to_start(*at, self))));
            let (x, y, end) = (self.x(*at), self.y, self.y + BAND);
            let stroke =
                format!("<line class=\"mark\" x1=\"{x}\" y1=\"{y}\" x2=\"{x}\" y2=\"{end}\" stroke=\"{colour}\">");
            line(&mut self.body, format_args!("{stroke}<title>{title}</title></line>"));
        }
        self.y += LANE;
    }

    fn label(&mut self, label: &str) {
        let y = self.y + 13;
        line(&mut self.body, format_args!("<text x=\"8\" y=\"{y}\">{label}</text>"));
    }

    fn finish(self, played: &Played<'_>) -> String {
        let Self { span, y, ref body, .. } = self;
        let (width, height) = (LEFT + WIDTH + RIGHT, y + 28);
        let mut svg = String::new();
        line(
            &mut svg,
            format_args!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
                 viewBox=\"0 0 {width} {height}\">"
            ),
        );
        line(&mut svg, format_args!("<style>{STYLE}</style>"));
        line(&mut svg, format_args!("<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"));
        let name = escape(&played.trace.header.name);
        line(&mut svg, format_args!("<text class=\"name\" x=\"8\" y=\"22\">{name}</text>"));
        let (step, unit, letter) = step(span);
        for number in 0..=span / step {
            let at = self.start + Duration::from_nanos(number * step);
            let (x, count) = (self.x(at), number * step / unit);
            line(&mut svg, format_args!("<path class=\"axis\" d=\"M{x} {}V{}\"/>", TOP - 6, y + 4));
            line(&mut svg, format_args!("<text x=\"{x}\" y=\"{}\">{count}{letter}</text>", y + 20));
        }
        svg.push_str(body);
        svg.push_str("</svg>\n");
        svg
    }

    /// Tenths of a pixel from the left.
    fn tenths(&self, at: Timestamp) -> u64 {
        let since = u128::from(nanos(at.since(self.start)).min(self.span));
        let tenths = since * u128::from(WIDTH * 10) / u128::from(self.span);
        LEFT * 10 + u64::try_from(tenths).unwrap_or(WIDTH * 10)
    }

    fn pixels(&self, at: Timestamp) -> u64 {
        self.tenths(at) / 10
    }

    fn x(&self, at: Timestamp) -> String {
        tenths(self.tenths(at))
    }
}

fn to_start(at: Timestamp, drawing: &Drawing) -> Duration {
    at.since(drawing.start)
}

const fn colour(status: Status) -> &'static str {
    match status {
        Status::Idle => "#80868b",
        Status::Connecting => "#b06000",
        Status::Ready(_) => "#188038",
        Status::TransientFailure => "#c5221f",
        Status::Parked(_) => "#681da8",
        Status::Shutdown => "#3c4043",
    }
}

/// How far the labels of the axis are apart, their unit, and its letter.
fn step(span: u64) -> (u64, u64, &'static str) {
    const MILLI: u64 = 1_000_000;
    const UNITS: [(u64, &str, &[u64]); 5] = [
        (MILLI, "ms", &[1, 2, 5, 10, 20, 50, 100, 200, 500]),
        (SECOND, "s", &[1, 2, 5, 10, 15, 30]),
        (60 * SECOND, "min", &[1, 2, 5, 10, 15, 30]),
        (3600 * SECOND, "h", &[1, 2, 3, 6, 12]),
        (86_400 * SECOND, "d", &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000]),
    ];
    let mut steps =
        UNITS.iter().flat_map(|&(unit, letter, counts)| counts.iter().map(move |count| (count * unit, unit, letter)));
    let fits = |&(step, ..): &(u64, u64, &str)| span / step <= LABELS;
    steps.find(fits).unwrap_or((u64::MAX, SECOND, "s"))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn tenths(tenths: u64) -> String {
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    _ = writeln!(text, "{arguments}"); // a string takes everything
}

/// As XML takes it: control characters, which it does not, are replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            letter if letter.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            letter => escaped.push(letter),
        }
    }
    escaped
}
