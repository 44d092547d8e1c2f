//! Claims of parked sessions: they lapse as those of sessions that run, after a silence of their time to live.

use rollout::{Millis, StepIndex, Timestamp};

use crate::store::AttemptRow;

/// When the claim of the session that this step parked last lapses, or did. None: nobody held it.
pub(crate) fn lapses_at(attempts: &[AttemptRow], step: StepIndex) -> Option<Timestamp> {
    let of_step = attempts.iter().filter(|tried| tried.attempt.step == step);
    let mut outcomes = of_step.filter_map(|tried| tried.outcome.as_deref());
    let outcome = outcomes.rfind(|outcome| outcome.parked.is_some())?;
    let claim = outcome.parked.as_deref()?.claim.as_ref()?;
    Some(after(outcome.times.ended_at, claim.ttl))
}

fn after(at: Timestamp, time: Millis) -> Timestamp {
    Timestamp(at.0.saturating_add(i64::try_from(time.0.saturating_mul(1_000)).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use rollout::failure::Failure;
    use rollout::outcome::{Outcome, Parked, ParkedClaim, Times};
    use rollout::{AttemptId, FailureCode, Generation, GroupId, IncarnationId, JobId, NodeId, RolloutId};

    use super::*;

    fn attempt(attempt: u32, ended_at_s: i64, claim: Option<Option<u64>>) -> AttemptRow {
        let group = GroupId { job: JobId::from_bits(7), index: 0 };
        let ended = Timestamp(ended_at_s * 1_000_000);
        let mut outcome =
            Outcome::unmeasured(Failure::new(FailureCode::StepExit, "it ended"), Times::at(ended));
        outcome.parked = claim.map(|ttl_s| {
            let claim = ttl_s.map(|ttl_s| ParkedClaim {
                driver: "d".to_owned(),
                token: "t".to_owned(),
                ttl: Millis(ttl_s * 1_000),
            });
            let (ran, time_left, idle_left) = (Millis(0), Millis(1), Millis(1));
            Box::new(Parked { log: None, claim, ran, time_left, idle_left, version: 1 })
        });
        AttemptRow {
            attempt: AttemptId {
                rollout: RolloutId { group, sample: 0, refill: 0 },
                step: StepIndex(0),
                attempt,
            },
            generation: Generation(1),
            node: NodeId("n1".parse().unwrap()),
            incarnation: IncarnationId::from_bits(1),
            placed_at: Timestamp(0),
            started_at: None,
            ended_at: Some(ended),
            outcome: Some(Box::new(outcome)),
        }
    }

    #[test]
    fn a_claim_lapses_its_time_after_its_session_was_parked_last() {
        let lapses = |attempts: &[AttemptRow]| lapses_at(attempts, StepIndex(0));
        let (first, second) = (attempt(0, 100, Some(Some(60))), attempt(1, 300, Some(Some(10))));
        assert_eq!(lapses(std::slice::from_ref(&first)), Some(Timestamp(160_000_000)));
        assert_eq!(lapses(&[first.clone(), second.clone()]), Some(Timestamp(310_000_000)));
        assert_eq!(
            lapses(&[first.clone(), second.clone(), attempt(2, 400, Some(None))]),
            None,
            "nobody had it"
        );
        // A sandbox to go on in that failed changes nothing.
        assert_eq!(lapses(&[first.clone(), second, attempt(2, 400, None)]), Some(Timestamp(310_000_000)));
        assert_eq!(lapses_at(&[first], StepIndex(1)), None);
    }
}
