//! The fingerprint of what needs a new connection.

use std::ffi::OsStr;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{Endpoint, Http, ServerConfig, Stdio};
use crate::options::{OnPark, Require};
use crate::protocol::EraPolicy;

/// The fingerprint of a server: 128 bits of a SHA-256, as 32 hexadecimal digits.
///
/// It hashes a list of fields, each its tag, the length of its value in bytes as a little-endian `u64`, and the value.
/// A field with its default is left out, so that fields may be added and old digests stay. Tags are never given a new
/// meaning.
pub(super) fn of(server: &ServerConfig) -> String {
    let mut fields = Fields(Sha256::new());
    match &server.endpoint {
        Endpoint::Stdio(stdio) => fields.stdio(stdio),
        Endpoint::Http(http) => fields.http(http),
        Endpoint::Custom(custom) => fields.field("custom", custom.key().as_bytes()),
        Endpoint::Refused(why) => fields.field("refused", why.as_bytes()),
    }
    match server.era {
        EraPolicy::Auto => {}
        EraPolicy::Legacy => fields.field("era", b"legacy"),
        EraPolicy::Modern => fields.field("era", b"modern"),
    }
    match server.require {
        Require::Tools => {}
        Require::None => fields.field("require", b"none"),
    }
    match server.on_park {
        OnPark::Withdraw => {}
        OnPark::Keep => fields.field("on_park", b"keep"),
    }
    fields.0.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Fields(Sha256);

impl Fields {
    fn field(&mut self, tag: &str, value: &[u8]) {
        for part in [tag.as_bytes(), value] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    fn os(&mut self, tag: &str, value: &OsStr) {
        self.field(tag, value.as_encoded_bytes());
    }

    fn stdio(&mut self, stdio: &Stdio) {
        let Stdio { program, args, env, clean_env, cwd, frame_limit, close_eof, close_term, close_kill } = stdio;
        self.os("program", program);
        for arg in args {
            self.os("arg", arg);
        }
        for (name, value) in env {
            match value {
                Some(value) => {
                    self.os("set", name);
                    self.os("to", value);
                }
                None => self.os("remove", name),
            }
        }
        if *clean_env {
            self.field("clean_env", &[]);
        }
        if let Some(cwd) = cwd {
            self.os("cwd", cwd.as_os_str());
        }
        self.frame_limit(*frame_limit);
        let default = Stdio::new("");
        self.duration("close_eof", *close_eof, default.close_eof);
        self.duration("close_term", *close_term, default.close_term);
        self.duration("close_kill", *close_kill, default.close_kill);
    }

    fn http(&mut self, http: &Http) {
        let Http { url, headers, proxy, frame_limit } = http;
        self.field("url", url.as_bytes());
        for (name, value) in headers {
            self.field("header", name.as_bytes());
            self.field("is", value.as_bytes());
        }
        if let Some(proxy) = proxy {
            self.field("proxy", proxy.as_bytes());
        }
        self.frame_limit(*frame_limit);
    }

    fn frame_limit(&mut self, limit: Option<std::num::NonZeroUsize>) {
        if let Some(limit) = limit {
            self.field("frame_limit", &(limit.get() as u64).to_le_bytes());
        }
    }

    fn duration(&mut self, tag: &str, value: Duration, default: Duration) {
        if value != default {
            self.field(tag, &value.as_nanos().to_le_bytes());
        }
    }
}
