//! Finding a session that nobody drives. Who holds which is known to the nodes alone; here is only
//! whom it is worth asking.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use rollout::{JobId, NodeId, RolloutId, SandboxId, StepIndex};
use rollout_wire::v1;
use scheduler_core::Event;
use scheduler_core::sessions::{LiveSession, Whereabouts};
use tokio::time::Instant;

use super::{Refused, SandboxesService, client};
use crate::api::submit::check_key;
use crate::api::{ApiError, job_id};
use crate::inbox::Input;

/// Bytes of the name of a driver.
const DRIVER_BYTES_MAX: usize = 255;
const WAIT_MS_MAX: u64 = 60_000;
const TTL_MS: std::ops::RangeInclusive<u64> = 1_000..=600_000;
/// How long a node may take to answer.
const NODE_ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long a call that is not to wait may take with all nodes.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// A node that did not answer in time is asked nothing for so long.
const HUNG: Duration = Duration::from_secs(10);
/// A session that was held is asked after no sooner than this, and what waits looks as often by
/// itself: nobody tells that a claim ran out.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// After its start the scheduler waits for so long for nodes that may have what a driver holds.
const NODES_BACK: Duration = Duration::from_secs(10);
/// Nodes asked at once what a driver holds.
const NODES_AT_ONCE: usize = 64;

type Key = (RolloutId, StepIndex, u32);

fn key(live: &LiveSession) -> Key {
    (live.rollout, live.step, live.attempt)
}

/// What is known of the sessions of a job that somebody claims.
#[derive(Debug, Default)]
struct Desk {
    listing: Option<Listing>,
    held: BTreeMap<Key, Held>,
    /// Those that ran before the desk was there: any driver may hold them.
    before: Option<BTreeSet<Key>>,
}

/// What runs, read once for all who wait.
#[derive(Debug)]
struct Listing {
    read_at: Instant,
    /// How often there was news of the job by then.
    told: u64,
    nodes: Arc<BTreeMap<NodeId, Vec<Key>>>,
    are_left: bool,
}

/// Somebody holds it: who, as far as that was told here.
#[derive(Debug)]
struct Held {
    driver: Option<String>,
    ask_at: Instant,
}

/// One desk a job, while somebody claims: one caller at a time asks the nodes.
#[derive(Debug, Clone)]
pub(super) struct Desks {
    began_at: Instant,
    of_jobs: Arc<Mutex<BTreeMap<JobId, Seats>>>,
    /// Nodes that did not answer, until they are asked again. As many as there are nodes.
    hung: Arc<Mutex<BTreeMap<NodeId, Instant>>>,
}

#[derive(Debug, Default)]
struct Seats {
    callers: usize,
    desk: Arc<tokio::sync::Mutex<Desk>>,
}

struct AtDesk<'a> {
    desks: &'a Desks,
    job: JobId,
    desk: Arc<tokio::sync::Mutex<Desk>>,
}

impl Desks {
    pub(super) fn new() -> Self {
        Self { began_at: Instant::now(), of_jobs: Arc::default(), hung: Arc::default() }
    }

    fn of(&self, job: JobId) -> AtDesk<'_> {
        let mut of_jobs = self.of_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let seats = of_jobs.entry(job).or_default();
        seats.callers += 1;
        AtDesk { desks: self, job, desk: seats.desk.clone() }
    }

    fn is_hung(&self, node: &NodeId) -> bool {
        let hung = self.hung.lock().unwrap_or_else(PoisonError::into_inner);
        hung.get(node).is_some_and(|&until| Instant::now() < until)
    }

    fn hangs(&self, node: &NodeId) {
        let now = Instant::now();
        let mut hung = self.hung.lock().unwrap_or_else(PoisonError::into_inner);
        hung.retain(|_, until| now < *until);
        hung.insert(node.clone(), now + HUNG);
    }
}

impl Drop for AtDesk<'_> {
    fn drop(&mut self) {
        let mut of_jobs = self.desks.of_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seats) = of_jobs.get_mut(&self.job) else { return };
        seats.callers -= 1;
        if seats.callers == 0 {
            of_jobs.remove(&self.job);
        }
    }
}

