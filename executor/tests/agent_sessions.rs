//! Sessions end to end on this kernel: the real agent and the container backend, a scheduler played over
//! the real wire, and drivers that call the executor's own socket. The binary becomes the broker, so it has
//! a main of its own. Not root: every test is listed as skipped, with the reason.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test binary talks to its runner")]

#[path = "sessions/actions.rs"]
mod actions;
#[path = "sessions/crash.rs"]
mod crash;
#[path = "sessions/driver.rs"]
mod driver;
#[path = "sessions/ends.rs"]
mod ends;
#[path = "sessions/exec.rs"]
mod exec;
#[allow(dead_code, reason = "another test binary uses the rest")]
#[path = "agent/fake.rs"]
mod fake;
#[path = "sessions/files.rs"]
mod files;
#[path = "sessions/idle.rs"]
mod idle;
#[path = "sessions/shell.rs"]
mod shell;
#[allow(dead_code, reason = "another test binary uses the rest")]
#[path = "agent/yard.rs"]
mod yard;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    executor::broker::run_if_asked();
    crash::be_the_victim_if_asked();
    let is_root = nix::unistd::geteuid().is_root();
    let tests =
        [actions::TESTS, crash::TESTS, ends::TESTS, exec::TESTS, files::TESTS, idle::TESTS, shell::TESTS]
            .concat();
    let trial = |(name, test): (&str, driver::Test)| {
        let runner = move || {
            driver::run(test);
            Ok::<(), Failed>(())
        };
        let kind = if is_root { "" } else { "SKIPPED: needs root" };
        Trial::test(name, runner).with_ignored_flag(!is_root).with_kind(kind)
    };
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().map(trial).collect()).exit();
}
