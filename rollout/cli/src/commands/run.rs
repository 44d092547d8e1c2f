//! `run`: one spec, one command, a yard that lives as long as it.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rollout::text::shown;
use rollout_wire::v1::ListRequest;
use rollout_wire::v1::submit_request::IfUnfinished;
use tokio::time::timeout;

use super::Context;
use super::matrix;
use super::specs::{Sent, accept_source, accept_tasks, follow, fresh_key, send};
use super::without_file;
use crate::args;
use crate::client::Client;
use crate::error::{Error, chain};
use crate::exit::ExitStatus;
use crate::interrupt;
use crate::output::human::count;
use crate::spec;
use crate::view::{Job, Submitted};
use crate::yard::Yard;

/// Other unfinished jobs that are named.
const COMPANY_MAX: u32 = 5;
/// For the yard to say what an interrupted job is left with.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
const STOPPING: &str = "stopping: what runs is ended, what is done stays; Ctrl-C again exits at once";

pub async fn run(context: &Context, args: &args::Run) -> Result<ExitStatus, Error> {
    let source = match (&args.spec, &args.harbor.harbor) {
        (Some(path), _) => spec::read(path)?,
        (None, Some(dir)) => without_file::spec(dir, &args.harbor)?,
        // The command line asks for one of them.
        (None, None) => return Err(Error::NoSpec),
    };
    if args.print_spec {
        let (source, _) = accept_source(context, source, false)?;
        Context::print(&without_file::whole(&source.text))?;
        return Ok(ExitStatus::Success);
    }
    if let Some(url) = &context.yard {
        return Err(Error::OwnYard { url: url.to_string() });
    }
    let (source, checked) = accept_source(context, source, false)?;
    let cells = matrix::cells(context, &source, false)?;
    let of_matrix = checked.plan(false)?.matrix.clone();
    let max_parallel = of_matrix.as_ref().and_then(|matrix| matrix.max_parallel);
    let fail_fast = of_matrix.is_some_and(|matrix| matrix.fail_fast);
    let tasks = accept_tasks(context, checked.plan(false)?, &source)?;
    let url = context.url()?;
    let table = spec::table_root(checked.plan(false)?, args.table.as_deref(), &url)?;
    if checked.plan(false)?.schedule.is_some() {
        context.talk.say("this runs the job once, now: `rollyard submit` keeps its `schedule`");
    }
    let stop = interrupt::watch(context.talk.clone(), STOPPING.to_owned())?;
    let mut yard =
        Yard::both(&context.data_dir, &args.blobs, &args.capacity, args::Pressure::default()).await?;
    let work = async {
        let if_unfinished = if args.new { IfUnfinished::New } else { IfUnfinished::Resume };
        let client = tokio::select! {
            client = Client::connect(url) => client?,
            () = stop.cancelled() => return Err(Error::Interrupted),
        };
        if let Some(cells) = &cells {
            let plan = matrix::Plan {
                table: args.table.as_deref(),
                idempotency_key: fresh_key(),
                if_unfinished,
                through_hold: args.keep_going,
                own_yard: true,
                max_parallel,
                fail_fast,
            };
            return matrix::run(context, &client, cells, &plan, &stop).await;
        }
        let sent = Sent {
            tasks: tasks.as_ref(),
            table_root: table,
            idempotency_key: fresh_key(),
            if_unfinished,
            once: true,
        };
        let submit = async {
            let submitted = send(&client, &context.talk, &source, &checked, &sent).await?.job()?;
            context.talk.say(&greeting(&submitted));
            say_company(context, &client, &submitted.job.id).await?;
            Ok(submitted)
        };
        let submitted = tokio::select! {
            submitted = submit => submitted?,
            () = stop.cancelled() => return Err(Error::Interrupted),
        };
        let ended = follow(context, &client, &submitted.job, args.keep_going, &stop, Some(cpu_ms)).await;
        if matches!(ended, Err(Error::Interrupted)) {
            farewell(context, &client, &submitted.job.id).await;
        }
        ended
    };
    let result = tokio::select! {
        result = work => result,
        error = yard.failed() => Err(error),
    };
    outcome(result, yard.stop().await)
}

/// How the command ended, from how its work and its yard did. A yard that fails refuses calls and
/// breaks connections: of the two errors its own is the cause. A job that ended badly and a reader
/// who stopped it or went away are no such consequence.
fn outcome(work: Result<ExitStatus, Error>, yard: Result<(), Error>) -> Result<ExitStatus, Error> {
    match (work, yard) {
        (work, Ok(())) => work,
        (Ok(_), Err(cause)) => Err(cause),
        (Err(error @ (Error::JobEnded { .. } | Error::Interrupted | Error::Stdout(_))), Err(cause)) => {
            tracing::error!(error = chain(&cause), "the yard did not stop well");
            Err(error)
        }
        (Err(error), Err(cause)) => {
            tracing::debug!(error = chain(&error), "what the yard's failure led to");
            Err(cause)
        }
    }
}

fn greeting(submitted: &Submitted) -> String {
    let job = &submitted.job;
    if submitted.resumed {
        let (ended, total) = (count(job.rollouts.ended), count(job.rollouts.total));
        return format!("job {} goes on: {ended} of {total} rollouts have ended (--new starts over)", job.id);
    }
    format!("job {}", job.id)
}

/// A yard runs all its unfinished jobs, those of earlier commands too: not in silence.
async fn say_company(context: &Context, client: &Client, job: &str) -> Result<(), Error> {
    let request = ListRequest { page_size: COMPANY_MAX, unfinished_only: true, ..ListRequest::default() };
    let reply = client.done(client.jobs().list(request).await)?;
    let others: Vec<String> = reply
        .jobs
        .iter()
        .filter(|other| other.id != job)
        .map(|other| format!("{} ({})", shown(&other.id, 32), shown(&other.name, 64)))
        .collect();
    if !others.is_empty() {
        let more = if reply.next_page_token.is_empty() { "" } else { " and more" };
        context.talk.say(&format!(
            "unfinished jobs of this data directory go on too: {}{more}; `rollyard cancel JOB` ends one",
            others.join(", ")
        ));
    }
    Ok(())
}

/// Says what an interrupted job is left with. The yard still answers; if not, less is said.
async fn farewell(context: &Context, client: &Client, job: &str) {
    let left = match timeout(FAREWELL_TIMEOUT, client.get(job)).await.map(|job| job.map(Job::from)) {
        Ok(Ok(job)) if job.is_final() => return,
        Ok(Ok(job)) => {
            format!(" with {} of {} rollouts ended", count(job.rollouts.ended), count(job.rollouts.total))
        }
        Err(_) => String::new(),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the state of the interrupted job");
            String::new()
        }
    };
    context.talk.say(&format!("job {job} stays{left}; the same command goes on with it"));
}

/// CPU time of this process so far.
fn cpu_ms() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| {
        let ms = usage.user_time().num_milliseconds() + usage.system_time().num_milliseconds();
        u64::try_from(ms).unwrap_or(0)
    })
}
