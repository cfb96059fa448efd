//! Measurements of mcp-reconnect beside others, and its runs on real servers, hosts and proxies: the parts that more than
//! one program of this package uses, and those with unit tests.

pub mod count;
pub mod programs;
pub mod tally;

/// Without integration tests, whose build links every program, and without programs as test targets.
#[test]
fn cargo_test_links_no_program_of_this_package() {
    let (package, manifest) = (std::path::Path::new(env!("CARGO_MANIFEST_DIR")), include_str!("../Cargo.toml"));
    assert!(manifest.contains("\nautobins = false") && !manifest.contains("\n[[test]]"));
    assert!(!package.join("tests").exists());
    for program in manifest.split("\n[[bin]]\n").skip(1) {
        let table = program.split("\n[").next().unwrap_or_default();
        assert!(table.lines().any(|line| line == "test = false"), "{table}");
    }
}
