//! The task that keeps schedules: questions, fire times, and fires that wait.

use std::collections::BTreeMap;
use std::time::Duration;

use blobs::BlobStore;
use rollout::{ScheduleId, Timestamp};
use scheduler_core::cadence;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Ask, FiredAs, SCHEDULES_MAX};
use crate::api::submit::key_in_use;
use crate::api::{ApiCode, ApiError};
use crate::clock::ScheduleClock;
use crate::error::Error;
use crate::inbox::{Commits, Inbox, Input, Stopping};
use crate::jobs::Jobs;
use crate::store::{Fire, NewSchedule, ScheduleChange, ScheduleRow};

/// Between a fire that could not be made for now and the next try.
const RETRY_AFTER: Duration = Duration::from_secs(10);

pub(crate) struct Keeper {
    pub(super) jobs: Jobs,
    pub(super) blobs: BlobStore,
    pub(super) inbox: Inbox,
    commits: watch::Receiver<Commits>,
    clock: ScheduleClock,
    /// When this scheduler started.
    up_since: Timestamp,
    pub(super) rows: BTreeMap<ScheduleId, ScheduleRow>,
    /// Those whose fire could not be made for now.
    retries: BTreeMap<ScheduleId, Instant>,
    asks: mpsc::Receiver<Ask>,
    stop: CancellationToken,
}

impl Keeper {
    /// Of the schedules that are stored.
    pub async fn open(
        jobs: Jobs,
        blobs: BlobStore,
        inbox: Inbox,
        commits: watch::Receiver<Commits>,
        clock: ScheduleClock,
        asks: mpsc::Receiver<Ask>,
        stop: CancellationToken,
    ) -> Result<Self, Error> {
        let rows = jobs.reads().schedules().await?;
        let rows = rows.into_iter().map(|row| (row.schedule, row)).collect();
        let (up_since, retries) = (clock.now(), BTreeMap::new());
        Ok(Self { jobs, blobs, inbox, commits, clock, up_since, rows, retries, asks, stop })
    }