pub(super) async fn claim(
    service: &SandboxesService,
    request: v1::ClaimSessionRequest,
) -> Result<v1::ClaimSessionReply, Refused> {
    let job = job_id(&request.job)?;
    check_key(&request.driver, DRIVER_BYTES_MAX).map_err(|_| {
        ApiError::bad_request("driver", format!("expected 1 to {DRIVER_BYTES_MAX} of a-z 0-9 -"))
    })?;
    if request.wait_ms > WAIT_MS_MAX {
        return Err(
            ApiError::bad_request("wait_ms", format!("{} is above {WAIT_MS_MAX}", request.wait_ms)).into()
        );
    }
    if !TTL_MS.contains(&request.ttl_ms) {
        let (low, high) = (TTL_MS.start(), TTL_MS.end());
        return Err(ApiError::bad_request(
            "ttl_ms",
            format!("{} is not between {low} and {high}", request.ttl_ms),
        )
        .into());
    }
    let wanted = match request.rollout.as_str() {
        "" => None,
        text => Some(text.parse::<RolloutId>().map_err(|_| ApiError::not_found("rollout", text))?),
    };
    let state = service.jobs.reads.job_state(job).await?;
    state.ok_or_else(|| ApiError::not_found("job", &request.job))?;
    let _place = service.waits()?;
    let until = Instant::now() + Duration::from_millis(request.wait_ms);
    let listening = service.news.of(job);
    let at_desk = service.desks.of(job);
    let nothing = |drained| Ok(v1::ClaimSessionReply { session: None, drained });
    let first_until = until.max(Instant::now() + ANSWER_MAX);
    let mut round = Round { service, request: &request, job, wanted, until: first_until };
    loop {
        let mut heard = std::pin::pin!(listening.next());
        heard.as_mut().enable();
        let Ok(mut desk) = tokio::time::timeout_at(round.until, at_desk.desk.lock()).await else {
            return nothing(false);
        };
        if !desk.list(&round, listening.told()).await? {
            return nothing(true);
        }
        let found = desk.find(&round).await;
        if found.is_none() {
            round.call_parked().await?;
        }
        drop(desk);
        if let Some((live, session)) = found {
            listening.pass_on();
            let session = Some(told(service, live, session).await?);
            return Ok(v1::ClaimSessionReply { session, drained: false });
        }
        if Instant::now() >= until {
            return nothing(false);
        }
        round.until = until;
        tokio::select! {
            () = service.jobs.stop.cancelled() => return Err(crate::inbox::Stopping.into()),
            () = heard => {}
            () = tokio::time::sleep_until(until.min(Instant::now() + ASK_AGAIN)) => {}
        }
    }
}

/// One look for a session.
struct Round<'a> {
    service: &'a SandboxesService,
    request: &'a v1::ClaimSessionRequest,
    job: JobId,
    wanted: Option<RolloutId>,
    /// No node is waited for any longer.
    until: Instant,
}

impl Desk {
    /// What runs now, as read for whoever asked last if nothing was told since. False: no session runs
    /// or will.
    async fn list(&mut self, round: &Round<'_>, told: u64) -> Result<bool, Refused> {
        let (job, now) = (round.job, Instant::now());
        let is_fresh = |listing: &&Listing| listing.told == told && now < listing.read_at + ASK_AGAIN;
        if let Some(listing) = self.listing.as_ref().filter(is_fresh) {
            return Ok(listing.are_left);
        }
        self.listing = None;
        let asked = round
            .service
            .jobs
            .ask(move |cluster, _| (cluster.live_sessions(job), cluster.has_sessions_left(job)));
        let Ok(answer) = tokio::time::timeout_at(round.until, asked).await else { return Ok(true) };
        // While the store takes no writes nothing begins; what runs is asked after later.
        let Some((live, are_left)) = answer? else { return Ok(true) };
        let known: BTreeSet<Key> = live.iter().map(key).collect();
        self.held.retain(|key, _| known.contains(key));
        match &mut self.before {
            Some(before) => before.retain(|key| known.contains(key)),
            none => *none = Some(known),
        }
        let mut nodes: BTreeMap<NodeId, Vec<Key>> = BTreeMap::new();
        for live in live {
            nodes.entry(live.node.clone()).or_default().push(key(&live));
        }
        self.listing = Some(Listing { read_at: now, told, nodes: Arc::new(nodes), are_left });
        Ok(are_left)
    }

