//! `mcp-reconnect install`: real files, before and after.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mcp_reconnect::config::{Endpoint, FleetConfig};
use tempfile::TempDir;

use super::Done;

const SECRET: &str = "hunter2hunter2";
const BACKUP: &str = "mcp.json.mcp-reconnect-backup.json";

/// Ten servers, as people write them.
const TEN: &str = r#"{
  // The team's servers. Old key: hunter2hunter2
  "theme": "dark", /* kept */
  "mcpServers": {
    "files": {
      "command": "npx", // any version
      "args": [
        "-y",
        "@example/server-files",
        "--key=hunter2hunter2",
      ],
      "env": { "TOKEN": "hunter2hunter2", "PORT": 8080 },
      "timeout": 60,
    },
    "bare": { "command": "bare-server" },
    "empty": { "command": "empty-server", "args": [ ], "cwd": "/srv" },
    "off": { "disabled": true, "command": "off-server", "args": ["${NOT_SET_ANYWHERE}"] },
    "words": { "command": ["uvx", "words", "hunter2hunter2"] },
    "editor": { "command": "node", "args": ["${workspaceFolder}/server.js", "${input:key}"] },
    "search": {
      "type": "http",
      // hunter2hunter2 was the key
      "url": "https://search.example.com/mcp?key=hunter2hunter2",
      "headers": {
        "Authorization": "Bearer hunter2hunter2",
      },
      "alwaysAllow": ["find"],
    },
    "maps": { "serverUrl": "https://maps.example.com/mcp", "headers": { "X-Key": "hunter2hunter2" }, "disabled": true },
    "old": { "type": "sse", "url": "https://old.example.com/sse" },
    "mine": { "command": "/usr/bin/mcp-reconnect", "args": ["proxy", "--", "server", "hunter2hunter2"] },
  },
}
"#;

/// A folder with a host's file.
struct Folder(TempDir);

impl Folder {
    fn new(text: impl AsRef<[u8]>) -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        fs::write(folder.host(), text).expect("written");
        folder
    }

    fn host(&self) -> PathBuf {
        self.0.path().join("mcp.json")
    }

    fn backup(&self) -> PathBuf {
        self.0.path().join(BACKUP)
    }

    fn text(&self) -> String {
        fs::read_to_string(self.host()).expect("a text")
    }

    fn names(&self) -> Vec<String> {
        let entries = self.0.path().read_dir().expect("a folder");
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    fn run(&self, args: &[&str]) -> Done {
        Done::of(command(&self.host()).args(args))
    }
}

fn command(host: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-reconnect"));
    command.args(["install", "--host"]).arg(host).env_remove("MCP_RECONNECT_LOG").stdin(Stdio::null());
    command
}

/// The process that the host would start for a server.
fn started(text: &str, server: &str) -> (String, Vec<String>) {
    let parsed = FleetConfig::parse(text, "mcp.json", |_| Some("filled in".into())).expect("a config");
    let Endpoint::Stdio(stdio) = &parsed.config.servers[server].endpoint else { panic!("{server}: no command") };
    let word = |word: &std::ffi::OsString| word.clone().into_string().expect("UTF-8");
    (word(&stdio.program), stdio.args.iter().map(word).collect())
}

/// The file without the one server that no reader but an editor understands.
fn without_the_editors(text: &str) -> String {
    text.lines().filter(|line| !line.contains("${input:key}")).collect::<Vec<_>>().join("\n")
}

