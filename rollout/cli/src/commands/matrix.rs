//! A spec with a matrix: one job per combination of its values, each in a folder of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use rollout::spec::Cell;
use rollout::text::shown;
use rollout_wire::v1::CancelRequest;
use rollout_wire::v1::submit_request::IfUnfinished;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::Context;
use super::specs::{Sent, accept_tasks, send};
use super::wait::{Waited, wait};
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::spec::{self, Checked, Source};
use crate::view::Job;

/// A cell and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellJob {
    pub cell: String,
    pub values: BTreeMap<String, String>,
    /// None: it was not submitted.
    pub job: Option<Job>,
    /// The code of the error that kept it from a good end.
    pub error: Option<String>,
    pub exit_code: u8,
}

/// A cell, checked: a spec of its own.
#[derive(Debug)]
pub struct CellSpec {
    cell: Cell,
    source: Source,
    checked: Checked,
}

/// The cells of a spec, if its matrix has several. What is wrong in one stops all.
pub fn cells(
    context: &Context,
    source: &Source,
    deny_warnings: bool,
) -> Result<Option<Vec<CellSpec>>, Error> {
    let cells = rollout::spec::cells(&source.text).filter(|cells| cells.len() > 1);
    let Some(cells) = cells else { return Ok(None) };
    let of = |cell: Cell| {
        let name = format!("{} ({})", source.name, cell.name);
        let source = Source { name, text: cell.document.clone(), dir: source.dir.clone() };
        let checked = spec::check(&source);
        if let Err(error) = checked.plan(deny_warnings) {
            context.talk.say(checked.rendered.trim_end());
            return Err(error);
        }
        Ok(CellSpec { cell, source, checked })
    };
    cells.into_iter().map(of).collect::<Result<_, _>>().map(Some)
}

/// How the jobs of a matrix are handed to a yard.
#[derive(Debug)]
pub struct Plan<'a> {
    pub table: Option<&'a Path>,
    /// Of the whole; each job has one of its own.
    pub idempotency_key: String,
    pub if_unfinished: IfUnfinished,
    pub through_hold: bool,
    /// Whether the yard ends with this command.
    pub own_yard: bool,
    /// Jobs at once; none: all.
    pub max_parallel: Option<usize>,
    pub fail_fast: bool,
}

/// Submits every cell and goes on.
pub async fn submit(
    context: &Context,
    client: &Client,
    cells: &[CellSpec],
    plan: &Plan<'_>,
) -> Result<ExitStatus, Error> {
    if plan.fail_fast || plan.max_parallel.is_some_and(|most| most < cells.len()) {
        return Err(Error::MatrixWaits);
    }
    let mut rows = Vec::with_capacity(cells.len());
    for (index, cell) in cells.iter().enumerate() {
        let sent = cell.send(context, client, plan, index).await?;
        rows.push(cell.row(Some(sent), None));
    }
    Context::print(&context.output.cells(&rows))?;
    Ok(ExitStatus::Success)
}

/// Submits every cell, so many at once, and waits for all of them. The worst end is that of the
/// command.
pub async fn run(
    context: &Context,
    client: &Client,
    cells: &[CellSpec],
    plan: &Plan<'_>,
    stop: &CancellationToken,
) -> Result<ExitStatus, Error> {
    let failed = AtomicBool::new(false);
    // Ends the others, and is ended with them.
    let others = stop.child_token();
    let each = cells.iter().enumerate().map(|(index, cell)| {
        let (failed, others) = (&failed, &others);
        async move {
            let mut row = cell.run(context, client, plan, index, others).await;
            if others.is_cancelled() && !stop.is_cancelled() && row.error.as_deref() == Some("interrupted") {
                row.error = Some(Error::FailFast.code().to_owned());
                row.exit_code = Error::FailFast.exit().code();
            }
            if row.exit_code != 0 && plan.fail_fast && !failed.swap(true, Ordering::Relaxed) {
                context.talk.say(&format!("{} failed: the others end", row.cell));
                others.cancel();
            }
            (index, row)
        }
    });
    let at_once = plan.max_parallel.unwrap_or(cells.len()).max(1);
    let mut rows: Vec<(usize, CellJob)> =
        futures::stream::iter(each).buffer_unordered(at_once).collect().await;
    rows.sort_unstable_by_key(|(index, _)| *index);
    let rows: Vec<CellJob> = rows.into_iter().map(|(_, row)| row).collect();
    if plan.fail_fast && failed.load(Ordering::Relaxed) {
        cancel_unfinished(client, &rows).await;
    }
    Context::print(&context.output.cells(&rows))?;
    if stop.is_cancelled() {
        return Err(Error::Interrupted);
    }
    match rows.iter().max_by_key(|row| row.exit_code).filter(|row| row.exit_code != 0) {
        None => Ok(ExitStatus::Success),
        Some(worst) => {
            let failed = rows.iter().filter(|row| row.exit_code != 0).count();
            Err(Error::CellsFailed { failed, cells: rows.len(), exit: worst.exit_code })
        }
    }
}

