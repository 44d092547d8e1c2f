//! Domain types -> wire messages. Total: every domain value has a wire form.

use rollout::checkpoint::{Checkpoint, Layer};
use rollout::failure::Failure;
use rollout::outcome::{Artifact, Captured, Outcome, Parked, Reward, Times, Usage};
use rollout::plan::{
    GraderPlan, IdlePlan, OnAgentTimeout, OnGraderTimeout, OutputDecl, OutputSource, Per, ResolvedCommand,
    ResolvedContent, ResolvedFile, ResolvedStep, RewardSource, SessionPlan,
};
use rollout::{AttemptId, Resources};

use crate::v1;

pub fn attempt(id: AttemptId) -> v1::AttemptRef {
    v1::AttemptRef { rollout: id.rollout.to_string(), step: u32::from(id.step.0), attempt: id.attempt }
}

pub fn failure(failure: &Failure) -> v1::Failure {
    v1::Failure {
        code: failure.code.to_string(),
        domain: failure.domain.to_string(),
        message: failure.message.clone(),
        hint: failure.code.advice().unwrap_or_default().to_owned(),
    }
}

pub fn resources(resources: &Resources) -> v1::Resources {
    let Resources { request, limit } = resources;
    v1::Resources {
        request_cpu_milli: request.cpu.0,
        request_memory_bytes: request.memory.0,
        request_disk_bytes: request.disk.0,
        limit_cpu_milli: limit.cpu.0,
        limit_memory_bytes: limit.memory.0,
        limit_disk_bytes: limit.disk.0,
        limit_pids: limit.pids,
    }
}

pub fn step(step: &ResolvedStep) -> v1::Step {
    v1::Step {
        name: step.name.to_string(),
        kind: step.kind.as_str().to_owned(),
        command: step.work.command().map(|command| match command {
            ResolvedCommand::Shell(text) => v1::step::Command::Shell(text.clone()),
            ResolvedCommand::Argv(items) => v1::step::Command::Argv(v1::Argv { items: items.clone() }),
        }),
        image: step.image.clone(),
        layers: step.layers.clone(),
        user: step.user.clone(),
        workdir: step.workdir.clone(),
        env: step.env.clone(),
        files: step.files.iter().map(file).collect(),
        outputs: step.outputs.iter().map(output).collect(),
        resources: Some(resources(&step.resources)),
        timeout_ms: step.timeout.0,
        start_timeout_ms: step.start_timeout.0,
        grace_ms: step.grace.0,
        grader: step.grader.as_ref().map(grader),
        per: match step.per {
            Per::Rollout => "rollout",
            Per::Group => "group",
        }
        .to_owned(),
        checkpoint_after: step.checkpoint.after,
        checkpoint_every_ms: step.checkpoint.every.map(|every| every.0),
        health_check: step.health_check.as_ref().map(|check| v1::HealthCheck {
            command: check.command.clone(),
            interval_ms: check.interval.0,
            timeout_ms: check.timeout.0,
            start_period_ms: check.start_period.0,
            start_interval_ms: check.start_interval.0,
            retries: check.retries,
        }),
        session: step.work.session().map(session),
        idle: step.idle.as_ref().map(idle),
        best_effort: step.best_effort,
        backend: step.backend.as_str().to_owned(),
    }
}

fn session(session: &SessionPlan) -> v1::SessionStep {
    v1::SessionStep {
        idle_timeout_ms: session.idle_timeout.0,
        max_actions: session.max_actions,
        takes_reward: session.takes_reward,
        unclaimed: session.unclaimed,
    }
}

fn idle(idle: &IdlePlan) -> v1::Idle {
    v1::Idle { park_after_ms: idle.park_after.0, mode: idle.mode.as_str().to_owned() }
}

pub fn checkpoint(checkpoint: &Checkpoint) -> v1::Checkpoint {
    let layer = |layer: &Layer| v1::Layer {
        id: layer.id.to_string(),
        blob_sha256: layer.blob.clone(),
        packed_bytes: layer.packed.0,
        content_bytes: layer.content.0,
        entries: layer.entries,
    };
    v1::Checkpoint { image: checkpoint.image.clone(), layers: checkpoint.layers.iter().map(layer).collect() }
}

fn file(file: &ResolvedFile) -> v1::File {
    v1::File {
        path: file.path.clone(),
        content: Some(match &file.content {
            ResolvedContent::Text(text) => v1::file::Content::Text(text.clone()),
            ResolvedContent::Blob(sha256) => v1::file::Content::BlobSha256(sha256.clone()),
        }),
        mode: file.mode,
    }
}

