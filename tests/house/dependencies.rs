//! The dependency table of docs/architecture.md, asserted from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::cargo::{packages, text};

/// Crate, and every sibling it may depend on (directly). A crate that is not here may not exist.
const ALLOWED: &[(&str, &[&str])] = &[
    ("rollout", &[]),
    ("sandbox-init", &[]),
    ("rollout-wire", &["rollout"]),
    ("datasets", &["rollout"]),
    ("scheduler-core", &["rollout"]),
    ("blobs", &[]),
    ("scheduler", &["rollout", "rollout-wire", "scheduler-core", "datasets", "blobs", "images"]),
    ("executor", &["rollout", "rollout-wire", "sandbox-init", "blobs", "images"]),
    ("images", &["rollout", "blobs"]),
    ("rollout-cli", &["rollout", "rollout-wire", "scheduler", "executor", "datasets", "blobs", "images"]),
    (
        "tests",
        &[
            "rollout",
            "rollout-wire",
            "scheduler-core",
            "scheduler",
            "executor",
            "datasets",
            "blobs",
            "images",
            "sandbox-init",
        ],
    ),
    (
        "benches",
        &["tests", "executor", "images", "rollout", "rollout-wire", "scheduler", "datasets", "blobs"],
    ),
];

/// Crates that decide. They list none of [`SHELL_ONLY`].
const PURE: &[&str] = &["rollout", "scheduler-core"];
/// Arrow, generated code and the static init: no runtime, no database, no sockets of their own.
const QUIET: &[(&str, &[&str])] = &[
    ("datasets", &["tokio", "tonic", "sqlx", "hyper"]),
    ("sandbox-init", &["tokio", "tonic", "sqlx", "hyper", "nix"]),
];
const SHELL_ONLY: &[&str] = &["tokio", "tonic", "sqlx", "nix", "hyper", "rand", "tracing"];

#[test]
fn siblings_depend_on_each_other_only_as_the_table_says() {
    let packages = packages();
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        ALLOWED.iter().map(|(name, to)| (*name, to.iter().copied().collect())).collect();
    let members: BTreeSet<&str> = packages.iter().map(|p| text(p, "name")).collect();
    assert_eq!(members, allowed.keys().copied().collect(), "the table names exactly the crates that exist");

    let mut wrong = Vec::new();
    for package in &packages {
        let name = text(package, "name");
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        for dependency in dependencies.iter().filter(|d| d["kind"] != "dev") {
            let to = text(dependency, "name");
            if members.contains(to) && !allowed[name].contains(to) {
                wrong.push(format!("{name} -> {to}"));
            }
            let banned = PURE.contains(&name) && SHELL_ONLY.contains(&to)
                || QUIET.iter().any(|(quiet, names)| *quiet == name && names.contains(&to));
            if banned {
                wrong.push(format!("{name} -> {to} (IO in a crate that must not have it)"));
            }
        }
    }
    assert!(wrong.is_empty(), "dependencies the table does not allow: {wrong:#?}");
}

#[test]
fn pure_crates_ban_clocks_and_files_with_a_reason() {
    let packages = packages();
    for name in PURE {
        let package = packages.iter().find(|p| text(p, "name") == *name).expect("is a member");
        let bans = Path::new(text(package, "manifest_path")).with_file_name("clippy.toml");
        let text = std::fs::read_to_string(&bans).unwrap_or_else(|e| panic!("{}: {e}", bans.display()));
        let bans = bans.display();
        for banned in ["Instant::now", "SystemTime::now", "env::var", "fs::read"] {
            assert!(text.contains(banned), "{bans} does not ban {banned}");
        }
        let bare = text.lines().filter(|l| l.contains("path =") && !l.contains("reason =")).count();
        assert_eq!(bare, 0, "{bans}: a ban without its reason");
    }
}
