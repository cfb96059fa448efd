//! The report, printed and written: sections of tables and goals.

use std::fmt::{self, Display, Formatter, Write as _};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

/// One run of the race.
#[derive(Serialize)]
pub(crate) struct Report {
    /// UTC, of the beginning.
    date: String,
    /// Processor, cores, kernel.
    machine: String,
    rustc: String,
    version: String,
    command: String,
    pub(crate) sections: Vec<Section>,
}

/// One question, and what was measured.
#[derive(Serialize)]
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The set-up in a few sentences, without which nobody can read the figures.
    pub(crate) about: String,
    pub(crate) tables: Vec<Table>,
    pub(crate) goals: Vec<Goal>,
    /// Peers that took no part, each with the reason.
    pub(crate) not_run: Vec<NotRun>,
}

#[derive(Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// The first names the rows.
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// A cell keeps its figure for the JSON; the Markdown is rounded.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Cell {
    Text(String),
    Count(u64),
    /// Of nothing in particular: to three digits.
    Figure(f64),
    Time {
        seconds: f64,
    },
    /// Against the side that the table is about.
    Ratio {
        ratio: f64,
    },
    /// Not measured, or it never came to it.
    Nothing(Option<()>),
}

/// An aim, and the measured figure.
#[derive(Serialize)]
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) goal: String,
    pub(crate) measured: String,
    pub(crate) met: bool,
}

#[derive(Serialize)]
pub(crate) struct NotRun {
    pub(crate) who: String,
    pub(crate) why: String,
}

impl Report {
    pub(crate) fn begin() -> Self {
        let said = |program: &str, arguments: &[&str]| {
            let output = std::process::Command::new(program).args(arguments).output().ok();
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
        };
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let profile = if cfg!(debug_assertions) { "dev profile" } else { "release profile" };
        Self {
            date: said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            machine: format!(
                "{}, {cores} cores, Linux {}",
                processor.map_or("unknown processor", |(_, name)| name),
                said("uname", &["-r"])
            ),
            rustc: format!("{}, {profile}", said("rustc", &["--version"])),
            version: format!("mcp-reconnect {}, rmcp 3.11", env!("CARGO_PKG_VERSION")),
            command: std::env::args().skip(2).fold(".ci/race run".to_owned(), |all, word| all + " " + &word),
            sections: Vec::new(),
        }
    }

    pub(crate) fn head(&self) -> String {
        let Self { date, machine, rustc, version, command, .. } = self;
        format!("# The race\n\n`{command}`, {date}; {version}; {rustc}; {machine}.\n")
    }

    /// Writes what there is so far.
    pub(crate) fn write(&self, to: &Path) -> Result<(), String> {
        let mut text = self.head();
        for section in &self.sections {
            _ = writeln!(text, "\n{section}"); // writing to a string does not fail
        }
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())? + "\n";
        for (extension, text) in [("md", text), ("json", json)] {
            let file = to.with_extension(extension);
            std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(())
    }
}

impl Section {
    pub(crate) fn new(name: &'static str, title: &'static str, about: impl Into<String>) -> Self {
        Self { name, title, about: about.into(), tables: Vec::new(), goals: Vec::new(), not_run: Vec::new() }
    }

    pub(crate) fn goal(
        &mut self,
        what: impl Into<String>,
        goal: impl Into<String>,
        measured: impl Into<String>,
        met: bool,
    ) {
        self.goals.push(Goal { what: what.into(), goal: goal.into(), measured: measured.into(), met });
    }

    pub(crate) fn not_run(&mut self, who: impl Into<String>, why: impl Into<String>) {
        self.not_run.push(NotRun { who: who.into(), why: why.into() });
    }
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self { title: title.into(), columns: columns.iter().map(|&column| column.into()).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(std::iter::once(Cell::Text(name.into())).chain(cells).collect());
    }
}

impl Cell {
    pub(crate) const NOTHING: Self = Self::Nothing(None);

    pub(crate) fn time(time: Duration) -> Self {
        Self::Time { seconds: time.as_secs_f64() }
    }

    pub(crate) const fn ratio(ratio: f64) -> Self {
        Self::Ratio { ratio }
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<f64> for Cell {
    fn from(figure: f64) -> Self {
        Self::Figure(figure)
    }
}

impl From<Duration> for Cell {
    fn from(time: Duration) -> Self {
        Self::time(time)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<C: Into<Self>> From<Option<C>> for Cell {
    fn from(cell: Option<C>) -> Self {
        cell.map_or(Self::NOTHING, Into::into)
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{}", text.replace('|', "/").replace('\n', " ")),
            Self::Count(count) => write!(f, "{}", thousands(*count)),
            Self::Figure(figure) => write!(f, "{}", digits(*figure)),
            Self::Time { seconds } => write!(f, "{}", time(*seconds)),
            Self::Ratio { ratio } => write!(f, "{ratio:.2} ×"),
            Self::Nothing(_) => write!(f, "–"),
        }
    }
}

impl Display for Section {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "## {}\n\n{}", self.title, self.about)?;
        for Table { title, columns, rows } in &self.tables {
            if !title.is_empty() {
                writeln!(f, "\n{title}")?;
            }
            writeln!(f, "\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()))?;
            for row in rows {
                let cells: Vec<_> = row.iter().map(ToString::to_string).collect();
                writeln!(f, "| {} |", cells.join(" | "))?;
            }
        }
        if !self.goals.is_empty() {
            writeln!(f, "\n| goal | aim | measured | |\n|---|---|---|---|")?;
        }
        for Goal { what, goal, measured, met } in &self.goals {
            writeln!(f, "| {what} | {goal} | {measured} | {} |", if *met { "met" } else { "**missed**" })?;
        }
        for NotRun { who, why } in &self.not_run {
            writeln!(f, "\nNot run: {who}: {why}.")?;
        }
        Ok(())
    }
}

/// A time in the unit that fits.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        ..1e-6 => format!("{} ns", digits(seconds * 1e9)),
        ..1e-3 => format!("{} µs", digits(seconds * 1e6)),
        ..1.0 => format!("{} ms", digits(seconds * 1e3)),
        _ => format!("{} s", digits(seconds)),
    }
}

fn digits(figure: f64) -> String {
    match figure.abs() {
        ..10.0 => format!("{figure:.2}"),
        ..100.0 => format!("{figure:.1}"),
        _ => format!("{figure:.0}"),
    }
}

fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The value below which that share of them is, of 0 to 1; `None` without any.
pub(crate) fn percentile<T: Copy + PartialOrd>(values: &[T], share: f64) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied()
}

/// The middle one.
pub(crate) fn median<T: Copy + PartialOrd>(values: &[T]) -> Option<T> {
    percentile(values, 0.5)
}
