//! `check` and `submit`: a spec is checked here first, so that a mistake costs no round trip.

use rollout::plan::JobPlan;
use rollout::text::shown;
use rollout_wire::v1::submit_request::IfUnfinished;
use rollout_wire::v1::{ExplainRequest, SubmitRequest};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::patience::Patience;
use super::wait::{Waited, wait};
use super::{Context, matrix};
use crate::args::{self, OutputFormat};
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::harbor::Tasks;
use crate::progress::Progress;
use crate::rows::{self, Rows};
use crate::spec::{self, Checked, DryRun, Source};
use crate::summary::{self, Summary};
use crate::talk::Talk;
use crate::view::{Job, Scheduled, Submitted};
use crate::{interrupt, local_images, upload};

pub fn check(context: &Context, args: &args::Check) -> Result<ExitStatus, Error> {
    let source = spec::read(&args.spec)?;
    let checked = spec::check(&source);
    let plan = checked.plan(args.deny_warnings);
    // The document was checked with the values of its first cell.
    if plan.is_ok() {
        matrix::cells(context, &source, args.deny_warnings)?;
    }
    // Rows can be checked against a spec without errors only; one document holds what is found in both.
    let rows = plan.as_ref().ok().map(|plan| rows::check(plan, &source)).transpose()?;
    let (mut findings, mut rendered) = (checked.findings.clone(), checked.rendered.clone());
    if let Some(rows) = &rows {
        findings.extend_from_slice(&rows.findings);
        rendered += &rows.rendered();
    }
    Context::print(&context.output.findings(&findings, &rendered))?;
    say_notes(context, rows.as_ref().map(|rows| rows.notes.as_slice()).unwrap_or_default());
    plan?;
    rows.map_or(Ok(0), Rows::count)?;
    if context.format == OutputFormat::Table {
        context.talk.say(&format!("{} is valid", source.shown()));
    }
    Ok(ExitStatus::Success)
}

/// Reads and checks; findings that stop it are data for JSON and talk for people.
pub fn accept(
    context: &Context,
    path: &std::path::Path,
    deny_warnings: bool,
) -> Result<(Source, Checked), Error> {
    accept_source(context, spec::read(path)?, deny_warnings)
}

/// As [`accept`], of a spec that is no file.
pub fn accept_source(
    context: &Context,
    source: Source,
    deny_warnings: bool,
) -> Result<(Source, Checked), Error> {
    let checked = spec::check(&source);
    if !checked.rendered.is_empty() {
        context.talk.say(checked.rendered.trim_end());
    }
    if let Err(error) = checked.plan(deny_warnings) {
        if context.format == OutputFormat::Json {
            Context::print(&context.output.findings(&checked.findings, ""))?;
        }
        return Err(error);
    }
    Ok((source, checked))
}

fn say_notes(context: &Context, notes: &[String]) {
    for note in notes {
        context.talk.say(note);
    }
}

/// The tasks of a Harbor source: those that cannot run stop it, or are left out and said to be.
pub fn accept_tasks(context: &Context, plan: &JobPlan, source: &Source) -> Result<Option<Tasks>, Error> {
    let Some(tasks) = Tasks::read(plan, source)? else { return Ok(None) };
    let faults = tasks.faults();
    say_notes(context, &tasks.notes());
    if faults.is_empty() {
        return Ok(Some(tasks));
    }
    context.talk.say(rollout::spec::render(&faults, "").trim_end());
    if context.format == OutputFormat::Json {
        Context::print(&context.output.findings(&faults, ""))?;
    }
    Err(Error::Unsupported { tasks: faults.len() })
}

