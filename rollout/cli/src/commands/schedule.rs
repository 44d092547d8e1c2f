//! `schedule`: what a yard runs again and again.

use rollout::text::shown;
use rollout_wire::v1::{
    FireScheduleRequest, GetScheduleRequest, ListSchedulesRequest, RemoveScheduleRequest, SetScheduleRequest,
};

use super::Context;
use super::specs::fresh_key;
use crate::args::{OutputFormat, ScheduleCommand};
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::view::{FiredSchedule, Schedule};

pub async fn schedule(context: &Context, command: &ScheduleCommand) -> Result<ExitStatus, Error> {
    match command {
        ScheduleCommand::Ls => list(context).await?,
        ScheduleCommand::Show(named) => show(context, &named.schedule).await?,
        ScheduleCommand::Enable(named) => set(context, &named.schedule, true).await?,
        ScheduleCommand::Disable(named) => set(context, &named.schedule, false).await?,
        ScheduleCommand::Rm(named) => remove(context, &named.schedule).await?,
        ScheduleCommand::Fire(args) => {
            fire(context, &args.schedule, args.idempotency_key.as_deref()).await?;
        }
    }
    Ok(ExitStatus::Success)
}

async fn list(context: &Context) -> Result<(), Error> {
    let question =
        async |client: &Client| client.done(client.jobs().list_schedules(ListSchedulesRequest {}).await);
    let reply = context.ask(question, |reply| reply.schedules.iter().any(|row| row.enabled)).await?;
    let schedules: Vec<_> = reply.schedules.into_iter().map(Schedule::from).collect();
    Context::print(&context.output.schedules(&schedules))
}

async fn show(context: &Context, schedule: &str) -> Result<(), Error> {
    let request = GetScheduleRequest { schedule: schedule.to_owned() };
    let question = async |client: &Client| client.done(client.jobs().get_schedule(request).await);
    let reply = context.ask(question, |row| row.enabled).await?;
    Context::print(&context.output.schedule(&reply.into()))
}

async fn set(context: &Context, schedule: &str, enabled: bool) -> Result<(), Error> {
    let request = SetScheduleRequest { schedule: schedule.to_owned(), enabled };
    let row = context.tell(async |client| client.done(client.jobs().set_schedule(request).await)).await?;
    Context::print(&context.output.schedule(&row.into()))
}

async fn remove(context: &Context, schedule: &str) -> Result<(), Error> {
    let request = RemoveScheduleRequest { schedule: schedule.to_owned() };
    let removed =
        context.tell(async |client| client.done(client.jobs().remove_schedule(request).await)).await?;
    if context.format == OutputFormat::Table {
        context.talk.say("its jobs go on: `rollyard cancel JOB` ends one");
    }
    Context::print(&context.output.removed_schedule(&removed.id))
}

/// Needs a yard that runs: a job is of no use without.
async fn fire(context: &Context, schedule: &str, key: Option<&str>) -> Result<(), Error> {
    let client = Client::connect(context.url()?).await?;
    let idempotency_key = key.map_or_else(fresh_key, str::to_owned);
    let request = FireScheduleRequest { schedule: schedule.to_owned(), idempotency_key };
    let reply = client.done(client.jobs().fire_schedule(request).await)?;
    let row = reply
        .schedule
        .ok_or_else(|| Error::BadAnswer { problem: "a fired schedule without the schedule".into() })?;
    let fired = FiredSchedule { result: reply.result, job: reply.job, schedule: row.into() };
    if context.format == OutputFormat::Table {
        match fired.result.as_str() {
            "started" => {}
            "waits" => context.talk.say("no job yet: it starts when the job of the fire before has ended"),
            _ => context.talk.say(&format!("no job: {}", shown(&fired.schedule.problem, 240))),
        }
    }
    Context::print(&context.output.fired_schedule(&fired))
}
