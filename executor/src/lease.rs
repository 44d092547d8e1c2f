//! The lease as the executor sees it: it may keep its sandboxes until the time it *sent* the last
//! heartbeat that was acknowledged, plus the ttl, less a margin. Then it kills them itself, before
//! the scheduler, which counts from receipt and adds a margin, gives them to another node.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use rollout::{BootTime, IncarnationId, Millis};
use tokio::sync::watch;

/// The executor's margin is this part of the ttl.
const MARGIN_DIVISOR: u64 = 5;
/// A link whose last acknowledged heartbeat is older than this part of the ttl is dead.
const SILENCE_DIVISOR: u64 = 2;
/// Heartbeats sent and not acknowledged. More are a dead link.
const UNACKNOWLEDGED_MAX: usize = 256;

/// What the agent watches. None: never held one, or it is over and dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub incarnation: IncarnationId,
    pub ends_at: BootTime,
}

/// The heartbeats of one link.
#[derive(Debug)]
pub(crate) struct Heartbeats {
    incarnation: IncarnationId,
    ttl: Millis,
    lease: watch::Sender<Option<Lease>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next: u64,
    sent: VecDeque<(u64, BootTime)>,
    /// Sending time of the last acknowledged one.
    acknowledged: BootTime,
}

impl Heartbeats {
    /// The hello sent at `hello_at` was welcomed: it counts as the first acknowledged heartbeat.
    pub fn welcomed(
        incarnation: IncarnationId,
        ttl: Millis,
        hello_at: BootTime,
        lease: watch::Sender<Option<Lease>>,
    ) -> Self {
        let state = Mutex::new(State { next: 1, sent: VecDeque::new(), acknowledged: hello_at });
        let heartbeats = Self { incarnation, ttl, lease, state };
        heartbeats.extend(hello_at);
        heartbeats
    }

    /// The number of the heartbeat sent at `now`; none if the link is dead.
    pub fn send(&self, now: BootTime) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_silent = now.since(state.acknowledged).0 > self.ttl.0 / SILENCE_DIVISOR;
        if is_silent || state.sent.len() >= UNACKNOWLEDGED_MAX {
            return None;
        }
        let sequence = state.next;
        state.next += 1;
        state.sent.push_back((sequence, now));
        Some(sequence)
    }

    /// An acknowledgement of a heartbeat never sent changes nothing.
    pub fn acknowledge(&self, sequence: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(found) = state.sent.binary_search_by_key(&sequence, |&(sequence, _)| sequence) else { return };
        let Some((_, sent_at)) = state.sent.drain(..=found).next_back() else { return };
        state.acknowledged = state.acknowledged.max(sent_at);
        drop(state);
        self.extend(sent_at);
    }

    /// Acknowledgements come in the order of sending, and the newest welcome rules: a scheduler
    /// that came back with a shorter ttl counts with that one.
    fn extend(&self, sent_at: BootTime) {
        let keep = Millis(self.ttl.0 - self.ttl.0 / MARGIN_DIVISOR);
        let ends_at = sent_at.after(keep);
        self.lease.send_replace(Some(Lease { incarnation: self.incarnation, ends_at }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_welcome_rules_even_if_it_is_shorter() {
        let (heartbeats, watched) = heartbeats();
        let lease = heartbeats.lease.clone();
        let (incarnation, ttl) = (heartbeats.incarnation, Millis(1_000));
        let _next = Heartbeats::welcomed(incarnation, ttl, BootTime(2_000_000), lease);
        assert_eq!(ends_at(&watched), 2_800_000);
    }

    fn heartbeats() -> (Heartbeats, watch::Receiver<Option<Lease>>) {
        let (lease, watched) = watch::channel(None);
        let heartbeats =
            Heartbeats::welcomed(IncarnationId::from_bits(1), Millis(10_000), BootTime(1_000_000), lease);
        (heartbeats, watched)
    }

    fn ends_at(watched: &watch::Receiver<Option<Lease>>) -> u64 {
        watched.borrow().unwrap().ends_at.0
    }

    #[test]
    fn the_lease_counts_from_the_sending_of_what_was_acknowledged() {
        let (heartbeats, watched) = heartbeats();
        assert_eq!(ends_at(&watched), 9_000_000, "hello + ttl - margin");
        assert_eq!(heartbeats.send(BootTime(2_000_000)), Some(1));
        assert_eq!(heartbeats.send(BootTime(3_000_000)), Some(2));
        assert_eq!(ends_at(&watched), 9_000_000, "sent is not acknowledged");
        heartbeats.acknowledge(2);
        assert_eq!(ends_at(&watched), 11_000_000);
        for late_or_forged in [1, 2, 7, u64::MAX] {
            heartbeats.acknowledge(late_or_forged);
            assert_eq!(ends_at(&watched), 11_000_000);
        }
    }

    #[test]
    fn a_link_without_acknowledgements_is_dead_before_the_lease_is() {
        let (heartbeats, watched) = heartbeats();
        assert_eq!(heartbeats.send(BootTime(6_000_000)), Some(1));
        assert_eq!(heartbeats.send(BootTime(6_001_000)), None);
        assert!(ends_at(&watched) > 6_001_000);
    }
}
