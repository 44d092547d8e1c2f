//! Specs that are right, and what they mean.
#![allow(clippy::disallowed_methods, reason = "the tests read their cases; the crate reads no files")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use rollout::plan::{
    CommandPlan, Field, GraderPlan, JobPlan, Keep, OnAgentTimeout, OnGraderTimeout, OnIncomplete, Origin,
    OutputSource, Per, Piece, ResolvedCommand, ResolvedContent, ResourcesPlan, RewardSource, SourcePlan,
    Split, StepKind, TaskSource, Template, WorkPlan,
};
use rollout::resolve::{self, Lookup, ResolveError};
use rollout::spec::{self, DiagnosticCode, Severity};
use rollout::{Bytes, GroupId, JobId, MilliCpu, Millis, Resources, RolloutId, StepIndex};
use serde_json::{Map, Value, json};

const HELLO: &str = r#"apiVersion: rollyard/v1
kind: RolloutJob
name: hello
tasks: {from: {inline: [{n: "6", want: "42"}]}}
group: {size: 4}
defaults: {image: host, timeout: 30s}
steps:
  - {name: work, env: {N: "${row.n}"}, run: "echo $((N * 7)) > answer", outputs: [{name: answer, path: answer}]}
  - {name: grade, needs: [work], env: {WANT: "${row.want}"}, grader: {reward_file: /logs/verifier/reward.txt},
     inputs: [{artifact: work.answer, path: /in/answer}],
     run: 'if grep -qx "$WANT" /in/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'}
output: {table: ./out}
"#;

fn plan(text: &str) -> JobPlan {
    let checked = spec::check(text, "test.yaml");
    match checked.plan {
        Some(plan) => plan,
        None => panic!("{}", checked.render(text)),
    }
}

/// A job of these steps over one row.
fn job(steps: &str) -> String {
    format!(
        "apiVersion: rollyard/v1\nkind: RolloutJob\nname: test\nlabels: {{team: blue}}\n\
         tasks: {{from: {{inline: [{{n: 6, text: hi, deep: {{a: [1], b: x}}, mem: 1Gi, on: true}}]}}}}\n\
         defaults: {{image: host}}\nsteps:\n{steps}"
    )
}

fn row(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(row) => row,
        _ => panic!("a row is an object"),
    }
}

fn group() -> GroupId {
    GroupId { job: JobId::from_bits(7), index: 3 }
}

fn lookup(row: &Map<String, Value>) -> Lookup<'_> {
    let rollout = RolloutId { group: group(), sample: 2, refill: 0 };
    Lookup { row, task_id: "row-0", group: group(), epoch: 1, rollout: Some(rollout) }
}

fn looked_up(parts: &[&str]) -> Template {
    Template(vec![Piece::Lookup(parts.iter().map(|&part| part.to_owned()).collect())])
}

#[test]
fn retention_is_read_and_has_defaults() {
    let retain = plan(HELLO).output.retain;
    let days = |days: u64| Millis(days * 86_400_000);
    assert_eq!((retain.committed, retain.failed_workspaces, retain.checkpoints), (days(7), days(1), days(7)));
    let text =
        HELLO.replace("{table: ./out}", "{table: ./out, retain: {checkpoints: 0s, failed_workspaces: 2h}}");
    let retain = plan(&text).output.retain;
    assert_eq!(
        (retain.committed, retain.failed_workspaces, retain.checkpoints),
        (days(7), Millis(7_200_000), Millis(0))
    );
}

