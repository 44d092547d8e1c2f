//! Results that steps share by their key: one runs, the others wait, and all go on from what it left.
//!
//! A key may take the digest of the step's image, which only a node knows; so the nodes are asked for
//! it before a step with such a key may run. What is stored under a key is a workspace: a step that
//! finds one is complete, without an attempt. A failure is never stored, so the next one tries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rollout::checkpoint::Checkpoint;
use rollout::result_key::{ResultKey, ResultName};
use rollout::state::StepState;
use rollout::{BootTime, IncarnationId, NodeId};

use crate::cluster::Cluster;
use crate::command::Command;
use crate::config::{IMAGE_ANSWER_MAX, IMAGE_FRESH, IMAGES_KNOWN_MAX, Now, RESULTS_MAX};
use crate::group::{Place, Saved};
use crate::member::At;
use crate::record::Record;
use crate::workspace::{SUPERSEDED, removed};

/// What is stored and who runs, waits or asks.
#[derive(Debug, Default)]
pub(crate) struct Keyed {
    pub results: BTreeMap<ResultName, Arc<Checkpoint>>,
    /// Their names, oldest first.
    pub order: VecDeque<ResultName>,
    pub claims: BTreeMap<Arc<ResultKey>, Claim>,
    pub roles: BTreeMap<At, Role>,
    /// Steps that wait for the digest of an image.
    pub digest_waits: BTreeMap<String, BTreeSet<At>>,
    /// A question could not be put: a node has as many as it may have.
    pub unasked: bool,
    /// Questions that are out, by when they are given up.
    pub asked: BTreeSet<(BootTime, NodeId, String)>,
    /// Steps with a role whose state was set since the last look.
    touched: BTreeSet<At>,
    /// Steps that waited and have to be looked at again.
    roused: BTreeSet<At>,
}

/// A key whose result is being made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub runner: At,
    pub waiting: BTreeSet<At>,
}

/// What a step with a key is doing about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// Makes the result: ready, running, or in a back-off.
    Runs(Arc<ResultKey>),
    /// Waits for the one that does.
    Behind(Arc<ResultKey>),
    /// Waits for the digest of this image.
    Digest(String),
}

/// What a node said of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImageHere {
    Asked {
        until: BootTime,
    },
    /// None: it is not there.
    Known {
        digest: Option<String>,
        until: BootTime,
    },
}

/// May a step with a key run?
pub(crate) enum Gate {
    Run,
    Wait,
    /// Its result is there.
    Done(ResultName, Arc<Checkpoint>),
}

impl Keyed {
    /// The state of `at` is set.
    pub fn touch(&mut self, at: At) {
        if self.roles.contains_key(&at) {
            self.touched.insert(at);
        }
    }

    pub fn claim(&mut self, key: Arc<ResultKey>, at: At) {
        let claim = Claim { runner: at, waiting: BTreeSet::new() };
        self.claims.entry(key.clone()).or_insert(claim);
        self.roles.insert(at, Role::Runs(key));
    }

    /// Everybody who waits for a digest looks again.
    pub fn rouse_digest_waits(&mut self) {
        let waits = std::mem::take(&mut self.digest_waits);
        for at in waits.into_values().flatten() {
            self.roles.remove(&at);
            self.roused.insert(at);
        }
    }

    fn rouse_for(&mut self, image: &str) {
        if std::mem::take(&mut self.unasked) {
            return self.rouse_digest_waits();
        }
        for at in self.digest_waits.remove(image).unwrap_or_default() {
            self.roles.remove(&at);
            self.roused.insert(at);
        }
    }

    /// `at` does nothing about its key any more.
    fn leave(&mut self, at: At) {
        match self.roles.remove(&at) {
            Some(Role::Runs(key)) => {
                let waiting = self.claims.remove(&key).map(|claim| claim.waiting).unwrap_or_default();
                for at in waiting {
                    self.roles.remove(&at);
                    self.roused.insert(at);
                }
            }
            Some(Role::Behind(key)) => {
                if let Some(claim) = self.claims.get_mut(&key) {
                    claim.waiting.remove(&at);
                }
            }
            Some(Role::Digest(image)) => {
                if let Some(waits) = self.digest_waits.get_mut(&image) {
                    waits.remove(&at);
                    if waits.is_empty() {
                        self.digest_waits.remove(&image);
                    }
                }
            }
            None => {}
        }
    }

    pub fn insert(&mut self, name: ResultName, checkpoint: Arc<Checkpoint>) {
        self.results.insert(name.clone(), checkpoint);
        self.order.push_back(name);
    }

    fn remove(&mut self, name: &ResultName) {
        self.results.remove(name);
        self.order.retain(|known| known != name);
    }
}

impl Cluster {
    fn key_of(&self, at: At) -> Option<Arc<ResultKey>> {
        self.jobs.get(&at.group.job)?.groups.get(&at.group.index)?.key_of(at.slot).cloned()
    }