pub async fn submit(context: &Context, args: &args::Submit) -> Result<ExitStatus, Error> {
    let (source, checked) = accept(context, &args.spec, args.deny_warnings)?;
    let plan = checked.plan(args.deny_warnings)?;
    if args.dry_run {
        let cells = matrix::cells(context, &source, args.deny_warnings)?;
        if let Some(cells) = &cells {
            context.talk.say(&format!("the matrix gives {} jobs; this is the first", cells.len()));
        }
        let rows = rows::check(plan, &source)?;
        say_notes(context, &rows.notes);
        if !rows.findings.is_empty() {
            context.talk.say(rows.rendered().trim_end());
            if context.format == OutputFormat::Json {
                Context::print(&context.output.findings(&rows.findings, ""))?;
            }
        }
        Context::print(&context.output.dry_run(&DryRun::of(plan, rows.count()?, &checked, super::now())))?;
        return Ok(ExitStatus::Success);
    }
    let url = context.url()?;
    let key = args.idempotency_key.clone().unwrap_or_else(fresh_key);
    let if_unfinished = if args.resume { IfUnfinished::Resume } else { IfUnfinished::New };
    if let Some(cells) = matrix::cells(context, &source, args.deny_warnings)? {
        let client = Client::connect(url).await?;
        let plan = matrix::Plan {
            table: args.table.as_deref(),
            idempotency_key: key,
            if_unfinished,
            through_hold: false,
            own_yard: false,
            max_parallel: plan.matrix.as_ref().and_then(|matrix| matrix.max_parallel),
            fail_fast: plan.matrix.as_ref().is_some_and(|matrix| matrix.fail_fast),
        };
        if !args.wait {
            return matrix::submit(context, &client, &cells, &plan).await;
        }
        let stop = interrupt::watch(context.talk.clone(), "the jobs go on in the yard".to_owned())?;
        return matrix::run(context, &client, &cells, &plan, &stop).await;
    }
    let table = spec::table_root(plan, args.table.as_deref(), &url)?;
    let tasks = accept_tasks(context, plan, &source)?;
    let client = Client::connect(url).await?;
    let sent =
        Sent { tasks: tasks.as_ref(), table_root: table, idempotency_key: key, if_unfinished, once: false };
    let submitted = match send(&client, &context.talk, &source, &checked, &sent).await? {
        Accepted::Job(submitted) => submitted,
        Accepted::Schedule(scheduled) => {
            Context::print(&context.output.scheduled(&scheduled))?;
            let how = if scheduled.replaced { "the schedule was replaced" } else { "the schedule is kept" };
            let name = shown(&scheduled.schedule.name, 64);
            context.talk.say(&format!("{how}: `rollyard schedule show {name}` says how it goes"));
            return Ok(ExitStatus::Success);
        }
    };
    let job = submitted.job.id.clone();
    if !args.wait {
        Context::print(&context.output.submitted(&submitted))?;
        context.talk.say(&format!("see how it goes with `rollyard show {job}`"));
        return Ok(ExitStatus::Success);
    }
    context.talk.say(&format!("job {job}"));
    let stop = interrupt::watch(context.talk.clone(), format!("job {job} goes on in the yard"))?;
    follow(context, &client, &submitted.job, false, &stop, None).await
}

/// What goes to the yard beside the spec.
#[derive(Debug)]
pub struct Sent<'a> {
    /// Of a Harbor source.
    pub tasks: Option<&'a Tasks>,
    pub table_root: String,
    pub idempotency_key: String,
    pub if_unfinished: IfUnfinished,
    /// A job now, whatever its schedule.
    pub once: bool,
}

/// What a yard made of a spec.
#[derive(Debug)]
pub enum Accepted {
    Job(Submitted),
    Schedule(Scheduled),
}

impl Accepted {
    /// Of a spec that has no schedule, or was sent to run once.
    pub fn job(self) -> Result<Submitted, Error> {
        match self {
            Self::Job(submitted) => Ok(submitted),
            Self::Schedule(_) => {
                Err(Error::BadAnswer { problem: "a schedule where a job was asked for".into() })
            }
        }
    }
}

/// Uploads what the spec names and submits. Where the connection breaks, it is not known what
/// arrived: all of it is sent again, under the same idempotency key.
pub async fn send(
    client: &Client,
    talk: &Talk,
    source: &Source,
    checked: &Checked,
    sent: &Sent<'_>,
) -> Result<Accepted, Error> {
    Patience::new(talk).through(async || send_once(client, source, checked, sent).await).await
}

