//! Sums of a job as clients see them: of the core while it runs, stored with its row when it has
//! ended, and made from its rollouts where nobody has them (a store that no scheduler serves).
//!
//! All give a [`v1::Job`] that says nothing else of the job.

use rollout::FailureCode;
use rollout_wire::v1;
use scheduler_core::counts::Counts;
use scheduler_core::totals::Totals;

use crate::store::{JobCounts, JobRow};

pub(crate) fn of_core(counts: Counts) -> v1::Job {
    let totals = counts.totals;
    let failures = totals.failures.into_iter().map(|((domain, code), failure)| v1::FailureCount {
        domain: domain.to_string(),
        code: code.to_string(),
        rollouts: failure.rollouts,
        example: failure.example,
        example_rollout: failure.example_rollout.to_string(),
        hint: code.advice().unwrap_or_default().to_owned(),
    });
    let mut failures: Vec<_> = failures.collect();
    failures.sort_by_key(|failure| std::cmp::Reverse(failure.rollouts));
    #[allow(clippy::cast_precision_loss)]
    let mean = |&(sum, groups): &(f64, u64)| (sum / groups as f64, groups);
    v1::Job {
        counts: Some(v1::Counts {
            groups_total: counts.groups_total,
            groups_closed: totals.groups_closed,
            groups_sealed: counts.groups_sealed,
            rollouts_total: counts.rollouts_total,
            rollouts_admitted: counts.rollouts_admitted,
            rollouts_ended: totals.rollouts_ended,
            rollouts_valid: totals.rollouts_valid,
            rollouts_superseded: totals.rollouts_superseded,
            steps_running: counts.steps_running,
            steps_ready: counts.steps_ready,
        }),
        rewards: Some(v1::Rewards {
            count: totals.rollouts_valid,
            sum: totals.reward_sum,
            successes: totals.successes,
            pass_at_k: message(totals.pass_at_k.iter().map(mean)),
        }),
        failures,
        ..v1::Job::default()
    }
}

pub(crate) fn of_store(row: &JobRow, sums: &JobCounts) -> v1::Job {
    let failures = sums.failures.iter().map(|failure| v1::FailureCount {
        domain: failure.domain.clone(),
        code: failure.code.clone(),
        rollouts: failure.rollouts,
        example: failure.example.clone(),
        example_rollout: failure.example_rollout.to_string(),
        hint: failure.code.parse().ok().and_then(FailureCode::advice).unwrap_or_default().to_owned(),
    });
    v1::Job {
        counts: Some(v1::Counts {
            groups_total: u64::from(row.groups_total),
            groups_closed: sums.groups_closed,
            groups_sealed: sums.groups_sealed,
            rollouts_total: u64::from(row.groups_total) * u64::from(row.group_size),
            rollouts_admitted: sums.admitted,
            rollouts_ended: sums.ended,
            rollouts_valid: sums.valid,
            rollouts_superseded: sums.superseded,
            steps_running: 0,
            steps_ready: 0,
        }),
        rewards: Some(v1::Rewards {
            count: sums.valid,
            sum: sums.reward_sum,
            successes: sums.successes,
            pass_at_k: message(pass_at_k(sums)),
        }),
        failures: failures.collect(),
        ..v1::Job::default()
    }
}

fn message(values: impl IntoIterator<Item = (f64, u64)>) -> Vec<v1::PassAtK> {
    let values = values.into_iter().zip(1u32..);
    values.map(|((value, groups), k)| v1::PassAtK { k, value, groups }).collect()
}

/// Per k from 1: the mean of the unbiased estimate over closed groups with at least k valid
/// members, and their number.
fn pass_at_k(counts: &JobCounts) -> Vec<(f64, u64)> {
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