#[test]
fn ten_servers_need_one_command_and_one_to_take_it_back() {
    let folder = Folder::new(TEN);
    fs::set_permissions(folder.host(), Permissions::from_mode(0o640)).expect("permitted");
    let done = folder.run(&[]);
    done.assert_ended(0, &["mcp.json: written; restart the host", "backup: ", "--undo\n"]);

    let verdicts: Vec<_> = done.stdout.lines().filter(|line| !line.starts_with(['+', '-', ' ', '@'])).collect();
    for (verdict, expected) in verdicts.iter().zip([
        "done     files   goes through the front",
        "done     bare    goes through the front",
        "done     empty   goes through the front",
        "done     off     goes through the front",
        "done     words   goes through the front",
        "done     editor  goes through the front",
        "done     search  goes through the front",
        "done     maps    goes through the front",
        "left     old     `type`: the transport `sse`",
        "already  mine    goes through the front",
    ]) {
        assert!(verdict.starts_with(expected), "{verdict}");
    }
    assert_eq!(verdicts.len(), 10, "{done:?}");

    let text = folder.text();
    let backup = fs::canonicalize(folder.backup()).expect("a backup").into_os_string().into_string().expect("UTF-8");
    let read = without_the_editors(&text);
    let front = env!("CARGO_BIN_EXE_mcp-reconnect");
    for (server, args) in [
        (
            "files",
            &["proxy", "--name", "files", "--", "npx", "-y", "@example/server-files", "--key=hunter2hunter2"][..],
        ),
        ("bare", &["proxy", "--name", "bare", "--", "bare-server"]),
        ("empty", &["proxy", "--name", "empty", "--", "empty-server"]),
        ("off", &["proxy", "--name", "off", "--", "off-server", "filled in"]),
        ("words", &["proxy", "--name", "words", "--", "uvx", "words", "hunter2hunter2"]),
        ("search", &["proxy", "--config", &backup, "--server", "search"]),
        ("maps", &["proxy", "--config", &backup, "--server", "maps"]),
    ] {
        let (program, found) = started(&read, server);
        assert_eq!(Path::new(&program), fs::canonicalize(front).expect("it is there"));
        assert_eq!(found, args);
    }
    assert!(text.contains(r#""editor", "--", "node", "${workspaceFolder}/server.js", "${input:key}"]"#), "{text}");
    for kept in [
        "// The team's servers",
        "/* kept */",
        "// any version",
        "// hunter2hunter2 was the key",
        "      \"env\": { \"TOKEN\": \"hunter2hunter2\", \"PORT\": 8080 },\n      \"timeout\": 60,\n",
        "\"cwd\": \"/srv\" }",
        "\"off\": { \"disabled\": true, ",
        "      \"alwaysAllow\": [\"find\"],\n",
        "\"old\": { \"type\": \"sse\", \"url\": \"https://old.example.com/sse\" },",
        "\"mine\": { \"command\": \"/usr/bin/mcp-reconnect\", \"args\": [\"proxy\", \"--\", \"server\", \"hunter2hunter2\"] },",
    ] {
        assert!(text.contains(kept), "{kept}: {text}");
    }

    assert_eq!(fs::read_to_string(folder.backup()).expect("a backup"), TEN);
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode(&folder.backup()), mode(&folder.host())), (0o600, 0o640));
    assert_eq!(folder.names(), ["mcp.json", BACKUP]);

    let undone = folder.run(&["--undo"]);
    undone.assert_ended(0, &["mcp.json: written"]);
    assert_eq!(folder.text(), TEN);
    assert_eq!(mode(&folder.host()), 0o640);
    assert_eq!(folder.names(), ["mcp.json"]);
    folder.run(&["--undo"]).assert_ended(0, &["nothing to undo"]);
    assert_eq!(folder.text(), TEN);
}

#[test]
fn the_backup_is_a_config_that_reaches_what_was_there() {
    let folder = Folder::new(without_the_editors(TEN));
    folder.run(&[]).assert_ended(0, &[]);
    let parsed = FleetConfig::load(folder.backup()).expect("a config");
    let Endpoint::Http(search) = &parsed.config.servers["search"].endpoint else { panic!("{parsed:?}") };
    assert_eq!(search.url, "https://search.example.com/mcp?key=hunter2hunter2");
    assert_eq!(search.headers["Authorization"], "Bearer hunter2hunter2");
}

