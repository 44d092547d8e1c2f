//! So many in a window of time for each host; who is too early waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::lock;

/// Hosts whose times are kept; past it, the one that was idle longest is forgotten.
const HOSTS_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Pace {
    most: usize,
    window: Duration,
    turns: Mutex<BTreeMap<String, VecDeque<Instant>>>,
}

impl Pace {
    pub fn new(most: usize, window: Duration) -> Self {
        Self { most, window, turns: Mutex::default() }
    }

    /// Returns when one more is within the pace.
    pub async fn turn(&self, host: &str) {
        let at = self.book(host, Instant::now());
        tokio::time::sleep_until(at).await;
    }

    /// When the next turn of `host` is; it is taken.
    fn book(&self, host: &str, now: Instant) -> Instant {
        let mut hosts = lock(&self.turns);
        if hosts.len() >= HOSTS_MAX && !hosts.contains_key(host) {
            let idle = hosts.iter().min_by_key(|(_, turns)| turns.back().copied());
            if let Some(idle) = idle.map(|(host, _)| host.clone()) {
                hosts.remove(&idle);
            }
        }
        let turns = hosts.entry(host.to_owned()).or_default();
        let at = match turns.len().checked_sub(self.most).and_then(|index| turns.get(index)) {
            Some(earlier) => (*earlier + self.window).max(now),
            None => now,
        };
        turns.push_back(at);
        while turns.len() > self.most {
            turns.pop_front();
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_window_holds_more_than_the_pace() {
        let pace = Pace::new(3, Duration::from_secs(60));
        let now = Instant::now();
        let at: Vec<_> = (0..7).map(|_| (pace.book("a", now) - now).as_secs()).collect();
        assert_eq!(at, [0, 0, 0, 60, 60, 60, 120]);
        assert_eq!(pace.book("b", now), now, "each host has its own");
        assert_eq!((pace.book("a", now + Duration::from_secs(500)) - now).as_secs(), 500);
    }
}
