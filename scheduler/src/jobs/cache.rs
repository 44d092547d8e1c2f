//! What was used last, within a bound of entries and of bytes.

use std::collections::BTreeMap;

use rollout::JobId;

/// Jobs kept; past it the least recently used go and are read again when asked for.
pub(super) const CACHE_MAX: usize = 256;
/// Bytes of their documents and of the indexes of their rows. The last one put in stays, whatever
/// its size.
pub(super) const CACHE_BYTES_MAX: usize = 32 << 20;

#[derive(Debug)]
pub(super) struct Cache<T> {
    uses: u64,
    /// Of all entries.
    bytes: usize,
    entries: BTreeMap<JobId, Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    used: u64,
    bytes: usize,
    value: T,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { uses: 0, bytes: 0, entries: BTreeMap::new() }
    }
}

impl<T: Clone> Cache<T> {
    pub fn get(&mut self, job: JobId) -> Option<T> {
        self.uses += 1;
        let entry = self.entries.get_mut(&job)?;
        entry.used = self.uses;
        Some(entry.value.clone())
    }

    pub fn insert(&mut self, job: JobId, bytes: usize, value: T) {
        self.uses += 1;
        self.remove(job);
        while self.entries.len() >= CACHE_MAX || self.bytes.saturating_add(bytes) > CACHE_BYTES_MAX {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(job, _)| *job);
            let Some(oldest) = oldest else { break };
            self.remove(oldest);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.entries.insert(job, Entry { used: self.uses, bytes, value });
    }

    fn remove(&mut self, job: JobId) {
        if let Some(entry) = self.entries.remove(&job) {
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(n: u64) -> JobId {
        JobId::from_bits(n)
    }

    #[test]
    fn after_any_number_of_jobs_no_more_than_the_bound_are_kept() {
        let mut cache = Cache::default();
        for n in 0..10 * CACHE_MAX as u64 {
            cache.insert(job(n), 1, n);
            assert_eq!(cache.get(job(0)), Some(0), "what is used stays");
        }
        assert_eq!((cache.entries.len(), cache.bytes), (CACHE_MAX, CACHE_MAX));
    }

    #[test]
    fn large_jobs_push_out_more_than_one_and_stay_themselves() {
        let mut cache = Cache::default();
        for n in 0..8 {
            cache.insert(job(n), CACHE_BYTES_MAX / 8, n);
        }
        assert_eq!(cache.entries.len(), 8);
        cache.insert(job(8), CACHE_BYTES_MAX / 4, 8);
        assert_eq!(cache.entries.keys().copied().collect::<Vec<_>>(), (2..=8).map(job).collect::<Vec<_>>());
        cache.insert(job(9), 2 * CACHE_BYTES_MAX, 9);
        assert_eq!((cache.entries.len(), cache.get(job(9))), (1, Some(9)));
        cache.insert(job(9), 1, 10);
        assert_eq!((cache.bytes, cache.get(job(9))), (1, Some(10)));
    }
}
