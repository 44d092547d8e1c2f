//! `ListNodes`: connected nodes, and those whose lease is still stored.

use std::collections::BTreeMap;

use rollout_wire::v1;
use scheduler_core::record::LeaseState;

use super::{ApiError, JobsService};

pub(super) async fn list(service: &JobsService) -> Result<v1::ListNodesReply, ApiError> {
    let mut nodes: BTreeMap<String, v1::Node> = BTreeMap::new();
    for row in service.reads.nodes().await? {
        let state = match row.lease {
            LeaseState::Alive => "detached",
            LeaseState::Lost => "lost",
        };
        let node = v1::Node {
            name: row.node.to_string(),
            incarnation: row.incarnation.to_string(),
            state: state.to_owned(),
            version: row.version,
            ..v1::Node::default()
        };
        nodes.insert(node.name.clone(), node);
    }
    let ledger = service.ask(|cluster, _| cluster.nodes()).await?.unwrap_or_default();
    for connected in service.links.list() {
        // What the ledger holds, not the last heartbeat's count: it is what placement goes by.
        let (used, sandboxes) = ledger
            .iter()
            .find(|node| node.node == connected.node)
            .map_or_else(Default::default, |node| (node.used, node.sandboxes));
        let total = connected.capacity.total;
        let node = v1::Node {
            name: connected.node.to_string(),
            incarnation: connected.incarnation.to_string(),
            state: "attached".to_owned(),
            capacity: Some(v1::Capacity {
                cpu_milli: total.cpu.0,
                memory_bytes: total.memory.0,
                disk_bytes: total.disk.0,
                sandboxes: connected.capacity.sandboxes,
                disk_limit_max_bytes: connected.capacity.disk_limit_max.0,
                backends: connected.about.backends,
            }),
            used_cpu_milli: used.cpu.0,
            used_memory_bytes: used.memory.0,
            used_disk_bytes: used.disk.0,
            sandboxes,
            memory_available_bytes: connected.measured.memory_available.0,
            load_milli: connected.measured.load_milli,
            version: connected.about.version,
            held: connected.measured.held,
        };
        nodes.insert(node.name.clone(), node);
    }
    Ok(v1::ListNodesReply { nodes: nodes.into_values().collect() })
}