#[test]
fn no_secret_is_printed_and_none_of_a_url_is_on_a_command_line() {
    let folder = Folder::new(TEN);
    let mut all = vec![folder.run(&["--dry-run"]), folder.run(&[])];
    let text = folder.text();
    all.extend([folder.run(&["--undo", "--dry-run"]), folder.run(&[]), folder.run(&["--undo"])]);
    assert!(all[1].stdout.contains("\n+") && all[4].stdout.contains("\n-"), "{all:?}");
    for done in &all {
        assert!(!done.stdout.contains(SECRET) && !done.stderr.contains(SECRET), "{done:?}");
        assert!(!done.stdout.contains("8080"), "{done:?}");
    }
    for server in ["search", "maps"] {
        let (_, args) = started(&without_the_editors(&text), server);
        assert!(!args.concat().contains(SECRET), "{args:?}");
    }
}

#[test]
fn a_dry_run_writes_nothing() {
    let folder = Folder::new(TEN);
    let dry = folder.run(&["--dry-run"]);
    dry.assert_ended(0, &["nothing was written"]);
    assert!(dry.stdout.contains("+      \"command\": "), "{dry:?}");
    assert_eq!((folder.text(), folder.names()), (TEN.to_owned(), vec!["mcp.json".to_owned()]));
    let wet = folder.run(&[]);
    assert_eq!(wet.stdout, dry.stdout);
}

#[test]
fn installing_twice_changes_nothing() {
    let folder = Folder::new(TEN);
    folder.run(&[]).assert_ended(0, &[]);
    let of = |path: &Path| (fs::read(path).unwrap(), fs::metadata(path).unwrap().modified().unwrap());
    let before = (of(&folder.host()), of(&folder.backup()));
    let again = folder.run(&[]);
    again.assert_ended(0, &["nothing to change"]);
    assert!(!again.stdout.contains("@@") && again.stdout.contains("already  files "), "{again:?}");
    assert_eq!((of(&folder.host()), of(&folder.backup())), before);
    assert_eq!(folder.names(), ["mcp.json", BACKUP]);
}

#[test]
fn what_was_edited_since_stays_when_it_is_undone() {
    let folder = Folder::new(TEN);
    folder.run(&[]).assert_ended(0, &[]);
    let edits = [
        ("\"theme\": \"dark\"", "\"theme\": \"light\""),
        ("\"timeout\": 60", "\"timeout\": 90"),
        ("\"alwaysAllow\": [\"find\"]", "\"alwaysAllow\": [\"find\", \"show\"]"),
        ("  \"mcpServers\": {\n", "  \"mcpServers\": {\n    \"new\": { \"command\": \"new-server\" },\n"),
    ];
    let edit = |text: &str| edits.iter().fold(text.to_owned(), |text, (old, new)| text.replace(old, new));
    fs::write(folder.host(), edit(&folder.text())).expect("written");
    folder.run(&["--undo"]).assert_ended(0, &[]);
    // The members of one server changed places, for its own were edited: everything else is as it was.
    let lines = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::trim).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(lines(&folder.text()), lines(&edit(TEN)));
    assert_eq!(folder.names(), ["mcp.json"]);
}

#[test]
fn a_server_that_is_added_later_is_kept_with_the_others() {
    let folder = Folder::new(TEN);
    folder.run(&["--server", "files", "--server", "search"]).assert_ended(0, &[]);
    let add = |text: &str| {
        let later =
            "\"later\": { \"url\": \"https://later.example.com/\", \"headers\": { \"A\": \"hunter2hunter2\" } },";
        text.replace("  \"mcpServers\": {\n", &format!("  \"mcpServers\": {{\n    {later}\n"))
    };
    fs::write(folder.host(), add(&folder.text())).expect("written");
    folder.run(&["--except", "bare"]).assert_ended(0, &[]);
    assert_eq!(fs::read_to_string(folder.backup()).unwrap(), add(TEN));
    assert!(folder.text().contains("\"bare\": { \"command\": \"bare-server\" }"));
    folder.run(&["--undo"]).assert_ended(0, &[]);
    assert_eq!((folder.text(), folder.names()), (add(TEN), vec!["mcp.json".to_owned()]));
}