    /// A waiting step whose needs are met asks whether it has to run, and runs if that is the answer.
    pub(crate) fn gate(&mut self, now: Now, at: At) -> Gate {
        let Some(key) = self.key_of(at) else { return Gate::Run };
        if matches!(self.keyed.roles.get(&at), Some(Role::Runs(_))) {
            return Gate::Run;
        }
        self.keyed.leave(at);
        if let Some(claim) = self.keyed.claims.get_mut(&key) {
            claim.waiting.insert(at);
            self.keyed.roles.insert(at, Role::Behind(key));
            return Gate::Wait;
        }
        let digests = match key.needs_digest() {
            false => vec![String::new()],
            true => match self.digests(now, &key.image) {
                Some(digests) => digests,
                None => {
                    self.keyed.digest_waits.entry(key.image.clone()).or_default().insert(at);
                    self.keyed.roles.insert(at, Role::Digest(key.image.clone()));
                    return Gate::Wait;
                }
            },
        };
        for name in digests.iter().map(|digest| key.over(digest)) {
            if let Some(checkpoint) = self.keyed.results.get(&name).cloned() {
                return Gate::Done(name, checkpoint);
            }
        }
        self.keyed.claim(key, at);
        Gate::Run
    }

    /// What the attached nodes have under the name of an image. None while one has not answered, or
    /// if none is attached; those that were not asked are.
    fn digests(&mut self, now: Now, image: &str) -> Option<Vec<String>> {
        let (mut digests, mut attached, mut whole) = (Vec::new(), false, true);
        for node in self.nodes.values_mut().filter(|node| node.attached) {
            attached = true;
            match node.images.get(image) {
                Some(ImageHere::Asked { .. }) => whole = false,
                Some(ImageHere::Known { digest, until }) if *until > now.boot => {
                    digests.extend(digest.clone())
                }
                _ if !node.has_room_for(image) => {
                    whole = false;
                    self.keyed.unasked = true;
                }
                _ => {
                    whole = false;
                    let until = now.boot.after(IMAGE_ANSWER_MAX);
                    node.note_image(image, ImageHere::Asked { until });
                    self.keyed.asked.insert((until, node.id.clone(), image.to_owned()));
                    let (node, incarnation) = (node.id.clone(), node.incarnation);
                    self.outbox.push(Command::Identify { node, incarnation, image: image.to_owned() });
                }
            }
        }
        digests.dedup();
        (attached && whole).then_some(digests)
    }

    /// A node answers what an image is there.
    pub(crate) fn identified(
        &mut self,
        now: Now,
        id: &NodeId,
        incarnation: IncarnationId,
        image: &str,
        digest: Option<String>,
    ) {
        let until = now.boot.after(IMAGE_FRESH);
        let Some(node) = self.node_of(id, incarnation) else { return };
        if let Some(ImageHere::Asked { until: asked }) = node.images.get(image) {
            let asked = *asked;
            node.note_image(image, ImageHere::Known { digest, until });
            self.keyed.asked.remove(&(asked, id.clone(), image.to_owned()));
            self.keyed.rouse_for(image);
        }
    }

    /// Whoever has not answered in time has no such image, for now.
    pub(crate) fn give_up_asking(&mut self, now: Now) {
        while let Some((until, id, image)) = self.keyed.asked.first().cloned()
            && until <= now.boot
        {
            self.keyed.asked.pop_first();
            if let Some(node) = self.nodes.get_mut(&id)
                && node.images.get(&image) == Some(&ImageHere::Asked { until })
            {
                let until = now.boot.after(IMAGE_FRESH);
                node.note_image(&image, ImageHere::Known { digest: None, until });
            }
            self.keyed.rouse_for(&image);
        }
    }

    /// The result of a step with a key is there: it is complete, and no sandbox was needed.
    pub(crate) fn use_result(
        &mut self,
        at: At,
        name: ResultName,
        checkpoint: Arc<Checkpoint>,
        records: &mut Vec<Record>,
    ) {
        if let Some(key) = self.sandbox_key(at) {
            self.free_kept(key);
        }
        let Some(group) = self.group_mut(at.group) else { return };
        let saved = Saved { id: checkpoint.id(), attempt: 0, ordinal: 0, shared: true, checkpoint };
        let detail = group.detail(at.slot);
        let checkpoint = saved.checkpoint.clone();
        let old = detail.checkpoint.replace(Box::new(saved));
        detail.failure = None;
        records.extend(old.map(|old| removed(at, &old, SUPERSEDED)));
        records.push(Record::ResultUsed { rollout: at.rollout(), step: at.slot.step, name, checkpoint });
        self.record_state(at, StepState::Succeeded, records);
    }

