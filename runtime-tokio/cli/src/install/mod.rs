//! `mcp-reconnect install`: puts the front before the servers of a host's config, and takes it away again.

mod document;
mod entry;
mod files;
mod plan;
mod shown;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

use super::source::{WRONG, shown, tell_errors};
use super::text::printable;
use entry::Front;
use files::HostFile;
use plan::{Choice, Files, Originals, Outcome, Plan, Refusal};

/// Exit status of a command that did not do all that was asked for.
const FAILED: u8 = 1;

const HELP: &str = "\
Exit status:
  0    the file is as it was asked for
  1    the file, or its backup, cannot be written, or was changed meanwhile: it is as it was;
       or a server named with --server was left alone
  2    bad arguments, a file that cannot be read or is wrong, no such server

What is printed shows no value of a variable, a header or an argument. The backup holds them as the file does, and is
readable by its owner alone; servers behind HTTP are read from it from then on, so edit them there.";

/// Put the front before the servers of a host's config: shows the change, and keeps a backup
///
/// A command becomes `mcp-reconnect proxy --name NAME -- COMMAND…`; a server behind HTTP becomes
/// `mcp-reconnect proxy --config BACKUP --server NAME`, so that no secret is on a command line. Everything else in the
/// file stays as it is, comments included. Run again, it adds what is new.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct InstallArgs {
    /// The host's config: the JSON that has its servers
    #[arg(long, value_name = "FILE")]
    host: PathBuf,
    /// Only this server; may be given more than once
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    server: Vec<String>,
    /// All but this server; may be given more than once
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    except: Vec<String>,
    /// The program that the host is to call as `mcp-reconnect` [default: this very program]
    #[arg(long, value_name = "PATH", conflicts_with = "undo")]
    command: Option<String>,
    /// Take the front away again
    #[arg(long)]
    undo: bool,
    /// Show the change, and write nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &InstallArgs) -> ExitCode {
    match try_run(args) {
        Ok(status) => ExitCode::from(status),
        Err(Stop { status, why }) => {
            if let Some(why) = why {
                anstream::eprintln!("error: {}", printable(&why));
            }
            ExitCode::from(status)
        }
    }
}

/// Why nothing was done.
struct Stop {
    status: u8,
    /// None if it was told already, or needs no telling.
    why: Option<String>,
}

impl Stop {
    fn at(status: u8, path: &Path) -> impl Fn(String) -> Self {
        move |why| Self { status, why: Some(format!("{}: {why}", shown(path))) }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        // A reader that has closed the pipe is not told so.
        let why = (error.kind() != io::ErrorKind::BrokenPipe).then(|| error.to_string());
        Self { status: FAILED, why }
    }
}

fn try_run(args: &InstallArgs) -> Result<u8, Stop> {
    let front = front(args)?;
    let host = HostFile::read(&args.host).map_err(Stop::at(WRONG, &args.host))?;
    let path = host.originals();
    let originals = files::read(&path).map_err(Stop::at(WRONG, &path))?;
    let source = args.host.display().to_string();
    let files = Files {
        source: &source,
        host: host.text(),
        originals: originals.as_deref(),
        originals_path: path.to_str().unwrap_or_default(),
    };
    let choice = Choice { only: args.server.iter().cloned().collect(), except: args.except.iter().cloned().collect() };
    let plan = match args.undo {
        true => plan::undo(files, &choice),
        false => plan::install(files, &choice, &Front { program: front, originals: path.to_str().map(Into::into) }),
    };
    let plan = plan.map_err(|refusal| match refusal {
        Refusal::Config(errors) => {
            tell_errors(&errors);
            Stop { status: WRONG, why: None }
        }
        Refusal::Words(why) => Stop::at(WRONG, &args.host)(why),
        Refusal::Originals(why) => Stop::at(WRONG, &path)(why),
    })?;

    // First: a change that nobody could see is not made.
    show(args, &host, &plan)?;
    if args.dry_run {
        anstream::eprintln!("nothing was written");
    } else {
        carry_out(&host, &plan, originals.as_deref(), &path, &args.host)?;
        tell(args, &host, &plan, &path);
    }
    let left = |(_, outcome): &(String, Outcome)| matches!(outcome, Outcome::Left(_));
    Ok(if !args.server.is_empty() && plan.servers.iter().any(left) { FAILED } else { 0 })
}