    /// Until the scheduler stops.
    pub async fn run(mut self) {
        let stop = self.stop.clone();
        // A fire that is cut here has not been stored: it is due again at the next start.
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.keep() => {}
        }
    }

    async fn keep(&mut self) {
        loop {
            // Before the look at what has ended: an end meanwhile is seen after it.
            let ended = self.commits.borrow_and_update().jobs_ended;
            let wake_at = self.pass().await;
            let waits = self.rows.values().any(|row| row.waiting.is_some());
            let retry_at = self.retries.values().min().copied();
            tokio::select! {
                biased;
                ask = self.asks.recv() => match ask {
                    Some(ask) => self.answer(ask).await,
                    None => return,
                },
                ends = more_ended(&mut self.commits, ended), if waits => if ends.is_err() { return },
                () = async { tokio::time::sleep_until(retry_at.unwrap_or_else(Instant::now)).await },
                    if retry_at.is_some() => {}
                () = self.clock.sleep_until(wake_at) => {}
            }
        }
    }

    /// Fires what waits and may start, then what is due. When to look again.
    async fn pass(&mut self) -> Option<Timestamp> {
        let now = self.clock.now();
        let ready = Instant::now();
        self.retries.retain(|_, at| *at > ready);
        let ids: Vec<ScheduleId> = self.rows.keys().copied().collect();
        for id in ids {
            if self.retries.contains_key(&id) {
                continue;
            }
            if let Err(error) = self.serve(id, now).await {
                tracing::warn!(schedule = %id, problem = error.message, "a schedule cannot fire now; it is tried again");
                self.retries.insert(id, ready + RETRY_AFTER);
            }
        }
        let enabled = self.rows.values().filter(|row| row.plan.enabled);
        enabled.filter_map(|row| row.plan.next_after(row.cursor_at.max(now))).min()
    }

    async fn serve(&mut self, id: ScheduleId, now: Timestamp) -> Result<(), ApiError> {
        let Some(row) = self.rows.get(&id).cloned() else { return Ok(()) };
        if let Some(fire) = row.waiting.clone()
            && !self.runs(&row).await?
        {
            self.start(row, &fire, None).await?;
        }
        let Some(row) = self.rows.get(&id).filter(|row| row.plan.enabled).cloned() else { return Ok(()) };
        let due = cadence::due(&row.plan, row.cursor_at, now, self.up_since);
        if due.missed.count > 0 {
            let mut row = row;
            row.missed = row.missed.saturating_add(due.missed.count);
            let at_least = if due.missed.at_least { "at least " } else { "" };
            row.problem = format!(
                "{at_least}{} fire times passed while no scheduler ran or could take them",
                due.missed.count
            );
            // What is left to run comes after these.
            row.cursor_at = due.run.first().map_or(due.cursor, |at| Timestamp(at.0 - 1));
            tracing::info!(schedule = %id, name = row.name, problem = row.problem, "fire times were missed");
            self.update(row).await?;
        }
        for at in due.run {
            let Some(mut row) = self.rows.get(&id).cloned() else { return Ok(()) };
            row.cursor_at = at;
            let fire = Fire { at, key: format!("{id}-at-{}", at.0) };
            self.fire(row, &fire).await?;
        }
        Ok(())
    }

    async fn answer(&mut self, ask: Ask) {
        // Whoever asked may be gone; what was stored stays stored.
        match ask {
            Ask::Register { new, reply } => drop(reply.send(self.register(*new).await)),
            Ask::Set { schedule, enabled, reply } => drop(reply.send(self.set(schedule, enabled).await)),
            Ask::Remove { schedule, reply } => drop(reply.send(self.remove(schedule).await)),
            Ask::Fire { schedule, key, reply } => drop(reply.send(self.fire_now(schedule, &key).await)),
        }
    }

    async fn register(&mut self, mut new: NewSchedule) -> Result<(ScheduleRow, bool), ApiError> {
        let key = &new.row.idempotency_key;
        if let Some(owner) = self.rows.values().find(|row| row.idempotency_key == *key) {
            if owner.request_hash == new.row.request_hash {
                return Ok((owner.clone(), false));
            }
            return Err(key_in_use(key, format_args!("schedule {}", owner.schedule)));
        }
        let same = |row: &&ScheduleRow| (&row.project, &row.name) == (&new.row.project, &new.row.name);
        let former = self.rows.values().find(same).cloned();
        match &former {
            // The id, the last job and the sums go on; what waited was a fire of the old spec.
            Some(former) => {
                new.row = ScheduleRow {
                    schedule: former.schedule,
                    last_job: former.last_job,
                    last_fire_at: former.last_fire_at,
                    fired: former.fired,
                    skipped: former.skipped,
                    missed: former.missed,
                    failed: former.failed,
                    ..new.row
                };
            }
            None if self.rows.len() >= SCHEDULES_MAX => {
                let message = format!("the yard keeps {SCHEDULES_MAX} schedules (SCHEDULES_MAX)");
                return Err(ApiError::new(ApiCode::TooManySchedules, message)
                    .hint("remove one with `rollyard schedule rm`"));
            }
            None => {}
        }
        let row = new.row.clone();
        self.store(ScheduleChange::Put(Box::new(new))).await?;
        self.retries.remove(&row.schedule);
        self.rows.insert(row.schedule, row.clone());
        tracing::info!(schedule = %row.schedule, name = row.name, "schedule stored");
        Ok((row, former.is_some()))
    }

    async fn set(&mut self, schedule: ScheduleId, enabled: bool) -> Result<ScheduleRow, ApiError> {
        let mut row = self.row(schedule)?;
        if row.plan.enabled == enabled {
            return Ok(row);
        }
        row.plan.enabled = enabled;
        // What came due while it was disabled is no missed fire.
        row.cursor_at = row.cursor_at.max(self.clock.now());
        row.waiting = None;
        self.update(row.clone()).await?;
        Ok(row)
    }

    async fn remove(&mut self, schedule: ScheduleId) -> Result<(), ApiError> {
        self.row(schedule)?;
        self.store(ScheduleChange::Remove(schedule)).await?;
        self.rows.remove(&schedule);
        self.retries.remove(&schedule);
        Ok(())
    }

    async fn fire_now(
        &mut self,
        schedule: ScheduleId,
        key: &str,
    ) -> Result<(ScheduleRow, FiredAs), ApiError> {
        let row = self.row(schedule)?;
        let key = format!("{schedule}-key-{key}");
        if let Some(job) = self.jobs.reads().job_by_key(&key).await? {
            return Ok((row, FiredAs::Started(job.job)));
        }
        if row.waiting.as_ref().is_some_and(|fire| fire.key == key) {
            return Ok((row, FiredAs::Waits));
        }
        let failed = row.failed;
        let fired = self.fire(row, &Fire { at: self.clock.now(), key }).await?;
        let row = self.row(schedule)?;
        match fired {
            Some(fired) => Ok((row, fired)),
            None => {
                debug_assert!(row.failed > failed);
                Err(ApiError::new(ApiCode::RowsInvalid, row.problem)
                    .hint("submit the spec again: it is checked as a whole"))
            }
        }
    }

    pub(super) fn row(&self, schedule: ScheduleId) -> Result<ScheduleRow, ApiError> {
        let row = self.rows.get(&schedule).cloned();
        row.ok_or_else(|| ApiError::not_found("schedule", &schedule.to_string()))
    }

    pub(super) async fn update(&mut self, row: ScheduleRow) -> Result<(), ApiError> {
        self.store(ScheduleChange::Update(Box::new(row.clone()))).await?;
        self.rows.insert(row.schedule, row);
        Ok(())
    }

    /// Through the driver, and until it is stored.
    async fn store(&self, change: ScheduleChange) -> Result<(), Stopping> {
        let (done, stored) = oneshot::channel();
        self.inbox.send(Input::Schedule { change, done }).await?;
        stored.await.map_err(|_| Stopping)
    }
}

/// Until more than `ended` jobs have ended.
async fn more_ended(
    commits: &mut watch::Receiver<Commits>,
    ended: u64,
) -> Result<(), watch::error::RecvError> {
    while commits.borrow_and_update().jobs_ended == ended {
        commits.changed().await?;
    }
    Ok(())
}
