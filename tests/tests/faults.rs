//! What the page of faults shows is what the programs understand.

use mcp_reconnect_tests::chaos::Command;
use mcp_reconnect_tests::fake::Script;

const PAGE: &str = include_str!("../docs/faults.md");

/// The texts of the page's blocks of this kind.
fn blocks(kind: &str) -> Vec<String> {
    let mut blocks = PAGE.split("```").skip(1).step_by(2);
    let mut found = Vec::new();
    for block in blocks.by_ref() {
        if let Some((_, text)) = block.split_once('\n').filter(|(info, _)| *info == kind) {
            found.push(text.to_owned());
        }
    }
    found
}

#[test]
fn every_script_of_the_page_is_one() {
    let scripts = blocks("script");
    assert!(scripts.len() >= 20, "{} scripts", scripts.len());
    for script in scripts {
        if let Err(error) = Script::parse(&script) {
            panic!("{error} in\n{script}");
        }
    }
}

#[test]
fn every_order_of_the_page_is_one() {
    let orders = blocks("orders");
    let lines: Vec<_> = orders.iter().flat_map(|block| block.lines()).collect();
    assert_eq!(lines.len(), 11);
    for line in lines {
        assert!(line.parse::<Command>().is_ok(), "{line}");
    }
}
