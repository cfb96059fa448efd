//! Calls over a pipe in memory: rmcp's own transport, and ours. Time, and so not for CI; `count` counts instructions.

use criterion::{Criterion, criterion_group, criterion_main};
use mcp_reconnect_bench::count::{Caller, Work};

fn calls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("call");
    for caller in Caller::ALL {
        group.bench_function(Work::Calls(caller).name(), |bencher| {
            bencher.iter_custom(|calls| caller.time(1, calls));
        });
    }
    group.finish();
}

criterion_group!(benches, calls);
criterion_main!(benches);
