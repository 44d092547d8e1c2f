//! Where a call is to be sent: to the node its name says, and from there to wherever the sandbox is by now.
//! One that is parked is brought back first; its caller sees a delay.

use std::collections::BTreeSet;
use std::time::Duration;

use rollout::{NodeId, SandboxId};
use scheduler_core::sessions::{How, Tried, Whereabouts, goes_on_from, has_ended};
use scheduler_core::{Event, ExplainTarget};
use tokio::time::Instant;

use super::moved::Moved;
use crate::api::{ApiCode, ApiError, SandboxesService, whereabouts};
use crate::inbox::Input;
use crate::store::AttemptRow;

/// For a parked sandbox to be back.
pub const THAW_TIMEOUT: Duration = Duration::from_secs(60);
/// Answers of one node that it has it no more while by the books it runs there: it may have come back since.
const GONE_TRIES_MAX: u32 = 1;
/// For what is parked to be so in the books, before whoever parked it is told. One that was called and is back on its
/// node between two looks makes its caller wait so long.
const PARKED_SHOWN_MAX: Duration = Duration::from_secs(1);
/// Between two looks where nothing is heard of it.
const LOOK_MAX: Duration = Duration::from_millis(200);
/// Codes of a node that has it no more, or has it parked.
pub(super) const NOT_HERE: [&str; 3] = [PARKED, ENDED, NOT_FOUND];
pub(super) const ENDED: &str = ApiCode::SandboxEnded.as_str();
const PARKED: &str = "sandbox_parked";
const NOT_FOUND: &str = "not_found";

pub(super) struct Search<'a> {
    service: &'a SandboxesService,
    moved: &'a Moved,
    id: &'a SandboxId,
    /// Of a pause: what is parked already is not brought back for it.
    pauses: bool,
    until: Instant,
    same_node: u32,
    /// Nodes that it was to be on by the books, since this search began.
    by_the_books: BTreeSet<NodeId>,
}

impl<'a> Search<'a> {
    pub fn new(service: &'a SandboxesService, moved: &'a Moved, id: &'a SandboxId, method: &str) -> Self {
        Self {
            service,
            moved,
            id,
            pauses: method == super::PAUSE,
            until: Instant::now() + THAW_TIMEOUT,
            same_node: 0,
            by_the_books: BTreeSet::new(),
        }
    }

    /// As the name says, or by the books.
    pub async fn first(&mut self) -> Result<NodeId, ApiError> {
        if let Some(node) = &self.id.node {
            return Ok(self.moved.node_of(self.id).unwrap_or_else(|| node.clone()));
        }
        match whereabouts(self.service, self.id).await? {
            Whereabouts::Parked | Whereabouts::Thaws => self.back().await,
            _ => super::node_of(self.service, self.id).await,
        }
    }

    /// Where to send the call after `node` said `code`, or nothing. None: what it said stands.
    pub async fn next(&mut self, node: &NodeId, code: Option<&str>) -> Result<Option<NodeId>, ApiError> {
        let next = self.look(node, code).await?;
        if let Some(next) = &next {
            self.moved.found(self.id, next);
            self.by_the_books.insert(next.clone());
        }
        Ok(next)
    }

    async fn look(&mut self, node: &NodeId, code: Option<&str>) -> Result<Option<NodeId>, ApiError> {
        let listening = self.service.news().of(self.id.rollout);
        let mut heard = std::pin::pin!(listening.next());
        heard.as_mut().enable();
        let found = whereabouts(self.service, self.id).await?;
        // The node of the name says so itself.
        let is_parked_here = code == Some(PARKED) && self.id.node.as_ref() == Some(node);
        // A name that was never its own finds nothing, wherever it is.
        if found != Whereabouts::Over && !is_parked_here && !self.is_its_own(node).await? {
            return Ok(None);
        }
        match found {
            Whereabouts::Parked | Whereabouts::Thaws => self.back().await.map(Some),
            Whereabouts::Runs(at) if at != *node => Ok(Some(at)),
            // Its sandbox is being destroyed, or the end of it is on its way here.
            Whereabouts::Runs(at) if code == Some(PARKED) && Instant::now() < self.until => {
                _ = tokio::time::timeout(LOOK_MAX, heard).await;
                Ok(Some(at))
            }
            Whereabouts::Runs(at) if code.is_some() && self.same_node < GONE_TRIES_MAX => {
                self.same_node += 1;
                Ok(Some(at))
            }
            // What was parked left no record on its node: that it was there is in the books.
            Whereabouts::Over if code == Some(NOT_FOUND) => {
                let job = self.service.jobs.reads.job_state(self.id.rollout.group.job).await?;
                if job.is_some() { Err(super::is_gone(self.service, self.id).await) } else { Ok(None) }
            }
            _ => Ok(None),
        }
    }

