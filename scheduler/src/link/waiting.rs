//! What a node may have waiting for the driver, in bytes.
//!
//! Counted per node and not per session: an executor that attaches anew while the driver is stuck
//! finds what it left.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout::NodeId;
use rollout::outcome::Outcome;
use scheduler_core::Event;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of the reports of one node that wait for the driver; past it the session ends
/// (`too_many_reports`). The executor attaches anew and tells again what was not acknowledged.
pub(super) const REPORT_BYTES_MAX: usize = 32 << 20;

/// The part of [`REPORT_BYTES_MAX`] that is free, of each node that is connected or has some waiting.
#[derive(Debug, Default)]
pub(super) struct WaitingBytes(BTreeMap<NodeId, Arc<Semaphore>>);

impl WaitingBytes {
    /// That of `node`. Those nobody holds and nothing waits of are forgotten.
    pub(super) fn of(&mut self, node: &NodeId) -> Arc<Semaphore> {
        self.0.retain(|_, free| Arc::strong_count(free) > 1);
        let free = self.0.entry(node.clone()).or_insert_with(|| Arc::new(Semaphore::new(REPORT_BYTES_MAX)));
        free.clone()
    }
}

/// The room for `event`, if there is as much. One larger than all of it takes all of it.
pub(super) fn room(free: &Arc<Semaphore>, event: &Event) -> Option<OwnedSemaphorePermit> {
    let bytes = u32::try_from(bytes(event).min(REPORT_BYTES_MAX)).unwrap_or(u32::MAX);
    free.clone().try_acquire_many_owned(bytes).ok()
}

/// What it keeps in memory, about.
fn bytes(event: &Event) -> usize {
    let more = match event {
        Event::AttemptEnded { outcome, .. } => of_outcome(outcome),
        Event::AttemptRefused { message, .. } => message.len(),
        Event::ImageIdentified { image, digest, .. } => image.len() + digest.as_ref().map_or(0, String::len),
        _ => 0,
    };
    size_of::<Event>() + more
}

fn of_outcome(outcome: &Outcome) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let failure = outcome.failure.as_ref().map_or(0, |failure| failure.message.len());
    let artifacts = outcome.artifacts.iter();
    let artifacts = artifacts.map(|artifact| {
        size_of_val(artifact) + artifact.name.len() + artifact.media_type.len() + artifact.sha256.len()
    });
    let components = outcome.reward.iter().flat_map(|reward| &reward.components);
    let components = components.map(|component| size_of_val(component) + component.0.len());
    size_of::<Outcome>()
        + failure
        + text(&outcome.stdout.sha256)
        + text(&outcome.stderr.sha256)
        + outcome.image_digest.len()
        + artifacts.sum::<usize>()
        + components.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use rollout::failure::Failure;
    use rollout::outcome::{Reward, Times};
    use rollout::{AttemptId, FailureCode, Generation, IncarnationId, StepIndex, Timestamp};
    use scheduler_core::event::Fence;

    use super::*;

    fn ended(message: &str, components: usize) -> Event {
        let failure = Failure::new(FailureCode::StepExit, message);
        let mut outcome = Outcome::unmeasured(failure, Times::at(Timestamp(0)));
        outcome.reward = Some(Reward { value: 0.0, components: vec![("c".to_owned(), 0.0); components] });
        Event::AttemptEnded {
            at: Fence {
                node: NodeId("n".parse().unwrap()),
                incarnation: IncarnationId::from_bits(1),
                generation: Generation(1),
            },
            attempt: AttemptId {
                rollout: "j0000000000007-g0-s0".parse().unwrap(),
                step: StepIndex(0),
                attempt: 0,
            },
            outcome: Box::new(outcome),
            kept: false,
        }
    }

    #[test]
    fn a_report_weighs_what_it_keeps_in_memory() {
        let none = bytes(&ended("", 0));
        assert_eq!(bytes(&ended("four", 0)) - none, 4);
        assert_eq!(bytes(&ended("", 1_000)) - none, 1_000 * (size_of::<(String, f64)>() + 1));
    }

    #[test]
    fn what_waits_of_a_node_counts_over_its_sessions_until_it_is_taken() {
        let mut waiting = WaitingBytes::default();
        let node = NodeId("n".parse().unwrap());
        let large = ended("", 1 << 20);
        let session = waiting.of(&node);
        let waits = room(&session, &large).expect("one fits, however large");
        drop(session);
        assert!(room(&waiting.of(&node), &ended("", 0)).is_none(), "a new session finds it");
        assert!(room(&waiting.of(&NodeId("other".parse().unwrap())), &large).is_some());
        drop(waits);
        assert!(room(&waiting.of(&node), &large).is_some());
        waiting.of(&NodeId("third".parse().unwrap()));
        assert_eq!(waiting.0.len(), 1, "the others are forgotten");
    }
}
