//! The backends of a node, one of each kind. The first makes what the others hand on: its end is theirs.

use std::sync::Arc;

use rollout::BackendKind;

use crate::sandbox::{Backend, Ceilings};

#[derive(Debug, Clone)]
pub struct Backends {
    first: Arc<dyn Backend>,
    others: Vec<Arc<dyn Backend>>,
}

impl Backends {
    pub fn new(first: Arc<dyn Backend>) -> Self {
        Self { first, others: Vec::new() }
    }

    /// One more, of a kind that is not there yet.
    #[must_use]
    pub fn with(mut self, other: Arc<dyn Backend>) -> Self {
        self.others.push(other);
        self
    }

    pub(crate) fn first(&self) -> &Arc<dyn Backend> {
        &self.first
    }

    pub(crate) fn of(&self, kind: BackendKind) -> Option<&Arc<dyn Backend>> {
        self.all().find(|backend| backend.kind() == kind)
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        self.all()
    }

    /// As jobs name them.
    pub(crate) fn kinds(&self) -> Vec<String> {
        self.all().map(|backend| backend.kind().to_string()).collect()
    }

    /// What is left for attempts when every other backend holds as many sandboxes ahead as it may.
    pub(crate) fn ceilings(&self) -> Ceilings {
        let ahead: u32 = self.others.iter().map(|backend| backend.ahead_max()).sum();
        let ceilings = self.first.ceilings();
        Ceilings { sandboxes: ceilings.sandboxes.saturating_sub(ahead), ..ceilings }
    }

    /// Destroys what was made ahead, while that can still be done in order.
    pub(crate) async fn wind_up(&self) {
        for backend in self.all() {
            backend.wind_up().await;
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl<B: Backend + 'static> From<Arc<B>> for Backends {
    fn from(first: Arc<B>) -> Self {
        Self::new(first)
    }
}
