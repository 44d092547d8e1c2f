//! Wire messages -> domain types. Every refusal names the field by its path.

use std::fmt::Display;
use std::str::FromStr;

use rollout::failure::{Domain, Failure};
use rollout::outcome::{Artifact, Captured, Outcome, Reward, Times, Usage};
use rollout::plan::{
    GraderPlan, OnAgentTimeout, OnGraderTimeout, OutputDecl, OutputSource, ResolvedCommand, ResolvedContent,
    ResolvedFile, ResolvedStep, RewardSource, STEPS_MAX, StepKind,
};
use rollout::quantity::{Limit, Request};
use rollout::{AttemptId, Bytes, MilliCpu, Millis, Resources, StepIndex, Timestamp};

use crate::v1;

/// A message that cannot be what it claims to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}`: {problem}")]
pub struct WireError {
    pub field: String,
    pub problem: String,
}

fn wrong(field: &str, problem: impl Display) -> WireError {
    WireError { field: field.to_owned(), problem: problem.to_string() }
}

/// `text` as a domain type, or an error that names `field`.
pub fn parse<T: FromStr<Err: Display>>(field: &str, text: &str) -> Result<T, WireError> {
    text.parse().map_err(|problem| wrong(field, problem))
}

/// A message field that must be there.
pub fn required<T>(field: &str, value: Option<T>) -> Result<T, WireError> {
    value.ok_or_else(|| wrong(field, "missing"))
}

pub fn attempt(field: &str, message: Option<&v1::AttemptRef>) -> Result<AttemptId, WireError> {
    let message = required(field, message)?;
    let step = u8::try_from(message.step).ok().filter(|&s| usize::from(s) < STEPS_MAX);
    Ok(AttemptId {
        rollout: parse(&format!("{field}.rollout"), &message.rollout)?,
        step: StepIndex(step.ok_or_else(|| wrong(&format!("{field}.step"), "not a step index below 64"))?),
        attempt: message.attempt,
    })
}

pub fn resources(field: &str, message: Option<&v1::Resources>) -> Result<Resources, WireError> {
    let m = required(field, message)?;
    Ok(Resources {
        request: Request {
            cpu: MilliCpu(m.request_cpu_milli),
            memory: Bytes(m.request_memory_bytes),
            disk: Bytes(m.request_disk_bytes),
        },
        limit: Limit {
            cpu: MilliCpu(m.limit_cpu_milli),
            memory: Bytes(m.limit_memory_bytes),
            disk: Bytes(m.limit_disk_bytes),
            pids: m.limit_pids,
        },
    })
}

pub fn step(message: &v1::Step) -> Result<ResolvedStep, WireError> {
    Ok(ResolvedStep {
        name: parse("step.name", &message.name)?,
        kind: match message.kind.as_str() {
            "run" => StepKind::Run,
            "agent" => StepKind::Agent,
            "grader" => StepKind::Grader,
            other => return Err(wrong("step.kind", format!("unknown kind `{other}`"))),
        },
        command: match required("step.command", message.command.as_ref())? {
            v1::step::Command::Shell(text) => ResolvedCommand::Shell(text.clone()),
            v1::step::Command::Argv(argv) => ResolvedCommand::Argv(argv.items.clone()),
        },
        image: message.image.clone(),
        user: message.user.clone(),
        workdir: message.workdir.clone(),
        env: message.env.clone(),
        files: message.files.iter().map(file).collect::<Result<_, _>>()?,
        outputs: message.outputs.iter().map(output).collect::<Result<_, _>>()?,
        resources: resources("step.resources", message.resources.as_ref())?,
        timeout: Millis(message.timeout_ms),
        start_timeout: Millis(message.start_timeout_ms),
        grace: Millis(message.grace_ms),
        grader: message.grader.as_ref().map(grader).transpose()?,
    })
}

fn file(message: &v1::File) -> Result<ResolvedFile, WireError> {
    Ok(ResolvedFile {
        path: message.path.clone(),
        content: match required("step.files.content", message.content.as_ref())? {
            v1::file::Content::Text(text) => ResolvedContent::Text(text.clone()),
            v1::file::Content::BlobSha256(sha256) => ResolvedContent::Blob(sha256.clone()),
        },
        mode: message.mode,
    })
}

