//! What the books say of blobs: which of them somebody may still ask for, and what expires.

use futures::TryStreamExt;
use prost::Message;
use rollout::{JobId, Timestamp};
use rollout_wire::v1;
use sqlx::sqlite::SqliteRow;
use sqlx::{Sqlite, Transaction};

use super::checkpoints::{self, Taken};
use super::{Reads, failed, row, statement};
use crate::error::Error;

/// What the books say at one moment, beside the blobs they name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// When the oldest attempt was placed that has not ended: what it stored since may be named any
    /// time.
    pub oldest_open_at: Option<Timestamp>,
    /// Jobs whose task rows may be run, and so what those name.
    pub jobs: Vec<JobId>,
}

/// Who names a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// Client files, outputs and logs.
    Stored,
    /// A checkpoint that may be started from, or that a sandbox was started from.
    Checkpoint,
    /// A checkpoint of any time. It keeps nothing: it only says what a blob was.
    Former,
}

impl Reads {
    /// Checkpoints whose time is over, at most `limit`.
    pub async fn expired_checkpoints(&self, now: Timestamp, limit: u32) -> Result<Vec<Taken>, Error> {
        let rows = sqlx::query(statement!("common/expired_checkpoints"))
            .bind(now.0)
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("finding expired checkpoints"))?;
        rows.iter().map(checkpoints::taken).collect()
    }

    pub async fn count_expired_checkpoints(&self, now: Timestamp) -> Result<u64, Error> {
        let row = sqlx::query(statement!("common/count_expired_checkpoints"))
            .bind(now.0)
            .fetch_one(&self.pool)
            .await
            .map_err(failed("counting expired checkpoints"))?;
        row::unsigned(&row, "checkpoints", "expired", &"any")
    }

    /// Tells `named` every blob the books name, all as of one moment. Checkpoints whose time is over
    /// at `now` name none.
    pub async fn mark(
        &self,
        now: Timestamp,
        mut named: impl FnMut(&str, Root) + Send,
    ) -> Result<Marked, Error> {
        let mut books = self.pool.begin().await.map_err(failed("opening the books"))?;
        let oldest = sqlx::query(statement!("common/oldest_open_attempt"))
            .fetch_one(&mut *books)
            .await
            .map_err(failed("finding the oldest attempt"))?;
        let oldest = row::optional_signed(&oldest, "attempts", "placed_at", &"any")?;
        let jobs = sqlx::query(statement!("common/jobs_with_rows"))
            .bind(now.0)
            .fetch_all(&mut *books)
            .await
            .map_err(failed("listing jobs"))?;
        let jobs =
            jobs.iter().map(|row| row::parsed(row, "jobs", "job", &"unknown")).collect::<Result<_, _>>()?;
        // First what keeps nothing, so that a blob that is kept is told last as such.
        layers(&mut books, statement!("common/all_checkpoints"), now, &mut |blob| named(blob, Root::Former))
            .await?;
        layers(&mut books, statement!("common/rooted_checkpoints"), now, &mut |blob| {
            named(blob, Root::Checkpoint);
        })
        .await?;
        {
            let mut bases = sqlx::query(statement!("common/rooted_bases")).fetch(&mut *books);
            while let Some(row) =
                bases.try_next().await.map_err(failed("reading what sandboxes start with"))?
            {
                let job = row::text(&row, "sandboxes", "job", &"any")?.to_owned();
                for layer in row::checkpoint(&row, "sandboxes", &job)?.layers {
                    named(&layer.blob, Root::Checkpoint);
                }
            }
        }
        {
            let mut results = sqlx::query(statement!("common/rooted_results")).bind(now.0).fetch(&mut *books);
            while let Some(row) = results.try_next().await.map_err(failed("reading shared results"))? {
                let key = row::text(&row, "results", "result_key", &"any")?.to_owned();
                for layer in row::checkpoint(&row, "results", &key)?.layers {
                    named(&layer.blob, Root::Checkpoint);
                }
            }
        }
        {
            let mut files = sqlx::query(statement!("common/all_files")).fetch(&mut *books);
            while let Some(row) = files.try_next().await.map_err(failed("reading client files"))? {
                named(row::text(&row, "files", "sha256", &"any")?, Root::Stored);
            }
        }
        logs_of_parked(&mut books, &mut named).await?;
        let mut outcomes = sqlx::query(statement!("common/all_outcomes")).fetch(&mut *books);
        while let Some(row) = outcomes.try_next().await.map_err(failed("reading outcomes"))? {
            let job = row::text(&row, "attempts", "job", &"any")?.to_owned();
            let outcome = outcome(&row, &job)?;
            let captured = [&outcome.stdout, &outcome.stderr].into_iter().flatten();
            let captured = captured.filter_map(|captured| captured.sha256.as_deref());
            let artifacts = outcome.artifacts.iter().map(|artifact| artifact.sha256.as_str());
            captured.chain(artifacts).for_each(|blob| named(blob, Root::Stored));
        }
        Ok(Marked { oldest_open_at: oldest.map(Timestamp), jobs })
    }
}

fn outcome(row: &SqliteRow, job: &str) -> Result<v1::Outcome, Error> {
    let bytes: &[u8] =
        sqlx::Row::try_get(row, "outcome").map_err(|error| row::wrong("attempts", "outcome", &job, error))?;
    v1::Outcome::decode(bytes).map_err(|error| row::wrong("attempts", "outcome", &job, error))
}

/// What parked sessions go on with: of each the last one, which has all that those before it have.
async fn logs_of_parked(
    books: &mut Transaction<'_, Sqlite>,
    named: &mut (impl FnMut(&str, Root) + Send),
) -> Result<(), Error> {
    let mut rows = sqlx::query(statement!("common/open_outcomes")).fetch(&mut **books);
    let mut last = None;
    while let Some(row) = rows.try_next().await.map_err(failed("reading parked sessions"))? {
        let job = row::text(&row, "attempts", "job", &"any")?.to_owned();
        let Some(parked) = outcome(&row, &job)?.parked else { continue };
        let number = |column| row::signed(&row, "attempts", column, &job);
        let of_step = (number("group_index")?, number("sample")?, number("refill")?, number("step")?);
        let key = (job.clone(), of_step);
        if let Some((_, Some(log))) = last.take_if(|(of, _)| *of != key) {
            name_log(&log, named);
        }
        last = Some((key, parked.log));
    }
    if let Some((_, Some(log))) = last {
        name_log(&log, named);
    }
    Ok(())
}

fn name_log(log: &v1::StoredLog, named: &mut impl FnMut(&str, Root)) {
    named(&log.sha256, Root::Stored);
}

async fn layers(
    books: &mut Transaction<'_, Sqlite>,
    text: &'static str,
    now: Timestamp,
    named: &mut (dyn FnMut(&str) + Send),
) -> Result<(), Error> {
    let mut rows = sqlx::query(text).bind(now.0).fetch(&mut **books);
    while let Some(row) = rows.try_next().await.map_err(failed("reading checkpoints"))? {
        let at = checkpoints::attempt(&row, "checkpoints")?;
        for layer in row::checkpoint(&row, "checkpoints", &at)?.layers {
            named(&layer.blob);
        }
    }
    Ok(())
}
