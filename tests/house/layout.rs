//! Where things live.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the root").to_path_buf()
}

fn tracked_files() -> Vec<String> {
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("paths are UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn no_top_level_folder_but_those_of_the_card() {
    let card = [
        "rollout",
        "guard",
        "scheduler",
        "executor",
        "datasets",
        "tests",
        "benches",
        "docs",
        ".config",
        ".cargo",
        ".ci",
    ];
    let mut seen: Vec<String> =
        tracked_files().iter().filter_map(|f| f.split_once('/')).map(|(top, _)| top.to_owned()).collect();
    seen.sort();
    seen.dedup();
    let strangers: Vec<_> = seen.iter().filter(|s| !card.contains(&s.as_str())).collect();
    assert!(strangers.is_empty(), "not on the card: {strangers:?}");
    for folder in card {
        assert!(seen.iter().any(|s| s == folder), "folder {folder} is missing");
    }
}

#[test]
fn modules_are_files_named_by_their_noun() {
    let nameless: Vec<_> = tracked_files().into_iter().filter(|f| f.ends_with("/mod.rs")).collect();
    assert!(nameless.is_empty(), "mod.rs files: {nameless:?}");
}

#[test]
fn no_test_is_ignored_and_nothing_is_left_to_do() {
    let mut found = Vec::new();
    for file in tracked_files().into_iter().filter(|f| f.ends_with(".rs") && f != "tests/house/layout.rs") {
        let Ok(text) = std::fs::read_to_string(root().join(&file)) else { continue };
        for mark in ["#[ignore", "todo!(", "unimplemented!(", "FIXME", "XXX", "dbg!("] {
            if text.contains(mark) {
                found.push(format!("{file}: {mark}"));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Every statement about what is deliberately absent is greppable.
#[test]
fn the_map_states_its_invariants() {
    let text = std::fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md");
    let invariants = text.lines().filter(|l| l.contains("Invariant:")).count();
    assert!(invariants >= 10, "docs/architecture.md has {invariants} lines with `Invariant:`");
}
