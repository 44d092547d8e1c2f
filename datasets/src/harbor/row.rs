//! A task of Harbor as a task row.

use std::collections::BTreeMap;

use rollout::spec::DiagnosticCode as Code;
use rollout::text::shown;
use rollout::time::Millis;
use serde_json::{Map, Value, json};

use super::Fault;
use super::config::{Artifact, ArtifactTable, Config, HealthCheck, User};

/// Where Harbor leaves a deadline open.
const AGENT_TIMEOUT_SEC: f64 = 600.0;
const VERIFIER_TIMEOUT_SEC: f64 = 600.0;
/// Where a task leaves its health check open.
const CHECK_INTERVAL_SEC: f64 = 5.0;
const CHECK_TIMEOUT_SEC: f64 = 30.0;
const CHECK_START_INTERVAL_SEC: f64 = 5.0;
const CHECK_RETRIES: u32 = 3;
/// Harbor runs everything as the user of the image, which is root.
const USER: &str = "root";
const WORKDIR: &str = "/workspace";
/// Where a task asks for nothing: what steps get.
const REQUEST: [&str; 3] = ["500m", "512Mi", "256Mi"];
const LIMIT: [&str; 3] = ["2", "2Gi", "256Mi"];
const MILLI_MAX: f64 = 1e9;

pub(super) fn of(name: &str, config: &Config, instruction: String) -> Result<Map<String, Value>, Fault> {
    let environment = &config.environment;
    let env = variables("environment.env", [&environment.env])?;
    let user = |user: &Option<User>| match user {
        None => USER.to_owned(),
        Some(User::Name(name)) => name.clone(),
        Some(User::Id(id)) => id.to_string(),
    };
    let mut row = Map::new();
    let mut set = |column: &str, value: Value| _ = row.insert(column.to_owned(), value);
    set("task", name.into());
    set("name", config.task.as_ref().map(|task| task.name.clone()).into());
    set("version", config.task.as_ref().and_then(|task| task.version.clone()).into());
    set("metadata", metadata(config));
    set("instruction", instruction.into());
    set("image", environment.docker_image.clone().into());
    set("env", env);
    set("solution_env", variables("solution.env", [&environment.env, &config.solution.env])?);
    set("verifier_env", variables("verifier.env", [&environment.env, &config.verifier.env])?);
    set("user", user(&config.agent.user).into());
    set("verifier_user", user(&config.verifier.user).into());
    set("workdir", environment.workdir.clone().unwrap_or_else(|| WORKDIR.to_owned()).into());
    set("agent_timeout", timeout("agent", config.agent.timeout_sec, AGENT_TIMEOUT_SEC)?.into());
    set("verifier_timeout", timeout("verifier", config.verifier.timeout_sec, VERIFIER_TIMEOUT_SEC)?.into());
    set("resources", resources(config)?);
    set("health_check", health_check(config)?);
    set("artifacts", artifacts(config)?);
    set("environment_mode", config.mode().as_str().into());
    for tree in super::TREES {
        set(tree, Value::Null);
    }
    Ok(row)
}

fn metadata(config: &Config) -> Value {
    // Dates of TOML have no JSON form but their text.
    fn value(found: &toml::Value) -> Value {
        match found {
            toml::Value::String(text) => text.clone().into(),
            toml::Value::Integer(number) => (*number).into(),
            toml::Value::Float(number) => json!(number),
            toml::Value::Boolean(flag) => (*flag).into(),
            toml::Value::Datetime(at) => at.to_string().into(),
            toml::Value::Array(items) => items.iter().map(value).collect(),
            toml::Value::Table(entries) => {
                entries.iter().map(|(key, found)| (key.clone(), value(found))).collect()
            }
        }
    }
    let mut all: Map<String, Value> =
        config.metadata.iter().map(|(key, found)| (key.clone(), value(found))).collect();
    if let Some(task) = &config.task {
        let more = [
            ("description", task.description.clone().map(Value::from)),
            ("authors", task.authors.as_ref().map(value)),
            ("keywords", task.keywords.as_ref().map(value)),
        ];
        for (key, found) in more {
            if let Some(found) = found {
                all.entry(key).or_insert(found);
            }
        }
    }
    Value::Object(all)
}