#[test]
fn the_minimal_job_means_what_it_says() {
    let checked = spec::check(HELLO, "hello.yaml");
    assert_eq!(checked.diagnostics, []);
    assert_eq!(checked.render(HELLO), "");
    let plan = checked.plan.unwrap();
    assert_eq!(plan.name.as_str(), "hello");
    assert_eq!((&plan.project, plan.labels.len(), plan.timeout), (&None, 0, None));
    assert_eq!(plan.tasks.source, TaskSource::Inline(vec![row(json!({"n": "6", "want": "42"}))]));
    assert_eq!((plan.tasks.split, plan.tasks.epochs, &plan.tasks.id), (Split::Train, 1, &None));
    assert_eq!(plan.tasks.columns_used, ["n", "want"]);
    assert_eq!((plan.group.size, plan.group.min_valid), (4, 3));
    assert_eq!(plan.group.on_incomplete, OnIncomplete::Refill);
    assert_eq!((plan.group.refill_limit, plan.group.over_sample), (2, 0));
    assert_eq!((plan.admission.max_running, plan.admission.priority), (256, 50));
    assert_eq!(plan.output.table, Some(Template::literal("./out")));
    assert_eq!((plan.output.shard.rows, plan.output.artifacts), (256, true));
    assert!(plan.spec_hash.starts_with("sha256:") && plan.spec_hash.len() == 71);

    let [work, grade] = plan.steps.as_slice() else { panic!("two steps") };
    assert_eq!((work.name.as_str(), work.kind, work.origin), ("work", StepKind::Run, Origin::Image));
    let command = CommandPlan::Shell("echo $((N * 7)) > answer".to_owned());
    assert_eq!(work.work, WorkPlan::Command(command));
    assert_eq!(work.env, BTreeMap::from([("N".to_owned(), looked_up(&["row", "n"]))]));
    assert_eq!(work.image, Template::literal("host"));
    assert_eq!((work.user.as_literal(), work.workdir.as_literal()), (Some("rollout"), Some("/workspace")));
    assert_eq!(work.resources, ResourcesPlan::Fixed(Resources::default()));
    assert_eq!(work.timeout, Field::Fixed(Millis(30_000)));
    assert_eq!(work.start_timeout, Field::Fixed(Millis(300_000)));
    assert_eq!(work.grace, Field::Fixed(Millis(5_000)));
    assert_eq!((work.retry.limit, work.grader.is_none()), (3, true));
    assert_eq!(work.outputs[0].source, SourcePlan::Fixed(OutputSource::Path("answer".to_owned())));
    assert_eq!(work.outputs[0].max_bytes, Bytes(16 << 20));
    assert_eq!((grade.name.as_str(), grade.kind, grade.origin), ("grade", StepKind::Grader, Origin::Image));
    assert_eq!(grade.needs, [StepIndex(0)]);
    assert_eq!((grade.inputs[0].step, grade.inputs[0].path.as_str()), (StepIndex(0), "/in/answer"));
    let source = RewardSource::File { paths: vec!["/logs/verifier/reward.txt".to_owned()], key: None };
    let (on_agent_timeout, on_timeout) = (OnAgentTimeout::Grade, OnGraderTimeout::Invalid);
    let grader = GraderPlan { source, range: None, regrades: 1, on_agent_timeout, on_timeout };
    assert_eq!(grade.grader, Some(grader));
}

#[test]
fn the_same_job_in_json_has_the_same_plan_and_hash() {
    let json = json!({
        "apiVersion": "rollyard/v1", "kind": "RolloutJob", "name": "hello",
        "tasks": {"from": {"inline": [{"n": "6", "want": "42"}]}},
        "group": {"size": 4},
        "defaults": {"image": "host", "timeout": "30s"},
        "steps": [
            {"name": "work", "env": {"N": "${row.n}"}, "run": "echo $((N * 7)) > answer",
             "outputs": [{"name": "answer", "path": "answer"}]},
            {"name": "grade", "needs": ["work"], "env": {"WANT": "${row.want}"},
             "grader": {"reward_file": "/logs/verifier/reward.txt"},
             "inputs": [{"artifact": "work.answer", "path": "/in/answer"}],
             "run": "if grep -qx \"$WANT\" /in/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"},
        ],
        "output": {"table": "./out"},
    });
    let expected = plan(HELLO);
    assert_eq!(plan(&json.to_string()), expected);
    assert_eq!(plan(&serde_json::to_string_pretty(&json).unwrap()), expected);
}

#[test]
fn the_default_of_min_valid_is_three_quarters_and_at_least_two() {
    for (size, min_valid) in [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (8, 6), (1024, 768)] {
        let plan = plan(&HELLO.replace("size: 4", &format!("size: {size}")));
        assert_eq!(plan.group.min_valid, min_valid, "size {size}");
        assert_eq!(plan.admission.max_running, size.max(256));
    }
}

#[test]
fn steps_are_ordered_by_need_and_go_on_in_live_sandboxes() {
    let text = job(
        r#"  - {name: grade, needs: [agent], from: image, grader: {exit: {0: 1, 1: 0}, range: [0, 1]}, inputs: [{artifact: agent.patch, path: /in/p}], run: "true"}
  - {name: agent, needs: [setup], agent: {command: [solve, "${row.text}"]}, outputs: [{name: patch, from: git diff}]}
  - {name: setup, run: git init}
"#,
    );
    let plan = plan(&text);
    let names: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["setup", "agent", "grade"]);
    let origins: Vec<Origin> = plan.steps.iter().map(|step| step.origin).collect();
    assert_eq!(origins, [Origin::Image, Origin::Live(StepIndex(0)), Origin::Image]);
    assert_eq!(plan.chain(StepIndex(0)), [StepIndex(0), StepIndex(1)]);
    assert_eq!(plan.steps[2].inputs[0].step, StepIndex(1));
    assert_eq!(plan.steps[1].outputs[0].media_type, "text/plain");
    let grader = plan.steps[2].grader.as_ref().unwrap();
    assert_eq!(grader.source, RewardSource::Exit(BTreeMap::from([(0, 1.0), (1, 0.0)])));
    assert_eq!(grader.range, Some((0.0, 1.0)));
}