    /// Whether what runs or is parked now is the session that the name means: the one that was parked on the
    /// node of the name. What the books named in this search needs no such proof; where it was found
    /// earlier is no proof of what is there now.
    async fn is_its_own(&self, node: &NodeId) -> Result<bool, ApiError> {
        let Some(named) = &self.id.node else { return Ok(true) };
        if self.by_the_books.contains(node) {
            return Ok(true);
        }
        let attempts = self.service.jobs.reads.attempts(self.id.rollout).await?;
        Ok(goes_on_from(&tried(&attempts, self.id), named))
    }

    /// `node` parked it, and its caller was told nothing yet: waits a moment until the books have it so, from which
    /// everybody is told how it is. Whatever comes of that, it is parked.
    pub async fn parked(&self, node: &NodeId) {
        let until = Instant::now() + PARKED_SHOWN_MAX;
        let listening = self.service.news().of(self.id.rollout);
        loop {
            let mut heard = std::pin::pin!(listening.next());
            heard.as_mut().enable();
            if !matches!(whereabouts(self.service, self.id).await, Ok(Whereabouts::Runs(at)) if at == *node) {
                return;
            }
            if Instant::now() >= until {
                tracing::info!(sandbox = %self.id, %node, "parked, and its node has not reported it yet");
                return;
            }
            tokio::select! {
                () = self.service.jobs.stop.cancelled() => return,
                () = heard => {}
                () = tokio::time::sleep(LOOK_MAX) => {}
            }
        }
    }

    /// Asks for it, and waits until it runs.
    async fn back(&mut self) -> Result<NodeId, ApiError> {
        let listening = self.service.news().of(self.id.rollout);
        loop {
            let mut heard = std::pin::pin!(listening.next());
            heard.as_mut().enable();
            match whereabouts(self.service, self.id).await? {
                Whereabouts::Runs(node) => return Ok(node),
                Whereabouts::Parked if self.pauses => {
                    let message = format!("sandbox {} is parked already", self.id);
                    return Err(ApiError::new(ApiCode::SandboxParked, message)
                        .hint("nothing is to be done: any other call brings it back"));
                }
                Whereabouts::Parked => {
                    let (rollout, step) = (self.id.rollout, self.id.step);
                    self.service.jobs.inbox.send(Input::Event(Event::Thaw { rollout, step })).await?;
                }
                Whereabouts::Thaws | Whereabouts::Waits | Whereabouts::Starts(_) => {}
                Whereabouts::Over => return Err(super::is_gone(self.service, self.id).await),
            }
            if Instant::now() >= self.until {
                return Err(self.not_back().await);
            }
            tokio::select! {
                () = self.service.jobs.stop.cancelled() => return Err(crate::inbox::Stopping.into()),
                () = heard => {}
                () = tokio::time::sleep(LOOK_MAX) => {}
            }
        }
    }

    async fn not_back(&self) -> ApiError {
        let target = ExplainTarget::Step(self.id.rollout, self.id.step);
        let asked = self.service.jobs.ask(move |cluster, now| cluster.explain(now, target)).await;
        let why = asked.ok().flatten().flatten().map(|why| why.lines.join(" ")).unwrap_or_default();
        let message = format!(
            "sandbox {} was parked and is not back after {} s (THAW_TIMEOUT): {why}",
            self.id,
            THAW_TIMEOUT.as_secs()
        );
        ApiError::new(ApiCode::SandboxNotReady, message)
            .hint("nothing of it is lost: it comes back when there is room for it; call again")
    }
}

