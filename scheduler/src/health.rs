//! Whether the store and the tables take writes now: what `explain` says first when they do not.

use rollout::Timestamp;
use tokio::sync::watch;

/// A part that is being tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub since: Timestamp,
    pub problem: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// The database does not take commits: nothing new is placed or acknowledged.
    pub store: Option<Trouble>,
    /// Rows of closed groups cannot be written: jobs cannot finish.
    pub recorder: Option<Trouble>,
}

impl Health {
    /// Sentences for people; empty when all is well.
    pub fn sentences(&self) -> Vec<String> {
        let store = self.store.as_ref().map(|trouble| {
            format!(
                "The store does not take writes ({}); nothing new is placed until it does.",
                trouble.problem
            )
        });
        let recorder = self.recorder.as_ref().map(|trouble| {
            format!("Rows of closed groups cannot be written ({}); it is tried again.", trouble.problem)
        });
        store.into_iter().chain(recorder).collect()
    }
}

/// The message of an error and of its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The writing end, shared by the driver and the recorder.
#[derive(Debug, Clone)]
pub(crate) struct HealthBoard(watch::Sender<Health>);

impl HealthBoard {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Health::default()))
    }
    pub(crate) fn store(&self, trouble: Option<Trouble>) {
        self.0.send_if_modified(|health| set(&mut health.store, trouble));
    }
    pub(crate) fn recorder(&self, trouble: Option<Trouble>) {
        self.0.send_if_modified(|health| set(&mut health.recorder, trouble));
    }
    /// Returns once the store takes no writes: the driver then answers nothing until it does.
    pub(crate) async fn store_in_trouble(&self) {
        // The sender is `self`: the channel cannot close meanwhile.
        let _ = self.0.subscribe().wait_for(|health| health.store.is_some()).await;
    }
    pub(crate) fn now(&self) -> Health {
        self.0.borrow().clone()
    }
}

fn set(slot: &mut Option<Trouble>, trouble: Option<Trouble>) -> bool {
    match (slot.as_mut(), trouble) {
        (Some(old), Some(new)) => old.problem = new.problem,
        (None, None) => return false,
        (_, trouble) => *slot = trouble,
    }
    true
}
