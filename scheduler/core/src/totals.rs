//! Running sums of a job, for progress and summaries. A shell that restarts feeds the stored ends
//! through the same two functions.

use std::collections::BTreeMap;

use rollout::failure::Domain;
use rollout::{FailureCode, RolloutId};

use crate::config::EXAMPLE_BYTES_MAX;
use crate::record::RolloutEnd;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    /// Without those that a refill replaced.
    pub rollouts_ended: u64,
    /// Ended, and replaced by a refill. They are in no other sum.
    pub rollouts_superseded: u64,
    /// Members with a valid reward.
    pub rollouts_valid: u64,
    pub reward_sum: f64,
    /// Rewards at or above the grader's success mark.
    pub successes: u64,
    pub groups_closed: u64,
    pub failures: BTreeMap<(Domain, FailureCode), FailureTotal>,
    /// Entry k - 1: sum over closed groups with at least k valid members, and their number.
    pub pass_at_k: Vec<(f64, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureTotal {
    pub rollouts: u64,
    /// The first one's message.
    pub example: String,
    pub example_rollout: RolloutId,
}

impl Totals {
    pub fn add_rollout(&mut self, rollout: RolloutId, end: &RolloutEnd, success_at: f64) {
        self.rollouts_ended += 1;
        if let Some(reward) = &end.reward {
            self.rollouts_valid += 1;
            self.reward_sum += f64::from(reward.value);
            self.successes += u64::from(is_success(end, success_at));
        }
        if let Some(failure) = &end.failure {
            let entry = self.failures.entry((failure.domain, failure.code)).or_insert_with(|| FailureTotal {
                rollouts: 0,
                example: rollout::text::shown(&failure.message, EXAMPLE_BYTES_MAX),
                example_rollout: rollout,
            });
            entry.rollouts += 1;
        }
    }

    /// Takes back an ended rollout that another one replaces; its reward was not valid.
    pub fn replace_rollout(&mut self, end: &RolloutEnd) {
        self.rollouts_ended -= 1;
        self.rollouts_superseded += 1;
        let Some(key) = end.failure.as_ref().map(|failure| (failure.domain, failure.code)) else { return };
        if let Some(entry) = self.failures.get_mut(&key) {
            entry.rollouts -= 1;
            if entry.rollouts == 0 {
                self.failures.remove(&key);
            }
        }
    }

    /// Takes back a closed group that is open again.
    pub fn remove_group(&mut self, valid: u32, successes: u32) {
        let mut group = Self::default();
        group.add_group(valid, successes);
        self.groups_closed -= 1;
        for ((sum, groups), (less, _)) in self.pass_at_k.iter_mut().zip(group.pass_at_k) {
            *sum -= less;
            *groups -= 1;
        }
        while self.pass_at_k.pop_if(|(_, groups)| *groups == 0).is_some() {}
    }

    /// `valid` members of a closed group, `successes` among them: the unbiased estimate of
    /// pass@k is 1 - C(valid - successes, k) / C(valid, k).
    pub fn add_group(&mut self, valid: u32, successes: u32) {
        self.groups_closed += 1;
        let failures = valid.saturating_sub(successes);
        let mut all_fail = 1.0;
        for k in 1..=valid {
            let drawn = f64::from(k - 1);
            all_fail *= (f64::from(failures) - drawn).max(0.0) / (f64::from(valid) - drawn);
            let index = (k - 1) as usize;
            if self.pass_at_k.len() <= index {
                self.pass_at_k.resize(index + 1, (0.0, 0));
            }
            self.pass_at_k[index].0 += 1.0 - all_fail;
            self.pass_at_k[index].1 += 1;
        }
    }
}

pub fn is_success(end: &RolloutEnd, success_at: f64) -> bool {
    end.reward.as_ref().is_some_and(|r| f64::from(r.value) >= success_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_at_k_is_the_unbiased_estimate() {
        let mut totals = Totals::default();
        totals.add_group(4, 1);
        let values: Vec<f64> = totals.pass_at_k.iter().map(|(sum, _)| *sum).collect();
        for (value, expected) in values.iter().zip([0.25, 0.5, 0.75, 1.0]) {
            assert!((value - expected).abs() < 1e-12, "{values:?}");
        }
        totals.add_group(2, 0);
        assert_eq!(totals.pass_at_k.iter().map(|(_, groups)| *groups).collect::<Vec<_>>(), [2, 2, 1, 1]);
        totals.add_group(0, 0);
        assert_eq!(totals.groups_closed, 3);
    }
}