/// Whether the sandbox that the name means has ended, whatever another attempt of its step does now.
pub(super) async fn is_over(service: &SandboxesService, id: &SandboxId) -> Result<bool, ApiError> {
    if whereabouts(service, id).await? == Whereabouts::Over {
        return Ok(true);
    }
    let Some(named) = &id.node else { return Ok(false) };
    let attempts = service.jobs.reads.attempts(id.rollout).await?;
    Ok(has_ended(&tried(&attempts, id), named))
}

fn tried<'r>(attempts: &'r [AttemptRow], id: &SandboxId) -> Vec<Tried<'r>> {
    let of_step = attempts.iter().filter(|row| row.attempt.step == id.step);
    of_step.map(|row| Tried { node: &row.node, how: how(row) }).collect()
}

fn how(row: &AttemptRow) -> How {
    match &row.outcome {
        None => How::Open,
        Some(outcome) if outcome.parked.is_some() => How::Parked,
        // That it was ready may be told by its end alone, after the link was down.
        Some(outcome) if row.started_at.is_none() && outcome.times.started_at.is_none() => How::NeverReady,
        Some(_) => How::Over,
    }
}

#[cfg(test)]
mod tests {
    use rollout::failure::{Failure, FailureCode};
    use rollout::outcome::{Outcome, Parked, Times};
    use rollout::{
        AttemptId, Generation, GroupId, IncarnationId, JobId, Millis, RolloutId, StepIndex, Timestamp,
    };

    use super::*;

    /// Of an attempt; `told` is what its node said of its start, `outcome` what its end says.
    fn row(told: Option<i64>, outcome: Option<Option<i64>>) -> AttemptRow {
        let group = GroupId { job: JobId::from_bits(7), index: 0 };
        let rollout = RolloutId { group, sample: 0, refill: 0 };
        let ended = |started_at: Option<i64>| {
            let times = Times {
                taken_at: Timestamp(1),
                started_at: started_at.map(Timestamp),
                ended_at: Timestamp(3),
                boot: None,
                run: None,
                checkpoint: None,
            };
            Box::new(Outcome::unmeasured(Failure::new(FailureCode::NodeLost, "gone"), times))
        };
        AttemptRow {
            attempt: AttemptId { rollout, step: StepIndex(0), attempt: 0 },
            generation: Generation(1),
            node: NodeId("n1".parse().unwrap()),
            incarnation: IncarnationId::from_bits(1),
            placed_at: Timestamp(0),
            started_at: told.map(Timestamp),
            ended_at: outcome.map(|_| Timestamp(3)),
            outcome: outcome.map(ended),
        }
    }

    /// The link may be down from before a sandbox is ready until after it ended: its caller has used it all the same.
    #[test]
    fn an_end_alone_tells_of_a_start() {
        for (told, outcome, expected) in [
            (None, None, How::Open),
            (Some(2), None, How::Open),
            (None, Some(None), How::NeverReady),
            (Some(2), Some(None), How::Over),
            (None, Some(Some(2)), How::Over),
            (Some(2), Some(Some(2)), How::Over),
        ] {
            assert_eq!(how(&row(told, outcome)), expected, "{told:?} {outcome:?}");
        }
    }

    /// A session that was parked on one node and was begun on another.
    #[test]
    fn a_session_that_was_ready_elsewhere_by_its_end_alone_goes_on_no_more() {
        let id: SandboxId = "j0000000000007-g0-s0@n1".parse().unwrap();
        let mut parked = row(Some(2), Some(Some(2)));
        let (ran, time_left, idle_left) = (Millis(1), Millis(9), Millis(9));
        let left = Parked { log: None, claim: None, ran, time_left, idle_left, version: 2 };
        parked.outcome.as_mut().unwrap().parked = Some(Box::new(left));
        let elsewhere = |outcome| AttemptRow { node: NodeId("n2".parse().unwrap()), ..row(None, outcome) };
        let ended = |then: AttemptRow| {
            let rows = [parked.clone(), then];
            has_ended(&tried(&rows, &id), &NodeId("n1".parse().unwrap()))
        };
        assert!(!ended(elsewhere(None)), "it is on its way there");
        assert!(!ended(elsewhere(Some(None))), "it was never ready there, and waits for another node");
        assert!(ended(elsewhere(Some(Some(2)))), "what runs after that is another session");
    }
}
