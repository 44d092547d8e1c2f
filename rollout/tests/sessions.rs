//! Session steps and idle sandboxes: what a spec that has them means.

use rollout::plan::{IdleMode, IdlePlan, JobPlan, Origin, ResolvedWork, SessionPlan, StepKind, WorkPlan};
use rollout::resolve::{self, Lookup};
use rollout::{GroupId, JobId, Millis, RolloutId, StepIndex, spec};
use serde_json::Map;

fn job(steps: &str) -> String {
    format!(
        "apiVersion: rollyard/v1\nkind: RolloutJob\nname: test\ntasks: {{from: {{inline: [{{n: 6}}]}}}}\n\
         defaults: {{image: host}}\nsteps:\n{steps}"
    )
}

/// The plan, and the codes of the warnings.
fn checked(text: &str) -> (JobPlan, Vec<&'static str>) {
    let checked = spec::check(text, "test.yaml");
    let codes = checked.diagnostics.iter().map(|found| found.code.as_str()).collect();
    match checked.plan {
        Some(plan) => (plan, codes),
        None => panic!("{}", checked.render(text)),
    }
}

const FREEZE: IdlePlan = IdlePlan { park_after: Millis(30_000), mode: IdleMode::Freeze };

#[test]
fn a_session_has_a_driver_and_no_command() {
    let (plan, warnings) = checked(&job("  - {name: talk, session: {}}\n"));
    assert_eq!(warnings, [""; 0]);
    let [talk] = plan.steps.as_slice() else { panic!("one step") };
    assert_eq!((talk.kind, talk.origin), (StepKind::Session, Origin::Image));
    let session = SessionPlan {
        idle_timeout: Millis(300_000),
        max_actions: None,
        takes_reward: true,
        unclaimed: false,
    };
    assert_eq!(talk.work, WorkPlan::Session(session));
    assert_eq!((talk.work.command(), talk.work.session()), (None, Some(&session)));

    let row = Map::new();
    let group = GroupId { job: JobId::from_bits(7), index: 0 };
    let rollout = Some(RolloutId { group, sample: 0, refill: 0 });
    let lookup = Lookup { row: &row, task_id: "row-0", group, epoch: 0, rollout };
    let resolved = resolve::resolve_step(&plan, StepIndex(0), &lookup, &[].into()).unwrap();
    assert_eq!((resolved.kind, resolved.work), (StepKind::Session, ResolvedWork::Session(session)));
    assert_eq!(resolved.idle, Some(FREEZE));
}

#[test]
fn a_grader_takes_the_reward_from_the_driver() {
    let steps = "  - {name: talk, session: {idle_timeout: 90s, max_actions: 5}, outputs: [{name: patch, path: p}]}\n  \
                 - {name: grade, needs: [talk], grader: {}, inputs: [{artifact: talk.patch, path: /in/p}], run: \"true\"}\n";
    let (plan, warnings) = checked(&job(steps));
    assert_eq!(warnings, [""; 0]);
    let session = plan.steps[0].work.session().unwrap();
    assert_eq!((session.idle_timeout, session.max_actions), (Millis(90_000), Some(5)));
    assert!(!session.takes_reward);
}

#[test]
fn a_session_goes_on_in_the_sandbox_of_what_set_it_up() {
    let steps = "  - {name: setup, run: make}\n  - {name: talk, needs: [setup], session: {}}\n";
    assert_eq!(checked(&job(steps)).0.steps[1].origin, Origin::Live(StepIndex(0)));
    let steps = "  - {name: setup, per: group, run: make}\n  - {name: talk, needs: [setup], session: {}}\n";
    assert_eq!(checked(&job(steps)).0.steps[1].origin, Origin::Checkpoint(StepIndex(0)));
}

#[test]
fn only_what_waits_for_somebody_is_idle_unless_it_says_so() {
    let (plan, _) = checked(&job(
        "  - {name: a, run: \"true\", outputs: [{name: o, path: o}]}\n  - {name: b, agent: {command: [x]}}\n  \
         - {name: c, session: {}}\n  - {name: d, session: {}, idle: {mode: freeze}}\n  \
         - {name: e, run: \"true\", outputs: [{name: o, path: o}], idle: {park_after: 2m}}\n",
    ));
    let idle: Vec<_> = plan.steps.iter().map(|step| step.idle).collect();
    let later = IdlePlan { park_after: Millis(120_000), ..FREEZE };
    assert_eq!(idle, [None, Some(FREEZE), Some(FREEZE), Some(FREEZE), Some(later)]);
}

#[test]
fn idle_of_the_defaults_is_merged_key_by_key() {
    let text = job("  - {name: a, session: {}}\n  - {name: b, session: {}, idle: {park_after: 5s}}\n");
    let text = text.replace("{image: host}", "{image: host, idle: {park_after: 1h, mode: freeze}}");
    let (plan, _) = checked(&text);
    let idle = |park_after| Some(IdlePlan { park_after, mode: IdleMode::Freeze });
    assert_eq!(plan.steps[0].idle, idle(Millis(3_600_000)));
    assert_eq!(plan.steps[1].idle, idle(Millis(5_000)));
}

/// A session is its files; any other step is its process.
#[test]
fn only_an_idle_session_is_to_be_parked() {
    let (plan, _) = checked(&job("  - {name: a, session: {}, idle: {mode: checkpoint}}\n"));
    assert_eq!(plan.steps[0].idle.map(|idle| idle.mode), Some(IdleMode::Checkpoint));
    let text = job("  - {name: a, agent: {command: [x]}, idle: {mode: checkpoint}}\n");
    let checked = spec::check(&text, "test.yaml");
    let errors = checked.diagnostics.iter().filter(|found| found.severity == spec::Severity::Error);
    let codes: Vec<_> = errors.map(|found| found.code.as_str()).collect();
    assert_eq!((checked.plan.is_none(), codes), (true, vec!["bad_relation"]));
}
