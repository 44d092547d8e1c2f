//! What a node holds against what is reserved there. One comparison serves the hello and the lists
//! that an attached node sends.

use std::collections::BTreeSet;

use rollout::failure::Failure;
use rollout::{FailureCode, IncarnationId, NodeId};

use crate::cluster::Cluster;
use crate::command::{Command, Target};
use crate::config::Now;
use crate::event::{Fence, Held, HeldPhase};
use crate::lease::lost_outcome;
use crate::member::At;
use crate::node::{Grant, Phase, Reservation};
use crate::record::Record;

impl Cluster {
    /// A list of an attached node. It comes in order behind its reports, so an attempt that ended
    /// or was refused is not reserved any more; but a start may be on its way down while the list
    /// is on its way up. So only what two lists in a row do not have is lost.
    pub(crate) fn held(
        &mut self,
        now: Now,
        id: &NodeId,
        incarnation: IncarnationId,
        held: &[Held],
        records: &mut Vec<Record>,
    ) {
        self.renew(now, id, incarnation);
        let Some(node) = self.node_of(id, incarnation) else {
            // One report, whatever its length: the first entry stands for it.
            match held.first() {
                Some(&Held { attempt, generation, .. }) => {
                    let at = Fence { node: id.clone(), incarnation, generation };
                    self.fence(&at, attempt, records);
                }
                None => self.fenced += 1,
            }
            return;
        };
        // Away, or ending: its next hello is compared.
        if !node.attached {
            return;
        }
        node.let_go(held);
        let absent = node.absent_from(held);
        let lost: BTreeSet<Grant> = absent.intersection(&node.absent).copied().collect();
        node.absent = &absent - &lost;
        self.lost += lost.len() as u64;
        self.reconcile(now, id, held, &lost, records);
    }

    /// What is `lost` is started again at the same generation, or, if it was a sandbox kept for a
    /// later step, its chain starts again at its head. What is held and not wanted goes.
    ///
    /// The same generation is safe. It was granted to this incarnation alone, and the incarnation is
    /// the same: nobody else can run under it. The executor ignores a start of what it holds, and
    /// answers one of an end that is not acknowledged with that end; it forgets an attempt only
    /// after an acknowledgement or with a refusal, and either was read here before the list. A start
    /// that was merely slow, and is refused after both lists were made, may run the second time: its
    /// reports are fenced by then, and the next list shows it as not wanted.
    ///
    /// A cancelled job wants nothing: what it still runs is told again to stop, what is lost has
    /// ended.
    pub(crate) fn reconcile(
        &mut self,
        now: Now,
        id: &NodeId,
        held: &[Held],
        lost: &BTreeSet<Grant>,
        records: &mut Vec<Record>,
    ) {
        let Some(node) = self.nodes.get(id) else { return };
        let incarnation = node.incarnation;
        let target = |generation| Target { node: id.clone(), incarnation, generation };
        let holds: BTreeSet<Grant> = held.iter().map(|h| (h.attempt, h.generation)).collect();
        let mut wanted: BTreeSet<Grant> = node.sandboxes.values().map(Reservation::grant).collect();
        let (mut commands, mut again, mut gone, mut kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (key, reservation) in &node.sandboxes {
            let Reservation { attempt, generation, phase, .. } = *reservation;
            let is_held = holds.contains(&reservation.grant());
            let is_lost = lost.contains(&reservation.grant());
            let at = At::of(attempt);
            let Some(job) = self.jobs.get(&at.group.job) else { continue };
            let Some(group) = job.groups.get(&at.group.index) else { continue };
            let place = group.details.get(&at.slot).and_then(|detail| detail.place.as_ref());
            let continue_from = place.and_then(|p| p.continue_from);
            let parked = group.details.get(&at.slot).and_then(|detail| detail.parked.as_ref());
            let stop = job.stop(group);
            // A step that has not begun there still needs the sandbox it is to go on in.
            if !is_held && let Some(from) = continue_from {
                let generation = group.details.get(&At::of(from).slot).map(|detail| detail.generation);
                wanted.extend(generation.map(|generation| (from, generation)));
            }
            match (&stop, phase) {
                (_, Phase::Kept) if is_lost => kept.push((*key, attempt)),
                (_, Phase::Kept) => {}
                (Some((code, reason)), _) if is_held => {
                    let (to, code, reason) = (target(generation), *code, reason.clone());
                    commands.push(Command::Kill { to, attempt, code, reason });
                }
                (Some((code, reason)), _) if is_lost => {
                    gone.push((attempt, Failure::new(*code, reason.clone())));
                }
                (None, _) if is_lost => {
                    let id = place.and_then(|p| p.base);
                    let base = id.and_then(|id| group.base_placed(&job.plan, at.slot, id));
                    if id.is_some() && base.is_none() {
                        let message = format!("node {} lost it, and what it started from is gone", node.id);
                        gone.push((attempt, Failure::new(FailureCode::NodeLost, message)));
                        continue;
                    }
                    commands.push(Command::Start {
                        to: target(generation),
                        attempt,
                        continue_from,
                        keep: job.plan.continuation(at.slot.step).is_some(),
                        base: base.map(|saved| Box::new((*saved.checkpoint).clone())),
                        parked: parked.map(|was| was.to_send(now)),
                    });
                    again.push(at);
                }
                _ => {}
            }
        }
        for &Held { attempt, generation, phase } in held {
            if wanted.contains(&(attempt, generation)) {
                continue;
            }
            let to = target(generation);
            commands.push(match phase {
                HeldPhase::Running => Command::Kill {
                    to,
                    attempt,
                    code: FailureCode::LeaseLost,
                    reason: "the scheduler does not want this attempt any more".to_owned(),
                },
                HeldPhase::Kept => Command::Release { to, attempt },
                // Its end is stored, or fenced whenever it is told.
                HeldPhase::Ended => Command::AckEnded { to, attempt },
            });
        }
        for &at in &again {
            if let Some(key) = self.sandbox_key(at)
                && let Some(node) = self.node_of(id, incarnation)
            {
                node.set_phase(key, Phase::Starting);
            }
        }
        let mut now_sent = Vec::new();
        for command in commands {
            self.send_start(id, command, &mut now_sent);
        }
        self.outbox.extend(now_sent);
        for at in again {
            self.watch(now, at);
        }
        for (attempt, failure) in gone {
            self.accept_end(now, attempt, Box::new(lost_outcome(now, failure)), false, records);
        }
        for (key, left_by) in kept {
            self.free_sandbox(id, incarnation, key);
            self.kept_lost(now, key.head, left_by, records);
        }
    }
}
