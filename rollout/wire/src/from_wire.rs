//! Wire messages -> domain types. Every refusal names the field by its path.

use std::fmt::Display;
use std::str::FromStr;

use rollout::checkpoint::{Checkpoint, LAYERS_MAX, Layer};
use rollout::failure::{Domain, Failure};
use rollout::outcome::{Artifact, Captured, Outcome, Parked, ParkedClaim, Reward, StoredLog, Times, Usage};
use rollout::plan::{
    GraderPlan, HealthCheck, IdleMode, IdlePlan, OUTPUT_PATHS_MAX, OnAgentTimeout, OnGraderTimeout,
    OutputDecl, OutputSource, Per, ResolvedCheckpoint, ResolvedCommand, ResolvedContent, ResolvedFile,
    ResolvedStep, ResolvedWork, RewardSource, STEPS_MAX, SessionPlan, StepKind,
};
use rollout::quantity::{Limit, Request};
use rollout::reward::REWARD_FILE_BYTES_MAX;
use rollout::spec::ARTIFACTS_MAX;
use rollout::text::shown;
use rollout::{AttemptId, BackendKind, Bytes, MilliCpu, Millis, Resources, StepIndex, Timestamp};

use crate::v1;

/// Components of one reward: more than a reward file of the largest size holds.
pub const COMPONENTS_MAX: usize = 32_768;
/// Bytes of a media type and of an image digest.
pub const TEXT_BYTES_MAX: usize = 1024;
/// The largest count of bytes or milliseconds: a row adds several, and its columns are signed.
const AMOUNT_MAX: u64 = 1 << 56;
/// Characters of a problem.
const PROBLEM_CHARS_MAX: usize = 400;
/// The end of the year 9999, in microseconds: readers of the tables know no later one.
const TIMESTAMP_MAX: i64 = 253_402_300_799_999_999;
const SHA256_HEX_LEN: usize = 64;
/// The last real-time signal.
const SIGNAL_MAX: i32 = 64;

/// A message that cannot be what it claims to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}`: {problem}")]
pub struct WireError {
    pub field: String,
    pub problem: String,
}

/// The problem may repeat what a peer wrote, and goes to logs and terminals.
fn wrong(field: &str, problem: impl Display) -> WireError {
    WireError { field: field.to_owned(), problem: shown(&problem.to_string(), PROBLEM_CHARS_MAX) }
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
    let kind = match message.kind.as_str() {
        "run" => StepKind::Run,
        "agent" => StepKind::Agent,
        "grader" => StepKind::Grader,
        "session" => StepKind::Session,
        other => return Err(wrong("step.kind", format!("unknown kind `{other}`"))),
    };
    Ok(ResolvedStep {
        name: parse("step.name", &message.name)?,
        kind,
        work: work(kind, message)?,
        // A peer that knows only containers says nothing.
        backend: match message.backend.as_str() {
            "" => BackendKind::Container,
            kind => parse("step.backend", kind)?,
        },
        image: message.image.clone(),
        layers: message.layers.clone(),
        user: message.user.clone(),
        workdir: message.workdir.clone(),
        env: message.env.clone(),
        files: message.files.iter().map(file).collect::<Result<_, _>>()?,
        outputs: message.outputs.iter().map(output).collect::<Result<_, _>>()?,
        resources: resources("step.resources", message.resources.as_ref())?,
        timeout: Millis(message.timeout_ms),
        start_timeout: Millis(message.start_timeout_ms),
        grace: Millis(message.grace_ms),
        health_check: message.health_check.as_ref().map(|check| HealthCheck {
            command: check.command.clone(),
            interval: Millis(check.interval_ms),
            timeout: Millis(check.timeout_ms),
            start_period: Millis(check.start_period_ms),
            start_interval: Millis(check.start_interval_ms),
            retries: check.retries,
        }),
        idle: message.idle.as_ref().map(idle).transpose()?,
        best_effort: message.best_effort,
        grader: message.grader.as_ref().map(grader).transpose()?,
        per: match message.per.as_str() {
            "rollout" => Per::Rollout,
            "group" => Per::Group,
            other => return Err(wrong("step.per", format!("unknown value `{}`", shown(other, 40)))),
        },
        checkpoint: ResolvedCheckpoint {
            after: message.checkpoint_after,
            every: message.checkpoint_every_ms.map(Millis),
        },
    })
}

