//! The one writer: a transaction per batch, and what to do when a commit fails.
//!
//! ```text
//! definite failure  -> nothing was written: the same batch again, later
//! unknown outcome   -> reconnect, read (epoch, seq): written -> go on, not written -> again
//! epoch lost        -> step down
//! ```

use std::fmt;
use std::sync::Arc;

use rollout::Timestamp;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, Sqlite, Transaction};

use super::fold::{Batch, Sheet, Writes};
use super::{failed, row, statement};
use crate::error::Error;

/// Where a test may make a commit fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitPoint {
    /// Before the commit: a definite failure.
    Before,
    /// The commit is lost on its way: unknown outcome, nothing written.
    Lost,
    /// The answer to the commit is lost: unknown outcome, written.
    Answer,
}

/// The fault a [`CommitHook`] injects.
#[derive(Debug, Clone, Copy)]
pub struct InjectedFault;

/// Called at each [`CommitPoint`] of each commit; for fault tests.
#[derive(Clone)]
pub struct CommitHook(pub Arc<dyn Fn(CommitPoint, u64) -> Option<InjectedFault> + Send + Sync>);

impl fmt::Debug for CommitHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommitHook")
    }
}

#[derive(Debug)]
pub enum CommitError {
    /// Nothing of the batch is stored; it may be tried again.
    Definite(Error),
    /// The batch may be stored or not: [`Writer::settle`] finds out.
    Unknown(Error),
    /// Trying again cannot help.
    Fatal(Error),
}

#[derive(Debug)]
pub struct Writer {
    options: SqliteConnectOptions,
    connection: Option<SqliteConnection>,
    epoch: u64,
    /// Of the last commit that is known to be stored.
    seq: u64,
    hook: Option<CommitHook>,
}

