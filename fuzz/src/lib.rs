//! What each fuzz target does with its bytes, as plain functions: libFuzzer calls them on what it makes up, the test
//! `corpus` on what is committed.
//!
//! A target is a function here, a line in [`TARGETS`], a file in `fuzz_targets/`, a `[[bin]]`, and a folder in `corpus/`.

#[cfg(feature = "runtime")]
mod config;
mod cursor;
mod http_classify;
mod machine;
mod sse;
mod stdio_frames;
#[cfg(feature = "runtime")]
mod trace;

#[cfg(feature = "runtime")]
pub use config::config;
pub use http_classify::http_classify;
pub use machine::{machine, machines};
pub use sse::sse;
pub use stdio_frames::stdio_frames;
#[cfg(feature = "runtime")]
pub use trace::trace;

/// A target's name, and what it does with its bytes: panics where something does not hold.
pub type Target = (&'static str, fn(&[u8]));

/// Every target that is built.
pub const TARGETS: &[Target] = &[
    #[cfg(feature = "runtime")]
    ("config", config),
    ("http_classify", http_classify),
    ("machine", machine),
    ("machines", machines),
    ("sse", sse),
    ("stdio_frames", stdio_frames),
    #[cfg(feature = "runtime")]
    ("trace", trace),
];