/// A session and nothing else has a session to serve, and no command.
fn work(kind: StepKind, message: &v1::Step) -> Result<ResolvedWork, WireError> {
    match (kind, &message.session, &message.command) {
        (StepKind::Session, Some(session), None) => Ok(ResolvedWork::Session(SessionPlan {
            idle_timeout: Millis(session.idle_timeout_ms),
            max_actions: session.max_actions,
            takes_reward: session.takes_reward,
            unclaimed: session.unclaimed,
        })),
        (StepKind::Session, None, _) => Err(wrong("step.session", "missing")),
        (StepKind::Session, Some(_), Some(_)) => Err(wrong("step.command", "a session runs none")),
        (_, Some(_), _) => Err(wrong("step.session", format!("the kind is `{}`", kind.as_str()))),
        (_, None, command) => Ok(ResolvedWork::Command(match required("step.command", command.as_ref())? {
            v1::step::Command::Shell(text) => ResolvedCommand::Shell(text.clone()),
            v1::step::Command::Argv(argv) => ResolvedCommand::Argv(argv.items.clone()),
        })),
    }
}

fn idle(message: &v1::Idle) -> Result<IdlePlan, WireError> {
    let mode = match message.mode.as_str() {
        "freeze" => IdleMode::Freeze,
        "checkpoint" => IdleMode::Checkpoint,
        other => return Err(wrong("step.idle.mode", format!("unknown mode `{}`", shown(other, 40)))),
    };
    Ok(IdlePlan { park_after: Millis(message.park_after_ms), mode })
}

