//! The kernel's counters over one step: what they were when it began is taken off, and what may
//! be gone at its end (a full disk that was emptied again) is sampled on the way.

use std::time::Duration;

use rollout::classify::Counters;
use rollout::outcome::Usage;
use rollout::{Bytes, Millis};

use crate::sandbox::Stats;

/// From the start of a command to the first look at its memory: most commands are short.
pub(super) const LOOK_FIRST: Duration = Duration::from_millis(125);
/// Between two looks at a command that goes on for long.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Each time twice as long as the time before, so that a long command costs few more looks. Those before the
/// last are at its memory alone.
pub(super) fn look_after(last: Duration) -> Duration {
    last.saturating_mul(2).min(LOOK_EVERY)
}

#[derive(Debug)]
pub(super) struct Meter {
    base: Stats,
    last: Stats,
    disk_peak: Option<Bytes>,
    memory_held_peak: Option<Bytes>,
    inodes_free_least: Option<u64>,
}

impl Meter {
    pub fn start(now: Stats) -> Self {
        Self {
            base: now,
            last: now,
            disk_peak: now.disk_used,
            memory_held_peak: now.memory_held,
            inodes_free_least: now.inodes_free,
        }
    }

    /// Of work that began under another executor. What it saw on its way is not known.
    pub fn resume(base: Stats, now: Stats) -> Self {
        let mut meter = Self::start(base);
        meter.sample(now);
        meter
    }

    pub fn base(&self) -> Stats {
        self.base
    }

    /// A look at its memory alone.
    pub fn held(&mut self, now: Option<Bytes>) {
        self.memory_held_peak = self.memory_held_peak.max(now);
    }

    pub fn sample(&mut self, now: Stats) {
        self.disk_peak = self.disk_peak.max(now.disk_used);
        self.memory_held_peak = self.memory_held_peak.max(now.memory_held);
        self.inodes_free_least = match (self.inodes_free_least, now.inodes_free) {
            (Some(least), Some(free)) => Some(least.min(free)),
            (least, free) => least.or(free),
        };
        self.last = now;
    }

    pub fn counters(&self) -> Counters {
        let since =
            |base: Option<u64>, last: Option<u64>| Some(last?.saturating_sub(base.unwrap_or_default()));
        Counters {
            oom_kills: since(self.base.oom_kills, self.last.oom_kills),
            pids_denied: since(self.base.pids_denied, self.last.pids_denied),
            memory_peak: self.last.memory_peak,
            disk_used: self.disk_peak,
            disk_size: self.last.disk_size,
            inodes_free: self.inodes_free_least,
        }
    }

    pub fn usage(&self) -> Usage {
        let cpu = |last: Millis| Millis(last.0.saturating_sub(self.base.cpu.unwrap_or_default().0));
        Usage {
            cpu: self.last.cpu.map(cpu),
            memory_peak: self.last.memory_peak,
            memory_held_peak: self.memory_held_peak,
            disk_peak: self.disk_peak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_looked_at_soon_and_then_ever_more_seldom() {
        let looks = std::iter::successors(Some(LOOK_FIRST), |&last| Some(look_after(last)));
        let looks: Vec<_> = looks.take(8).map(|look| look.as_millis()).collect();
        assert_eq!(looks, [125, 250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
    }

    #[test]
    fn counters_are_those_of_the_step_and_peaks_survive_a_clean_up() {
        let stats = |oom, cpu, disk| Stats {
            oom_kills: Some(oom),
            cpu: Some(Millis(cpu)),
            disk_used: Some(Bytes(disk)),
            memory_held: Some(Bytes(disk * 2)),
            inodes_free: Some(100 - disk),
            ..Stats::default()
        };
        let mut meter = Meter::start(stats(3, 50, 10));
        meter.sample(stats(3, 60, 90));
        meter.sample(stats(5, 80, 20));
        let counters = meter.counters();
        assert_eq!((counters.oom_kills, counters.pids_denied), (Some(2), None));
        assert_eq!((counters.disk_used, counters.inodes_free), (Some(Bytes(90)), Some(10)));
        assert_eq!((meter.usage().cpu, meter.usage().disk_peak), (Some(Millis(30)), Some(Bytes(90))));
        assert_eq!((meter.usage().memory_held_peak, meter.usage().memory_peak), (Some(Bytes(180)), None));
    }
}
