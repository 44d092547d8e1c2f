//! Whether the end a node reports can be one of its step: nodes may be wrong, rewards may not.

use std::collections::BTreeSet;

use rollout::FailureCode;
use rollout::outcome::Outcome;
use rollout::plan::StepPlan;
use rollout::text::shown;

/// Characters of a reported name that are repeated.
const SHOWN_CHARS_MAX: usize = 64;

/// What of `outcome` no attempt of `step` can end with, and what the attempt ends with instead; none
/// if all of it can be.
pub(crate) fn contradiction(step: &StepPlan, outcome: &Outcome) -> Option<(FailureCode, String)> {
    if step.checkpoint.after && outcome.failure.is_none() && outcome.checkpoint.is_none() {
        return Some((FailureCode::StorageFailed, "its workspace was to be saved and is not".to_owned()));
    }
    let problem = impossible(step, outcome).or_else(|| unparkable(step, outcome))?;
    Some((FailureCode::OutcomeUnknown, problem))
}

/// Only a session that did nothing wrong, with its files.
fn unparkable(step: &StepPlan, outcome: &Outcome) -> Option<String> {
    outcome.parked.as_ref()?;
    let is_session = step.work.session().is_some();
    let problem = if !is_session {
        "the step is no session"
    } else if outcome.failure.is_some() || outcome.reward.is_some() {
        "it has an end of its own"
    } else if outcome.checkpoint.is_none() {
        "its files are not saved"
    } else {
        return None;
    };
    Some(format!("parked, and {problem}"))
}

fn impossible(step: &StepPlan, outcome: &Outcome) -> Option<String> {
    match (&step.grader, &outcome.reward) {
        (None, Some(_)) if !step.work.session().is_some_and(|session| session.takes_reward) => {
            return Some("a reward, and the step is no grader and no session that takes one".to_owned());
        }
        (Some(_), None) if outcome.failure.is_none() => {
            return Some("a grader that did well and gave no reward".to_owned());
        }
        (Some(grader), Some(reward)) => {
            // Rewards are single: the ends of the range are compared as such.
            #[allow(clippy::cast_possible_truncation, reason = "as when the reward was read")]
            let outside = |&(low, high): &(f64, f64)| {
                reward.value < low as f32 || reward.value > high as f32 || !reward.value.is_finite()
            };
            if let Some((low, high)) = grader.range.filter(outside) {
                return Some(format!("reward {} is outside the range {low} to {high}", reward.value));
            }
        }
        _ => {}
    }
    match (step.work.session(), outcome.actions) {
        (None, Some(_)) => return Some("a count of actions, and the step is no session".to_owned()),
        (Some(session), Some(actions)) if session.max_actions.is_some_and(|max| actions > max) => {
            return Some(format!("{actions} actions, above its max_actions"));
        }
        _ => {}
    }
    let mut names = BTreeSet::new();
    for artifact in &outcome.artifacts {
        let name = shown(&artifact.name, SHOWN_CHARS_MAX);
        let declared = step.outputs.iter().find(|output| output.name.as_str() == artifact.name);
        let Some(declared) = declared else { return Some(format!("output `{name}`, which is not declared")) };
        if artifact.size > declared.max_bytes {
            let (size, max) = (artifact.size, declared.max_bytes);
            return Some(format!("output `{name}` of {size}, at most {max} are declared"));
        }
        if !names.insert(&artifact.name) {
            return Some(format!("output `{name}` twice"));
        }
    }
    None
}
