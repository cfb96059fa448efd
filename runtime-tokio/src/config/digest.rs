//! The fingerprint of what needs a new connection.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::{Endpoint, Http, ServerConfig, Stdio};
use crate::options::Require;
use crate::protocol::EraPolicy;

/// A fingerprint: 128 bits of a SHA-256, shown as 32 hexadecimal digits.
///
/// The hash keeps a secret with the entropy of a key; a password of a few letters could be guessed from it, so a file
/// that holds digests should be its owner's to read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 16]);

/// The fingerprint of a server.
///
/// What is hashed is a list of fields, each its tag, the length of its value in bytes as a little-endian `u64`, and the
/// value. A field with its default is left out, so that fields may be added and old digests stay. Tags are never
/// given a new meaning.
pub(super) fn of(server: &ServerConfig) -> Digest {
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
    let hash = fields.0.finalize();
    let mut digest = [0; 16];
    digest.copy_from_slice(&hash[..16]);
    Digest(digest)
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

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Text that is no digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NoDigest;

impl fmt::Display for NoDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a digest has 32 hexadecimal digits")
    }
}

impl std::error::Error for NoDigest {}

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NoDigest);
        }
        u128::from_str_radix(text, 16).map(|value| Self(value.to_be_bytes())).map_err(|_| NoDigest)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