    /// A step with a key has succeeded: what it left is for all that have the same key.
    pub(crate) fn share_result(&mut self, now: Now, at: At, place: &Place, records: &mut Vec<Record>) {
        let Some(key) = self.key_of(at) else { return };
        let Some(group) = self.group_mut(at.group) else { return };
        let Some(saved) = group.detail(at.slot).checkpoint.as_deref().filter(|saved| !saved.shared) else {
            return;
        };
        let (attempt, checkpoint) = (at.attempt(saved.attempt), saved.checkpoint.clone());
        let name = key.of(&checkpoint);
        let until = now.boot.after(IMAGE_FRESH);
        if let Some(node) = self.node_of(&place.node, place.incarnation).filter(|_| key.needs_digest()) {
            let digest = Some(checkpoint.image.clone());
            node.note_image(&key.image, ImageHere::Known { digest, until });
        }
        if self.keyed.results.contains_key(&name) {
            return;
        }
        if self.keyed.results.len() >= RESULTS_MAX
            && let Some(oldest) = self.keyed.order.front().cloned()
        {
            self.keyed.remove(&oldest);
            let why = format!("RESULTS_MAX ({RESULTS_MAX}) are stored");
            records.push(Record::ResultDropped { name: oldest, why });
        }
        self.keyed.insert(name.clone(), checkpoint.clone());
        records.push(Record::ResultStored { name, attempt, checkpoint });
    }

    /// The workspace `base` that `at` left or found is bad: nobody finds it again.
    pub(crate) fn drop_result(&mut self, at: At, saved: &Saved, why: &str, records: &mut Vec<Record>) {
        let Some(name) = self.key_of(at).map(|key| key.of(&saved.checkpoint)) else { return };
        if self.keyed.results.get(&name).is_some_and(|known| known.id() == saved.id) {
            self.keyed.remove(&name);
            records.push(Record::ResultDropped { name, why: why.to_owned() });
        }
    }

    /// Steps that waited for a key or a digest go on, where what they waited for is settled.
    pub(crate) fn settle_keyed(&mut self, now: Now, records: &mut Vec<Record>) -> bool {
        let mut moved = false;
        loop {
            for at in std::mem::take(&mut self.keyed.touched) {
                let state = self.state_of(at);
                let keeps = match self.keyed.roles.get(&at) {
                    Some(Role::Runs(_)) => {
                        matches!(state, Some(StepState::Ready | StepState::Running | StepState::Backoff))
                    }
                    Some(_) => state == Some(StepState::Waiting),
                    None => true,
                };
                if !keeps {
                    self.keyed.leave(at);
                }
            }
            let Some(at) = self.keyed.roused.pop_first() else { return moved };
            if self.state_of(at) == Some(StepState::Waiting) {
                moved = true;
                self.advance(now, at.group, at.slot.member, records);
            }
        }
    }

    fn state_of(&self, at: At) -> Option<StepState> {
        let group = self.jobs.get(&at.group.job)?.groups.get(&at.group.index)?;
        group.holds(at.slot).then(|| group.state(at.slot))
    }

    /// A job that places nothing leaves its keys to jobs that do.
    pub(crate) fn hand_over_keys(&mut self, now: Now, records: &mut Vec<Record>) {
        if self.keyed.claims.is_empty() || self.jobs.values().all(|job| job.places() || job.state.is_final())
        {
            return;
        }
        let places = |at: &At| self.jobs.get(&at.group.job).is_some_and(|job| job.places());
        let stuck = |claim: &&Claim| {
            !places(&claim.runner)
                && self.state_of(claim.runner) != Some(StepState::Running)
                && claim.waiting.iter().any(places)
        };
        let next = |claim: &Claim| Some((claim.runner, *claim.waiting.iter().find(|at| places(at))?));
        let stuck: Vec<(At, At)> = self.keyed.claims.values().filter(stuck).filter_map(next).collect();
        for (runner, heir) in stuck {
            self.record_state(runner, StepState::Waiting, records);
            self.record_books(now, runner, records);
            self.keyed.leave(runner);
            self.advance(now, heir.group, heir.slot.member, records);
            // It waits for its heir, or finds the result.
            self.keyed.roused.insert(runner);
        }
    }
}

impl crate::node::Node {
    /// May one more image be asked for, if need be in the place of one that was answered?
    fn has_room_for(&self, image: &str) -> bool {
        self.images.len() < IMAGES_KNOWN_MAX
            || self.images.contains_key(image)
            || self.images.values().any(|here| matches!(here, ImageHere::Known { .. }))
    }

    fn note_image(&mut self, image: &str, here: ImageHere) {
        if self.images.len() >= IMAGES_KNOWN_MAX && !self.images.contains_key(image) {
            let known = self.images.iter().find(|(_, here)| matches!(here, ImageHere::Known { .. }));
            if let Some(forgotten) = known.map(|(image, _)| image.clone()) {
                self.images.remove(&forgotten);
            }
        }
        self.images.insert(image.to_owned(), here);
    }
}
