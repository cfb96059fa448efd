use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mcp_reconnect_core::FailureClass;
use process_wrap::tokio::{CommandWrap, ProcessGroup};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::control::{STDERR_WAIT, Server};

/// The frame limit of a [`ServerCommand`] unless it sets another: 16 MiB.
pub const DEFAULT_FRAME_LIMIT: usize = 16 * 1024 * 1024;

/// The variables of this process's environment that a server inherits when [`ServerCommand::clean_env`] is set; a name that
/// ends in `*` stands for all that begin like it.
pub const CLEAN_ENV: [&str; 9] = ["HOME", "LANG", "LC_*", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"];

/// Where `execvp` looks when there is no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// How to start a server, and how much patience it gets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCommand {
    /// The command: a path if it holds a `/` (a relative one counts from [`cwd`](Self::cwd)), else looked up in the
    /// `PATH` that the server will get.
    pub program: OsString,
    /// Its arguments, the program's name not included.
    pub args: Vec<OsString>,
    /// Changes to the environment that the server inherits: set to this value, or removed.
    pub env: BTreeMap<OsString, Option<OsString>>,
    /// Whether the server inherits only what [`CLEAN_ENV`] lists. Otherwise, which is the default, it inherits this
    /// process's whole environment, secrets included.
    pub clean_env: bool,
    /// The directory that the server starts in; this process's own by default.
    pub cwd: Option<PathBuf>,
    /// How many bytes a line on the server's stdout may have, its end not counted.
    pub frame_limit: usize,
    /// How long the steps of closing wait.
    pub graces: CloseGraces,
}

/// How long each step of [`ServerControl::close`](crate::ServerControl::close) waits for the server to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseGraces {
    /// After its stdin was closed: 5 s by default.
    pub eof: Duration,
    /// After SIGTERM: 2 s by default.
    pub term: Duration,
    /// After SIGKILL, until the kernel has cleared it away: 1 s by default.
    pub kill: Duration,
}

impl CloseGraces {
    /// How long a close takes at most: all three, and 100 ms for last words on stderr.
    pub const fn total(&self) -> Duration {
        self.eof.saturating_add(self.term).saturating_add(self.kill).saturating_add(STDERR_WAIT)
    }
}

impl Default for CloseGraces {
    fn default() -> Self {
        Self { eof: Duration::from_secs(5), term: Duration::from_secs(2), kill: Duration::from_secs(1) }
    }
}

