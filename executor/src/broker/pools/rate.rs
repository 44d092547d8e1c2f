//! How many sandboxes are created a second for as long as anybody likes: what a creation takes, and
//! what it takes to make again what it took.

use std::time::{Duration, Instant};

/// Time of this length counts in full; twice as much counts half.
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Rate {
    /// Since when a creation is in flight, or something it took is not made again.
    busy_since: Option<Instant>,
    busy: Duration,
    created: u64,
    /// Something was created since all was ready.
    owes: bool,
}

impl Rate {
    /// Files the time since the last look. `can_make`: of what is ready something is short, and may be made now.
    /// What fills up for the first time, and what waits for something else, was taken by no creation.
    pub fn look(&mut self, creating: bool, is_full: bool, can_make: bool, now: Instant) {
        self.owes = creating || (self.owes && !is_full);
        self.is_busy(creating || (self.owes && can_make), now);
    }

    fn is_busy(&mut self, busy: bool, now: Instant) {
        match (self.busy_since, busy) {
            (None, true) => self.busy_since = Some(now),
            (Some(since), false) => {
                self.busy += now.saturating_duration_since(since);
                self.busy_since = None;
                self.forget();
            }
            _ => {}
        }
    }

    pub fn created(&mut self, now: Instant) {
        self.created += 1;
        // A burst without end counts while it lasts.
        if let Some(since) = self.busy_since.replace(now) {
            self.busy += now.saturating_duration_since(since);
            self.forget();
        }
    }

    fn forget(&mut self) {
        if self.busy > WINDOW * 2 {
            self.busy /= 2;
            self.created /= 2;
        }
    }

    /// Creations in 1,000 seconds; 0 before the first.
    pub fn per_s_milli(&self) -> u64 {
        let busy_us = self.busy.as_micros().max(1);
        u64::try_from(u128::from(self.created) * 1_000_000_000 / busy_us).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_in_which_nothing_is_asked_for_does_not_count() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        assert_eq!(rate.per_s_milli(), 0);
        let at = |ms| start + Duration::from_millis(ms);
        for round in 0..10 {
            let from = round * 1_000;
            rate.is_busy(true, at(from));
            rate.created(at(from + 2));
            // Then what it took is made again.
            rate.is_busy(true, at(from + 3));
            rate.is_busy(false, at(from + 4));
        }
        assert_eq!(rate.per_s_milli(), 250_000, "one in 4 ms");
    }

    #[test]
    fn what_no_creation_took_does_not_count() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        // (ms, creating, is_full, can_make): the first filling, a creation, what it took, a piece that fails, all ready.
        let looks = [
            (0, false, false, true),
            (500, true, false, true),
            (502, false, false, true),
            (504, false, false, false),
            (1_504, false, false, true),
            (1_506, false, true, false),
            (9_000, false, false, true),
        ];
        for (ms, creating, is_full, can_make) in looks {
            rate.look(creating, is_full, can_make, at(ms));
        }
        rate.look(false, true, false, at(20_000));
        rate.created(at(20_000));
        assert_eq!(rate.busy, Duration::from_millis(6), "two of a creation, two and two of what it took");
    }

    #[test]
    fn what_was_long_ago_counts_less_and_less() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        rate.is_busy(true, start);
        let mut now = start;
        for _ in 0..1_000 {
            now += Duration::from_millis(10);
            rate.created(now);
        }
        assert_eq!(rate.per_s_milli(), 100_000);
        for _ in 0..1_000 {
            now += Duration::from_millis(100);
            rate.created(now);
        }
        assert!((10_000..12_000).contains(&rate.per_s_milli()), "{}", rate.per_s_milli());
    }
}