/// The tables over each other. Harbor takes `${NAME}` from the environment of who runs it: that would
/// carry secrets into sandboxes.
fn variables<const N: usize>(key: &str, tables: [&BTreeMap<String, String>; N]) -> Result<Value, Fault> {
    let mut all = Map::new();
    for (name, value) in tables.into_iter().flatten() {
        if value.contains("${") {
            let problem = format!(
                "`{key}` takes `{}` from the environment of the caller, which sandboxes never see",
                shown(name, 64)
            );
            return Err(Fault { code: Code::HarborHostEnv, problem });
        }
        all.insert(name.clone(), value.clone().into());
    }
    Ok(Value::Object(all))
}

fn timeout(table: &str, seconds: Option<f64>, default: f64) -> Result<String, Fault> {
    let seconds = seconds.unwrap_or(default);
    match milli(seconds) {
        Some(millis) => Ok(Millis(millis).to_string()),
        None => Err(Fault::bad(format!("`{table}.timeout_sec` is {seconds}"))),
    }
}

/// Thousandths of a positive number.
fn milli(number: f64) -> Option<u64> {
    let milli = (number * 1_000.0).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    ((1.0..=MILLI_MAX).contains(&milli)).then_some(milli as u64)
}

/// What a task asks for is its request and its limit.
fn resources(config: &Config) -> Result<Value, Fault> {
    let environment = &config.environment;
    let cpu = match environment.cpus {
        None => None,
        Some(cpus) => {
            let milli = milli(cpus).ok_or_else(|| Fault::bad(format!("`environment.cpus` is {cpus}")))?;
            Some(format!("{milli}m"))
        }
    };
    let mebibytes = |amount: Option<u64>| amount.map(|amount| format!("{amount}Mi"));
    let asked = [cpu, mebibytes(environment.memory_mb), mebibytes(environment.storage_mb)];
    let side = |defaults: [&str; 3]| {
        let keys = ["cpu", "memory", "disk"].into_iter().zip(&asked).zip(defaults);
        let entries = keys.map(|((key, asked), default)| {
            (key.to_owned(), Value::from(asked.clone().unwrap_or_else(|| default.to_owned())))
        });
        Value::Object(entries.collect())
    };
    Ok(json!({"request": side(REQUEST), "limit": side(LIMIT)}))
}

/// Null if there is none.
fn health_check(config: &Config) -> Result<Value, Fault> {
    let Some(check) = &config.environment.healthcheck else { return Ok(Value::Null) };
    let time = |key: &str, seconds: Option<f64>, default: f64| {
        let seconds = seconds.unwrap_or(default);
        let none = (seconds == 0.0).then_some(0);
        let bad = || Fault::bad(format!("`environment.healthcheck.{key}` is {seconds}"));
        none.or_else(|| milli(seconds)).ok_or_else(bad)
    };
    let HealthCheck { command, interval_sec, timeout_sec, start_period_sec, start_interval_sec, retries } =
        check;
    Ok(json!({
        "command": command,
        "interval_ms": time("interval_sec", *interval_sec, CHECK_INTERVAL_SEC)?,
        "timeout_ms": time("timeout_sec", *timeout_sec, CHECK_TIMEOUT_SEC)?,
        "start_period_ms": time("start_period_sec", *start_period_sec, 0.0)?,
        "start_interval_ms": time("start_interval_sec", *start_interval_sec, CHECK_START_INTERVAL_SEC)?,
        "retries": retries.unwrap_or(CHECK_RETRIES),
    }))
}

fn artifacts(config: &Config) -> Result<Value, Fault> {
    let path = |artifact: &Artifact| {
        let path = match artifact {
            Artifact::Path(path) => path,
            Artifact::Table(ArtifactTable { source, destination, exclude, service }) => {
                let later = [
                    ("destination", destination.is_some()),
                    ("exclude", exclude.as_ref().is_some_and(|all| !all.is_empty())),
                    ("service", service.is_some()),
                ];
                if let Some((key, _)) = later.iter().find(|(_, asked)| *asked) {
                    return Err(Fault::later(&format!("artifacts.{key}")));
                }
                source
            }
        };
        if !path.starts_with('/') {
            return Err(Fault::bad(format!("the artifact `{}` is no absolute path", shown(path, 128))));
        }
        Ok(Value::from(path.as_str()))
    };
    config.artifacts.iter().map(path).collect::<Result<Vec<_>, _>>().map(Value::Array)
}
