//! Finding a session that nobody drives. Who holds which is known to the nodes alone; here is only
//! whom it is worth asking.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollout::{JobId, RolloutId, SandboxId, StepIndex};
use rollout_wire::v1;
use scheduler_core::sessions::LiveSession;
use tokio::time::Instant;

use super::{Refused, SandboxesService, client};
use crate::api::submit::check_key;
use crate::api::{ApiError, job_id};

/// Bytes of the name of a driver.
const DRIVER_BYTES_MAX: usize = 255;
const WAIT_MS_MAX: u64 = 60_000;
const TTL_MS: std::ops::RangeInclusive<u64> = 1_000..=600_000;
/// How long a node may take to answer.
const NODE_ANSWER_MAX: Duration = Duration::from_secs(5);
/// A session that was held is asked after no sooner than this, and what waits looks as often by
/// itself: nobody tells that a claim ran out.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What is known of the sessions of a job that somebody claims.
#[derive(Debug, Default)]
struct Desk {
    held: BTreeMap<(RolloutId, StepIndex, u32), Held>,
}

/// Somebody holds it: who, as far as that was told here.
#[derive(Debug)]
struct Held {
    driver: Option<String>,
    ask_at: Instant,
}

/// One desk a job, while somebody claims: one caller at a time asks the nodes.
#[derive(Debug, Clone, Default)]
pub(super) struct Desks(Arc<Mutex<BTreeMap<JobId, Arc<tokio::sync::Mutex<Desk>>>>>);

struct AtDesk<'a> {
    desks: &'a Desks,
    job: JobId,
    desk: Arc<tokio::sync::Mutex<Desk>>,
}

impl Desks {
    fn of(&self, job: JobId) -> AtDesk<'_> {
        let mut desks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        AtDesk { desks: self, job, desk: desks.entry(job).or_default().clone() }
    }
}

impl Drop for AtDesk<'_> {
    fn drop(&mut self) {
        let mut desks = self.desks.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's own, and this one.
        if Arc::strong_count(&self.desk) <= 2 {
            desks.remove(&self.job);
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
    loop {
        let mut heard = std::pin::pin!(listening.next());
        heard.as_mut().enable();
        let asked =
            service.jobs.ask(move |cluster, _| (cluster.live_sessions(job), cluster.has_sessions_left(job)));
        // While the store takes no writes nothing begins; what runs is asked after later.
        let (live, are_left) = asked.await?.unwrap_or_else(|| (Vec::new(), true));
        if !are_left {
            return Ok(v1::ClaimSessionReply { session: None, drained: true });
        }
        let found = {
            let mut desk = at_desk.desk.lock().await;
            desk.find(service, &request, wanted, live).await
        };
        if let Some((live, session)) = found {
            listening.pass_on();
            let session = Some(told(service, live, session).await?);
            return Ok(v1::ClaimSessionReply { session, drained: false });
        }
        if Instant::now() >= until {
            return Ok(v1::ClaimSessionReply { session: None, drained: false });
        }
        tokio::select! {
            () = service.jobs.stop.cancelled() => return Err(crate::inbox::Stopping.into()),
            () = heard => {}
            () = tokio::time::sleep_until(until.min(Instant::now() + ASK_AGAIN)) => {}
        }
    }
}

impl Desk {
    /// A session that its node gives to the driver: what it holds already first.
    async fn find(
        &mut self,
        service: &SandboxesService,
        request: &v1::ClaimSessionRequest,
        wanted: Option<RolloutId>,
        live: Vec<LiveSession>,
    ) -> Option<(LiveSession, v1::Session)> {
        let key = |live: &LiveSession| (live.rollout, live.step, live.attempt);
        let known: std::collections::BTreeSet<_> = live.iter().map(key).collect();
        self.held.retain(|key, _| known.contains(key));
        let now = Instant::now();
        let is_own = |held: &Held| held.driver.as_deref() == Some(request.driver.as_str());
        let mut worth: Vec<LiveSession> = live
            .into_iter()
            .filter(|live| wanted.is_none_or(|wanted| wanted == live.rollout))
            .filter(|live| self.held.get(&key(live)).is_none_or(|held| is_own(held) || held.ask_at <= now))
            .collect();
        worth.sort_by_key(|live| !self.held.get(&key(live)).is_some_and(is_own));
        for live in worth {
            match ask(service, request, &live).await {
                Answer::Given(session) => {
                    let driver = Some(request.driver.clone());
                    self.held.insert(key(&live), Held { driver, ask_at: now + ASK_AGAIN });
                    return Some((live, *session));
                }
                Answer::Held => {
                    self.held.insert(key(&live), Held { driver: None, ask_at: now + ASK_AGAIN });
                }
                // Its end is on its way here, or its node is back soon.
                Answer::Gone => {}
            }
        }
        None
    }
}

enum Answer {
    Given(Box<v1::Session>),
    Held,
    Gone,
}

async fn ask(service: &SandboxesService, request: &v1::ClaimSessionRequest, live: &LiveSession) -> Answer {
    let Ok(channel) = service.channels.to(&live.node) else { return Answer::Gone };
    let claim = v1::ClaimSessionRequest { wait_ms: 0, rollout: live.rollout.to_string(), ..request.clone() };
    let mut client = client(channel);
    match tokio::time::timeout(NODE_ANSWER_MAX, client.claim(claim)).await {
        Ok(Ok(reply)) => match reply.into_inner().session {
            Some(session) => Answer::Given(Box::new(session)),
            None => Answer::Held,
        },
        Ok(Err(status)) => {
            tracing::debug!(node = %live.node, rollout = %live.rollout, %status, "a node did not give a session");
            Answer::Gone
        }
        Err(_) => {
            tracing::debug!(node = %live.node, rollout = %live.rollout, "a node did not answer a claim in time");
            Answer::Gone
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
