//! What may be run again, and what was answered when somebody asked.

use prost::Message;
use rollout::JobId;
use rollout_wire::v1;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::restore::rollout_end;
use super::{Reads, failed, row, statement};
use crate::error::Error;
use crate::retry::{CANDIDATES_MAX, Candidate, Of};

impl Reads {
    /// Ended rollouts without a valid reward that nobody has replaced.
    /// One more than [`CANDIDATES_MAX`], if there are more.
    pub async fn retry_candidates(&self, job: JobId, of: Of) -> Result<Vec<Candidate>, Error> {
        let (group, member) = match of {
            Of::Job => (None, None),
            Of::Group(index) => (Some(index), None),
            Of::Rollout(rollout) => (Some(rollout.group.index), Some(rollout)),
        };
        let rows = sqlx::query(statement!("common/retry_candidates"))
            .bind(job.to_string())
            .bind(group)
            .bind(member.map(|rollout| rollout.sample))
            .bind(member.map(|rollout| rollout.refill))
            .bind(i64::try_from(CANDIDATES_MAX + 1).unwrap_or(i64::MAX))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("finding what may be run again"))?;
        let read = |row: &SqliteRow| {
            let group = row::group(row, "rollouts", job)?;
            let rollout = row::rollout(row, "rollouts", group)?;
            let end = rollout_end(row, rollout)?;
            let end = end.ok_or_else(|| row::wrong("rollouts", "status", &rollout, "missing"))?;
            Ok(Candidate { rollout, end, asked: row::signed(row, "rollouts", "asked", &rollout)? != 0 })
        };
        rows.iter().map(read).collect()
    }

    /// The hash of the request that used this key, and what it was answered.
    pub async fn retry_request(&self, key: &str) -> Result<Option<(String, v1::RetryReply)>, Error> {
        let found = sqlx::query(statement!("common/find_retry_request"))
            .bind(key)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("finding a request"))?;
        let Some(found) = found else { return Ok(None) };
        let hash = row::text(&found, "retry_requests", "request_hash", &key)?.to_owned();
        let wrong = |e: &dyn std::fmt::Display| row::wrong("retry_requests", "reply", &key, e);
        let bytes: &[u8] = found.try_get("reply").map_err(|e| wrong(&e))?;
        Ok(Some((hash, v1::RetryReply::decode(bytes).map_err(|e| wrong(&e))?)))
    }
}