impl Writer {
    pub(super) fn new(
        options: SqliteConnectOptions,
        connection: SqliteConnection,
        epoch: u64,
        seq: u64,
        hook: Option<CommitHook>,
    ) -> Self {
        Self { options, connection: Some(connection), epoch, seq, hook }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn seq(&self) -> u64 {
        self.seq
    }

    pub(super) async fn connection(&mut self) -> Result<&mut SqliteConnection, Error> {
        if self.connection.is_none() {
            let opened = SqliteConnection::connect_with(&self.options).await;
            self.connection = Some(opened.map_err(failed("reopening the database"))?);
        }
        self.connection.as_mut().ok_or_else(|| Error::StoreDiverged { problem: "no connection".to_owned() })
    }

    /// Writes the batch in one transaction, as commit `seq + 1` of this epoch.
    pub async fn commit(&mut self, batch: &Batch, now: Timestamp) -> Result<(), CommitError> {
        let seq = self.seq + 1;
        let writes = Writes::fold(batch, seq, now);
        let result = self.try_commit(&writes, seq, now).await;
        match result {
            Ok(()) => self.seq = seq,
            // A connection that failed is not used again.
            Err(_) => self.connection = None,
        }
        result
    }

    async fn try_commit(&mut self, writes: &Writes, seq: u64, now: Timestamp) -> Result<(), CommitError> {
        let (epoch, hook) = (self.epoch, self.hook.clone());
        let inject = |point| match hook.as_ref().and_then(|hook| hook.0(point, seq)) {
            Some(InjectedFault) => Err(sqlx::Error::Io(std::io::Error::other("injected fault"))),
            None => Ok(()),
        };
        let connection = self.connection().await.map_err(CommitError::Definite)?;
        let begun = connection.begin_with("BEGIN IMMEDIATE").await;
        let mut transaction = begun.map_err(failed("beginning a commit")).map_err(CommitError::Definite)?;
        advance(&mut transaction, epoch, seq).await?;
        write(&mut transaction, writes, epoch, now).await?;
        inject(CommitPoint::Before).map_err(failed("writing a commit")).map_err(CommitError::Definite)?;
        inject(CommitPoint::Lost).map_err(failed("committing")).map_err(CommitError::Unknown)?;
        transaction.commit().await.map_err(failed("committing")).map_err(CommitError::Unknown)?;
        inject(CommitPoint::Answer).map_err(failed("committing")).map_err(CommitError::Unknown)
    }

    /// After an unknown outcome: whether the last batch is stored. It is then counted as committed.
    pub async fn settle(&mut self) -> Result<bool, CommitError> {
        let (epoch, seq) = self.read_meta().await.map_err(CommitError::Definite)?;
        if epoch != self.epoch {
            return Err(CommitError::Fatal(Error::EpochLost { mine: self.epoch, found: epoch }));
        }
        let stored = seq == self.seq + 1;
        if !stored && seq != self.seq {
            let problem = format!("commit {} was the last one known, the store is at {seq}", self.seq);
            return Err(CommitError::Fatal(Error::StoreDiverged { problem }));
        }
        self.seq = seq;
        Ok(stored)
    }

    async fn read_meta(&mut self) -> Result<(u64, u64), Error> {
        let connection = self.connection().await?;
        let meta = sqlx::query(statement!("common/read_meta")).fetch_one(connection).await;
        let meta = match meta {
            Ok(meta) => meta,
            Err(error) => {
                self.connection = None;
                return Err(failed("reading the epoch")(error));
            }
        };
        Ok((
            row::unsigned(&meta, "meta", "epoch", &"the only row")?,
            row::unsigned(&meta, "meta", "commit_seq", &"the only row")?,
        ))
    }
}

fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The first statement of every transaction: it takes the write lock and proves the epoch.
async fn advance(transaction: &mut Transaction<'_, Sqlite>, epoch: u64, seq: u64) -> Result<(), CommitError> {
    let advanced = sqlx::query(statement!("common/advance_commit"))
        .bind(integer(seq))
        .bind(integer(epoch))
        .execute(&mut **transaction)
        .await
        .map_err(failed("advancing the commit number"))
        .map_err(CommitError::Definite)?;
    if advanced.rows_affected() == 1 {
        return Ok(());
    }
    let meta = sqlx::query(statement!("common/read_meta"))
        .fetch_one(&mut **transaction)
        .await
        .map_err(failed("reading the epoch"))
        .map_err(CommitError::Definite)?;
    let found: u64 = row::unsigned(&meta, "meta", "epoch", &"the only row").map_err(CommitError::Fatal)?;
    Err(CommitError::Fatal(if found == epoch {
        Error::StoreDiverged { problem: format!("commit {seq} does not follow the stored one") }
    } else {
        Error::EpochLost { mine: epoch, found }
    }))
}

async fn write(
    transaction: &mut Transaction<'_, Sqlite>,
    writes: &Writes,
    epoch: u64,
    now: Timestamp,
) -> Result<(), CommitError> {
    /// How many rows a statement must meet.
    enum Rows {
        Any,
        Each,
    }
    use Rows::{Any, Each};
    let schedules = &writes.schedules;
    let statements: [(&'static str, &'static str, &Sheet, Rows); 42] = [
        ("storing jobs", statement!("sqlite/insert_jobs"), &writes.new_jobs, Each),
        ("storing sandboxes", statement!("sqlite/insert_sandboxes"), &writes.sandboxes, Each),
        ("storing client files", statement!("sqlite/insert_files"), &writes.files, Each),
        ("storing images", statement!("sqlite/insert_images"), &writes.images, Each),
        ("admitting groups", statement!("sqlite/insert_groups"), &writes.groups, Each),
        ("admitting rollouts", statement!("sqlite/insert_rollouts"), &writes.groups, Any),
        ("withdrawing attempts", statement!("sqlite/withdraw_attempts"), &writes.withdrawn, Any),
        ("keeping generations", statement!("sqlite/note_withdrawn"), &writes.generations, Each),
        ("placing attempts", statement!("sqlite/place_attempts"), &writes.placed, Each),
        ("starting attempts", statement!("sqlite/start_attempts"), &writes.started, Each),
        ("ending attempts", statement!("sqlite/end_attempts"), &writes.ended, Each),
        (
            "counting what steps held in memory",
            statement!("sqlite/count_step_memory"),
            &writes.step_memory,
            Each,
        ),
        ("storing step states", statement!("sqlite/set_step_states"), &writes.step_states, Each),
        ("storing what steps wait for", statement!("sqlite/set_step_books"), &writes.step_books, Each),
        ("storing checkpoints", statement!("sqlite/insert_checkpoints"), &writes.checkpoints, Each),
        ("removing checkpoints", statement!("sqlite/remove_checkpoints"), &writes.checkpoints_removed, Each),
        ("dropping results", statement!("sqlite/drop_results"), &writes.results_dropped, Any),
        ("storing results", statement!("sqlite/store_results"), &writes.results, Each),
        ("letting go of results", statement!("sqlite/unuse_results"), &writes.results_unused, Any),
        ("using results", statement!("sqlite/use_results"), &writes.results_used, Each),
        ("asking for retries", statement!("sqlite/ask_retries"), &writes.retries_asked, Each),
        ("settling retries", statement!("sqlite/settle_retries"), &writes.retries_settled, Each),
        ("answering retries", statement!("sqlite/store_retry_requests"), &writes.retry_requests, Each),
        ("running jobs again", statement!("sqlite/note_retried_jobs"), &writes.retried_jobs, Each),
        ("opening groups again", statement!("sqlite/reopen_groups"), &writes.reopened, Each),
        ("counting ends of steps", statement!("sqlite/count_breaker_ends"), &writes.breaker_ends, Each),
        ("beginning refills", statement!("sqlite/insert_refills"), &writes.refills, Each),
        ("superseding rollouts", statement!("sqlite/supersede_rollouts"), &writes.refills, Each),
        ("ending rollouts", statement!("sqlite/end_rollouts"), &writes.rollout_ends, Each),
        ("closing groups", statement!("sqlite/close_groups"), &writes.closed, Each),
        ("sealing groups", statement!("sqlite/seal_groups"), &writes.sealed, Each),
        ("cataloguing shards", statement!("sqlite/insert_shards"), &writes.shards, Any),
        ("storing leases", statement!("sqlite/set_leases"), &writes.leases, Each),
        ("advancing cursors", statement!("sqlite/advance_cursors"), &writes.cursors, Each),
        ("storing job states", statement!("sqlite/update_job_states"), &writes.job_states, Each),
        ("storing sums of jobs", statement!("sqlite/set_job_sums"), &writes.job_sums, Each),
        ("counting fenced reports", statement!("sqlite/count_fenced"), &writes.fenced, Each),
        ("removing schedules", statement!("sqlite/remove_schedule_files"), &schedules.files_removed, Any),
        ("removing schedules", statement!("sqlite/remove_schedules"), &schedules.removed, Each),
        ("storing schedules", statement!("sqlite/put_schedules"), &schedules.put, Each),
        ("storing client files", statement!("sqlite/insert_schedule_files"), &schedules.files, Each),
        ("updating schedules", statement!("sqlite/update_schedules"), &schedules.updated, Each),
    ];
    for (doing, text, sheet, rows) in statements {
        if sheet.is_empty() {
            continue;
        }
        let done = sqlx::query(text)
            .bind(sheet.json())
            .bind(now.0)
            .bind(integer(epoch))
            .execute(&mut **transaction)
            .await
            .map_err(failed(doing))
            .map_err(CommitError::Definite)?;
        if matches!(rows, Each) && done.rows_affected() != sheet.len() as u64 {
            let problem = format!("{doing}: {} rows named, {} met", sheet.len(), done.rows_affected());
            return Err(CommitError::Fatal(Error::StoreDiverged { problem }));
        }
    }
    Ok(())
}
