//! Reading a column as the type it must hold. A row that contradicts the types is its own error,
//! naming table, column and row.

use std::fmt::Display;
use std::str::FromStr;

use prost::Message;
use rollout::checkpoint::{Checkpoint, CheckpointId};
use rollout::failure::{Domain, Failure};
use rollout::outcome::{Outcome, Reward};
use rollout::{AttemptId, GroupId, JobId, RolloutId, StepIndex};
use rollout_wire::{from_wire, v1};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::error::Error;

pub(super) fn wrong(
    table: &'static str,
    column: &'static str,
    row: &impl Display,
    problem: impl Display,
) -> Error {
    Error::Row { table, column, row: row.to_string(), problem: problem.to_string() }
}

pub(super) fn text<'r>(
    row: &'r SqliteRow,
    table: &'static str,
    column: &'static str,
    at: &impl Display,
) -> Result<&'r str, Error> {
    row.try_get(column).map_err(|e| wrong(table, column, at, e))
}

pub(super) fn optional_text(
    row: &SqliteRow,
    table: &'static str,
    column: &'static str,
    at: &impl Display,
) -> Result<Option<String>, Error> {
    row.try_get(column).map_err(|e| wrong(table, column, at, e))
}

pub(super) fn signed(
    row: &SqliteRow,
    table: &'static str,
    column: &'static str,
    at: &impl Display,
) -> Result<i64, Error> {
    row.try_get(column).map_err(|e| wrong(table, column, at, e))
}

pub(super) fn optional_signed(
    row: &SqliteRow,
    table: &'static str,
    column: &'static str,
    at: &impl Display,
) -> Result<Option<i64>, Error> {
    row.try_get(column).map_err(|e| wrong(table, column, at, e))
}

pub(super) fn unsigned<T: TryFrom<i64, Error: Display>>(
    row: &SqliteRow,
    table: &'static str,
    column: &'static str,
    at: &impl Display,
) -> Result<T, Error> {
    T::try_from(signed(row, table, column, at)?).map_err(|e| wrong(table, column, at, e))
}

pub(super) fn parsed<T: FromStr<Err: Display>>(
    row: &SqliteRow,
    table: &'static str,
    column: &'static str,
    at: &impl Display,
) -> Result<T, Error> {
    text(row, table, column, at)?.parse().map_err(|e| wrong(table, column, at, e))
}

/// One of the words of an enum, by its `as_str`.
pub(super) fn word<T: Copy>(
    table: &'static str,
    column: &'static str,
    at: &impl Display,
    text: &str,
    all: &[T],
    as_str: impl Fn(T) -> &'static str,
) -> Result<T, Error> {
    let found = all.iter().copied().find(|&value| as_str(value) == text);
    found.ok_or_else(|| wrong(table, column, at, format!("unknown value `{text}`")))
}

pub(super) fn group(row: &SqliteRow, table: &'static str, job: JobId) -> Result<GroupId, Error> {
    Ok(GroupId { job, index: unsigned(row, table, "group_index", &job)? })
}

pub(super) fn rollout(row: &SqliteRow, table: &'static str, group: GroupId) -> Result<RolloutId, Error> {
    Ok(RolloutId {
        group,
        sample: unsigned(row, table, "sample", &group)?,
        refill: unsigned(row, table, "refill", &group)?,
    })
}

pub(super) fn attempt(row: &SqliteRow, rollout: RolloutId) -> Result<AttemptId, Error> {
    attempt_in(row, "attempts", rollout)
}

pub(super) fn attempt_in(
    row: &SqliteRow,
    table: &'static str,
    rollout: RolloutId,
) -> Result<AttemptId, Error> {
    Ok(AttemptId {
        rollout,
        step: StepIndex(unsigned(row, table, "step", &rollout)?),
        attempt: unsigned(row, table, "attempt", &rollout)?,
    })
}

/// The checkpoint an attempt started with.
pub(super) fn base(row: &SqliteRow, at: &AttemptId) -> Result<Option<CheckpointId>, Error> {
    let text = optional_text(row, "attempts", "base", at)?;
    text.map(|base| base.parse().map_err(|e| wrong("attempts", "base", at, e))).transpose()
}

pub(super) fn checkpoint(
    row: &SqliteRow,
    table: &'static str,
    at: &impl Display,
) -> Result<Checkpoint, Error> {
    let bytes: &[u8] = row.try_get("checkpoint").map_err(|e| wrong(table, "checkpoint", at, e))?;
    let message = v1::Checkpoint::decode(bytes).map_err(|e| wrong(table, "checkpoint", at, e))?;
    from_wire::checkpoint("checkpoint", &message).map_err(|e| wrong(table, "checkpoint", at, e))
}

pub(super) fn outcome(row: &SqliteRow, at: &impl Display) -> Result<Option<Box<Outcome>>, Error> {
    let bytes: Option<&[u8]> = row.try_get("outcome").map_err(|e| wrong("attempts", "outcome", at, e))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let message = v1::Outcome::decode(bytes).map_err(|e| wrong("attempts", "outcome", at, e))?;
    let outcome = from_wire::outcome(&message).map_err(|e| wrong("attempts", "outcome", at, e))?;
    Ok(Some(Box::new(outcome)))
}

pub(super) fn reward(row: &SqliteRow, at: &impl Display) -> Result<Option<Reward>, Error> {
    let bytes: Option<&[u8]> = row.try_get("reward").map_err(|e| wrong("rollouts", "reward", at, e))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let message = v1::Reward::decode(bytes).map_err(|e| wrong("rollouts", "reward", at, e))?;
    if !message.value.is_finite() {
        return Err(wrong("rollouts", "reward", at, format!("not finite: {}", message.value)));
    }
    let components = message.components.into_iter().map(|c| (c.name, c.value)).collect();
    Ok(Some(Reward { value: message.value, components }))
}

pub(super) fn sums(row: &SqliteRow, at: &impl Display) -> Result<Option<Box<v1::Job>>, Error> {
    let bytes: Option<Vec<u8>> = row.try_get("sums").map_err(|e| wrong("jobs", "sums", at, e))?;
    let read = bytes.map(|bytes| v1::Job::decode(bytes.as_slice())).transpose();
    Ok(read.map_err(|e| wrong("jobs", "sums", at, e))?.map(Box::new))
}

pub(super) fn failure(row: &SqliteRow, at: &impl Display) -> Result<Option<Failure>, Error> {
    let Some(code) = optional_text(row, "rollouts", "failure_code", at)? else { return Ok(None) };
    let code = code.parse().map_err(|e| wrong("rollouts", "failure_code", at, e))?;
    let domain = text(row, "rollouts", "failure_domain", at)?;
    let domain = word("rollouts", "failure_domain", at, domain, &Domain::ALL, Domain::as_str)?;
    let message = text(row, "rollouts", "failure_message", at)?;
    Ok(Some(Failure::caused_by(code, domain, message)))
}
