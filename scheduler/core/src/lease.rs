//! Nodes come, renew, go silent and are lost. One loss path.

use std::collections::BTreeSet;

use rollout::failure::Failure;
use rollout::outcome::{Outcome, Times};
use rollout::state::JobState;
use rollout::{BootTime, FailureCode, IncarnationId, NodeId};

use crate::cluster::Cluster;
use crate::command::Command;
use crate::config::Now;
use crate::event::{Capacity, Held, Measured};
use crate::node::{Node, Phase};
use crate::record::{Hold, LeaseState, Record};

impl Cluster {
    pub(crate) fn lease_deadline(&self, now: Now) -> BootTime {
        now.boot.after(self.config.lease_ttl).after(self.config.lease_margin)
    }

    pub(crate) fn renew(&mut self, now: Now, node: &NodeId, incarnation: IncarnationId) {
        let deadline = self.lease_deadline(now);
        if let Some(node) = self.node_of(node, incarnation) {
            node.deadline = deadline;
        }
    }

    pub(crate) fn attach(
        &mut self,
        now: Now,
        id: &NodeId,
        incarnation: IncarnationId,
        capacity: Capacity,
        held: &[Held],
        records: &mut Vec<Record>,
    ) {
        if self.nodes.get(id).is_some_and(|n| n.incarnation != incarnation) {
            self.lose(now, id, "its executor started anew", records);
        }
        let deadline = self.lease_deadline(now);
        let node = self.nodes.entry(id.clone()).or_insert_with(|| {
            records.push(Record::Lease { node: id.clone(), incarnation, state: LeaseState::Alive });
            Node {
                id: id.clone(),
                incarnation,
                capacity: capacity.clone(),
                measured: Measured::default(),
                shrunk: false,
                attached: true,
                deadline,
                sandboxes: std::collections::BTreeMap::new(),
                starting: 0,
                used: rollout::quantity::Request::default(),
                absent: BTreeSet::new(),
                given_up: std::collections::BTreeMap::new(),
                images: std::collections::BTreeMap::new(),
                pace: crate::pace::Pace::default(),
            }
        });
        node.let_go(held);
        node.shrunk = !crate::node::within(node.used, capacity.total);
        node.capacity = capacity;
        node.attached = true;
        node.deadline = deadline;
        // Questions went with the link, and a tree may be another one since.
        node.images.clear();
        self.keyed.rouse_digest_waits();
        // Nothing was on its way when the hello was made: a link takes its commands with it.
        node.absent.clear();
        let lost = node.absent_from(held);
        self.reconcile(now, id, held, &lost, records);
        for job in self.jobs.values_mut().filter(|j| j.hold == Some(Hold::NoNode)) {
            job.hold = None;
            job.state = JobState::Running;
            job.reason.clear();
            records.push(job.record());
        }
    }

    pub(crate) fn expire(&mut self, now: Now, records: &mut Vec<Record>) {
        let late: Vec<NodeId> =
            self.nodes.values().filter(|n| n.deadline <= now.boot).map(|n| n.id.clone()).collect();
        for node in late {
            self.lose(now, &node, "its lease ended without a report", records);
        }
    }

    /// The incarnation is over: what ran there ends as `node_lost` and starts elsewhere.
    pub(crate) fn lose(&mut self, now: Now, id: &NodeId, reason: &str, records: &mut Vec<Record>) {
        self.take_all_back(now, id, records);
        let Some(node) = self.nodes.remove(id) else { return };
        self.keyed.rouse_digest_waits();
        records.push(Record::Lease {
            node: id.clone(),
            incarnation: node.incarnation,
            state: LeaseState::Lost,
        });
        self.outbox.push(Command::Disconnect {
            node: id.clone(),
            incarnation: node.incarnation,
            reason: reason.to_owned(),
        });
        for (key, reservation) in node.sandboxes {
            if reservation.phase == Phase::Kept {
                self.kept_lost(now, key.head, reservation.attempt, records);
                continue;
            }
            let message = format!("node {id} was lost: {reason}");
            let outcome = lost_outcome(now, Failure::new(FailureCode::NodeLost, message));
            self.accept_end(now, reservation.attempt, Box::new(outcome), false, records);
        }
    }
}

/// An end nobody reported: nothing about it was measured.
pub(crate) fn lost_outcome(now: Now, failure: Failure) -> Outcome {
    Outcome::unmeasured(failure, Times::at(now.wall))
}