#[test]
fn a_backup_that_holds_more_is_kept_under_another_name() {
    let folder = Folder::new(TEN);
    folder.run(&[]).assert_ended(0, &[]);
    for (gone, new) in [
        ("\"maps\": {", "\"new\": { \"command\": \"new-server\" },"),
        ("\"search\": {", "\"newer\": { \"command\": \"x\" },"),
    ] {
        let text = folder.text();
        let start = text.find(gone).expect("it is there");
        let end = start + text[start..].find("},\n").expect("it ends") + 3;
        fs::write(folder.host(), format!("{}{new}\n{}", &text[..start], &text[end..])).expect("written");
        folder.run(&[]).assert_ended(0, &["the earlier backup holds more, and is kept: "]);
    }
    let kept = [1, 2].map(|number| format!("mcp.json.mcp-reconnect-backup-{number}.json"));
    assert_eq!(folder.names(), ["mcp.json", &kept[0], &kept[1], BACKUP]);
    let read = |name: &str| fs::read_to_string(folder.0.path().join(name)).expect("a text");
    assert_eq!(read(&kept[0]), TEN);
    assert!(read(&kept[1]).contains("\"search\"") && !read(&kept[1]).contains("\"maps\""));
    assert!(!read(BACKUP).contains("\"search\"") && read(BACKUP).contains("\"newer\": { \"command\": \"x\" }"));
}

#[test]
fn a_link_stays_and_leads_to_the_file() {
    let folder = Folder::new(TEN);
    let home = tempfile::tempdir().expect("a folder");
    let link = home.path().join("settings.json");
    symlink(folder.host(), &link).expect("a link");
    Done::of(&mut command(&link)).assert_ended(0, &[]);
    assert_eq!(fs::read_link(&link).expect("a link"), folder.host());
    assert_ne!(folder.text(), TEN);
    assert_eq!(folder.names(), ["mcp.json", BACKUP]);
    assert_eq!(home.path().read_dir().unwrap().count(), 1);
    Done::of(command(&link).arg("--undo")).assert_ended(0, &[]);
    assert_eq!(folder.text(), TEN);

    let circle = home.path().join("circle.json");
    symlink(&circle, &circle).expect("a link");
    Done::of(&mut command(&circle)).assert_ended(2, &["circle.json: cannot be read: "]);
}

#[test]
fn another_command_may_be_named() {
    let folder = Folder::new(TEN);
    folder.run(&["--command", "front", "--server", "bare"]).assert_ended(0, &[]);
    let bare = r#""bare": { "command": "front", "args": ["proxy", "--name", "bare", "--", "bare-server"] }"#;
    assert!(folder.text().contains(bare), "{}", folder.text());
    let again = folder.run(&["--server", "bare"]);
    assert!(again.stdout.starts_with("already  bare"), "{again:?}");
    folder.run(&["--command", "x", "--undo"]).assert_ended(2, &["--undo"]);
}

#[test]
fn a_file_that_cannot_be_used_is_named_and_left_alone() {
    for (text, told) in [
        (&b"{ \"mcpServers\": { \"a\": x } }"[..], "is no JSON: "),
        (b"", "is no JSON: "),
        (b"{ \"theme\": \"dark\" }", "has no `mcpServers`"),
        (b"{ \"mcpServers\": [] }", "is an array, not an object"),
        (b"[]", "is an array, not an object"),
        (b"{ \"mcpServers\": {}, \"mcpServers\": {} }", "is there twice"),
        (b"{ \"mcpServers\": \xff }", "is not UTF-8 from byte 16 on"),
    ] {
        let folder = Folder::new(text);
        let done = folder.run(&[]);
        done.assert_ended(2, &["error: ", "mcp.json: ", told]);
        assert_eq!((fs::read(folder.host()).unwrap(), folder.names()), (text.to_vec(), vec!["mcp.json".to_owned()]));
    }
    let folder = Folder::new(TEN);
    Done::of(&mut command(&folder.0.path().join("away.json"))).assert_ended(2, &["away.json: cannot be read: "]);
    Done::of(&mut command(folder.0.path())).assert_ended(2, &["is no file"]);

    fs::write(folder.backup(), "no JSON").expect("written");
    folder.run(&[]).assert_ended(2, &[BACKUP, "is no JSON: "]);
    folder.run(&["--undo"]).assert_ended(2, &[BACKUP]);
    fs::remove_file(folder.backup()).expect("removed");
    fs::create_dir(folder.backup()).expect("a folder");
    folder.run(&[]).assert_ended(2, &[BACKUP]);
    assert_eq!(folder.text(), TEN);
}

