//! The container backend against this kernel, as root: each wall is tried from inside.
//!
//! The binary has a main of its own because it must be able to become the broker, as the program
//! does. Not root: every test is listed as skipped, with the reason.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test binary talks to its runner")]

#[path = "sandbox/driven.rs"]
mod driven;
#[path = "sandbox/faults.rs"]
mod faults;
#[path = "sandbox/lab.rs"]
mod lab;
#[path = "sandbox/laying.rs"]
mod laying;
#[path = "sandbox/life.rs"]
mod life;
#[path = "sandbox/limits.rs"]
mod limits;
#[path = "sandbox/paths.rs"]
mod paths;
#[path = "sandbox/walls.rs"]
mod walls;
#[path = "sandbox/workspaces.rs"]
mod workspaces;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    executor::broker::run_if_asked();
    faults::be_the_victim_if_asked();
    let root = nix::unistd::geteuid().is_root();
    let tests = [
        life::TESTS,
        walls::TESTS,
        limits::TESTS,
        paths::TESTS,
        faults::TESTS,
        workspaces::TESTS,
        driven::TESTS,
        laying::TESTS,
    ]
    .concat();
    let trials = tests
        .into_iter()
        .map(|(name, test)| {
            Trial::test(name, move || {
                lab::run(test);
                Ok::<(), Failed>(())
            })
            .with_ignored_flag(!root)
            .with_kind(if root { "" } else { "SKIPPED: needs root" })
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