async fn send_once(
    client: &Client,
    source: &Source,
    checked: &Checked,
    sent: &Sent<'_>,
) -> Result<Accepted, Error> {
    let Sent { tasks, table_root, idempotency_key, if_unfinished, once } = sent;
    let plan = checked.plan(false)?;
    let mut paths = spec::client_files(plan);
    let mut files = Vec::new();
    if let Some(tasks) = tasks {
        let rows = tasks.upload(client).await?;
        paths.retain(|path| *path != rows.path);
        files.push(rows);
    }
    files.extend(upload::upload(client, &source.dir, &paths).await?);
    let mut request = SubmitRequest {
        document: source.text.clone(),
        source_name: source.name.clone(),
        files,
        table_root: table_root.clone(),
        idempotency_key: idempotency_key.clone(),
        if_unfinished: (*if_unfinished).into(),
        once: *once,
        images: Vec::new(),
    };
    let mut pins = BTreeMap::new();
    let reply = loop {
        let status = match client.jobs().submit(request.clone()).await {
            Ok(reply) => break reply.into_inner(),
            Err(status) => status,
        };
        // The yard has read the rows: it says which images of this machine they name.
        let unsent = unsent_images(&status).into_iter().filter(|text| !pins.contains_key(text));
        let unsent: Vec<String> = unsent.collect();
        if unsent.is_empty() {
            return Err(client.failed(status));
        }
        local_images::hand_in(client, &source.dir, &unsent, &mut pins).await?;
        request.images = pins.values().cloned().collect();
    };
    let warning = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into());
    let warnings = reply.warnings.iter().map(warning).collect();
    if let Some(schedule) = reply.schedule {
        return Ok(Accepted::Schedule(Scheduled {
            schedule: schedule.into(),
            replaced: reply.replaced,
            warnings,
        }));
    }
    let job =
        reply.job.ok_or_else(|| Error::BadAnswer { problem: "a submitted job without a job".into() })?;
    Ok(Accepted::Job(Submitted { job: job.into(), resumed: reply.resumed, warnings }))
}

fn unsent_images(status: &tonic::Status) -> Vec<String> {
    let code = status.metadata().get(rollout_wire::CODE_METADATA);
    if code.is_none_or(|code| code.as_bytes() != b"image_unsent") {
        return Vec::new();
    }
    serde_json::from_slice(status.details()).unwrap_or_default()
}

pub fn fresh_key() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Waits for the end of `job`, then prints the summary. `yard_cpu_ms` reads the CPU time of a yard
/// that is in this process.
pub async fn follow(
    context: &Context,
    client: &Client,
    job: &Job,
    through_hold: bool,
    stop: &CancellationToken,
    yard_cpu_ms: Option<fn() -> u64>,
) -> Result<ExitStatus, Error> {
    let began = std::time::Instant::now();
    let progress = RefCell::new(Progress::start(context.talk.clone()));
    progress.borrow_mut().update(job);
    let waited = tokio::select! {
        waited = wait(client, &context.talk, &job.id, through_hold, stop, |job| progress.borrow_mut().update(job)) => waited,
        never = say_why_nothing_moves(context, client, &job.id, &progress) => match never {},
    };
    drop(progress);
    let job = match waited? {
        Waited::Ended(job) | Waited::Held(job) => job,
        Waited::Stopped => return Err(Error::Interrupted),
    };
    let wall_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let detail = Patience::new(&context.talk).through(async || summary::detail(client, &job).await).await?;
    let summary = Summary { wall_ms, yard_cpu_ms: yard_cpu_ms.map(|cpu_ms| cpu_ms()), detail, job };
    Context::print(&context.output.summary(&summary))?;
    let job = summary.job;
    if job.went_well() {
        return Ok(ExitStatus::Success);
    }
    Err(Error::ended(&job, yard_cpu_ms.is_some()))
}

/// Between two looks at whether anything moves.
const STILL_PERIOD: Duration = Duration::from_secs(5);
/// Of an explanation, while a job runs.
const STILL_LINES_MAX: usize = 5;

/// While no step runs and nothing ends, says what the yard says about that; again when that
/// changes.
async fn say_why_nothing_moves(
    context: &Context,
    client: &Client,
    job: &str,
    progress: &RefCell<Progress>,
) -> Infallible {
    let mut said: Vec<String> = Vec::new();
    loop {
        tokio::time::sleep(STILL_PERIOD).await;
        if !progress.borrow_mut().is_still() {
            continue;
        }
        let request = ExplainRequest { target: job.to_owned() };
        let lines = match client.jobs().explain(request).await {
            Ok(reply) => reply.into_inner().lines,
            Err(error) => {
                tracing::debug!(%error, "asking why nothing moves");
                continue;
            }
        };
        let kept: Vec<_> = lines.iter().take(STILL_LINES_MAX).map(|line| shown(line, 400)).collect();
        if kept.iter().map(|line| without_digits(line)).eq(said.iter().map(|line| without_digits(line))) {
            continue;
        }
        context.talk.say(&format!("nothing runs: {}", kept.join("\n  ")));
        said = kept;
    }
}

/// Times and amounts go on changing while the reason is the same.
fn without_digits(line: &str) -> String {
    line.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect()
}