fn output(message: &v1::Output) -> Result<OutputDecl, WireError> {
    Ok(OutputDecl {
        name: parse("step.outputs.name", &message.name)?,
        source: match required("step.outputs.source", message.source.as_ref())? {
            v1::output::Source::Path(path) => OutputSource::Path(path.clone()),
            v1::output::Source::Command(text) => OutputSource::Command(text.clone()),
        },
        media_type: message.media_type.clone(),
        max_bytes: Bytes(message.max_bytes),
    })
}

fn grader(message: &v1::Grader) -> Result<GraderPlan, WireError> {
    Ok(GraderPlan {
        source: match required("step.grader.source", message.source.as_ref())? {
            v1::grader::Source::File(file) => {
                RewardSource::File { paths: file.paths.clone(), key: file.key.clone() }
            }
            v1::grader::Source::Exit(exit) => RewardSource::Exit(exit.rewards.clone()),
        },
        range: message.range.as_ref().map(|r| (r.low, r.high)),
        regrades: message.regrades,
        on_agent_timeout: match message.on_agent_timeout.as_str() {
            "grade" => OnAgentTimeout::Grade,
            "zero" => OnAgentTimeout::Zero,
            "invalid" => OnAgentTimeout::Invalid,
            other => return Err(wrong("step.grader.on_agent_timeout", format!("unknown value `{other}`"))),
        },
        on_timeout: match message.on_timeout.as_str() {
            "invalid" => OnGraderTimeout::Invalid,
            "zero" => OnGraderTimeout::Zero,
            other => return Err(wrong("step.grader.on_timeout", format!("unknown value `{other}`"))),
        },
    })
}

pub fn outcome(message: &v1::Outcome) -> Result<Outcome, WireError> {
    Ok(Outcome {
        failure: message.failure.as_ref().map(failure).transpose()?,
        exit_code: message.exit_code,
        signal: message.signal,
        oom: message.oom,
        timed_out: message.timed_out,
        stdout: captured(message.stdout.as_ref()),
        stderr: captured(message.stderr.as_ref()),
        artifacts: message.artifacts.iter().map(artifact).collect(),
        reward: message.reward.as_ref().map(reward).transpose()?,
        times: times(required("outcome.times", message.times.as_ref())?),
        usage: message.usage.as_ref().map(usage).unwrap_or_default(),
        image_digest: message.image_digest.clone(),
    })
}

pub fn failure(message: &v1::Failure) -> Result<Failure, WireError> {
    let domain = Domain::ALL.into_iter().find(|d| d.as_str() == message.domain);
    let domain =
        domain.ok_or_else(|| wrong("failure.domain", format!("unknown domain `{}`", message.domain)))?;
    Ok(Failure::caused_by(parse("failure.code", &message.code)?, domain, message.message.clone()))
}

fn captured(message: Option<&v1::Captured>) -> Captured {
    message.map_or_else(Captured::default, |m| Captured {
        sha256: m.sha256.clone(),
        stored: Bytes(m.stored_bytes),
        written: Bytes(m.written_bytes),
        truncated: m.truncated,
    })
}

fn artifact(message: &v1::Artifact) -> Artifact {
    Artifact {
        name: message.name.clone(),
        media_type: message.media_type.clone(),
        size: Bytes(message.size),
        sha256: message.sha256.clone(),
    }
}

fn reward(message: &v1::Reward) -> Result<Reward, WireError> {
    if !message.value.is_finite() {
        return Err(wrong("outcome.reward.value", format!("not finite: {}", message.value)));
    }
    let components = message.components.iter().map(|c| (c.name.clone(), c.value)).collect();
    Ok(Reward { value: message.value, components })
}

fn times(m: &v1::Times) -> Times {
    Times {
        taken_at: Timestamp(m.taken_at_us),
        started_at: m.started_at_us.map(Timestamp),
        ended_at: Timestamp(m.ended_at_us),
        boot: m.boot_ms.map(Millis),
        run: m.run_ms.map(Millis),
    }
}

fn usage(m: &v1::Usage) -> Usage {
    Usage {
        cpu: m.cpu_ms.map(Millis),
        memory_peak: m.memory_peak_bytes.map(Bytes),
        disk_peak: m.disk_peak_bytes.map(Bytes),
    }
}
