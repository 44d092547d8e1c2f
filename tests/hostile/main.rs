//! Hostile cases against this kernel, as root: what an agent may try, and what must come of it.
//!
//! Each trial is one part of one case: the attempt with its outcome seen from the host, an honest
//! twin that shows the path works, a fresh sandbox afterwards, and an equal census. The binary has
//! a main of its own because it must be able to become the broker, and because it moves into
//! namespaces of its own while it has one thread.
//!
//! A mechanism the host lacks is printed as SKIPPED with the reason; a skip that is not on the
//! list of `skips` fails.

mod attempt_descriptors;
mod budgets;
mod descriptors;
mod disks;
mod filesystems;
mod forks;
mod images;
mod kernel_files;
mod lab;
mod lifetimes;
mod memory;
mod mistakes;
mod networks;
mod output;
mod programs;
mod rewards;
mod skips;
mod sockets;
mod specs;
mod system_calls;
mod workspaces;
mod yard;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    executor::broker::run_if_asked();
    lifetimes::be_the_victim_if_asked();
    let mut arguments = Arguments::from_args();
    // One process, one executor: descriptors and children are counted.
    arguments.test_threads = Some(1);
    let is_root = nix::unistd::geteuid().is_root();
    if is_root && !arguments.list {
        tests::namespace::enter().expect("namespaces of the suite's own");
        skips::say_what_runs_here();
    }
    let cases = [
        kernel_files::CASES,
        system_calls::CASES,
        images::CASES,
        descriptors::CASES,
        filesystems::CASES,
        programs::CASES,
        sockets::CASES,
        forks::CASES,
        memory::CASES,
        disks::CASES,
        budgets::CASES,
        lifetimes::CASES,
        networks::CASES,
        workspaces::CASES,
    ]
    .concat();
    let sandboxes =
        cases.into_iter().map(|(name, case)| (name, Box::new(move || lab::run(name, case)) as Run));
    let yards = [attempt_descriptors::CASES, mistakes::CASES, output::CASES, rewards::CASES].concat();
    let yards = yards.into_iter().map(|(name, case)| (name, Box::new(move || yard::run(name, case)) as Run));
    let rooted = sandboxes.chain(yards).map(|(name, run)| trial(name, run, is_root));
    let specs = specs::CASES.iter().map(|(name, case)| {
        let run: Run = Box::new(|| {
            case();
            Ok(())
        });
        trial(name, run, true)
    });
    libtest_mimic::run(&arguments, rooted.chain(specs).collect()).exit();
}

type Run = Box<dyn FnOnce() -> Result<(), Failed> + Send>;

fn trial(name: &str, run: Run, can_run: bool) -> Trial {
    let kind = if can_run { "" } else { "SKIPPED: needs root" };
    Trial::test(name, run).with_ignored_flag(!can_run).with_kind(kind)
}
