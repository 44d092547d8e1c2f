//! Harbor task directories: what becomes of them, and what each refusal says.

use std::fs;
use std::path::Path;

use datasets::harbor::{HarborError, HarborTask, Unsupported, Wants, read};
use rollout::plan::{EnvironmentMode, HealthCheck};
use serde_json::{Value, json};

const QUIET: &str = "schema_version = \"1.4\"\n[environment]\nnetwork_mode = \"no-network\"\n";

const WANTS: Wants = Wants {
    mode: Some(EnvironmentMode::Shared),
    image: false,
    solution: false,
    tests: true,
    can_build: false,
};

fn put(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn task(dir: &Path, name: &str, config: &str) {
    put(dir, &format!("{name}/task.toml"), config);
    put(dir, &format!("{name}/instruction.md"), "Fix it.\n");
    put(dir, &format!("{name}/tests/test.sh"), "echo 1 > /logs/verifier/reward.txt\n");
}

fn one(config: &str, wants: &Wants, more: impl Fn(&Path)) -> Result<HarborTask, Unsupported> {
    let dir = tempfile::tempdir().unwrap();
    task(dir.path(), "fix-it", config);
    more(&dir.path().join("fix-it"));
    read(dir.path(), wants).unwrap().remove(0)
}

fn keyed(keys: &str) -> String {
    format!("{QUIET}{keys}")
}

#[test]
fn every_key_of_a_task_has_its_column() {
    let config = r#"
schema_version = "1.4"
artifacts = ["/app/out", {source = "/app/log.txt"}]
[task]
name = "org/fix-it"
version = "1.2"
[metadata]
difficulty = "easy"
made = 2026-01-31
[agent]
timeout_sec = 90.5
user = "dev"
[verifier]
timeout_sec = 30
env = {A = "verifier", V = "1"}
user = 0
environment_mode = "separate"
[environment]
docker_image = "repo/image:1"
cpus = 1.5
memory_mb = 512
storage_mb = 2048
env = {A = "task", B = "2"}
workdir = "/app"
network_mode = "no-network"
build_timeout_sec = 30.0
gpus = 0
[solution]
env = {S = "3"}
"#;
    let wants = Wants { mode: None, image: true, solution: false, tests: true, can_build: false };
    let task = one(config, &wants, |_| ()).unwrap();
    assert_eq!((task.mode, task.name(), task.artifacts()), (EnvironmentMode::Separate, "fix-it", 2));
    let asked = json!({"cpu": "1500m", "memory": "512Mi", "disk": "2048Mi"});
    assert_eq!(
        Value::Object(task.row),
        json!({
            "task": "fix-it", "name": "org/fix-it", "version": "1.2",
            "metadata": {"difficulty": "easy", "made": "2026-01-31"}, "instruction": "Fix it.\n",
            "image": "repo/image:1", "env": {"A": "task", "B": "2"},
            "solution_env": {"A": "task", "B": "2", "S": "3"},
            "verifier_env": {"A": "verifier", "B": "2", "V": "1"},
            "user": "dev", "verifier_user": "0", "workdir": "/app",
            "agent_timeout": "1m30s500ms", "verifier_timeout": "30s",
            "resources": {"request": asked, "limit": asked},
            "artifacts": ["/app/out", "/app/log.txt"], "health_check": null, "environment_mode": "separate",
            "tests": null, "solution": null, "environment": null,
        })
    );
}

#[test]
fn what_a_task_does_not_say_is_what_steps_get() {
    let row = one(QUIET, &WANTS, |_| ()).unwrap().row;
    assert_eq!(row["resources"]["request"], json!({"cpu": "500m", "memory": "512Mi", "disk": "256Mi"}));
    assert_eq!(row["resources"]["limit"], json!({"cpu": "2", "memory": "2Gi", "disk": "256Mi"}));
    assert_eq!((&row["user"], &row["workdir"]), (&json!("root"), &json!("/workspace")));
    assert_eq!((&row["agent_timeout"], &row["verifier_timeout"]), (&json!("10m"), &json!("10m")));
    assert_eq!((&row["env"], &row["artifacts"], &row["image"]), (&json!({}), &json!([]), &Value::Null));
}

#[test]
fn each_task_that_cannot_run_says_why() {
    let no_more = |_: &Path| ();
    let solution = Wants { solution: true, ..WANTS };
    let image = Wants { image: true, ..WANTS };
    let public = QUIET.replace("no-network", "public");
    type More = fn(&Path);
    let cases: [(&str, &Wants, More, &str, &str); 24] = [
        ("", &WANTS, no_more, "network_public", "unset, which means public"),
        (&public, &WANTS, no_more, "network_public", "`network_mode` is public"),
        (&keyed("[verifier]\nnetwork_mode = \"public\""), &WANTS, no_more, "network_public", "its verifier"),
        (&QUIET.replace("no-network", "allowlist"), &WANTS, no_more, "not_available_yet", "allowlist"),
        ("[environment]\nallow_internet = true", &WANTS, no_more, "network_public", "public"),
        (&keyed("gpus = 1"), &WANTS, no_more, "not_available_yet", "`environment.gpus`"),
        (&keyed("tpu = {type = \"v5\"}"), &WANTS, no_more, "harbor_tpu", "TPU"),
        (&keyed("os = \"windows\""), &WANTS, no_more, "harbor_windows", "`environment.os`"),
        (
            &keyed("healthcheck = {command = \"x\", interval_sec = -1}"),
            &WANTS,
            no_more,
            "harbor_bad_task",
            "`environment.healthcheck.interval_sec` is -1",
        ),
        (&keyed("mcp_servers = [{}]"), &WANTS, no_more, "not_available_yet", "`environment.mcp_servers`"),
        (&keyed("skills_dir = \"x\""), &WANTS, no_more, "not_available_yet", "`environment.skills_dir`"),
        (
            &keyed("[verifier]\nenvironment = {}"),
            &WANTS,
            no_more,
            "not_available_yet",
            "`verifier.environment`",
        ),
        (&keyed("[verifier]\ncollect = [{}]"), &WANTS, no_more, "not_available_yet", "`verifier.collect`"),
        (&keyed("[[steps]]\nname = \"a\""), &WANTS, no_more, "harbor_multi_step", "several steps"),
        (QUIET, &WANTS, |dir| put(dir, "steps/a/instruction.md", ""), "harbor_multi_step", "several steps"),
        (
            QUIET,
            &WANTS,
            |dir| put(dir, "environment/docker-compose.yaml", ""),
            "harbor_compose",
            "environment/docker-compose.yaml",
        ),
        (QUIET, &solution, no_more, "harbor_no_solution", "`solution/solve.sh`"),
        (QUIET, &image, |dir| put(dir, "environment/Dockerfile", ""), "harbor_needs_builder", "Dockerfile"),
        (QUIET, &image, no_more, "harbor_needs_builder", "names no image"),
        (
            &keyed("[verifier]\nenvironment_mode = \"separate\""),
            &WANTS,
            no_more,
            "harbor_other_mode",
            "mode is `separate`, and this job grades `shared`",
        ),
        (
            &keyed("env = {K = \"${KEY}\"}"),
            &WANTS,
            no_more,
            "harbor_host_env",
            "takes `K` from the environment",
        ),
        (&keyed("memory = \"2G\""), &WANTS, no_more, "harbor_bad_task", "line 4: unknown field `memory`"),
        (
            QUIET,
            &WANTS,
            |dir| fs::remove_file(dir.join("tests/test.sh")).unwrap(),
            "harbor_bad_task",
            "test.sh",
        ),
        (&QUIET.replace("1.4", "2.0"), &WANTS, no_more, "harbor_bad_task", "schema version `2.0`"),
    ];
    for (config, wants, more, code, said) in cases {
        let unsupported = one(config, wants, more).unwrap_err();
        assert_eq!((unsupported.code.as_str(), unsupported.task.as_str()), (code, "fix-it"), "{config}");
        assert!(unsupported.problem.contains(said), "{config}: {}", unsupported.problem);
    }
}

#[test]
fn values_that_mean_nothing_are_refused() {
    for keys in [
        "cpus = -1.0",
        "cpus = nan",
        "memory_mb = -1",
        "[agent]\ntimeout_sec = 0",
        "[agent]\ntimeout_sec = inf",
        "[agent]\nuser = []",
        "[verifier]\nenvironment_mode = \"both\"",
        "env = {A = 1}",
    ] {
        let unsupported = one(&keyed(keys), &WANTS, |_| ()).unwrap_err();
        assert_eq!(unsupported.code.as_str(), "harbor_bad_task", "{keys}: {}", unsupported.problem);
    }
    for artifacts in
        ["[\"out\"]", "[{source = \"/a\", destination = \"/b\"}]", "[{source = \"/a\", what = 1}]"]
    {
        let config = QUIET.replace("[environment]", &format!("artifacts = {artifacts}\n[environment]"));
        assert!(one(&config, &WANTS, |_| ()).is_err(), "{artifacts}");
    }
}

#[test]
fn a_directory_gives_its_tasks_in_order_and_one_task_is_a_directory_too() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b", "a"] {
        task(dir.path(), name, QUIET);
    }
    put(dir.path(), "README.md", "");
    put(dir.path(), "scripts/x.sh", "");
    let names = |path: &Path| -> Vec<String> {
        read(path, &WANTS).unwrap().into_iter().map(|task| task.unwrap().name().to_owned()).collect()
    };
    assert_eq!(names(dir.path()), ["a", "b"]);
    assert_eq!(names(&dir.path().join("b")), ["b"]);
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(read(empty.path(), &WANTS), Err(HarborError::NoTasks { .. })));
    assert!(matches!(read(&empty.path().join("none"), &WANTS), Err(HarborError::Io { .. })));
}

#[test]
fn a_health_check_is_part_of_the_row() {
    let dir = tempfile::tempdir().unwrap();
    let toml = keyed("healthcheck = {command = \"pg_isready\", interval_sec = 0.5, retries = 9}");
    task(dir.path(), "checked", &toml);
    task(dir.path(), "plain", QUIET);
    let rows: Vec<_> = read(dir.path(), &WANTS)
        .unwrap()
        .into_iter()
        .map(|task| task.unwrap().row["health_check"].clone())
        .collect();
    let check: HealthCheck = serde_json::from_value(rows[0].clone()).unwrap();
    assert_eq!(
        (check.command.as_str(), check.interval.0, check.timeout.0, check.retries),
        ("pg_isready", 500, 30_000, 9)
    );
    assert_eq!(rows[1], Value::Null);
}
