//! Schedules as clients see them.

use std::sync::Arc;

use rollout::image::ImageRef;
use rollout::plan::JobPlan;
use rollout::schedule::SchedulePlan;
use rollout::text::shown;
use rollout::{ScheduleId, Timestamp};
use rollout_wire::v1;
use tokio::sync::oneshot;

use super::submit::{Asked, check_key, new_job, renew_trees};
use super::{ApiCode, ApiError, JobsService, images, jobs};
use crate::schedules::{Ask, FiredAs};
use crate::store::{NewSchedule, ScheduleRow};

/// Bytes of the key of a fire: with the schedule's id before it, it is the key of a job.
const FIRE_KEY_BYTES_MAX: usize = 128;

/// Keeps a spec that was checked as a submit is: its rows, its files and where its tables go.
pub(super) async fn register(
    service: &JobsService,
    schedule: SchedulePlan,
    plan: JobPlan,
    asked: Asked,
    warnings: Vec<String>,
) -> Result<v1::SubmitReply, ApiError> {
    let table_root = asked.table_root.clone();
    let (checked, facts, named) = new_job(&service.blobs, plan, asked).await?;
    let not_yet = |image: &str, instead: String| {
        let message = format!("a schedule over image `{}` is not available yet", shown(image, 200));
        ApiError::new(ApiCode::NotAvailableYet, message).hint(instead)
    };
    let is_local = |text: &&String| text.parse::<ImageRef>().is_ok_and(|image| image.is_local());
    if let Some(local) = named.iter().find(is_local) {
        return Err(not_yet(local, "push it to a registry, and name it by its digest".to_owned()));
    }
    let pins = images::pin(service, named, &[]).await?;
    if let Some(moving) = pins.iter().find(|image| image.pinned != image.reference) {
        let instead = format!("name it by its digest: `{}`", shown(&moving.pinned, 300));
        return Err(not_yet(&moving.reference, instead));
    }
    let facts = Arc::new(facts);
    renew_trees(service, &facts).await?;
    let now = service.schedule_clock.now();
    let row = ScheduleRow {
        // Of a new one; one that is replaced keeps its own.
        schedule: ScheduleId::from_bits(rand::random()),
        project: facts.plan.project.clone().unwrap_or_default(),
        name: checked.name,
        plan: schedule,
        spec_hash: checked.spec_hash,
        table_root,
        idempotency_key: checked.idempotency_key,
        request_hash: checked.request_hash,
        created_at: now,
        cursor_at: now,
        last_job: None,
        last_fire_at: None,
        waiting: None,
        fired: 0,
        skipped: 0,
        missed: 0,
        failed: 0,
        problem: String::new(),
    };
    let new = NewSchedule {
        row,
        document: checked.document,
        source_name: checked.source_name,
        files: checked.files,
    };
    let (row, replaced) = ask(service, |reply| Ask::Register { new: Box::new(new), reply }).await?;
    Ok(v1::SubmitReply {
        schedule: Some(message(service, row)),
        replaced,
        warnings,
        ..v1::SubmitReply::default()
    })
}

pub(super) async fn list(service: &JobsService) -> Result<v1::ListSchedulesReply, ApiError> {
    let rows = service.reads.schedules().await?;
    Ok(v1::ListSchedulesReply { schedules: rows.into_iter().map(|row| message(service, row)).collect() })
}

pub(super) async fn get(service: &JobsService, schedule: &str) -> Result<v1::Schedule, ApiError> {
    Ok(message(service, find(service, schedule).await?))
}

pub(super) async fn set(
    service: &JobsService,
    request: &v1::SetScheduleRequest,
) -> Result<v1::Schedule, ApiError> {
    let schedule = find(service, &request.schedule).await?.schedule;
    let row = ask(service, |reply| Ask::Set { schedule, enabled: request.enabled, reply }).await?;
    Ok(message(service, row))
}

pub(super) async fn remove(
    service: &JobsService,
    schedule: &str,
) -> Result<v1::RemoveScheduleReply, ApiError> {
    let schedule = find(service, schedule).await?.schedule;
    ask(service, |reply| Ask::Remove { schedule, reply }).await?;
    Ok(v1::RemoveScheduleReply { id: schedule.to_string() })
}

pub(super) async fn fire(
    service: &JobsService,
    request: &v1::FireScheduleRequest,
) -> Result<v1::FireScheduleReply, ApiError> {
    check_key(&request.idempotency_key, FIRE_KEY_BYTES_MAX)?;
    let schedule = find(service, &request.schedule).await?.schedule;
    let key = request.idempotency_key.clone();
    let (row, fired) = ask(service, |reply| Ask::Fire { schedule, key, reply }).await?;
    let (result, job) = match fired {
        FiredAs::Started(job) => ("started", Some(job.to_string())),
        FiredAs::Waits => ("waits", None),
        FiredAs::Skipped => ("skipped", None),
    };
    Ok(v1::FireScheduleReply { schedule: Some(message(service, row)), result: result.to_owned(), job })
}

async fn ask<T>(
    service: &JobsService,
    ask: impl FnOnce(oneshot::Sender<Result<T, ApiError>>) -> Ask,
) -> Result<T, ApiError> {
    let (reply, answer) = oneshot::channel();
    service.schedules.ask(ask(reply)).await?;
    jobs::committed(service, answer).await?
}

/// By its id, or by a name that one project has.
async fn find(service: &JobsService, text: &str) -> Result<ScheduleRow, ApiError> {
    let rows = service.reads.schedules().await?;
    let id: Option<ScheduleId> = text.parse().ok();
    if let Some(row) = rows.iter().find(|row| Some(row.schedule) == id) {
        return Ok(row.clone());
    }
    let named: Vec<&ScheduleRow> = rows.iter().filter(|row| row.name == text).collect();
    match named.as_slice() {
        [row] => Ok((*row).clone()),
        [] => {
            let nearest = rollout::text::nearest(text, rows.iter().map(|row| row.name.as_str()));
            let missing = ApiError::not_found("schedule", text);
            Err(match nearest {
                Some(name) => missing.hint(format!("did you mean `{}`?", shown(name, 64))),
                None => missing.hint("`rollyard schedule ls` lists them"),
            })
        }
        several => {
            let ids: Vec<String> = several.iter().map(|row| row.schedule.to_string()).collect();
            let problem = format!("several projects have a schedule of that name: {}", ids.join(", "));
            Err(ApiError::bad_request("schedule", problem).hint("use one of these ids"))
        }
    }
}

fn message(service: &JobsService, row: ScheduleRow) -> v1::Schedule {
    let told = row.plan.describe(service.schedule_clock.now());
    let us = |at: Timestamp| at.0;
    v1::Schedule {
        id: row.schedule.to_string(),
        name: row.name,
        project: row.project,
        cron: told.cron,
        timezone: told.timezone,
        enabled: told.enabled,
        overlap: told.overlap.as_str().to_owned(),
        catch_up: told.catch_up,
        spec_hash: row.spec_hash,
        table_root: row.table_root,
        created_at_us: row.created_at.0,
        next_at_us: told.next_at_us,
        next: told.next,
        last_fire_at_us: row.last_fire_at.map(us),
        last_job: row.last_job.map(|job| job.to_string()),
        waiting_at_us: row.waiting.map(|fire| fire.at.0),
        fired: row.fired,
        skipped: row.skipped,
        missed: row.missed,
        failed: row.failed,
        problem: row.problem,
    }
}
