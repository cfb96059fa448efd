//! The config that a command is about.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mcp_reconnect::config::{ConfigErrors, FleetConfig, Parsed, Problem, ProblemKind, ServerConfig, usual_places};

use super::text::printable;

/// Exit status of a command with a wrong config or wrong arguments.
pub(super) const WRONG: u8 = 2;

#[derive(clap::Args)]
pub(super) struct ConfigArgs {
    /// The config: the `mcpServers` JSON that MCP clients share. Without it, the first of the usual places that names
    /// servers, the project's before the user's. It says which commands are run
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A config that is right.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) parsed: Parsed,
}

impl ConfigArgs {
    /// Whether one was named.
    pub(super) fn is_named(&self) -> bool {
        self.config.is_some()
    }

    /// The config that is meant. One that was found is told on stderr.
    ///
    /// # Errors
    ///
    /// The exit status, when it was told where one was looked for.
    pub(super) fn path(&self) -> Result<PathBuf, u8> {
        if let Some(path) = &self.config {
            return Ok(path.clone());
        }
        match find(places()) {
            Ok(path) => {
                anstream::eprintln!("config: {}", shown(&path));
                Ok(path)
            }
            Err(looked) => {
                anstream::eprintln!("{looked}");
                Err(WRONG)
            }
        }
    }

    /// Loads the config that is meant, as it is now. Warnings go to stderr.
    ///
    /// # Errors
    ///
    /// The exit status, once the problem was told on stderr.
    pub(super) fn load(&self) -> Result<Source, u8> {
        let path = self.path()?;
        match FleetConfig::load(&path) {
            Ok(parsed) => {
                tell_warnings(&parsed.warnings);
                Ok(Source { path, parsed })
            }
            Err(errors) => {
                tell_errors(&errors);
                Err(WRONG)
            }
        }
    }
}

impl ConfigArgs {
    /// Loads those servers of the config that nothing is wrong with. Problems and warnings go to stderr.
    ///
    /// # Errors
    ///
    /// The exit status, once a problem with the file as a whole was told on stderr.
    pub(super) fn load_usable(&self) -> Result<(PathBuf, FleetConfig), u8> {
        let path = self.path()?;
        let (parsed, left_out) = FleetConfig::load_usable(&path).map_err(|errors| {
            tell_errors(&errors);
            WRONG
        })?;
        tell_warnings(&parsed.warnings);
        for problem in left_out {
            anstream::eprintln!("left out: {}", printable(&problem.to_string()));
        }
        Ok((path, parsed.config))
    }

    /// Loads this server of the config, whatever is wrong with the others. Warnings about it go to stderr.
    ///
    /// # Errors
    ///
    /// The exit status, once the problem was told on stderr.
    pub(super) fn load_server(&self, name: &str) -> Result<ServerConfig, u8> {
        let path = self.path()?;
        let (mut parsed, left_out) = FleetConfig::load_usable(&path).map_err(|errors| {
            tell_errors(&errors);
            WRONG
        })?;
        let is_of = |problem: &Problem| problem.server.as_deref().is_none_or(|server| server == name);
        parsed.warnings.retain(is_of);
        tell_warnings(&parsed.warnings);
        if let Some(server) = parsed.config.servers.remove(name) {
            return Ok(server);
        }
        let problems: Vec<_> = left_out.into_iter().filter(is_of).collect();
        if problems.is_empty() {
            let known = known(&parsed.config);
            anstream::eprintln!("error: {}: no server `{}`: {known}", shown(&path), printable(name));
        }
        for problem in problems {
            anstream::eprintln!("error: {}", printable(&problem.to_string()));
        }
        Err(WRONG)
    }
}

pub(super) fn tell_warnings(warnings: &[Problem]) {
    for warning in warnings {
        anstream::eprintln!("warning: {}", printable(&warning.to_string()));
    }
}

pub(super) fn tell_errors(errors: &ConfigErrors) {
    tell_warnings(&errors.warnings);
    for problem in &errors.problems {
        anstream::eprintln!("error: {}", printable(&problem.to_string()));
    }
}

fn places() -> Vec<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cwd = std::env::current_dir().unwrap_or_else(|_| ".".into());
    usual_places(&cwd, var("HOME").as_deref(), var("XDG_CONFIG_HOME").as_deref())
}

/// The first of these that is there and names servers, right or wrong; else, in words, where was looked.
fn find(places: Vec<PathBuf>) -> Result<PathBuf, String> {
    let mut looked = String::from("error: no config: name one with --config FILE, or put one at the first of");
    for path in places {
        let without = if path.exists() {
            match FleetConfig::load(&path) {
                Ok(parsed) if parsed.config.servers.is_empty() => " (names no servers)",
                Err(errors) if has_none(&errors) => " (names no servers)",
                _ => return Ok(path),
            }
        } else {
            ""
        };
        looked += &format!("\n  {}{without}", shown(&path));
    }
    Err(looked)
}

/// Whether the file is another program's settings without servers.
fn has_none(errors: &ConfigErrors) -> bool {
    errors.problems.iter().all(|problem| problem.kind == ProblemKind::NoServers)
}

/// Reads `10s`, `250ms`, `5m`, `1h`, or a number of seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let unit = match unit.trim_start() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        _ => f64::NAN,
    };
    let seconds = count.parse::<f64>().unwrap_or(f64::NAN) * unit;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() && duration <= Duration::from_secs(30 * 86_400) => Ok(duration),
        _ => Err("write `250ms`, `10s`, `5m`, `1h` or a number of seconds, more than 0 and at most 30 days".into()),
    }
}

/// The names of all servers, in words.
pub(super) fn known(config: &FleetConfig) -> String {
    let names: Vec<_> = config.servers.keys().map(|name| printable(name)).collect();
    if names.is_empty() { "it has no servers".into() } else { format!("it has: {}", names.join(", ")) }
}

/// The path in words.
pub(super) fn shown(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, millis) in [("250ms", 250), ("10s", 10_000), ("10", 10_000), ("1.5 s", 1_500), ("2m", 120_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "0", "-1", "1d", "1e3", "1.2.3", "soon", "800h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn files_without_servers_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let away = dir.path().join("away.json");
        let settings = file("settings.json", r#"{ "theme": "dark" }"#);
        let empty = file("empty.json", r#"{ "mcpServers": {} }"#);
        let broken = file("broken.json", r#"{ "mcpServers": { "a": {} } }"#);
        let right = file("right.json", r#"{ "mcpServers": { "a": { "command": "x" } } }"#);
        let of = |places: &[&PathBuf]| find(places.iter().copied().cloned().collect());

        assert_eq!(of(&[&away, &settings, &empty, &right]), Ok(right.clone()));
        assert_eq!(of(&[&broken, &right]), Ok(broken), "what is wrong is not passed over");
        let looked = of(&[&away, &settings, &empty]).unwrap_err();
        for line in ["away.json", "settings.json (names no servers)", "empty.json (names no servers)"] {
            assert!(looked.lines().any(|looked| looked.ends_with(line)), "{looked}");
        }
    }
}