#[test]
fn servers_are_chosen_by_names_that_are_there() {
    let folder = Folder::new(TEN);
    folder.run(&["--server", "away"]).assert_ended(2, &["mcp.json: no server `away`; it has: files, bare, "]);
    let left = folder.run(&["--server", "old", "--server", "bare"]);
    left.assert_ended(1, &["written"]);
    assert!(left.stdout.contains("left     old   `type`: the transport `sse`"), "{left:?}");
    assert!(folder.text().contains("\"bare\", \"--\", \"bare-server\""));
}

#[test]
fn a_file_that_may_not_be_written_is_as_it_was() {
    let folder = Folder::new(TEN);
    fs::set_permissions(folder.host(), Permissions::from_mode(0o444)).expect("permitted");
    folder.run(&[]).assert_ended(1, &["mcp.json: cannot be written: it is read-only"]);
    assert_eq!((folder.text(), folder.names()), (TEN.to_owned(), vec!["mcp.json".to_owned()]));
}

#[test]
fn a_folder_that_may_not_be_written_is_as_it_was() {
    let folder = Folder::new(TEN);
    // Root may write everywhere: somebody else must try.
    let programs = tempfile::tempdir().expect("a folder");
    let program = programs.path().join("mcp-reconnect");
    // By another process: a file that a fork of this one has open for writing cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_mcp-reconnect")).arg(&program).status();
    assert!(copied.expect("it starts").success());
    for (path, mode) in [(programs.path(), 0o755), (&folder.host(), 0o644), (folder.0.path(), 0o555)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("permitted");
    }
    let mut command = Command::new(program);
    command.args(["install", "--host"]).arg(folder.host()).env_remove("MCP_RECONNECT_LOG").stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(65_534);
    }
    let done = Done::of(&mut command);
    fs::set_permissions(folder.0.path(), Permissions::from_mode(0o755)).expect("permitted");
    done.assert_ended(1, &[BACKUP, "cannot be written: "]);
    assert_eq!((folder.text(), folder.names()), (TEN.to_owned(), vec!["mcp.json".to_owned()]));
}

/// A file with a change longer than a pipe holds: the command waits until it is read.
fn long() -> String {
    let servers: Vec<_> = (0..2_000).map(|at| format!("    \"server {at}\": {{ \"command\": \"server\" }}")).collect();
    format!("{{\n  \"mcpServers\": {{\n{}\n  }}\n}}\n", servers.join(",\n"))
}

#[test]
fn what_is_changed_by_others_meanwhile_is_not_overwritten() {
    let folder = Folder::new(long());
    let mut child = command(&folder.host()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdout = child.stdout.take().expect("piped");
    stdout.read_exact(&mut [0]).expect("it shows what it read");
    let other = long().replace("\"server 7\"", "\"server seven\"");
    fs::write(folder.host(), &other).expect("written");
    stdout.read_to_end(&mut Vec::new()).expect("read");
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.code() == Some(1) && stderr.contains("mcp.json: was changed by somebody else"), "{stderr}");
    assert_eq!((folder.text(), folder.names()), (other, vec!["mcp.json".to_owned()]));
}

#[test]
fn what_nobody_reads_is_not_done() {
    let folder = Folder::new(TEN);
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert!(writer.write_all(b"x").is_err());
    let done = Done::of(command(&folder.host()).stdout(writer));
    assert_eq!((done.status, done.stderr.as_str()), (Some(1), ""));
    assert_eq!((folder.text(), folder.names()), (TEN.to_owned(), vec!["mcp.json".to_owned()]));
}
