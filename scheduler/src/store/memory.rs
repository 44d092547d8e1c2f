//! What the attempts of steps held in memory: counted in the transaction that ends them, so each once.

use std::collections::BTreeMap;

use rollout::outcome::Usage;
use rollout::{Bytes, JobId, StepIndex};
use scheduler_core::memory::{Bucket, HeldMemory, Seen};
use serde_json::json;
use sqlx::sqlite::SqliteRow;

use super::fold::Sheet;
use super::{Reads, failed, row, statement};
use crate::error::Error;

/// Of the attempts that end in one batch.
#[derive(Debug, Default)]
pub(super) struct MemoryFold(BTreeMap<(JobId, StepIndex), HeldMemory>);

impl MemoryFold {
    /// What was not measured is not counted.
    pub fn ended(&mut self, job: JobId, step: StepIndex, usage: &Usage) {
        let Some(held) = usage.memory_held_peak else { return };
        self.0.entry((job, step)).or_default().observe(held, usage.memory_peak);
    }

    pub fn rows(self) -> Sheet {
        let of_step = |((job, step), held): ((JobId, StepIndex), HeldMemory)| {
            let rows = held.buckets().map(|(bucket, Seen { attempts, most, kernel_peak })| {
                let kernel_peak = kernel_peak.map(|peak| peak.0);
                json!([job.to_string(), step.0, bucket.index(), attempts, most.0, kernel_peak])
            });
            rows.collect::<Vec<_>>()
        };
        self.0.into_iter().flat_map(of_step).collect()
    }
}

impl Reads {
    /// What the attempts of each step of a job held; of steps without one there is nothing.
    pub async fn step_memory(&self, job: JobId) -> Result<BTreeMap<StepIndex, HeldMemory>, Error> {
        let rows = sqlx::query(statement!("common/step_memory"))
            .bind(job.to_string())
            .fetch_all(&self.pool)
            .await
            .map_err(failed("reading what steps held in memory"))?;
        let mut steps: BTreeMap<StepIndex, HeldMemory> = BTreeMap::new();
        for row in &rows {
            let (step, bucket, seen) = read(row, job)?;
            steps.entry(step).or_default().add(bucket, seen);
        }
        Ok(steps)
    }
}

fn read(row: &SqliteRow, job: JobId) -> Result<(StepIndex, Bucket, Seen), Error> {
    const TABLE: &str = "step_memory";
    let step = StepIndex(row::unsigned(row, TABLE, "step", &job)?);
    let at = format!("{job}, step {}", step.0);
    let index: u64 = row::unsigned(row, TABLE, "bucket", &at)?;
    let bucket = Bucket::from_index(index).ok_or_else(|| row::wrong(TABLE, "bucket", &at, index))?;
    let kernel_peak = row::optional_signed(row, TABLE, "kernel_peak", &at)?.map(u64::try_from).transpose();
    Ok((
        step,
        bucket,
        Seen {
            attempts: row::unsigned(row, TABLE, "attempts", &at)?,
            most: Bytes(row::unsigned(row, TABLE, "held_most", &at)?),
            kernel_peak: kernel_peak.map_err(|e| row::wrong(TABLE, "kernel_peak", &at, e))?.map(Bytes),
        },
    ))
}
