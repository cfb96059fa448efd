//! Lines to tokens, and tokens to values.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde_json::Value;

/// Why a script could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// The line, counted from 1.
    pub line: usize,
    /// The token that does not fit, or `end of line`.
    pub token: String,
    /// What would have fitted.
    pub expected: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: `{}`: expected {}", self.line, self.token, self.expected)
    }
}

impl Error for ScriptError {}

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Anything without spaces and punctuation.
    Word(String),
    /// `"..."`, its escapes resolved.
    Text(Vec<u8>),
    /// `'...'`, as it stands.
    Json(String),
    /// `,` or `;`.
    Comma,
    /// `(`.
    Open,
    /// `)`.
    Close,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => f.write_str(word),
            Self::Text(text) => write!(f, "\"{}\"", text.escape_ascii()),
            Self::Json(json) => write!(f, "'{json}'"),
            Self::Comma => f.write_str(","),
            Self::Open => f.write_str("("),
            Self::Close => f.write_str(")"),
        }
    }
}

/// The tokens of one line, read from left to right.
#[derive(Debug)]
pub(crate) struct Tokens {
    line: usize,
    tokens: Vec<Token>,
    next: usize,
}

impl Tokens {
    /// Splits a line; what follows a `#` at the start of a token is a comment.
    pub(crate) fn of(line: usize, text: &str) -> Result<Self, ScriptError> {
        let mut tokens = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(&first) = chars.peek() {
            match first {
                '#' => break,
                '"' => {
                    chars.next();
                    tokens.push(Token::Text(quoted(line, &mut chars)?));
                }
                '\'' => {
                    chars.next();
                    let mut json = String::new();
                    loop {
                        match chars.next() {
                            Some('\'') => break,
                            Some(other) => json.push(other),
                            None => return Err(unclosed(line, "a closing '")),
                        }
                    }
                    tokens.push(Token::Json(json));
                }
                ',' | ';' | '(' | ')' => {
                    chars.next();
                    tokens.push(match first {
                        '(' => Token::Open,
                        ')' => Token::Close,
                        _ => Token::Comma,
                    });
                }
                space if space.is_whitespace() => {
                    chars.next();
                }
                _ => {
                    let mut word = String::new();
                    while let Some(next) = chars.next_if(|c| !c.is_whitespace() && !",;()\"'".contains(*c)) {
                        word.push(next);
                    }
                    tokens.push(Token::Word(word));
                }
            }
        }
        Ok(Self { line, tokens, next: 0 })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(crate) fn line(&self) -> usize {
        self.line
    }

    pub(crate) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    /// The error that the next token is, where `expected` was expected.
    pub(crate) fn error(&self, expected: impl Into<String>) -> ScriptError {
        let token = self.peek().map_or_else(|| "end of line".to_owned(), Token::to_string);
        ScriptError { line: self.line, token, expected: expected.into() }
    }

    /// The same for the token before, which was taken already.
    pub(crate) fn error_before(&self, expected: impl Into<String>) -> ScriptError {
        let token = self.tokens.get(self.next.wrapping_sub(1)).map_or_else(String::new, Token::to_string);
        ScriptError { line: self.line, token, expected: expected.into() }
    }

    /// Takes the next token if it is this one.
    pub(crate) fn eat(&mut self, token: &Token) -> bool {
        let fits = self.peek() == Some(token);
        self.next += usize::from(fits);
        fits
    }

    /// Takes the next token if it is this word.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let fits = matches!(self.peek(), Some(Token::Word(next)) if next == word);
        self.next += usize::from(fits);
        fits
    }

    /// Takes a word if one is next.
    pub(crate) fn word_if(&mut self, fits: impl FnOnce(&str) -> bool) -> Option<String> {
        match self.peek() {
            Some(Token::Word(word)) if fits(word) => {
                let word = word.clone();
                self.next += 1;
                Some(word)
            }
            _ => None,
        }
    }

    pub(crate) fn word(&mut self, expected: &str) -> Result<String, ScriptError> {
        self.word_if(|_| true).ok_or_else(|| self.error(expected))
    }

