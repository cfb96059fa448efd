//! Many servers as one: their tools under names of their own, what of them is wanted, and whether they still are what they
//! were.

mod approval;
mod filter;
mod names;
pub mod state;
mod tools;

pub use approval::{Approvals, Aspect, CataloguePolicy, Fingerprint, Verdict};
pub use filter::{Pattern, PatternError, ToolFilter};
pub use names::{NamingError, ToolNaming};
pub use tools::{FleetTool, FleetTools, LookupError, Notice, ToolsDiff, Withheld};
