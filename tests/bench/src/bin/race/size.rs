//! Bytes of a machine, and of a connection that is Ready and idle.

use mcp_reconnect::core::{ConnectionMachine, Snapshot};
use mcp_reconnect_tests::held::Kind;
use serde::Deserialize;

use crate::child;
use crate::report::{Cell, Section, Table};

const MACHINE: usize = 512;
const CONNECTION: i64 = 4_096;
const COUNTS: [u32; 2] = [1_000, 10_000];

/// Output of `held size`.
#[derive(Deserialize)]
struct Size {
    ready: u32,
    bytes: i64,
    resident: i64,
}

pub(crate) async fn run() -> Result<Section, String> {
    let mut section = Section::new(
        "size",
        "Size: a machine, and an idle connection",
        "Each figure from a process of its own that holds nothing but so many connections, Ready and idle, on links in \
         memory, to a server without tools (the catalogue is the server's); a runtime of one thread, which two seconds \
         after the last start has nothing left to do. The link and the server's task are part of both sides. By the \
         allocator: bytes asked for and not given back. By the system: growth of the resident set. Default knobs.",
    );
    let machine = size_of::<ConnectionMachine>();
    let mut table = Table::new("", &["", "bytes"]);
    table.row("`ConnectionMachine`", [machine.into()]);
    table.row("`Snapshot`, which each step publishes", [size_of::<Snapshot>().into()]);
    section.tables.push(table);
    section.goal("a machine", format!("≤ {MACHINE} B"), format!("{machine} B"), machine <= MACHINE);

    let columns = ["", "by the allocator", "over rmcp", "by the system", "over rmcp"];
    let held = child::beside("held")?;
    for count in COUNTS {
        let mut table = Table::new(format!("Bytes for each of {count} connections"), &columns);
        let measure = async |kind: Kind| -> Result<(i64, i64), String> {
            let size: Size = child::line(&held, &["size", kind.name(), &count.to_string()]).await?;
            if size.ready != count {
                return Err(format!("{}: {} of {count} are ready", kind.name(), size.ready));
            }
            Ok((size.bytes / i64::from(count), size.resident / i64::from(count)))
        };
        let (bare, bare_resident) = measure(Kind::Rmcp).await?;
        let (ours, ours_resident) = measure(Kind::Supervised).await?;
        table.row("rmcp's service, bare", [bare.into(), Cell::NOTHING, bare_resident.into(), Cell::NOTHING]);
        let over = [ours.into(), (ours - bare).into(), ours_resident.into(), (ours_resident - bare_resident).into()];
        table.row("mcp-reconnect", over);
        section.tables.push(table);
        let (over, what) = (ours - bare, format!("an idle connection over rmcp's own, of {count}"));
        section.goal(what, format!("≤ {CONNECTION} B"), format!("{over} B"), over <= CONNECTION);
    }
    Ok(section)
}

impl From<i64> for Cell {
    /// A difference may be negative; it is no size then.
    fn from(bytes: i64) -> Self {
        u64::try_from(bytes).map_or_else(|_| Self::Text(bytes.to_string()), Self::Count)
    }
}
