//! The ready queue: steps that may be placed, best first, sorted by what they ask for.
//!
//! Two steps of one [`Class`] fit the same nodes, so the first that fits nowhere speaks for all
//! behind it: a pass leaves the class, and looks at no more steps than it places, refuses one by
//! class, or finds waiting for the node that holds their sandbox.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use rollout::quantity::Request;
use rollout::{BackendKind, Bytes, GroupId, IncarnationId, JobId, NodeId, StepIndex, Timestamp};

use crate::group::Group;
use crate::job::Job;
use crate::member::{At, Member, Slot};

const MEMBER_FIRST: Member = Member { sample: 0, refill: 0 };
const MEMBER_LAST: Member = Member { sample: u32::MAX, refill: u32::MAX };

/// Order of placement: what was parked and is called, then priority, then the older job, then the earlier group (steps of admitted
/// groups precede new ones), then the later step (finish what was begun), then the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadyKey {
    /// Parked sessions that are called come before all that is new.
    pub thaws: Reverse<bool>,
    pub priority: Reverse<u8>,
    pub created_at: Timestamp,
    pub job: JobId,
    pub group: u32,
    pub step: Reverse<StepIndex>,
    pub member: Member,
}

impl ReadyKey {
    pub fn of(job: &Job, group: &Group, at: At) -> Self {
        let thaws = group.details.get(&at.slot).is_some_and(|detail| detail.parked.is_some());
        Self { thaws: Reverse(thaws), ..Self::of_new(job, at) }
    }

    fn of_new(job: &Job, at: At) -> Self {
        Self {
            thaws: Reverse(false),
            priority: Reverse(job.plan.admission.priority),
            created_at: job.created_at,
            job: job.id,
            group: at.group.index,
            step: Reverse(at.slot.step),
            member: at.slot.member,
        }
    }

    pub fn at(self) -> At {
        let group = GroupId { job: self.job, index: self.group };
        At { group, slot: Slot { member: self.member, step: self.step.0 } }
    }

    /// Behind every step of its job: the steps of a job are neighbours.
    fn end_of_job(self) -> Self {
        Self { group: u32::MAX, step: Reverse(StepIndex(0)), member: MEMBER_LAST, ..self }
    }
}

/// Steps that fit the same nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Go on where their predecessor left the sandbox; each has its own place.
    Continues,
    /// Take a new sandbox.
    Takes {
        backend: BackendKind,
        charge: (u64, u64, u64),
        disk_limit: Bytes,
        /// Lives of nodes that refused it for good.
        excluded: Vec<(NodeId, IncarnationId)>,
    },
}

impl Class {
    pub fn of(job: &Job, group: &Group, at: At) -> Self {
        if group.continues(&job.plan, at.slot) {
            return Self::Continues;
        }
        let resources = job.resources(group, at.slot.step);
        let Request { cpu, memory, disk } = resources.charge();
        let refused = group.details.get(&at.slot).map_or(&[][..], |d| &d.excluded);
        let mut excluded: Vec<_> = refused.iter().map(|life| (life.node.clone(), life.incarnation)).collect();
        excluded.sort();
        let backend = job.plan.step(at.slot.step).backend;
        let (charge, disk_limit) = ((cpu.0, memory.0, disk.0), resources.limit.disk);
        Self::Takes { backend, charge, disk_limit, excluded }
    }
}

/// No class is empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadyQueue(BTreeMap<Class, BTreeSet<ReadyKey>>);

impl ReadyQueue {
    pub fn insert(&mut self, class: Class, key: ReadyKey) {
        self.0.entry(class).or_default().insert(key);
    }

    pub fn remove(&mut self, class: &Class, key: &ReadyKey) {
        if let Some(keys) = self.0.get_mut(class) {
            keys.remove(key);
            if keys.is_empty() {
                self.0.remove(class);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// The first step of a job in order of placement.
    pub fn first_of(&self, job: &Job) -> Option<At> {
        let member =
            At { group: job.group_id(0), slot: Slot { member: MEMBER_FIRST, step: StepIndex(u8::MAX) } };
        let new = ReadyKey::of_new(job, member);
        let firsts = [ReadyKey { thaws: Reverse(true), ..new }, new];
        let found = self.0.values().flat_map(|keys| {
            firsts.into_iter().filter_map(|first| keys.range(first..=first.end_of_job()).next())
        });
        found.min().map(|key| key.at())
    }

    fn behind(&self, class: &Class, key: ReadyKey) -> Option<ReadyKey> {
        self.0.get(class)?.range((Bound::Excluded(key), Bound::Unbounded)).next().copied()
    }
}

/// A way through the queue in order of placement. The queue may change behind it: it holds the
/// next step of each class and nothing else.
#[derive(Debug)]
pub(crate) struct Walk {
    next: BTreeMap<ReadyKey, Class>,
}

impl Walk {
    pub fn over(queue: &ReadyQueue) -> Self {
        let first = |(class, keys): (&Class, &BTreeSet<ReadyKey>)| Some((*keys.first()?, class.clone()));
        Self { next: queue.0.iter().filter_map(first).collect() }
    }

    /// The best step of the classes that are not left. What follows it is said with one of the
    /// other functions, or its class is left.
    pub fn next(&mut self) -> Option<(ReadyKey, Class)> {
        self.next.pop_first()
    }

    /// Goes on behind `key` in its class.
    pub fn go_on(&mut self, queue: &ReadyQueue, class: Class, key: ReadyKey) {
        if let Some(key) = queue.behind(&class, key) {
            self.next.insert(key, class);
        }
    }

    /// Goes on behind the job of `key` in its class.
    pub fn skip_job(&mut self, queue: &ReadyQueue, class: Class, key: ReadyKey) {
        self.go_on(queue, class, key.end_of_job());
    }
}