    /// A session that its node gives to the driver: what it holds already first.
    async fn find(&mut self, round: &Round<'_>) -> Option<(LiveSession, v1::Session)> {
        let nodes = self.listing.as_ref()?.nodes.clone();
        let nodes = || nodes.iter().filter(|(node, _)| !round.service.desks.is_hung(node));
        if round.wanted.is_none() {
            let may_be_own = |key: &Key| self.may_hold(&round.request.driver, key);
            let asked: Vec<NodeId> = nodes()
                .filter(|(_, live)| live.iter().any(may_be_own))
                .map(|(node, _)| node.clone())
                .collect();
            let mut is_away = false;
            let asks = stream::iter(asked).map(|node| async { (round.ask(&node, true).await, node) });
            let mut answers = std::pin::pin!(asks.buffer_unordered(NODES_AT_ONCE));
            while let Some((answer, node)) = answers.next().await {
                match answer {
                    Answer::Given(session) => {
                        if let Some(live) = self.given(round, &node, &session).await {
                            return Some((live, *session));
                        }
                    }
                    Answer::Away => is_away = true,
                    Answer::Held | Answer::Gone => {}
                }
            }
            if is_away && round.service.desks.began_at.elapsed() < NODES_BACK {
                return None;
            }
        }
        if round.request.held_only && round.wanted.is_none() {
            return None;
        }
        for (node, live) in nodes() {
            let now = Instant::now();
            let wanted = |key: &&Key| round.wanted.is_none_or(|wanted| wanted == key.0);
            let is_own = |held: &Held| held.driver.as_deref() == Some(round.request.driver.as_str());
            let is_worth =
                |key: &Key| self.held.get(key).is_none_or(|held| is_own(held) || held.ask_at <= now);
            if now >= round.until || !live.iter().filter(wanted).any(is_worth) {
                continue;
            }
            match round.ask(node, round.request.held_only).await {
                Answer::Given(session) => {
                    if let Some(live) = self.given(round, node, &session).await {
                        return Some((live, *session));
                    }
                }
                Answer::Held => {
                    let ask_at = Instant::now() + ASK_AGAIN;
                    for key in live.iter().filter(wanted) {
                        self.held.entry(*key).or_insert(Held { driver: None, ask_at }).ask_at = ask_at;
                    }
                }
                // Its end is on its way here, or its node is back soon.
                Answer::Gone | Answer::Away => {}
            }
        }
        None
    }

    /// As far as is known here: who held what when this desk came is not.
    fn may_hold(&self, driver: &str, key: &Key) -> bool {
        match self.held.get(key).and_then(|held| held.driver.as_deref()) {
            Some(holder) => holder == driver,
            None => self.before.as_ref().is_some_and(|before| before.contains(key)),
        }
    }

    /// What a node gave, if it runs by the books, too.
    async fn given(
        &mut self,
        round: &Round<'_>,
        node: &NodeId,
        session: &v1::Session,
    ) -> Option<LiveSession> {
        let SandboxId { rollout, step, .. } = session.sandbox.parse().ok()?;
        let live = LiveSession { rollout, step, attempt: session.attempt, node: node.clone() };
        let listed = self.listing.as_ref().and_then(|listing| listing.nodes.get(node));
        if !listed.is_some_and(|listed| listed.contains(&key(&live))) {
            // It is ready there, and that was not stored when the list was read.
            let asked = round.service.jobs.ask(move |cluster, _| cluster.whereabouts(rollout, step));
            let whereabouts = tokio::time::timeout_at(round.until, asked).await.ok()?.ok()??;
            let (Whereabouts::Starts(at) | Whereabouts::Runs(at)) = whereabouts else { return None };
            if at != *node || rollout.group.job != round.job {
                return None;
            }
        }
        let driver = Some(round.request.driver.clone());
        self.held.insert(key(&live), Held { driver, ask_at: Instant::now() + ASK_AGAIN });
        Some(live)
    }
}

