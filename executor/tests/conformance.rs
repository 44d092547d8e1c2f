//! One body of rules that every backend of sandboxes keeps, and a check of the rules themselves: a
//! backend that breaks one of them is caught by it.
//!
//! A backend joins with one line in [`SUBJECTS`]. Not root: every trial is listed as skipped, with the
//! reason.

#![expect(clippy::print_stderr, reason = "a test binary talks to its runner")]

#[path = "conformance/ahead.rs"]
mod ahead;
#[path = "conformance/driving.rs"]
mod driving;
#[path = "conformance/files.rs"]
mod files;
#[path = "conformance/liar.rs"]
mod liar;
#[path = "conformance/lies.rs"]
mod lies;
#[path = "conformance/life.rs"]
mod life;
#[path = "conformance/limits.rs"]
mod limits;
#[path = "conformance/processes.rs"]
mod processes;
#[path = "conformance/refusals.rs"]
mod refusals;
#[path = "conformance/rule.rs"]
mod rule;
#[path = "conformance/subject.rs"]
mod subject;
#[path = "conformance/walls.rs"]
mod walls;
#[path = "conformance/workspaces.rs"]
mod workspaces;

use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use lies::LIES;
use rule::Rule;
use subject::{CONTAINER, FNCALL, Subject};

/// Every backend there is.
const SUBJECTS: &[&Subject] = &[&CONTAINER, &FNCALL];

fn main() {
    executor::broker::run_if_asked();
    let root = nix::unistd::geteuid().is_root();
    let rules: Vec<Rule> = [
        life::RULES,
        processes::RULES,
        limits::RULES,
        files::RULES,
        walls::RULES,
        workspaces::RULES,
        driving::RULES,
        refusals::RULES,
    ]
    .concat();
    let trial = |name: String, run: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
        Trial::test(name, run).with_ignored_flag(!root).with_kind(if root {
            ""
        } else {
            "SKIPPED: needs root"
        })
    };
    let mut trials = Vec::new();
    for &subject in SUBJECTS {
        for rule in rules.iter().copied().filter(|rule| rule.is_of(subject)) {
            let name = format!("{}::{}", subject.kind, rule.name);
            trials.push(trial(
                name,
                Box::new(move || {
                    rule::keep(subject, rule);
                    Ok(())
                }),
            ));
        }
    }
    for lie in LIES {
        let rule = rules.iter().copied().find(|rule| rule.name == lie.breaks);
        let name = format!("liar::{}::{}", lie.name, lie.breaks);
        trials.push(trial(name, Box::new(move || rule::caught(lie, rule.ok_or("there is no such rule")?))));
    }
    for (name, test) in ahead::TESTS {
        trials.push(trial(
            format!("ahead::{name}"),
            Box::new(move || {
                ahead::run(*test);
                Ok(())
            }),
        ));
    }
    let names: Arc<[&str]> = rules.iter().map(|rule| rule.name).collect();
    trials.push(Trial::test("every_rule_is_broken_by_a_lie", move || {
        let unbroken: Vec<_> =
            names.iter().filter(|name| LIES.iter().all(|lie| lie.breaks != **name)).collect();
        if unbroken.is_empty() { Ok(()) } else { Err(format!("no lie breaks {unbroken:?}").into()) }
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