    /// Takes a word that `parse` understands.
    pub(crate) fn parsed<T>(
        &mut self,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ScriptError> {
        let value = match self.peek() {
            Some(Token::Word(word)) => parse(word),
            _ => None,
        };
        let value = value.ok_or_else(|| self.error(expected))?;
        self.next += 1;
        Ok(value)
    }

    pub(crate) fn number<T: std::str::FromStr>(&mut self, expected: &str) -> Result<T, ScriptError> {
        self.parsed(expected, |word| word.parse().ok())
    }

    pub(crate) fn duration(&mut self) -> Result<Duration, ScriptError> {
        self.parsed("a duration such as 500ms, 70s, 5m or 1h", duration)
    }

    /// Bytes: a number, with `KiB` or `MiB`, with a few more or less: `1MiB+1`.
    pub(crate) fn size(&mut self) -> Result<usize, ScriptError> {
        self.parsed("a size such as 1000, 65KiB or 1MiB-1", size)
    }

    pub(crate) fn bytes_if(&mut self) -> Option<Vec<u8>> {
        match self.peek() {
            Some(Token::Text(bytes)) => {
                let bytes = bytes.clone();
                self.next += 1;
                Some(bytes)
            }
            _ => None,
        }
    }

    pub(crate) fn text_if(&mut self) -> Result<Option<String>, ScriptError> {
        let bytes = self.bytes_if();
        bytes.map(|bytes| String::from_utf8(bytes).map_err(|_| self.error_before("text that is UTF-8"))).transpose()
    }

    pub(crate) fn json_if(&mut self) -> Result<Option<Value>, ScriptError> {
        let Some(Token::Json(json)) = self.peek() else { return Ok(None) };
        let value = serde_json::from_str(json).map_err(|error| self.error(format!("JSON ({error})")))?;
        self.next += 1;
        Ok(Some(value))
    }

    pub(crate) fn end(&self) -> Result<(), ScriptError> {
        if self.peek().is_none() { Ok(()) } else { Err(self.error("the end of the line")) }
    }
}

fn unclosed(line: usize, expected: &str) -> ScriptError {
    ScriptError { line, token: "end of line".into(), expected: expected.into() }
}

/// The bytes up to the closing quote; knows `\n \r \t \0 \\ \" \xHH`.
fn quoted(line: usize, chars: &mut impl Iterator<Item = char>) -> Result<Vec<u8>, ScriptError> {
    let mut bytes = Vec::new();
    loop {
        let next = chars.next().ok_or_else(|| unclosed(line, "a closing \""))?;
        match next {
            '"' => return Ok(bytes),
            '\\' => {
                let escape = chars.next().ok_or_else(|| unclosed(line, "a closing \""))?;
                bytes.push(match escape {
                    'n' => b'\n',
                    'r' => b'\r',
                    't' => b'\t',
                    '0' => 0,
                    '\\' => b'\\',
                    '"' => b'"',
                    'x' => {
                        let hex: String = chars.take(2).collect();
                        u8::from_str_radix(&hex, 16).map_err(|_| ScriptError {
                            line,
                            token: format!("\\x{hex}"),
                            expected: "two hex digits after \\x".into(),
                        })?
                    }
                    other => {
                        let expected = "one of \\n \\r \\t \\0 \\\\ \\\" \\xHH".into();
                        return Err(ScriptError { line, token: format!("\\{other}"), expected });
                    }
                });
            }
            other => bytes.extend(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// `500ms`, `70s`, `5m`, `1h`.
pub(crate) fn duration(word: &str) -> Option<Duration> {
    let digits = word.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = word[..digits].parse().ok()?;
    let millis = match &word[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

fn size(word: &str) -> Option<usize> {
    let (base, more) = match word.find(['+', '-']) {
        Some(sign) => (&word[..sign], word[sign..].parse::<isize>().ok()?),
        None => (word, 0),
    };
    let digits = base.find(|c: char| !c.is_ascii_digit()).unwrap_or(base.len());
    let unit = match &base[digits..] {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    base[..digits].parse::<usize>().ok()?.checked_mul(unit)?.checked_add_signed(more)
}