/// The program that a host is to call.
fn front(args: &InstallArgs) -> Result<String, Stop> {
    if let Some(command) = &args.command {
        return Ok(command.clone());
    }
    let found = std::env::current_exe().map_err(|error| error.to_string());
    let program = found.and_then(|path| path.into_os_string().into_string().map_err(|_| "it is not UTF-8".into()));
    program.map_err(|why| Stop {
        status: WRONG,
        why: Some(format!("the path of this program cannot be used: {why}; name one with --command")),
    })
}

fn show(args: &InstallArgs, host: &HostFile, plan: &Plan) -> io::Result<()> {
    use io::Write as _;

    let mut out = anstream::stdout();
    for line in shown::diff(host.text(), &plan.text, &shown(&args.host)).lines() {
        let style = match line.as_bytes().first() {
            Some(b'+') => AnsiColor::Green.on_default(),
            Some(b'-') => AnsiColor::Red.on_default(),
            Some(b'@') => AnsiColor::Cyan.on_default(),
            _ => Style::new(),
        };
        writeln!(out, "{style}{}{style:#}", printable(line))?;
    }
    let width = plan.servers.iter().map(|(server, _)| printable(server).chars().count()).max().unwrap_or_default();
    for (server, outcome) in &plan.servers {
        let (verdict, words) = match outcome {
            Outcome::Done if args.undo => ("done", "is reached as it was before"),
            Outcome::Done => ("done", "goes through the front"),
            Outcome::Already => ("already", "goes through the front"),
            Outcome::Left(why) => ("left", why.as_str()),
        };
        writeln!(out, "{verdict:<7}  {:<width$}  {}", printable(server), printable(words))?;
    }
    out.flush()
}

/// The originals are written before the host's file, and go after it.
fn carry_out(host: &HostFile, plan: &Plan, old: Option<&str>, path: &Path, named: &Path) -> Result<(), Stop> {
    let failed = Stop::at(FAILED, path);
    let mut kept = None;
    if let Originals::Write { text, keep } = &plan.originals {
        if *keep {
            kept = Some(host.keep_originals().map_err(&failed)?);
        }
        files::write(path, text).map_err(&failed)?;
    }
    if plan.text != host.text()
        && let Err(why) = host.replace(&plan.text)
    {
        // Nothing was done: the originals are as they were, too.
        if matches!(plan.originals, Originals::Write { .. }) {
            match old {
                Some(old) => files::write(path, old),
                None => files::remove(path),
            }
            .map_err(&failed)?;
            if let Some(kept) = &kept {
                files::remove(kept).map_err(Stop::at(FAILED, kept))?;
            }
        }
        return Err(Stop::at(FAILED, named)(why));
    }
    if let Some(kept) = kept {
        anstream::eprintln!("the earlier backup holds more, and is kept: {}", shown(&kept));
    }
    if plan.originals == Originals::Remove {
        files::remove(path).map_err(&failed)?;
    }
    Ok(())
}

/// Tells what was done, and what the user may do next.
fn tell(args: &InstallArgs, host: &HostFile, plan: &Plan, path: &Path) {
    let named = shown(&args.host);
    if let Originals::Needed(servers) = &plan.originals {
        let servers = printable(&servers.join(", ")).into_owned();
        anstream::eprintln!("the backup is kept, for the file no longer has what it has: {servers}: {}", shown(path));
    }
    if plan.text == host.text() {
        anstream::eprintln!("{named}: nothing to {}", if args.undo { "undo" } else { "change" });
        return;
    }
    anstream::eprintln!("{named}: written; restart the host, so that it reads it");
    if !args.undo {
        anstream::eprintln!("backup: {}", shown(path));
        anstream::eprintln!("to undo it: mcp-reconnect install --host {} --undo", quoted(&named));
    }
}

/// For a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+~".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}