impl ServerCommand {
    /// A command without arguments that inherits the environment and the working directory.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            clean_env: false,
            cwd: None,
            frame_limit: DEFAULT_FRAME_LIMIT,
            graces: CloseGraces::default(),
        }
    }

    /// Starts the server, as the leader of a new process group.
    ///
    /// Working directory and command are looked at first, so that the error names the one that is wrong.
    ///
    /// # Errors
    ///
    /// The server cannot be started; [`SpawnError::class`] says whether another try can help.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn spawn(&self) -> Result<Server, SpawnError> {
        let cwd = self.checked_cwd()?;
        let env = self.environment();
        let program = self.checked_program(cwd.as_deref(), env.get(OsStr::new("PATH")).map(OsString::as_os_str))?;
        let mut command = CommandWrap::with_new(&program, |command| {
            command.arg0(&self.program).args(&self.args).env_clear().envs(&env);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            if let Some(cwd) = &cwd {
                command.current_dir(cwd);
            }
        });
        command.wrap(ProcessGroup::leader());
        let started = command.spawn().and_then(|child| Server::new(child, self.frame_limit, self.graces));
        started.map_err(|error| self.not_started(&program, &error))
    }

    /// The environment that the server gets.
    fn environment(&self) -> BTreeMap<OsString, OsString> {
        let inherited = |name: &OsStr| {
            !self.clean_env
                || CLEAN_ENV.iter().any(|allowed| match allowed.strip_suffix('*') {
                    Some(start) => name.as_bytes().starts_with(start.as_bytes()),
                    None => name == *allowed,
                })
        };
        let mut env: BTreeMap<_, _> = std::env::vars_os().filter(|(name, _)| inherited(name)).collect();
        for (name, value) in &self.env {
            match value {
                Some(value) => drop(env.insert(name.clone(), value.clone())),
                None => drop(env.remove(name)),
            }
        }
        env
    }

    /// The working directory as an absolute path; `None` where none is set.
    fn checked_cwd(&self) -> Result<Option<PathBuf>, SpawnError> {
        let Some(cwd) = &self.cwd else { return Ok(None) };
        let wrong = |why: &dyn fmt::Display| SpawnError::permanent(format!("cwd {cwd:?}: {why}"));
        let absolute = std::path::absolute(cwd).map_err(|error| wrong(&error))?;
        if !absolute.metadata().map_err(|error| wrong(&error))?.is_dir() {
            return Err(wrong(&"not a directory"));
        }
        access(&absolute, Access::EXEC_OK).map_err(|error| wrong(&io::Error::from(error)))?;
        Ok(Some(absolute))
    }

    /// The path of the command, which is there and may be executed.
    fn checked_program(&self, cwd: Option<&Path>, path: Option<&OsStr>) -> Result<PathBuf, SpawnError> {
        let wrong = |why: String| Err(SpawnError::permanent(format!("command {:?}: {why}", self.program)));
        let from_cwd = |path: &Path| cwd.map_or_else(|| path.to_path_buf(), |cwd| cwd.join(path));
        if self.program.is_empty() {
            return wrong("empty".into());
        }
        if self.program.as_bytes().contains(&b'/') {
            let path = from_cwd(Path::new(&self.program));
            return match executable(&path) {
                Ok(()) => Ok(path),
                Err(error) if path.as_os_str() == self.program => wrong(error.to_string()),
                Err(error) => wrong(format!("{}: {error}", path.display())),
            };
        }
        let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
        let mut denied = None;
        for dir in path.as_bytes().split(|&byte| byte == b':') {
            // An empty entry is the working directory, and a relative one counts from it.
            let dir = if dir.is_empty() { b"." } else { dir };
            let file = from_cwd(Path::new(OsStr::from_bytes(dir))).join(&self.program);
            match executable(&file) {
                Ok(()) => return Ok(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    denied.get_or_insert_with(|| format!("{}: {error}", file.display()));
                }
            }
        }
        wrong(denied.unwrap_or_else(|| format!("not found in PATH {path:?}")))
    }

    /// The kernel's error, in terms of the config.
    fn not_started(&self, path: &Path, error: &io::Error) -> SpawnError {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        let hint = match errno {
            Some(Errno::NOENT) => "; is the interpreter of its first line there?",
            _ => "",
        };
        SpawnError {
            class: errno.map_or(FailureClass::Permanent, class_of),
            text: format!("command {:?} ({}): {error}{hint}", self.program, path.display()),
        }
    }
}

/// Want of resources passes; a file that cannot be executed stays so until it is changed.
fn class_of(errno: Errno) -> FailureClass {
    match errno {
        Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::TXTBSY => FailureClass::Transport,
        _ => FailureClass::Permanent,
    }
}

/// Whether the file is there and may be executed.
fn executable(path: &Path) -> io::Result<()> {
    if path.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
    }
    Ok(access(path, Access::EXEC_OK)?)
}

impl fmt::Debug for ServerCommand {
    /// Leaves arguments and values of the environment out: they are where secrets are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: BTreeMap<_, _> =
            self.env.iter().map(|(name, value)| (name, if value.is_some() { "(set)" } else { "(removed)" })).collect();
        f.debug_struct("ServerCommand")
            .field("program", &self.program)
            .field("args", &format_args!("({})", self.args.len()))
            .field("env", &env)
            .field("clean_env", &self.clean_env)
            .field("cwd", &self.cwd)
            .field("frame_limit", &self.frame_limit)
            .field("graces", &self.graces)
            .finish()
    }
}

