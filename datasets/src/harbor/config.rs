//! `task.toml`, schema 1.4: every key it may have.

use std::collections::BTreeMap;

use rollout::plan::EnvironmentMode;
use rollout::spec::DiagnosticCode as Code;
use rollout::text::shown;
use serde::Deserialize;

use super::Fault;

/// Versions whose keys are those of [`Config`].
const VERSIONS: [&str; 5] = ["1.0", "1.1", "1.2", "1.3", "1.4"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    #[serde(alias = "version")]
    pub schema_version: Option<String>,
    #[serde(default)]
    pub task: Option<TaskTable>,
    #[serde(default)]
    pub metadata: toml::Table,
    #[serde(default)]
    pub agent: Agent,
    #[serde(default)]
    pub verifier: Verifier,
    #[serde(default)]
    pub environment: Environment,
    #[serde(default)]
    pub solution: Solution,
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    #[serde(default)]
    pub steps: Vec<toml::Value>,
    pub multi_step_reward_strategy: Option<toml::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskTable {
    pub name: String,
    pub version: Option<String>,
    pub description: Option<String>,
    pub authors: Option<toml::Value>,
    pub keywords: Option<toml::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Agent {
    pub timeout_sec: Option<f64>,
    pub user: Option<User>,
    pub network_mode: Option<NetworkMode>,
    pub allowed_hosts: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Verifier {
    pub timeout_sec: Option<f64>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub user: Option<User>,
    pub environment_mode: Option<EnvironmentMode>,
    pub environment: Option<toml::Value>,
    pub collect: Option<Vec<toml::Value>>,
    pub network_mode: Option<NetworkMode>,
    pub allowed_hosts: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Environment {
    /// Of builds, which are not done here.
    #[expect(dead_code, reason = "read so that it is known; nothing is built here")]
    pub build_timeout_sec: Option<f64>,
    pub docker_image: Option<String>,
    pub os: Option<String>,
    pub cpus: Option<f64>,
    pub memory_mb: Option<u64>,
    pub storage_mb: Option<u64>,
    pub gpus: Option<u64>,
    pub gpu_types: Option<Vec<String>>,
    pub tpu: Option<toml::Value>,
    pub mcp_servers: Option<Vec<toml::Value>>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub skills_dir: Option<String>,
    pub workdir: Option<String>,
    pub healthcheck: Option<HealthCheck>,
    pub network_mode: Option<NetworkMode>,
    pub allowed_hosts: Option<Vec<String>>,
    /// Before 1.4: what `network_mode` says now.
    pub allow_internet: Option<bool>,
}

/// As Docker means it; so do the defaults.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HealthCheck {
    pub command: String,
    pub interval_sec: Option<f64>,
    pub timeout_sec: Option<f64>,
    pub start_period_sec: Option<f64>,
    pub start_interval_sec: Option<f64>,
    pub retries: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Solution {
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(super) enum User {
    Name(String),
    Id(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NetworkMode {
    Public,
    NoNetwork,
    Allowlist,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Artifact {
    Path(String),
    Table(ArtifactTable),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArtifactTable {
    pub source: String,
    pub destination: Option<String>,
    pub exclude: Option<Vec<String>>,
    pub service: Option<String>,
}

pub(super) fn parse(text: &str) -> Result<Config, Fault> {
    let config: Config = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let place = line.map_or_else(String::new, |line| format!(" line {line}"));
        Fault::bad(format!("`task.toml`{place}: {}", shown(error.message(), 400)))
    })?;
    if let Some(version) = config.schema_version.as_deref().filter(|version| !VERSIONS.contains(version)) {
        let problem = format!("`task.toml` has schema version `{}`, not 1.0 to 1.4", shown(version, 40));
        return Err(Fault::bad(problem));
    }
    Ok(config)
}

impl Config {
    /// Unset: separate if the verifier has an environment of its own.
    pub fn mode(&self) -> EnvironmentMode {
        self.verifier.environment_mode.unwrap_or(EnvironmentMode::Shared)
    }

    /// What the task asks for and this build does not have.
    pub fn check(&self) -> Result<(), Fault> {
        let fault = |code, problem: &str| Err(Fault { code, problem: problem.to_owned() });
        let Environment { os, gpus, tpu, .. } = &self.environment;
        if os.as_deref().is_some_and(|os| os != "linux") {
            return fault(Code::HarborWindows, "it runs on another system than Linux (`environment.os`)");
        }
        if tpu.is_some() {
            return fault(Code::HarborTpu, "it needs a TPU (`environment.tpu`)");
        }
        let later = [
            ("environment.gpus", gpus.is_some_and(|gpus| gpus > 0)),
            (
                "environment.gpu_types",
                self.environment.gpu_types.as_ref().is_some_and(|types| !types.is_empty()),
            ),
            (
                "environment.mcp_servers",
                self.environment.mcp_servers.as_ref().is_some_and(|all| !all.is_empty()),
            ),
            ("environment.skills_dir", self.environment.skills_dir.is_some()),
            ("verifier.environment", self.verifier.environment.is_some()),
            ("verifier.collect", self.verifier.collect.as_ref().is_some_and(|all| !all.is_empty())),
        ];
        if let Some((key, _)) = later.iter().find(|(_, asked)| *asked) {
            return Err(Fault::later(key));
        }
        if self.multi_step_reward_strategy.is_some() {
            return fault(
                Code::HarborMultiStep,
                "it has a reward of several steps (`multi_step_reward_strategy`)",
            );
        }
        self.check_network()
    }

    fn check_network(&self) -> Result<(), Fault> {
        let of_all = match self.environment.allow_internet {
            Some(allowed) if self.environment.network_mode.is_none() => {
                Some(if allowed { NetworkMode::Public } else { NetworkMode::NoNetwork })
            }
            _ => self.environment.network_mode,
        };
        for (table, own, hosts) in [
            ("agent", self.agent.network_mode, &self.agent.allowed_hosts),
            ("verifier", self.verifier.network_mode, &self.verifier.allowed_hosts),
        ] {
            match own.or(of_all) {
                Some(NetworkMode::NoNetwork) => {}
                Some(NetworkMode::Allowlist) => return Err(Fault::later("network_mode = \"allowlist\"")),
                mode => {
                    let said = if mode.is_none() { "unset, which means public" } else { "public" };
                    let problem = format!(
                        "its {table} wants the public network (`network_mode` is {said}), which sandboxes do not have; one that needs none says `network_mode = \"no-network\"` there"
                    );
                    return Err(Fault { code: Code::NetworkPublic, problem });
                }
            }
            if hosts.as_ref().is_some_and(|hosts| !hosts.is_empty()) {
                return Err(Fault::later(&format!("{table}.allowed_hosts")));
            }
        }
        if self.environment.allowed_hosts.as_ref().is_some_and(|hosts| !hosts.is_empty()) {
            return Err(Fault::later("environment.allowed_hosts"));
        }
        Ok(())
    }
}
