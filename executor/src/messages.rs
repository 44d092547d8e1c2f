//! Wire messages to and from the words of [`lifecycle`](crate::lifecycle).

use rollout::failure::FailureCode;
use rollout::{AttemptId, Bytes, Generation};
use rollout_wire::from_wire::{self, WireError};
use rollout_wire::{to_wire, v1};

use crate::lifecycle::{At, HeldPhase, Input, Kill, Order, Refusal, RefusalClass, Report};

/// A command of the scheduler that reaches the agent.
#[derive(Debug)]
pub(crate) enum Command {
    Start(Box<Order>),
    /// A start that cannot be read, of an attempt that can be named.
    BadStart {
        at: At,
        problem: WireError,
    },
    Kill {
        at: At,
        kill: Kill,
    },
    Release(At),
    Acknowledge(At),
    ReadLog(LogRequest),
    /// Say what digest this image has here.
    Identify(String),
}

/// Reads captured output of an attempt that is still held.
#[derive(Debug, Clone)]
pub(crate) struct LogRequest {
    pub request: u64,
    pub attempt: AttemptId,
    pub stream: String,
    pub offset: u64,
    pub bytes_max: u32,
}

fn at(attempt: Option<&v1::AttemptRef>, generation: u64) -> Result<At, WireError> {
    Ok(At { attempt: from_wire::attempt("attempt", attempt)?, generation: Generation(generation) })
}

pub(crate) fn start(message: &v1::StartAttempt) -> Result<Command, WireError> {
    let at = at(message.attempt.as_ref(), message.generation)?;
    Ok(match order(at, message) {
        Ok(order) => Command::Start(Box::new(order)),
        Err(problem) => Command::BadStart { at, problem },
    })
}

/// As it came.
pub(crate) fn to_start(order: &Order) -> v1::StartAttempt {
    let input = |input: &Input| v1::Input {
        path: input.path.clone(),
        tree: input.tree,
        sha256: input.sha256.clone(),
        size: input.size.0,
    };
    v1::StartAttempt {
        attempt: Some(to_wire::attempt(order.attempt)),
        generation: order.generation.0,
        step: Some(to_wire::step(&order.step)),
        continue_from: order.continue_from.map(to_wire::attempt),
        keep: order.keep,
        inputs: order.inputs.iter().map(input).collect(),
        base: order.base.as_ref().map(to_wire::checkpoint),
        parked: order.parked.as_ref().map(to_wire::parked),
    }
}

fn order(at: At, message: &v1::StartAttempt) -> Result<Order, WireError> {
    let step = from_wire::step(&from_wire::required("step", message.step.clone())?)?;
    let from = message.continue_from.as_ref();
    let input = |input: &v1::Input| Input {
        path: input.path.clone(),
        tree: input.tree,
        sha256: input.sha256.clone(),
        size: Bytes(input.size),
    };
    Ok(Order {
        attempt: at.attempt,
        generation: at.generation,
        step,
        continue_from: from.map(|from| from_wire::attempt("continue_from", Some(from))).transpose()?,
        keep: message.keep,
        inputs: message.inputs.iter().map(input).collect(),
        base: message.base.as_ref().map(|base| from_wire::checkpoint("base", base)).transpose()?,
        parked: message.parked.as_ref().map(|parked| from_wire::parked("parked", parked)).transpose()?,
    })
}

/// A kill kills, whatever its code: one this version does not know is `cancelled` and quoted.
pub(crate) fn kill(message: &v1::KillAttempt) -> Result<Command, WireError> {
    let (code, reason) = match message.code.parse::<FailureCode>() {
        Ok(code) => (code, message.reason.clone()),
        Err(unknown) => (FailureCode::Cancelled, format!("{} ({unknown})", message.reason)),
    };
    let at = at(message.attempt.as_ref(), message.generation)?;
    Ok(Command::Kill { at, kill: Kill { code, reason, should_store: true } })
}

pub(crate) fn release(message: &v1::ReleaseSandbox) -> Result<Command, WireError> {
    Ok(Command::Release(at(message.attempt.as_ref(), message.generation)?))
}

pub(crate) fn acknowledge(message: &v1::EndedAck) -> Result<Command, WireError> {
    Ok(Command::Acknowledge(at(message.attempt.as_ref(), message.generation)?))
}

pub(crate) fn read_log(message: v1::ReadLog) -> Result<Command, WireError> {
    Ok(Command::ReadLog(LogRequest {
        request: message.request,
        attempt: from_wire::attempt("attempt", message.attempt.as_ref())?,
        stream: message.stream,
        offset: message.offset,
        bytes_max: message.bytes_max,
    }))
}

pub(crate) fn identify(message: v1::IdentifyImage) -> Result<Command, WireError> {
    from_wire::bounded("image", &message.image, rollout::spec::PATH_BYTES_MAX)?;
    Ok(Command::Identify(message.image))
}

pub(crate) fn identified(image: String, digest: Option<String>) -> v1::Report {
    v1::Report { kind: Some(v1::report::Kind::Identified(v1::ImageIdentified { image, digest })) }
}

pub(crate) fn report(report: Report) -> v1::Report {
    use v1::report::Kind;
    let kind = match report {
        Report::Started { at, started_at } => Kind::Started(v1::AttemptStarted {
            attempt: Some(to_wire::attempt(at.attempt)),
            generation: at.generation.0,
            started_at_us: started_at.0,
        }),
        Report::Ended { at, outcome, kept } => Kind::Ended(v1::AttemptEnded {
            attempt: Some(to_wire::attempt(at.attempt)),
            generation: at.generation.0,
            outcome: Some(to_wire::outcome(&outcome)),
            kept,
        }),
        Report::Refused { at, refusal: Refusal { class, message } } => Kind::Refused(v1::AttemptRefused {
            attempt: Some(to_wire::attempt(at.attempt)),
            generation: at.generation.0,
            class: match class {
                RefusalClass::Busy => v1::attempt_refused::Class::Busy,
                RefusalClass::NeverFits => v1::attempt_refused::Class::NeverFits,
                RefusalClass::Unhealthy => v1::attempt_refused::Class::Unhealthy,
                RefusalClass::SandboxGone => v1::attempt_refused::Class::SandboxGone,
                RefusalClass::CheckpointBad => v1::attempt_refused::Class::CheckpointBad,
            }
            .into(),
            message,
        }),
        Report::Checkpoint { at, checkpoint } => Kind::Checkpoint(v1::CheckpointTaken {
            attempt: Some(to_wire::attempt(at.attempt)),
            generation: at.generation.0,
            checkpoint: Some(to_wire::checkpoint(&checkpoint)),
        }),
    };
    v1::Report { kind: Some(kind) }
}

pub(crate) fn held(at: At, phase: HeldPhase) -> v1::HeldAttempt {
    let phase = match phase {
        HeldPhase::Running => v1::held_attempt::Phase::Running,
        HeldPhase::Ended => v1::held_attempt::Phase::Ended,
        HeldPhase::Kept => v1::held_attempt::Phase::Kept,
    };
    v1::HeldAttempt {
        attempt: Some(to_wire::attempt(at.attempt)),
        generation: at.generation.0,
        phase: phase.into(),
    }
}

pub(crate) fn log_data(request: u64, data: Vec<u8>, gone: bool) -> v1::Report {
    v1::Report { kind: Some(v1::report::Kind::LogData(v1::LogData { request, data, gone })) }
}