/// Why a server could not be started. The text names what of the config is wrong, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnError {
    /// [`Permanent`](FailureClass::Permanent), or [`Transport`](FailureClass::Transport) where the system was short of
    /// something (processes, files, memory) or the program was just being written.
    pub class: FailureClass,
    text: String,
}

impl SpawnError {
    fn permanent(text: String) -> Self {
        Self { class: FailureClass::Permanent, text }
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for SpawnError {}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use mcp_reconnect_core::FailureClass;
    use rustix::io::Errno;

    use super::{ServerCommand, class_of};

    #[test]
    fn a_shortage_is_transient_and_a_bad_file_permanent() {
        for errno in [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::TXTBSY] {
            assert_eq!(class_of(errno), FailureClass::Transport, "{errno:?}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC, Errno::NOTDIR, Errno::TOOBIG, Errno::PERM] {
            assert_eq!(class_of(errno), FailureClass::Permanent, "{errno:?}");
        }
        // No child is one where nobody listens.
        for errno in (1..=133).map(Errno::from_raw_os_error) {
            assert!(matches!(class_of(errno), FailureClass::Transport | FailureClass::Permanent), "{errno:?}");
        }
    }

    #[test]
    fn the_environment_is_inherited_changed_or_clean() {
        let os = OsString::from;
        let path = std::env::var_os("PATH").expect("tests have a PATH");
        let mut command = ServerCommand::new("server");
        command.env.insert(os("TOKEN"), Some(os("secret")));
        command.env.insert(os("HOME"), None);
        let whole = command.environment();
        assert_eq!(whole.get(&os("PATH")), Some(&path));
        assert_eq!(whole.get(&os("TOKEN")), Some(&os("secret")));
        assert_eq!(whole.get(&os("HOME")), None);
        let unlisted = os("CARGO_MANIFEST_DIR");
        assert!(whole.contains_key(&unlisted), "set by the test runner");

        command.clean_env = true;
        let clean = command.environment();
        assert_eq!(clean.get(&os("PATH")), Some(&path));
        assert_eq!(clean.get(&os("TOKEN")), Some(&os("secret")));
        assert!(!clean.contains_key(&unlisted));
        assert!(!clean.contains_key(&os("HOME")));
    }

    #[test]
    fn debug_names_variables_but_neither_their_values_nor_arguments() {
        let mut command = ServerCommand::new("server");
        command.args = vec!["--token=secret".into()];
        command.env.insert("TOKEN".into(), Some("secret".into()));
        let shown = format!("{command:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn the_command_is_looked_up_where_the_server_will_look() {
        let look = |program: &str, cwd: Option<&str>, path: Option<&str>| {
            let found = ServerCommand::new(program).checked_program(cwd.map(Path::new), path.map(AsRef::as_ref));
            found.map(|path| path.display().to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(look("sh", None, None), Ok("/bin/sh".into()), "the default PATH");
        assert_eq!(look("sh", None, Some("/nowhere:/bin")), Ok("/bin/sh".into()));
        assert_eq!(look("sh", Some("/bin"), Some("/nowhere:")), Ok("/bin/./sh".into()), "an empty entry");
        assert_eq!(look("./sh", Some("/bin"), Some("/nowhere")), Ok("/bin/./sh".into()), "a path is not looked up");
        assert_eq!(look("sh", None, Some("/nowhere")), Err("command \"sh\": not found in PATH \"/nowhere\"".into()));
        assert_eq!(
            look("./sh", Some("/nowhere"), None),
            Err("command \"./sh\": /nowhere/./sh: No such file or directory (os error 2)".into())
        );
        assert_eq!(
            look("passwd", None, Some("/etc")),
            Err("command \"passwd\": /etc/passwd: Permission denied (os error 13)".into())
        );
        assert_eq!(look("/", None, None), Err("command \"/\": is a directory".into()));
        assert_eq!(look("", None, None), Err("command \"\": empty".into()));
    }
}
