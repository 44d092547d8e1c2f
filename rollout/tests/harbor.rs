//! The steps generated for Harbor tasks: what each sandbox gets.

use std::collections::BTreeMap;

use rollout::plan::{JobPlan, Origin, OutputSource, ResolvedCommand, ResolvedStep, TREE_MEDIA_TYPE};
use rollout::resolve::{Lookup, resolve_step, row_problems};
use rollout::spec::{self, DiagnosticCode};
use rollout::{GroupId, JobId, RolloutId, StepIndex};
use serde_json::{Map, Value, json};

fn plan(from: &str, more: &str) -> JobPlan {
    let text = format!("apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\ntasks: {{from: {from}}}\n{more}");
    let checked = spec::check(&text, "x.yaml");
    let whole = spec::with_generated_steps(&text).unwrap();
    let shown = spec::check(&whole, "y");
    let plan = checked.plan.clone().unwrap_or_else(|| panic!("{}", checked.render(&text)));
    let steps = shown.plan.as_ref().map(|plan| &plan.steps);
    assert_eq!(steps, Some(&plan.steps), "what is shown is what runs");
    plan
}

fn layer(byte: &str) -> String {
    format!("layer:{}:{}:1:1:1", byte.repeat(64), byte.repeat(64))
}

fn row() -> Map<String, Value> {
    let sizes = json!({"cpu": "1500m", "memory": "1Gi", "disk": "1Gi"});
    let row = json!({
        "task": "t", "instruction": "Do it: ${x}", "image": "dir:/srv/image",
        "env": {"A": "1"}, "solution_env": {"A": "1", "S": "2"}, "verifier_env": {"V": "3"},
        "user": "dev", "verifier_user": "root", "workdir": "/app",
        "agent_timeout": "1m30s", "verifier_timeout": "20s", "resources": {"request": sizes, "limit": sizes},
        "tests": layer("a"), "solution": layer("b"), "environment": layer("c"),
        "artifacts": ["/app/out"], "environment_mode": "shared", "health_check": null,
    });
    let Value::Object(row) = row else { panic!("a map") };
    row
}

fn resolved(plan: &JobPlan) -> [ResolvedStep; 2] {
    let row = row();
    let group = GroupId { job: JobId::from_bits(0), index: 0 };
    let rollout = Some(RolloutId { group, sample: 0, refill: 0 });
    let lookup = Lookup { row: &row, task_id: "t", group, epoch: 0, rollout };
    [0, 1].map(|step| resolve_step(plan, StepIndex(step), &lookup, &BTreeMap::new()).unwrap())
}

#[test]
fn the_spec_with_its_steps_is_a_spec_however_the_source_was_written() {
    let block = "\n    # Comments stay.\n    agent:\n      - run\n      - x\n    harbor: tasks  # here\n    environment_mode: separate # and go\n";
    for (from, kept) in [
        ("{harbor: tasks, agent: [run, 'a]b'] , environment_mode: separate}}", "{harbor: tasks}}"),
        ("{agent: oracle, harbor: tasks}, split: eval}", "{harbor: tasks}, split: eval}"),
        ("{environment_mode: separate, agent: [run], harbor: tasks}}", "{harbor: tasks}}"),
        ("{harbor: tasks, shared_as: reuse, agent: [run]}}", "{harbor: tasks}}"),
        ("{shared_as: fresh, harbor: tasks, agent: [run]}}", "{harbor: tasks}}"),
        ("{\"harbor\": \"tasks\",\n  \"agent\": [\n  \"run\"\n  ]\n}}", "{\"harbor\": \"tasks\",\n}}"),
    ] {
        let text = format!("apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\ntasks: {{from: {from}");
        let whole = spec::with_generated_steps(&text).unwrap();
        assert!(whole.contains(&format!("tasks: {{from: {kept}")), "{whole}");
        let (before, after) = (spec::check(&text, "x"), spec::check(&whole, "x"));
        let plan = after.plan.as_ref().unwrap_or_else(|| panic!("{}", after.render(&whole)));
        assert_eq!(plan.steps, before.plan.unwrap().steps);
    }
    let json = json!({"apiVersion": "rollyard/v1", "kind": "RolloutJob", "name": "x", "tasks": {"from": {
        "harbor": "tasks", "agent": ["run"], "environment_mode": "separate",
    }}});
    let whole = spec::with_generated_steps(&json.to_string()).unwrap();
    let printed: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(
        (&printed["tasks"]["from"], printed["steps"].as_array().map(Vec::len)),
        (&json!({"harbor": "tasks"}), Some(2))
    );
    assert_eq!(
        spec::check(&whole, "x").plan.unwrap().steps,
        spec::check(&json.to_string(), "x").plan.unwrap().steps
    );
    let text = format!("apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\ntasks:\n  from:{block}");
    let whole = spec::with_generated_steps(&text).unwrap();
    assert!(whole.contains("from:\n    # Comments stay.\n    harbor: tasks  # here\nsteps:"), "{whole}");
    assert!(spec::check(&whole, "x").plan.is_some(), "{whole}");
}

#[test]
fn tests_and_solution_are_never_in_the_sandbox_of_the_agent() {
    for more in ["", "defaults: {image: host, timeout: 30s}\n"] {
        let [agent, grade] = resolved(&plan("{harbor: tasks, agent: [run, \"${HOME}\"]}", more));
        assert_eq!(agent.layers, Vec::<String>::new());
        assert_eq!(grade.layers, [layer("a")]);
        let [agent, grade] = resolved(&plan("{harbor: tasks, agent: oracle}", more));
        assert_eq!(agent.layers, [layer("b")]);
        assert_eq!(grade.layers, [layer("a")]);
        for step in [&agent, &grade] {
            let rest = format!("{:?}{:?}{:?}", step.files, step.env, step.work);
            assert!(!rest.contains("layer:"), "{rest}");
        }
    }
}

