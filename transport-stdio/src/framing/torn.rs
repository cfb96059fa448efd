//! Messages that are not whole on their line: cut off, or written over several lines.

use memchr::memmem::find;

/// Members that only an answer has.
const OUTCOMES: [&str; 2] = ["\"result\"", "\"error\""];
const ID: &str = "\"id\"";
/// A member that no answer has.
const METHOD: &str = "\"method\"";

/// The beginning of such a message.
#[derive(Debug)]
pub(super) struct Torn {
    text: Vec<u8>,
    /// How far its own members are indented, where it goes on after its first line: those of what it holds are further in.
    indent: Option<usize>,
    has_id: bool,
    has_outcome: bool,
}

impl Torn {
    /// Begins with a line that opens an object; `None` if it is no answer.
    pub(super) fn begin(line: &[u8]) -> Option<Self> {
        let has = |name: &str| find(line, name.as_bytes()).is_some();
        let has_id = has(ID);
        // A line that was meant to be whole: what it lacks does not come any more.
        let has_outcome = OUTCOMES.into_iter().any(has) || (has_id && has("\"jsonrpc\""));
        (!has(METHOD)).then(|| Self { text: line.to_vec(), indent: None, has_id, has_outcome })
    }

    /// Goes on with a line; `None` if it is no answer, or longer than `limit`.
    pub(super) fn go_on(mut self, line: &[u8], limit: usize) -> Option<Self> {
        let member = line.trim_ascii_start();
        let indent = line.len() - member.len();
        if *self.indent.get_or_insert(indent) == indent {
            let begins = |name: &str| member.starts_with(name.as_bytes());
            if begins(METHOD) {
                return None;
            }
            self.has_id |= begins(ID);
            self.has_outcome |= OUTCOMES.into_iter().any(begins);
        }
        self.text.push(b'\n');
        self.text.extend_from_slice(line);
        (self.text.len() <= limit).then_some(self)
    }

    /// Whether it answers a request, and says which.
    pub(super) fn is_answer(&self) -> bool {
        self.has_id && self.has_outcome
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.text
    }
}