fn output(output: &OutputDecl) -> v1::Output {
    v1::Output {
        name: output.name.to_string(),
        source: Some(match &output.source {
            OutputSource::Path(path) => v1::output::Source::Path(path.clone()),
            OutputSource::Command(text) => v1::output::Source::Command(text.clone()),
            OutputSource::Paths(items) => v1::output::Source::Paths(v1::Paths { items: items.clone() }),
        }),
        media_type: output.media_type.clone(),
        max_bytes: output.max_bytes.0,
    }
}

fn grader(grader: &GraderPlan) -> v1::Grader {
    v1::Grader {
        source: Some(match &grader.source {
            RewardSource::File { paths, key } => {
                v1::grader::Source::File(v1::RewardFile { paths: paths.clone(), key: key.clone() })
            }
            RewardSource::Exit(rewards) => {
                v1::grader::Source::Exit(v1::RewardExit { rewards: rewards.clone() })
            }
        }),
        range: grader.range.map(|(low, high)| v1::Range { low, high }),
        regrades: grader.regrades,
        on_agent_timeout: match grader.on_agent_timeout {
            OnAgentTimeout::Grade => "grade",
            OnAgentTimeout::Zero => "zero",
            OnAgentTimeout::Invalid => "invalid",
        }
        .to_owned(),
        on_timeout: match grader.on_timeout {
            OnGraderTimeout::Invalid => "invalid",
            OnGraderTimeout::Zero => "zero",
        }
        .to_owned(),
    }
}

pub fn outcome(outcome: &Outcome) -> v1::Outcome {
    v1::Outcome {
        failure: outcome.failure.as_ref().map(failure),
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        oom: outcome.oom,
        timed_out: outcome.timed_out,
        silent: outcome.silent,
        stdout: Some(captured(&outcome.stdout)),
        stderr: Some(captured(&outcome.stderr)),
        artifacts: outcome.artifacts.iter().map(artifact).collect(),
        reward: outcome.reward.as_ref().map(reward),
        times: Some(times(&outcome.times)),
        usage: Some(usage(&outcome.usage)),
        image_digest: outcome.image_digest.clone(),
        checkpoint: outcome.checkpoint.as_ref().map(checkpoint),
        actions: outcome.actions,
        parked: outcome.parked.as_deref().map(parked),
    }
}

fn captured(captured: &Captured) -> v1::Captured {
    v1::Captured {
        sha256: captured.sha256.clone(),
        stored_bytes: captured.stored.0,
        written_bytes: captured.written.0,
        truncated: captured.truncated,
    }
}

fn artifact(artifact: &Artifact) -> v1::Artifact {
    v1::Artifact {
        name: artifact.name.clone(),
        media_type: artifact.media_type.clone(),
        size: artifact.size.0,
        sha256: artifact.sha256.clone(),
    }
}

pub fn reward(reward: &Reward) -> v1::Reward {
    let component = |(name, value): &(String, f64)| v1::Component { name: name.clone(), value: *value };
    v1::Reward { value: reward.value, components: reward.components.iter().map(component).collect() }
}

fn times(times: &Times) -> v1::Times {
    v1::Times {
        taken_at_us: times.taken_at.0,
        started_at_us: times.started_at.map(|t| t.0),
        ended_at_us: times.ended_at.0,
        boot_ms: times.boot.map(|m| m.0),
        run_ms: times.run.map(|m| m.0),
        checkpoint_ms: times.checkpoint.map(|m| m.0),
    }
}

fn usage(usage: &Usage) -> v1::Usage {
    v1::Usage {
        cpu_ms: usage.cpu.map(|m| m.0),
        memory_peak_bytes: usage.memory_peak.map(|b| b.0),
        memory_held_peak_bytes: usage.memory_held_peak.map(|b| b.0),
        disk_peak_bytes: usage.disk_peak.map(|b| b.0),
    }
}

pub fn parked(parked: &Parked) -> v1::Parked {
    let log = parked.log.as_ref();
    let claim = parked.claim.as_ref();
    v1::Parked {
        log: log.map(|log| v1::StoredLog { sha256: log.sha256.clone(), size: log.size.0 }),
        claim: claim.map(|claim| v1::ParkedClaim {
            driver: claim.driver.clone(),
            token: claim.token.clone(),
            ttl_ms: claim.ttl.0,
        }),
        ran_ms: parked.ran.0,
        time_left_ms: parked.time_left.0,
        idle_left_ms: parked.idle_left.0,
        version: parked.version,
    }
}