enum Answer {
    Given(Box<v1::Session>),
    Held,
    Gone,
    /// The node is not connected.
    Away,
}

impl Round<'_> {
    /// A session without a sandbox that the driver held, or asks for, comes back: one that nobody holds (any
    /// more) too, if no other was found. What comes of it is news.
    async fn call_parked(&self) -> Result<(), Refused> {
        let (job, wanted, driver) = (self.job, self.wanted, self.request.driver.clone());
        let held_only = self.request.held_only;
        let asked = self.service.jobs.ask(move |cluster, now| {
            let parked = cluster.parked_sessions(now, job).into_iter();
            let theirs = parked.filter(|found| wanted.is_none_or(|wanted| wanted == found.rollout));
            let mut free = None;
            for found in theirs {
                let step = (found.rollout, found.step);
                match &found.driver {
                    Some(held_by) if *held_by == driver => return Some(step),
                    Some(_) => {}
                    None if held_only => {}
                    None => free = free.or(Some(step)),
                }
            }
            free
        });
        if let Some((rollout, step)) = asked.await?.flatten() {
            let event = Event::Thaw { rollout, step };
            self.service.jobs.inbox.send(Input::Event(event)).await?;
        }
        Ok(())
    }

    /// For the rollout that is wanted, or for any of the job.
    async fn ask(&self, node: &NodeId, held_only: bool) -> Answer {
        let Ok(channel) = self.service.channels.to(node) else { return Answer::Away };
        let claim = v1::ClaimSessionRequest { wait_ms: 0, held_only, ..self.request.clone() };
        let mut client = client(channel);
        let answer_by = Instant::now() + NODE_ANSWER_MAX;
        match tokio::time::timeout_at(answer_by.min(self.until), client.claim(claim)).await {
            Ok(Ok(reply)) => match reply.into_inner().session {
                Some(session) => Answer::Given(Box::new(session)),
                None => Answer::Held,
            },
            Ok(Err(status)) => {
                tracing::debug!(%node, job = %self.job, %status, "a node did not give a session");
                Answer::Gone
            }
            Err(_) => {
                tracing::debug!(%node, job = %self.job, "a node did not answer a claim in time");
                if answer_by <= self.until {
                    self.service.desks.hangs(node);
                }
                Answer::Gone
            }
        }
    }
}

/// With what only the scheduler knows: the task, and the names.
async fn told(
    service: &SandboxesService,
    live: LiveSession,
    session: v1::Session,
) -> Result<v1::Session, ApiError> {
    let job = live.rollout.group.job;
    let facts = service.jobs.jobs.get(job).await?;
    let facts = facts.ok_or_else(|| ApiError::not_found("job", &job.to_string()))?;
    let LiveSession { rollout, step, attempt, node } = live;
    let index = rollout.group.index;
    let step_name = facts.plan.step(step).name.to_string();
    let read = tokio::task::spawn_blocking(move || {
        let row = facts.row(index)?;
        Ok::<_, crate::rows::RowsError>((
            facts.task_id_of(&row, index),
            serde_json::Value::from(row).to_string(),
        ))
    });
    let read = read.await.map_err(|error| crate::Error::Panicked { task: error.to_string() })?;
    let (task_id, row) = read.map_err(|source| crate::Error::Rows { job, source: Box::new(source) })?;
    Ok(v1::Session {
        sandbox: SandboxId { rollout, step, node: Some(node) }.to_string(),
        rollout: rollout.to_string(),
        step: step_name,
        attempt,
        group: rollout.group.to_string(),
        task_id,
        row,
        ..session
    })
}
