//! Sums over a job's stored rollouts, computed at most as often as they are cheap.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rollout::JobId;

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