#[test]
fn the_sandbox_of_the_agent_waits_for_the_health_check_of_the_task() {
    let plan = plan("{harbor: tasks, agent: oracle}", "");
    let [agent, grade] = resolved(&plan);
    assert_eq!((agent.health_check, grade.health_check), (None, None));

    let check = json!({
        "command": "pg_isready", "interval_ms": 5_000, "timeout_ms": 30_000, "start_period_ms": 0,
        "start_interval_ms": 5_000, "retries": 3,
    });
    let with = |value: Value| {
        let mut row = row();
        row.insert("health_check".to_owned(), value);
        row
    };
    assert!(row_problems(&plan, 0, &with(check.clone())).is_empty());
    let group = GroupId { job: JobId::from_bits(0), index: 0 };
    let rollout = Some(RolloutId { group, sample: 0, refill: 0 });
    let row = with(check.clone());
    let lookup = Lookup { row: &row, task_id: "t", group, epoch: 0, rollout };
    let agent = resolve_step(&plan, StepIndex(0), &lookup, &BTreeMap::new()).unwrap();
    assert_eq!(
        agent.health_check.map(|check| (check.command, check.retries)),
        Some(("pg_isready".into(), 3))
    );

    for (key, value) in [("retries", json!(0)), ("command", json!("")), ("comand", json!("x"))] {
        let mut wrong = check.clone();
        wrong[key] = value;
        let problems = row_problems(&plan, 0, &with(wrong));
        assert_eq!(problems.len(), 1, "{key}");
        assert!(problems[0].problem.to_string().contains("health"), "{}", problems[0].problem);
    }
}

#[test]
fn the_grader_starts_from_the_files_of_the_agent_in_a_sandbox_of_its_own() {
    let plan = plan("{harbor: tasks, agent: [run, \"${HOME}\"]}", "");
    assert_eq!(plan.steps[1].origin, Origin::Checkpoint(StepIndex(0)));
    assert!(plan.steps[0].checkpoint.after);
}

#[test]
fn a_grader_may_go_on_in_the_sandbox_of_the_agent_where_its_tests_are_copied() {
    let text = "{harbor: tasks, agent: [run], shared_as: reuse}";
    let plan = plan(text, "");
    assert_eq!(plan.steps[1].origin, Origin::Live(StepIndex(0)));
    // Graded again, or where that sandbox is gone, it starts from what the agent left.
    assert!(plan.steps[0].checkpoint.after);
    let [agent, grade] = resolved(&plan);
    assert_eq!((agent.layers.len(), grade.layers), (0, vec![layer("a")]));

    let document = format!("apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\ntasks: {{from: {text}}}\n");
    let found = spec::check(&document, "x").diagnostics;
    let warning = found.iter().find(|found| found.code == DiagnosticCode::GraderSeesAgentWorkspace);
    let message = &warning.expect("a warning").message;
    assert!(message.contains("works in the sandbox it grades"), "{message}");
}

#[test]
fn a_separate_grader_gets_the_declared_artifacts_where_they_were() {
    let plan = plan("{harbor: tasks, agent: [run, \"${HOME}\"], environment_mode: separate}", "");
    let [agent, grade] = resolved(&plan);
    assert_eq!(agent.outputs[0].source, OutputSource::Paths(vec!["/app/out".to_owned()]));
    assert_eq!(agent.outputs[0].media_type, TREE_MEDIA_TYPE);
    assert_eq!((plan.steps[1].origin, grade.layers.len()), (Origin::Image, 1));
    assert_eq!(plan.steps[1].inputs[0].path, "/");
    assert!(plan.steps[0].outputs[0].source.is_tree());
}

#[test]
fn steps_take_what_the_task_says_and_defaults_win_over_it() {
    let [agent, grade] = resolved(&plan("{harbor: tasks, agent: [run, \"${HOME}\"]}", ""));
    assert_eq!(agent.work.command(), Some(&ResolvedCommand::Argv(vec!["run".into(), "${HOME}".into()])));
    assert_eq!((agent.image.as_str(), agent.user.as_str()), ("dir:/srv/image", "dev"));
    assert_eq!((agent.workdir.as_str(), grade.user.as_str()), ("/app", "root"));
    assert_eq!((agent.timeout.0, grade.timeout.0), (90_000, 20_000));
    assert_eq!(agent.resources.limit.cpu.0, 1_500);
    assert_eq!((&agent.env["A"], &grade.env["V"]), (&"1".to_owned(), &"3".to_owned()));
    let text = format!("{:?}", agent.files);
    assert!(text.contains("Do it: ${x}"), "{text}");

    let more =
        "defaults: {image: host, user: me, workdir: /w, timeout: 5s, resources: {cpu: 1}, env: {A: mine}}\n";
    let [agent, grade] = resolved(&plan("{harbor: tasks, agent: oracle}", more));
    assert_eq!((agent.image.as_str(), agent.user.as_str(), grade.user.as_str()), ("host", "me", "me"));
    assert_eq!((agent.workdir.as_str(), agent.timeout.0, grade.timeout.0), ("/w", 5_000, 5_000));
    assert_eq!(agent.resources.limit.cpu.0, 1_000);
    assert_eq!((&agent.env["A"], &agent.env["S"]), (&"mine".to_owned(), &"2".to_owned()));
}