#[test]
fn a_grader_may_go_on_in_the_sandbox_it_grades_and_is_graded_again_in_another() {
    let text = HELLO.replace("name: grade,", "name: grade, isolate: reuse, from: work,");
    let checked = spec::check(&text, "x");
    let codes: Vec<DiagnosticCode> = checked.diagnostics.iter().map(|found| found.code).collect();
    assert_eq!(codes, [DiagnosticCode::GraderSeesAgentWorkspace]);
    let plan = checked.plan.unwrap();
    // A re-grade starts from what the work left, not from what the first grader made of it.
    assert_eq!(plan.steps[1].origin, Origin::Live(StepIndex(0)));
    assert!(plan.steps[0].checkpoint.after);
}

#[test]
fn workspaces_follow_from_who_starts_from_them() {
    let text = job(r#"  - {name: setup, per: group, run: git init}
  - {name: more, per: group, needs: [setup], run: make}
  - {name: agent, needs: [more], agent: {command: [solve], resume: true}, checkpoint: {every: 5m, keep: 3}, outputs: [{name: patch, from: git diff}]}
  - {name: side, needs: [agent], isolate: fresh, run: "true", outputs: [{name: x, path: x}]}
  - {name: tail, needs: [agent], run: "true", outputs: [{name: x, path: x}]}
  - {name: grade, needs: [agent], grader: {exit: {0: 1, 1: 0}}, inputs: [{artifact: agent.patch, path: /in/p}], run: "true"}
"#);
    let plan = plan(&text);
    let index = StepIndex;
    let origins: Vec<Origin> = plan.steps.iter().map(|step| step.origin).collect();
    assert_eq!(
        origins,
        [
            Origin::Image,
            Origin::Live(index(0)),
            // Members fork from what the group made; the grader starts where the agent did.
            Origin::Checkpoint(index(1)),
            Origin::Checkpoint(index(2)),
            Origin::Live(index(2)),
            Origin::Checkpoint(index(1)),
        ]
    );
    let pers: Vec<Per> = plan.steps.iter().map(|step| step.per).collect();
    assert_eq!(pers[..3], [Per::Group, Per::Group, Per::Rollout]);
    let after: Vec<bool> = plan.steps.iter().map(|step| step.checkpoint.after).collect();
    assert_eq!(after, [true, true, true, false, false, false]);
    let agent = &plan.steps[2];
    assert!(agent.resume);
    assert_eq!((agent.checkpoint.every, agent.checkpoint.keep), (Some(Millis(300_000)), Keep::Newest(3)));
    assert_eq!(plan.starting_from(index(1)).collect::<Vec<_>>(), [index(2), index(5)]);
    assert_eq!(plan.chain(index(0)), [index(0), index(1)]);
}

#[test]
fn defaults_merge_key_by_key_and_lists_replace() {
    let text = r#"apiVersion: rollyard/v1
kind: RolloutJob
name: merge
tasks: {from: {jsonl: data/rows.jsonl}, split: eval, epochs: 2}
defaults:
  image: dir:/images/base
  env: {A: default, B: default}
  resources: {limit: {memory: 256Mi, disk: 1Gi}, cpu: 250m}
  files: [{path: /in/one, content: one}, {path: /in/two, from: two.sh, mode: 0755}]
  retry: {limit: 1}
steps:
  - name: first
    env: {B: own, C: "$${HOME}"}
    resources: {limit: {cpu: 4}}
    retry: {backoff: 1s}
    run: "true"
    outputs: [{name: x, path: x}]
  - name: second
    image: host
    files: []
    resources: {memory: 1Gi}
    run: "true"
    outputs: [{name: x, path: /tmp/x, media_type: application/json, max_bytes: 1Ki}]
"#;
    let plan = plan(text);
    let [first, second] = plan.steps.as_slice() else { panic!("two steps") };
    let env: Vec<(&str, Option<&str>)> =
        first.env.iter().map(|(key, value)| (key.as_str(), value.as_literal())).collect();
    assert_eq!(env, [("A", Some("default")), ("B", Some("own")), ("C", Some("${HOME}"))]);
    assert_eq!((first.retry.limit, first.retry.backoff), (1, Millis(1_000)));
    assert_eq!((first.files.len(), first.files[1].mode, second.files.len()), (2, 0o755, 0));
    let ResourcesPlan::Fixed(own) = &first.resources else { panic!("fixed") };
    assert_eq!((own.request.cpu, own.limit.cpu), (MilliCpu(250), MilliCpu(4_000)));
    assert_eq!((own.request.memory, own.limit.memory), (Bytes(256 << 20), Bytes(256 << 20)));
    assert_eq!((own.request.disk, own.limit.disk), (Bytes(1 << 30), Bytes(1 << 30)));
    let ResourcesPlan::Fixed(own) = &second.resources else { panic!("fixed") };
    assert_eq!((own.request.memory, own.limit.memory), (Bytes(1 << 30), Bytes(1 << 30)));
    assert_eq!(second.outputs[0].max_bytes, Bytes(1 << 10));
    assert_eq!(
        (first.image.as_literal(), second.image.as_literal()),
        (Some("dir:/images/base"), Some("host"))
    );
    assert_eq!(spec::client_files(&plan), ["data/rows.jsonl", "two.sh"]);
    assert_eq!((plan.tasks.split, plan.tasks.epochs), (Split::Eval, 2));
}

#[test]
fn every_lookup_finds_its_value() {
    let text = job(r#"  - name: agent
    agent: {command: [solve, "${row.text}-${rollout.sample_index}"]}
    env:
      N: ${row.n}
      ON: ${row.on}
      B: ${row.deep.b}
      TEAM: ${job.labels.team}
      JOB: ${job.name} ${job.id} ${job.hash}
      TASK: ${task.id}
      GROUP: ${group.id} ${group.size} ${group.epoch}
      STEP: ${step.name}
      ROLLOUT: ${rollout.id}
      HOME_TEXT: $${HOME}
    files: [{path: "/in/${row.n}.md", content: "${row.text}!"}, {path: /in/tool, from: tool.sh}]
    outputs: [{name: x, path: x}]
"#);
    let plan = plan(&text);
    let TaskSource::Inline(rows) = &plan.tasks.source else { panic!("inline") };
    let files = BTreeMap::from([("tool.sh".to_owned(), "00ff".to_owned())]);
    let step = resolve::resolve_step(&plan, StepIndex(0), &lookup(&rows[0]), &files).unwrap();
    let command = ResolvedCommand::Argv(vec!["solve".to_owned(), "hi-2".to_owned()]);
    assert_eq!(step.work.command(), Some(&command));
    let env = |key: &str| step.env[key].as_str();
    assert_eq!([env("N"), env("ON"), env("B"), env("TEAM")], ["6", "true", "x", "blue"]);
    assert_eq!(env("JOB"), format!("test j0000000000007 {}", plan.spec_hash));
    assert_eq!([env("TASK"), env("STEP"), env("HOME_TEXT")], ["row-0", "agent", "${HOME}"]);
    assert_eq!([env("GROUP"), env("ROLLOUT")], ["j0000000000007-g3 1 1", "j0000000000007-g3-s2"]);
    assert_eq!(step.files[0].path, "/in/6.md");
    assert_eq!(step.files[0].content, ResolvedContent::Text("hi!".to_owned()));
    assert_eq!(step.files[1].content, ResolvedContent::Blob("00ff".to_owned()));

    let missing = resolve::resolve_step(&plan, StepIndex(0), &lookup(&rows[0]), &BTreeMap::new());
    assert!(matches!(missing, Err(ResolveError::MissingFile { .. })), "{missing:?}");
    let early = Lookup { rollout: None, ..lookup(&rows[0]) };
    let early = resolve::resolve_step(&plan, StepIndex(0), &early, &files);
    assert!(matches!(early, Err(ResolveError::NotKnown { .. })), "{early:?}");
}

#[test]
fn shell_text_is_never_expanded() {
    let text =
        job("  - {name: work, run: \"echo ${row.n} $${x}\", outputs: [{name: x, from: \"echo ${HOME}\"}]}\n");
    let plan = plan(&text);
    let TaskSource::Inline(rows) = &plan.tasks.source else { panic!("inline") };
    let step = resolve::resolve_step(&plan, StepIndex(0), &lookup(&rows[0]), &BTreeMap::new()).unwrap();
    let command = ResolvedCommand::Shell("echo ${row.n} $${x}".to_owned());
    assert_eq!(step.work.command(), Some(&command));
    let command = OutputSource::Command("echo ${HOME}".to_owned());
    assert_eq!(step.outputs[0].source, command);
}

#[test]
fn the_hash_of_a_step_is_of_the_step_without_it() {
    let text = |value: &str| {
        job(&format!(
            "  - {{name: work, env: {{H: \"${{step.hash}}\", V: \"{value}\"}}, run: \"true\", outputs: [{{name: x, path: x}}]}}\n"
        ))
    };
    let hash = |value: &str| {
        let plan = plan(&text(value));
        let TaskSource::Inline(rows) = &plan.tasks.source else { panic!("inline") };
        resolve::resolve_step(&plan, StepIndex(0), &lookup(&rows[0]), &BTreeMap::new()).unwrap().env["H"]
            .clone()
    };
    assert!(hash("a").starts_with("sha256:"));
    assert_eq!(hash("a"), hash("a"));
    assert_ne!(hash("a"), hash("b"));
}

#[test]
fn resources_of_a_sandbox_are_the_largest_of_its_steps() {
    let text = job(r#"  - {name: setup, resources: {cpu: 2, memory: "${row.mem}"}, run: "true"}
  - {name: work, needs: [setup], resources: {cpu: 1, memory: 3Gi}, run: "true", outputs: [{name: x, path: x}]}
"#);
    let plan = plan(&text);
    let row = row(json!({"mem": "4Gi"}));
    for step in [StepIndex(0), StepIndex(1)] {
        let resources = resolve::resolve_resources(&plan, step, &lookup(&row)).unwrap();
        assert_eq!((resources.request.cpu, resources.limit.memory), (MilliCpu(2_000), Bytes(4 << 30)));
        assert_eq!(resources.request.memory, Bytes(4 << 30));
    }
    let bad = resolve::resolve_resources(&plan, StepIndex(0), &lookup(&row_of("4GB")));
    assert!(matches!(bad, Err(ResolveError::BadValue { .. })), "{bad:?}");
}

fn row_of(memory: &str) -> Map<String, Value> {
    row(json!({"mem": memory}))
}

#[test]
fn rows_are_checked_against_what_the_spec_uses() {
    let text = r#"apiVersion: rollyard/v1
kind: RolloutJob
name: rows
tasks: {from: {jsonl: rows.jsonl}, id: "${row.id}"}
defaults: {image: "dir:/images/${row.image}"}
steps:
  - {name: work, timeout: "${row.limit}", env: {DEEP: "${row.meta.kind}"}, run: "true", outputs: [{name: x, path: x}]}
output: {columns: [label]}
"#;
    let plan = plan(text);
    assert_eq!(plan.tasks.columns_used, ["id", "image", "label", "limit", "meta"]);
    let good = json!({"id": "a", "image": "x", "label": 1, "limit": "5m", "meta": {"kind": "k"}});
    assert_eq!(resolve::check_row(&plan, 0, &row(good.clone())), Ok(()));
    assert_eq!(resolve::task_id(&plan, 0, &row(good.clone())), Ok("a".to_owned()));
    let cases = [
        ("label", None, DiagnosticCode::RowMissingColumn, Some("label")),
        ("meta", Some(json!({})), DiagnosticCode::RowMissingColumn, Some("meta.kind")),
        ("meta", Some(json!({"kind": {}})), DiagnosticCode::RowBadValue, Some("meta.kind")),
        ("limit", Some(json!("5")), DiagnosticCode::RowBadValue, None),
        ("limit", Some(json!("8d")), DiagnosticCode::RowBadValue, None),
        ("image", Some(json!("../../etc")), DiagnosticCode::RowBadValue, None),
        ("id", Some(json!("a\u{202e}b")), DiagnosticCode::RowBadValue, None),
        ("id", Some(json!("x".repeat(257))), DiagnosticCode::RowBadValue, None),
        ("id", Some(json!("")), DiagnosticCode::RowBadValue, None),
        ("meta", Some(json!({"kind": "a\u{0}b"})), DiagnosticCode::RowBadValue, None),
        ("meta", Some(json!({"kind": "x".repeat(200_000)})), DiagnosticCode::RowBadValue, None),
    ];
    for (column, value, code, at_fault) in cases {
        let mut bad = row(good.clone());
        match value {
            None => drop(bad.remove(column)),
            Some(value) => drop(bad.insert(column.to_owned(), value)),
        }
        let problem = resolve::check_row(&plan, 17, &bad).unwrap_err();
        assert_eq!((problem.code, problem.column.as_deref()), (code, at_fault), "{problem}");
        let shown = problem.to_string();
        assert!(shown.starts_with("row 17: ") && shown.len() < 400, "{shown}");
        assert!(shown.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{shown}");
    }
}

#[test]
fn every_missing_column_of_a_row_is_told_with_the_nearest_one() {
    let plan = plan(&HELLO.replace("{inline: [{n: \"6\", want: \"42\"}]}", "{jsonl: rows.jsonl}"));
    let problems = resolve::row_problems(&plan, 4, &row(json!({"wnat": "42", "m": []})));
    let told: Vec<_> =
        problems.iter().map(|p| (p.row, p.column.as_deref(), p.nearest.as_deref(), p.code)).collect();
    let missing = DiagnosticCode::RowMissingColumn;
    assert_eq!(told, [(4, Some("n"), None, missing), (4, Some("want"), Some("wnat"), missing)]);
    let good = row(json!({"n": "6", "want": "42"}));
    assert_eq!(resolve::row_problems(&plan, 4, &good), []);
}

#[test]
fn every_bad_value_of_a_row_is_told_once_and_up_to_a_bound() {
    let plan = |step: &str| {
        let head =
            "apiVersion: rollyard/v1\nkind: RolloutJob\nname: rows\ntasks: {from: {jsonl: rows.jsonl}}\n";
        let rest = "run: \"true\", outputs: [{name: x, path: x}]}";
        plan(&format!("{head}steps:\n  - {{name: work, {step}, {rest}\n"))
    };
    let step = r#"image: "dir:${row.image}", timeout: "${row.limit}",
     env: {A: "${row.a}", AGAIN: "${row.a}", B: "${row.b}", GONE: "${row.gone}"}, resources: {memory: "${row.memory}"}"#;
    let step = plan(step);
    let problems = |value: Value| {
        let problems = resolve::row_problems(&step, 4, &row(value));
        problems.iter().map(|problem| problem.problem.to_string()).collect::<Vec<_>>()
    };
    let good = json!({"image": "/x", "limit": "5s", "a": "a", "b": "b", "gone": 1, "memory": "1Gi"});
    assert_eq!(problems(good), Vec::<String>::new());
    let bad = problems(json!({"image": "../../etc", "limit": "8d", "a": [], "b": "\0", "memory": "much"}));
    let told = ["`gone`", "work.resources.", "work.image", "column `a`", "work.env.B", "work.timeout"];
    assert!(bad.len() >= told.len(), "{bad:#?}");
    for told in told {
        assert_eq!(bad.iter().filter(|problem| problem.contains(told)).count(), 1, "{told}: {bad:#?}");
    }

    let many: Vec<String> = (0..60).map(|index| format!("E{index}: \"${{row.c{index}}}\"")).collect();
    let many = plan(&format!("image: host, env: {{{}}}", many.join(", ")));
    let wrong = (0..60).map(|index| (format!("c{index}"), json!([]))).collect();
    assert_eq!(resolve::row_problems(&many, 0, &wrong).len(), resolve::BAD_VALUES_MAX);
}

#[test]
fn arguments_are_bounded_after_lookups() {
    let text = job("  - {name: agent, agent: {command: [ARGS]}, outputs: [{name: x, path: x}]}\n");
    let many = ["\"${row.text}\""; 12].join(", ");
    let plan = plan(&text.replace("ARGS", &many));
    let resolved = |bytes: usize| {
        let row = row(json!({"text": "x".repeat(bytes)}));
        resolve::resolve_step(&plan, StepIndex(0), &lookup(&row), &BTreeMap::new()).map(drop)
    };
    assert_eq!(resolved(80_000), Ok(()));
    let long = resolved(100_000).unwrap_err();
    assert!(matches!(long, ResolveError::TooLong { limit: spec::ARGUMENTS_BYTES_MAX, .. }), "{long}");
    let longer = resolved(200_000).unwrap_err();
    assert!(matches!(longer, ResolveError::TooLong { limit: spec::ARGUMENT_BYTES_MAX, .. }), "{longer}");
    let longest = resolved(3 << 20).unwrap_err();
    assert!(matches!(longest, ResolveError::TooLong { limit: spec::FILE_BYTES_MAX, .. }), "{longest}");
    assert!(resolved(0).is_err(), "an empty program");
}

#[test]
fn the_table_folder_knows_its_job() {
    let plan = plan(&HELLO.replace("./out", "\"./out/${job.id}\""));
    let table = resolve::output_table(&plan, JobId::from_bits(7)).unwrap();
    assert_eq!(table.as_deref(), Some("./out/j0000000000007"));
}

#[test]
fn a_description_adds_up() {
    let text = r#"apiVersion: rollyard/v1
kind: RolloutJob
name: numbers
project: post-train
tasks: {from: {jsonl: rows.jsonl}, epochs: 2}
group: {size: 8}
admission: {max_running: 1024}
defaults: {image: host, resources: {cpu: 500m, memory: 1Gi, disk: 4Gi}}
steps:
  - {name: setup, run: "true"}
  - {name: agent, needs: [setup], agent: {command: [x]}, timeout: 45m, outputs: [{name: patch, path: p}]}
  - {name: lint, needs: [agent], grader: {}, from: image, inputs: [{artifact: agent.patch, path: /in/p}], run: "true", timeout: 1m}
  - {name: grade, needs: [agent], grader: {}, from: image, inputs: [{artifact: agent.patch, path: /in/p}], run: "true", timeout: 15m}
"#;
    let description = spec::describe(&plan(text), 2_000);
    assert_eq!((description.groups, description.rollouts), (4_000, 32_000));
    assert_eq!(description.critical_path, ["setup", "agent", "grade"]);
    assert_eq!(description.critical_path_ms, 70 * 60_000);
    let request = description.request.unwrap();
    // Two graders may be up at once; setup and agent share one sandbox that has ended by then.
    assert_eq!(request.cpu_milli, 1024 * 1_000);
    assert_eq!((request.memory_bytes, request.disk_bytes), (1024 * (2 << 30), 1024 * (8 << 30)));
    let shown = description.to_string();
    let hash = &description.spec_hash[..19];
    assert_eq!(
        shown,
        format!(
            "job       numbers   spec {hash}...   project post-train\n\
             tasks     jsonl, 2,000 rows x 2 epochs -> 4,000 groups x 8 = 32,000 rollouts\n\
             plan      setup [rollout] -> agent [rollout, in the sandbox of setup] -> lint [rollout, fresh, from image] \
             -> grade [rollout, fresh, from image, needs agent]\n\
             time      critical path 10m + 45m + 15m = 1h10m per attempt chain; retry up to 4 attempts a step\n\
             request   at max_running 1,024: cpu 1024, memory 2 TiB, disk 8 TiB\n"
        )
    );
    let json = serde_json::to_value(&description).unwrap();
    assert_eq!(json["steps"][1]["continues"], "setup");

    let small = spec::describe(&plan(text), 3);
    assert_eq!((small.max_running, small.running), (1024, 48));
    let last = "request   all 48 rollouts at once: cpu 48, memory 96 GiB, disk 384 GiB\n";
    assert!(small.to_string().ends_with(last), "{small}");
}

#[test]
fn hostile_documents_are_refused_by_a_named_limit() {
    let head = "apiVersion: rollyard/v1\nkind: RolloutJob\nname: x\ntasks: {from: {inline: [{n: 1}]}}\ndefaults: {image: host}\n";
    let many_steps: String = (0..65).map(|n| format!("  - {{name: s{n}, run: \"true\"}}\n")).collect();
    let wide_needs = vec!["s"; 100_000].join(",");
    let env: String = (0..300).map(|n| format!("V{n}: x, ")).collect();
    let arguments = vec!["x"; 257].join(",");
    let cases = [
        (format!("{head}steps:\n{many_steps}"), "the limit of `steps` is 64"),
        (format!("{head}steps: [{{name: s, needs: [{wide_needs}], run: x}}]"), "the limit is 20000 nodes"),
        (format!("{head}labels: [{}]", vec!["1"; 500_000].join(",")), "the limit is 20000 nodes"),
        (format!("{head}steps: [{{name: s, run: x, env: {{{env}}}}}]"), "the limit of `steps[0].env` is 256"),
        (
            format!("{head}steps: [{{name: s, agent: {{command: [{arguments}]}}}}]"),
            "the limit of `steps[0].agent.command` is 256",
        ),
        (
            format!("{head}steps: [{{name: s, run: \"{}\"}}]", "x".repeat(70_000)),
            "the limit here is 65536 bytes",
        ),
        (
            format!("{head}steps: [{{name: s, run: \"{}\"}}]", "x".repeat(3 << 20)),
            "the limit is 1048576 bytes of text",
        ),
        (format!("{head}\"{}\": x", "k".repeat(300)), "the limit is 256 bytes"),
        (format!("{head}x: {}", "[".repeat(100_000)), "the limit is a depth of 32"),
    ];
    for (text, limit) in cases {
        let checked = spec::check(&text, "x");
        assert!(checked.plan.is_none());
        let found = checked.diagnostics.iter().find(|found| found.code == DiagnosticCode::TooLarge);
        let message = found.map(|found| found.message.as_str()).unwrap_or_default();
        assert!(message.contains(limit), "`{message}` does not name `{limit}`");
    }
}

#[test]
fn thousands_of_faults_are_bounded_and_counted() {
    let keys: String = (0..9_000).map(|n| format!("k{n}: 1\n")).collect();
    let checked = spec::check(&keys, "x");
    assert_eq!(checked.diagnostics.len(), spec::DIAGNOSTICS_MAX + 1);
    assert!(checked.diagnostics[spec::DIAGNOSTICS_MAX].message.contains("more problems"));
    // One fault in each of many lookups of one document, over aliases.
    let text = format!("a: &a \"{}\"\nb: [{}]\n", "${x.y}".repeat(200), vec!["*a"; 3_000].join(","));
    let text = HELLO.replace("output:", &format!("{text}output:"));
    assert!(spec::check(&text, "x").plan.is_none());
    // Unknown columns beside many known ones.
    let columns = (0..4_000).map(|n| format!("c{n}: 1")).collect::<Vec<_>>().join(", ");
    let faults = vec![format!("\"{}\"", "${row.d1}".repeat(200)); 250].join(", ");
    let text = HELLO
        .replace("want: \"42\"", &format!("want: \"42\", {columns}"))
        .replace("name: work,", &format!("name: work, agent: {{command: [{}]}},", &faults));
    let checked = spec::check(&text, "x");
    assert!(checked.diagnostics.iter().any(|found| found.message.contains("more problems")));
}

#[test]
fn lookups_cannot_grow_without_bound() {
    let text = job(
        "  - {name: w, run: \"true\", files: [{path: /in/x, content: CONTENT}], outputs: [{name: x, path: x}]}\n",
    );
    let plan = plan(&text.replace("CONTENT", &format!("\"{}\"", "${row.text}".repeat(256))));
    let row = row(json!({"text": "x".repeat(1 << 20)}));
    let long = resolve::resolve_step(&plan, StepIndex(0), &lookup(&row), &BTreeMap::new()).unwrap_err();
    assert!(matches!(long, ResolveError::TooLong { limit: spec::FILE_BYTES_MAX, .. }), "{long}");
    let values =
        (0..17).map(|n| format!("V{n}: \"{}\"", "${row.n}".repeat(250))).collect::<Vec<_>>().join(", ");
    let text =
        job(&format!("  - {{name: w, run: \"true\", env: {{{values}}}, outputs: [{{name: x, path: x}}]}}\n"));
    let found = spec::check(&text, "x").diagnostics;
    assert!(found[0].message.contains("4250 lookups; the limit is 4096"), "{found:?}");
}

#[test]
fn diagnostics_serialise_as_documented() {
    let text = HELLO.replace("timeout", "tiemout");
    let checked = spec::check(&text, "hello.yaml");
    let found = serde_json::to_value(&checked.diagnostics).unwrap();
    assert_eq!(found[0]["expected"].as_str().map(|text| text.starts_with("one of ")), Some(true));
    let mut first = found[0].clone();
    first["expected"] = Value::Null;
    assert_eq!(
        first,
        json!({
            "code": "unknown_field", "severity": "error", "file": "hello.yaml", "line": 6, "col": 25,
            "path": "defaults.tiemout", "message": "unknown field `tiemout`", "expected": null,
            "nearest": "timeout",
        })
    );
}

/// Documents that look like specs, so that random ones get past the first check.
fn specish() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("${row.n}"),
        Just("${"),
        Just("work"),
        Just("8"),
        Just("-1"),
        Just("1e400"),
        Just("30s"),
        Just("{}"),
        Just("[]"),
        Just("[a, b]"),
        Just("{a: b}"),
        Just("\u{202e}"),
        Just("*x"),
        Just("&x y"),
        Just("!t z"),
        Just("host"),
        Just("true"),
        Just("~"),
        Just("\"q\""),
        Just("{size: 4}"),
        Just("{command: [x]}"),
        Just("[{name: a, path: b}]"),
    ];
    let key = prop_oneof![
        Just("name"),
        Just("group"),
        Just("steps"),
        Just("needs"),
        Just("run"),
        Just("agent"),
        Just("grader"),
        Just("env"),
        Just("files"),
        Just("outputs"),
        Just("inputs"),
        Just("resources"),
        Just("timeout"),
        Just("from"),
        Just("image"),
        Just("size"),
        Just("limit"),
        Just("<<"),
        Just("models"),
        Just("schedule"),
        Just("labels"),
        Just("tasks"),
    ];
    proptest::collection::vec((0usize..4, any::<bool>(), key, word), 0..24).prop_map(|lines| {
        lines
            .into_iter()
            .map(|(indent, item, key, word)| {
                format!("{}{}{key}: {word}\n", "  ".repeat(indent), if item { "- " } else { "" })
            })
            .collect()
    })
}

fn holds_its_promises(text: &str) {
    let checked = spec::check(text, "x");
    let errors = checked.diagnostics.iter().filter(|found| found.severity == Severity::Error).count();
    assert_eq!(checked.plan.is_some(), errors == 0);
    assert!(checked.diagnostics.len() <= spec::DIAGNOSTICS_MAX + 1);
    let places: Vec<(u32, u32)> = checked.diagnostics.iter().map(|found| (found.line, found.col)).collect();
    assert!(places.is_sorted(), "{places:?}");
    let shown = checked.render(text);
    assert!(shown.chars().all(|c| c == '\n' || c == ' ' || c.is_ascii_graphic()), "{shown:?}");
    for found in &checked.diagnostics {
        assert!(found.line >= 1 && found.col >= 1, "{found:?}");
        assert!(
            text.is_empty() || usize::try_from(found.line).unwrap() <= text.lines().count() + 1,
            "{found:?}"
        );
        assert!(found.message.len() < 2_048, "{}", found.message.len());
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        holds_its_promises(&text);
    }

    #[test]
    fn text_that_looks_like_a_spec_never_panics(text in specish()) {
        holds_its_promises(&text);
    }

    /// Any one line of a good spec broken, repeated, or cut.
    #[test]
    fn a_damaged_spec_never_panics(at in 0usize..1_000, cut in 0usize..40, insert in "[\\[\\]{}:,&*!#|>'\"%@` \t\n${}a-]{0,6}") {
        let text: Vec<char> = HELLO.chars().collect();
        let at = at.min(text.len());
        let damaged: String = text[..at].iter().collect::<String>()
            + &insert
            + &text[(at + cut).min(text.len())..].iter().collect::<String>();
        holds_its_promises(&damaged);
    }
}
