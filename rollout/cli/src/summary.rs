//! The end of a job in one screen: what came out, what went wrong and where to look.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use crate::client::Client;
use crate::error::Error;
use crate::view::{Job, Rollout, Step};

/// The most rollouts whose steps are asked for, one request each. Above it the summary says that
/// it left this part out.
pub const SUMMARY_ROLLOUTS_MAX: usize = 2_000;
/// Requests in flight at once.
const REQUESTS: usize = 16;
/// The most distinct rewards that are listed.
const REWARD_VALUES_MAX: usize = 6;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub job: Job,
    /// Of the command, not of the job: a resumed job took longer.
    pub wall_ms: u64,
    /// Of this process (scheduler and executor), where the yard was in it.
    pub yard_cpu_ms: Option<u64>,
    /// None above [`SUMMARY_ROLLOUTS_MAX`] rollouts.
    pub detail: Option<Detail>,
}

/// From the rollouts and their attempts.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Detail {
    /// Valid rewards of rollouts without any failure, largest first, then the number of others.
    pub clean_rewards: Vec<RewardCount>,
    pub clean_rewards_other: u64,
    pub attempts: u64,
    /// Attempts after the first of their step.
    pub retries: u64,
    /// Rollouts with a stream whose capture was cut.
    pub capture_truncated: u64,
    pub capture_truncated_example: Option<String>,
    /// Of all attempts; null where no attempt was measured.
    pub cpu_ms: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RewardCount {
    pub reward: f32,
    pub rollouts: u64,
}

/// Asks the yard for what the counts of the job do not say.
pub async fn detail(client: &Client, job: &Job) -> Result<Option<Detail>, Error> {
    if usize::try_from(job.rollouts.total).map_or(true, |total| total > SUMMARY_ROLLOUTS_MAX) {
        return Ok(None);
    }
    let (rollouts, more) = client.list_rollouts(&job.id, SUMMARY_ROLLOUTS_MAX).await?;
    if more {
        return Ok(None);
    }
    let rollouts: Vec<Rollout> = rollouts.into_iter().map(Rollout::from).collect();
    let steps: Vec<(String, Vec<Step>)> = stream::iter(rollouts.iter().map(|rollout| rollout.id.clone()))
        .map(|id| async move {
            let (rows, _) = client.list_steps(&id).await?;
            Ok::<_, Error>((id, rows.into_iter().map(Step::from).collect()))
        })
        .buffered(REQUESTS)
        .try_collect()
        .await?;
    Ok(Some(Detail::from_rows(&rollouts, &steps)))
}

/// Python that reads the table of trajectories, a line each.
pub fn python(job: &Job) -> [String; 2] {
    // JSON text is a Python literal, too.
    let dir = crate::output::json::line(&format!("{}/{}", job.table_root.trim_end_matches('/'), job.id));
    ["import rollyard as ry".to_owned(), format!("table = ry.open_table({}).to_arrow()", dir.trim_end())]
}

impl Detail {
    pub fn from_rows(rollouts: &[Rollout], steps: &[(String, Vec<Step>)]) -> Self {
        let mut detail = Self::default();
        detail.count_rewards(rollouts);
        let mut groups = BTreeSet::new();
        for (id, rows) in steps {
            // Steps of a group are listed with every member.
            let group = id.rsplit_once("-s").map_or(id.as_str(), |(group, _)| group);
            let first = groups.insert(group);
            let rows = rows.iter().filter(|step| first || !step.of_group());
            let outcomes = || rows.clone().filter_map(|step| step.outcome.as_ref());
            detail.attempts += outcomes().count() as u64;
            detail.retries +=
                rows.clone().filter(|step| step.outcome.is_some() && step.attempt.unwrap_or(0) > 0).count()
                    as u64;
            if outcomes().any(|outcome| outcome.stdout.truncated || outcome.stderr.truncated) {
                detail.capture_truncated += 1;
                detail.capture_truncated_example.get_or_insert_with(|| id.clone());
            }
            for outcome in outcomes() {
                if let Some(cpu) = outcome.cpu_ms {
                    *detail.cpu_ms.get_or_insert(0) += cpu;
                }
                detail.memory_peak_bytes = detail.memory_peak_bytes.max(outcome.memory_peak_bytes);
            }
        }
        detail
    }

    fn count_rewards(&mut self, rollouts: &[Rollout]) {
        // Ordered by value; total order of the bits is the order of non-negative floats, and the
        // sign is folded in for the others.
        let key = |reward: f32| {
            let bits = reward.to_bits();
            if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
        };
        let mut counts: BTreeMap<u32, RewardCount> = BTreeMap::new();
        let clean = rollouts.iter().filter(|rollout| rollout.failure.is_none());
        for reward in clean.filter_map(|rollout| rollout.reward) {
            counts.entry(key(reward)).or_insert(RewardCount { reward, rollouts: 0 }).rollouts += 1;
        }
        let mut counts = counts.into_values().rev();
        self.clean_rewards = counts.by_ref().take(REWARD_VALUES_MAX).collect();
        self.clean_rewards_other = counts.map(|count| count.rollouts).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixtures;

    #[test]
    fn rewards_of_clean_rollouts_are_counted_by_value() {
        let mut rollouts: Vec<Rollout> = [1.0, 0.0, 1.0, -0.5, 0.25].map(fixtures::rewarded).to_vec();
        rollouts.push(fixtures::failed_rollout());
        let detail = Detail::from_rows(&rollouts, &[]);
        let counts: Vec<(f32, u64)> = detail.clean_rewards.iter().map(|c| (c.reward, c.rollouts)).collect();
        assert_eq!(counts, [(1.0, 2), (0.25, 1), (0.0, 1), (-0.5, 1)]);
    }

    #[test]
    fn too_many_distinct_rewards_are_summed_up() {
        let rollouts: Vec<Rollout> = (0..10u8).map(|i| fixtures::rewarded(f32::from(i))).collect();
        let detail = Detail::from_rows(&rollouts, &[]);
        assert_eq!((detail.clean_rewards.len(), detail.clean_rewards_other), (REWARD_VALUES_MAX, 4));
    }

    #[test]
    fn a_step_of_a_group_counts_once_however_many_members_show_it() {
        let set_up = Step { per: "group".into(), ..fixtures::ended_step() };
        let steps = ["j-g0-s0", "j-g0-s1", "j-g1-s0"]
            .map(|id| (id.to_owned(), vec![set_up.clone(), fixtures::ended_step()]));
        assert_eq!(Detail::from_rows(&[], &steps).attempts, 5);
    }

    #[test]
    fn what_was_not_measured_stays_unknown() {
        let mut step = fixtures::ended_step();
        let outcome = step.outcome.as_mut().expect("ended");
        (outcome.cpu_ms, outcome.memory_peak_bytes) = (None, None);
        let detail = Detail::from_rows(&[], &[("r".to_owned(), vec![step])]);
        assert_eq!((detail.cpu_ms, detail.memory_peak_bytes, detail.attempts), (None, None, 1));
    }
}
