//! Sums over a job's stored rollouts, computed at most as often as they are cheap.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rollout::JobId;
use scheduler_core::totals::Totals;

use crate::error::Error;
use crate::store::{JobCounts, Reads};

/// Sums kept; past it the oldest go.
const CACHE_MAX: usize = 1024;
/// Sums of a running job are at least this old before they are made again...
const AGE_MIN: Duration = Duration::from_millis(400);
/// ...and this many times as old as they took to make.
const AGE_FACTOR: u32 = 10;

#[derive(Debug, Clone, Default)]
pub(crate) struct CountsCache(Arc<Mutex<BTreeMap<JobId, Entry>>>);

#[derive(Debug, Clone)]
struct Entry {
    counts: Arc<JobCounts>,
    made_at: Instant,
    took: Duration,
    is_final: bool,
}

impl CountsCache {
    /// `is_final`: the job has ended, its sums do not change any more.
    pub(super) async fn get(
        &self,
        reads: &Reads,
        job: JobId,
        success_at: f64,
        is_final: bool,
    ) -> Result<Arc<JobCounts>, Error> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&job).cloned();
        if let Some(entry) = known {
            let fresh = entry.made_at.elapsed() < AGE_MIN.max(entry.took * AGE_FACTOR);
            if entry.is_final || (fresh && !is_final) {
                return Ok(entry.counts);
            }
        }
        let began_at = Instant::now();
        let counts = Arc::new(reads.counts(job, success_at).await?);
        let entry =
            Entry { counts: counts.clone(), made_at: Instant::now(), took: began_at.elapsed(), is_final };
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= CACHE_MAX
            && let Some(oldest) = cache.iter().min_by_key(|(_, entry)| entry.made_at).map(|(job, _)| *job)
        {
            cache.remove(&oldest);
        }
        cache.insert(job, entry);
        Ok(counts)
    }
}

/// Per k from 1: the mean of the unbiased estimate over closed groups with at least k valid
/// members, and their number.
pub(super) fn pass_at_k(counts: &JobCounts) -> Vec<(f64, u64)> {
    let mut sums: Vec<(f64, u64)> = Vec::new();
    for &(valid, successes, groups) in &counts.groups {
        let mut one = Totals::default();
        let member = |n| u32::try_from(n).unwrap_or(u32::MAX);
        one.add_group(member(valid), member(successes));
        for (index, (value, _)) in one.pass_at_k.iter().enumerate() {
            if sums.len() <= index {
                sums.resize(index + 1, (0.0, 0));
            }
            #[allow(clippy::cast_precision_loss)]
            let weight = groups as f64;
            sums[index].0 += value * weight;
            sums[index].1 += groups;
        }
    }
    #[allow(clippy::cast_precision_loss)]
    let mean = |(sum, groups): (f64, u64)| (sum / groups as f64, groups);
    sums.into_iter().map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_at_k_is_the_mean_over_the_groups_that_have_k_members() {
        let counts = JobCounts { groups: vec![(2, 1, 3), (1, 0, 1)], ..JobCounts::default() };
        let values = pass_at_k(&counts);
        assert_eq!(values.len(), 2);
        assert!((values[0].0 - 3.0 * 0.5 / 4.0).abs() < 1e-12 && values[0].1 == 4);
        assert!((values[1].0 - 1.0).abs() < 1e-12 && values[1].1 == 3);
    }
}