async fn cancel_unfinished(client: &Client, rows: &[CellJob]) {
    let jobs = rows.iter().filter_map(|row| row.job.as_ref()).filter(|job| !job.is_final());
    for job in jobs {
        let reason = "another job of its matrix failed (fail_fast)".to_owned();
        let request = CancelRequest { job: job.id.clone(), reason };
        if let Err(error) = client.jobs().cancel(request).await {
            tracing::warn!(job = %job.id, %error, "a job of the matrix was not cancelled");
        }
    }
}

impl CellSpec {
    async fn send(
        &self,
        context: &Context,
        client: &Client,
        plan: &Plan<'_>,
        index: usize,
    ) -> Result<Job, Error> {
        let job_plan = self.checked.plan(false)?;
        let tasks = accept_tasks(context, job_plan, &self.source)?;
        let url = context.url()?;
        let mut table = spec::table_root(job_plan, plan.table, &url)?;
        // Where the yard looks the path up, jobs are told apart by their ids.
        if !table.is_empty() {
            table = format!("{}/{}", table.trim_end_matches('/'), self.cell.name);
        }
        let sent = Sent {
            tasks: tasks.as_ref(),
            table_root: table,
            idempotency_key: format!("{}-{index}", plan.idempotency_key),
            if_unfinished: plan.if_unfinished,
            once: false,
        };
        let submitted = send(client, &context.talk, &self.source, &self.checked, &sent).await?.job()?;
        let how = if submitted.resumed { " goes on" } else { "" };
        context.talk.say(&format!("job {}{how}  {}", submitted.job.id, shown(&self.cell.name, 200)));
        Ok(submitted.job)
    }

    async fn run(
        &self,
        context: &Context,
        client: &Client,
        plan: &Plan<'_>,
        index: usize,
        stop: &CancellationToken,
    ) -> CellJob {
        if stop.is_cancelled() {
            return self.row(None, Some(Error::Interrupted));
        }
        let job = match self.send(context, client, plan, index).await {
            Ok(job) => job,
            Err(error) => {
                context.talk.say(error.text().trim_end());
                return self.row(None, Some(error));
            }
        };
        match wait(client, &context.talk, &job.id, plan.through_hold, stop, |_| ()).await {
            Ok(Waited::Ended(job) | Waited::Held(job)) if job.went_well() => self.row(Some(job), None),
            Ok(Waited::Ended(job) | Waited::Held(job)) => {
                let error = Error::ended(&job, plan.own_yard);
                self.row(Some(job), Some(error))
            }
            Ok(Waited::Stopped) => self.row(Some(job), Some(Error::Interrupted)),
            Err(error) => self.row(Some(job), Some(error)),
        }
    }

    fn row(&self, job: Option<Job>, error: Option<Error>) -> CellJob {
        CellJob {
            cell: self.cell.name.clone(),
            values: self.cell.values.clone(),
            job,
            exit_code: error.as_ref().map_or(0, |error| error.exit().code()),
            error: error.map(|error| error.code().to_owned()),
        }
    }
}
