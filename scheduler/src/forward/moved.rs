//! Where sandboxes were found that their names have on another node: each next call is sent there at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rollout::{NodeId, RolloutId, SandboxId, StepIndex};

/// Names kept in mind. Without one a call takes another hop and finds it again.
const MOVED_MAX: usize = 4_096;

type Name = (RolloutId, StepIndex, NodeId);

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Moved(Arc<Mutex<BTreeMap<Name, NodeId>>>);

fn name(id: &SandboxId) -> Option<Name> {
    Some((id.rollout, id.step, id.node.clone()?))
}

impl Moved {
    pub fn node_of(&self, id: &SandboxId) -> Option<NodeId> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&name(id)?).cloned()
    }

    pub fn found(&self, id: &SandboxId, node: &NodeId) {
        let Some(name) = name(id) else { return };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if name.2 == *node {
            known.remove(&name);
            return;
        }
        if known.len() >= MOVED_MAX && !known.contains_key(&name) {
            known.pop_first();
        }
        known.insert(name, node.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_where_its_sandbox_was_found_last() {
        let moved = Moved::default();
        let id = |node: &str| format!("j0000000000007-g0-s0{node}").parse::<SandboxId>().unwrap();
        let node = |name: &str| NodeId(name.parse().unwrap());
        moved.found(&id(""), &node("n2"));
        moved.found(&id("@n1"), &node("n2"));
        assert_eq!(moved.node_of(&id("@n1")), Some(node("n2")));
        assert_eq!((moved.node_of(&id("@n3")), moved.node_of(&id(""))), (None, None));
        moved.found(&id("@n1"), &node("n3"));
        assert_eq!(moved.node_of(&id("@n1")), Some(node("n3")));
        moved.found(&id("@n1"), &node("n1"));
        assert_eq!(moved.node_of(&id("@n1")), None);
    }
}