/// A stack of layers: bounded, with an id and a blob each.
pub fn checkpoint(field: &str, message: &v1::Checkpoint) -> Result<Checkpoint, WireError> {
    bounded(&format!("{field}.image"), &message.image, TEXT_BYTES_MAX)?;
    if message.layers.len() > LAYERS_MAX {
        let problem = format!("{} layers, at most {LAYERS_MAX}", message.layers.len());
        return Err(wrong(&format!("{field}.layers"), problem));
    }
    let layer = |layer: &v1::Layer| {
        let field = |name: &str| format!("{field}.layers.{name}");
        Ok(Layer {
            id: parse(&field("id"), &layer.id)?,
            blob: sha256(&field("blob_sha256"), &layer.blob_sha256)?,
            packed: Bytes(amount(&field("packed_bytes"), layer.packed_bytes)?),
            content: Bytes(amount(&field("content_bytes"), layer.content_bytes)?),
            entries: amount(&field("entries"), layer.entries)?,
        })
    };
    let layers = message.layers.iter().map(layer).collect::<Result<_, _>>()?;
    Ok(Checkpoint { image: message.image.clone(), layers })
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
            v1::output::Source::Paths(paths) if paths.items.len() > OUTPUT_PATHS_MAX => {
                let problem = format!("{} paths, at most {OUTPUT_PATHS_MAX}", paths.items.len());
                return Err(wrong("step.outputs.paths", problem));
            }
            v1::output::Source::Paths(paths) => OutputSource::Paths(paths.items.clone()),
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

/// Only what can be a row: a value no column takes would keep its whole group out of the tables.
pub fn outcome(message: &v1::Outcome) -> Result<Outcome, WireError> {
    if message.artifacts.len() > ARTIFACTS_MAX {
        let problem = format!("{} artifacts, at most {ARTIFACTS_MAX}", message.artifacts.len());
        return Err(wrong("outcome.artifacts", problem));
    }
    if message.signal.is_some_and(|signal| !(1..=SIGNAL_MAX).contains(&signal)) {
        return Err(wrong("outcome.signal", "not a signal"));
    }
    bounded("outcome.image_digest", &message.image_digest, TEXT_BYTES_MAX)?;
    Ok(Outcome {
        failure: message.failure.as_ref().map(failure).transpose()?,
        exit_code: message.exit_code,
        signal: message.signal,
        oom: message.oom,
        timed_out: message.timed_out,
        silent: message.silent,
        stdout: captured("outcome.stdout", message.stdout.as_ref())?,
        stderr: captured("outcome.stderr", message.stderr.as_ref())?,
        artifacts: message.artifacts.iter().map(artifact).collect::<Result<_, _>>()?,
        reward: message.reward.as_ref().map(reward).transpose()?,
        times: times(required("outcome.times", message.times.as_ref())?)?,
        usage: message.usage.as_ref().map(usage).transpose()?.unwrap_or_default(),
        image_digest: message.image_digest.clone(),
        checkpoint: message.checkpoint.as_ref().map(|c| checkpoint("outcome.checkpoint", c)).transpose()?,
        actions: message.actions.map(|actions| amount("outcome.actions", actions)).transpose()?,
        parked: message.parked.as_ref().map(|m| parked("outcome.parked", m)).transpose()?.map(Box::new),
    })
}

/// # Errors
/// A digest that is none, a text or an amount above its bound.
pub fn parked(field: &str, message: &v1::Parked) -> Result<Parked, WireError> {
    let field = |name: &str| format!("{field}.{name}");
    let ms = |name: &str, value| amount(&field(name), value).map(Millis);
    let log = message.log.as_ref().map(|log| {
        let size = Bytes(amount(&field("log.size"), log.size)?);
        Ok::<_, WireError>(StoredLog { sha256: sha256(&field("log.sha256"), &log.sha256)?, size })
    });
    let claim = message.claim.as_ref().map(|claim| {
        bounded(&field("claim.driver"), &claim.driver, TEXT_BYTES_MAX)?;
        bounded(&field("claim.token"), &claim.token, TEXT_BYTES_MAX)?;
        let ttl = ms("claim.ttl_ms", claim.ttl_ms)?;
        Ok::<_, WireError>(ParkedClaim { driver: claim.driver.clone(), token: claim.token.clone(), ttl })
    });
    Ok(Parked {
        log: log.transpose()?,
        claim: claim.transpose()?,
        ran: ms("ran_ms", message.ran_ms)?,
        time_left: ms("time_left_ms", message.time_left_ms)?,
        idle_left: ms("idle_left_ms", message.idle_left_ms)?,
        version: message.version,
    })
}

/// # Errors
/// The text is longer.
pub fn bounded(field: &str, text: &str, bytes_max: usize) -> Result<(), WireError> {
    if text.len() > bytes_max {
        return Err(wrong(field, format!("{} bytes, at most {bytes_max}", text.len())));
    }
    Ok(())
}

/// A count or a length that a signed column holds.
fn amount(field: &str, value: u64) -> Result<u64, WireError> {
    if value > AMOUNT_MAX {
        return Err(wrong(field, format!("{value} is above {AMOUNT_MAX}")));
    }
    Ok(value)
}

fn sha256(field: &str, text: &str) -> Result<String, WireError> {
    let is_hex = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if text.len() != SHA256_HEX_LEN || !is_hex {
        return Err(wrong(field, format!("`{}` is not a sha256", shown(text, 80))));
    }
    Ok(text.to_owned())
}

pub fn failure(message: &v1::Failure) -> Result<Failure, WireError> {
    let domain = Domain::ALL.into_iter().find(|d| d.as_str() == message.domain);
    let domain =
        domain.ok_or_else(|| wrong("failure.domain", format!("unknown domain `{}`", message.domain)))?;
    Ok(Failure::caused_by(parse("failure.code", &message.code)?, domain, message.message.clone()))
}

fn captured(field: &str, message: Option<&v1::Captured>) -> Result<Captured, WireError> {
    let Some(m) = message else { return Ok(Captured::default()) };
    let field = |name: &str| format!("{field}.{name}");
    Ok(Captured {
        sha256: m.sha256.as_ref().map(|text| sha256(&field("sha256"), text)).transpose()?,
        stored: Bytes(amount(&field("stored_bytes"), m.stored_bytes)?),
        written: Bytes(amount(&field("written_bytes"), m.written_bytes)?),
        truncated: m.truncated,
    })
}

fn artifact(message: &v1::Artifact) -> Result<Artifact, WireError> {
    let name: rollout::Name = parse("outcome.artifacts.name", &message.name)?;
    bounded("outcome.artifacts.media_type", &message.media_type, TEXT_BYTES_MAX)?;
    Ok(Artifact {
        name: name.to_string(),
        media_type: message.media_type.clone(),
        size: Bytes(amount("outcome.artifacts.size", message.size)?),
        sha256: sha256("outcome.artifacts.sha256", &message.sha256)?,
    })
}

fn reward(message: &v1::Reward) -> Result<Reward, WireError> {
    if !message.value.is_finite() {
        return Err(wrong("outcome.reward.value", format!("not finite: {}", message.value)));
    }
    if message.components.len() > COMPONENTS_MAX {
        let problem = format!("{} components, at most {COMPONENTS_MAX}", message.components.len());
        return Err(wrong("outcome.reward.components", problem));
    }
    if let Some(component) = message.components.iter().find(|component| !component.value.is_finite()) {
        let problem = format!("not finite: {}", component.value);
        return Err(wrong("outcome.reward.components.value", problem));
    }
    let bytes: usize = message.components.iter().map(|component| component.name.len()).sum();
    if bytes as u64 > REWARD_FILE_BYTES_MAX {
        let problem = format!("{bytes} bytes of names, at most {REWARD_FILE_BYTES_MAX}");
        return Err(wrong("outcome.reward.components.name", problem));
    }
    let components = message.components.iter().map(|c| (c.name.clone(), c.value)).collect();
    Ok(Reward { value: message.value, components })
}

/// A point in time that a column and its readers can hold.
pub fn timestamp(field: &str, at_us: i64) -> Result<Timestamp, WireError> {
    match at_us {
        0..=TIMESTAMP_MAX => Ok(Timestamp(at_us)),
        _ => Err(wrong(field, format!("{at_us} us is not between 1970 and 9999"))),
    }
}

fn times(m: &v1::Times) -> Result<Times, WireError> {
    let ms = |field: &str, ms: Option<u64>| ms.map(|ms| amount(field, ms).map(Millis)).transpose();
    Ok(Times {
        taken_at: timestamp("outcome.times.taken_at_us", m.taken_at_us)?,
        started_at: m.started_at_us.map(|us| timestamp("outcome.times.started_at_us", us)).transpose()?,
        ended_at: timestamp("outcome.times.ended_at_us", m.ended_at_us)?,
        boot: ms("outcome.times.boot_ms", m.boot_ms)?,
        run: ms("outcome.times.run_ms", m.run_ms)?,
        checkpoint: ms("outcome.times.checkpoint_ms", m.checkpoint_ms)?,
    })
}

fn usage(m: &v1::Usage) -> Result<Usage, WireError> {
    let some = |field: &str, value: Option<u64>| value.map(|value| amount(field, value)).transpose();
    Ok(Usage {
        cpu: some("outcome.usage.cpu_ms", m.cpu_ms)?.map(Millis),
        memory_peak: some("outcome.usage.memory_peak_bytes", m.memory_peak_bytes)?.map(Bytes),
        memory_held_peak: some("outcome.usage.memory_held_peak_bytes", m.memory_held_peak_bytes)?.map(Bytes),
        disk_peak: some("outcome.usage.disk_peak_bytes", m.disk_peak_bytes)?.map(Bytes),
    })
}
