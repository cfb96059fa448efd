//! The server of streamable HTTP is restarted, or away for a while.

mod bare;
mod client;
mod downtime;
mod restart;
mod server;

use crate::Race;
use crate::report::Section;

pub(crate) async fn run(race: &Race) -> Result<Section, String> {
    let mut section = Section::new(
        "http",
        "Recovery over HTTP",
        format!(
            "Each client has a native server of its own. First, the server gets SIGKILL and is \
             started again on the same port, where it knows no session; when it listens, the client is told to call, and \
             again when that fails: times are from there to the good answer, and hold a new TCP connection for everybody. \
             The client's first call meets the refusal of its old session, which is a POST more than the four of `bare`; \
             a row has it in. Clients in turn, every second time with a tool that is annotated as read-only, the others \
             with one that is not; who does not come back three times is not in the tables that follow. `Bare` (sockets alone, or the HTTP library that clients in Rust are on) and `embedded` \
             are in the process that measures, all others are programs that are told by a line to call. POSTs and \
             connections are what the new server saw until it had run a call. Ours with `stable_after` 500 ms and \
             `redial_spread` 0, all others as they come, fastmcp also as it advises (entered for each call). Then, the \
             server is killed under many callers, every second one with the annotated tool, each 100 ms after its last \
             answer; calls take 20 ms. The port is refused for {} s; times are from when it answers again to each \
             caller's first good answer. A call may take {} s. Ours with `stable_after` 500 ms and else its defaults: \
             while somebody waits, a step of the backoff is at most `demand_interval`, 5 s. Several clients at a time, \
             for they mostly wait.",
            downtime::DOWN.as_secs(),
            downtime::PATIENCE.as_secs(),
        ),
    );
    let mut who = restart::everybody();
    for series in &restart::SERIES {
        restart::run(race, &mut section, series, &mut who).await?;
    }
    downtime::run(race, &mut section).await?;
    section.not_run.dedup_by(|a, b| a.who == b.who);
    Ok(section)
}
