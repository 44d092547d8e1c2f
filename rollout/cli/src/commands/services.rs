//! `dev`, `scheduler`, `executor`: serve until told to stop. And `doctor`.

use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::yard::Yard;
use crate::{interrupt, yard};

const STOPPING: &str = "stopping; Ctrl-C again exits at once";

pub async fn dev(context: &Context, args: &args::Dev) -> Result<ExitStatus, Error> {
    let stop = interrupt::watch(context.talk.clone(), STOPPING.to_owned())?;
    let yard = Yard::both(&context.data_dir, &args.blobs, &args.capacity, args.pressure).await?;
    let url = context.url()?;
    context.talk.say(&format!("serving {url}: submit with `rollyard submit SPEC`; Ctrl-C stops"));
    if args.stop_at_eof {
        stop_at_eof(stop.clone());
    }
    serve(yard, stop).await
}

/// On a thread of its own, which nobody waits for: a read of standard input cannot be cancelled.
fn stop_at_eof(stop: CancellationToken) {
    std::thread::spawn(move || {
        if let Err(error) = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()) {
            tracing::warn!(%error, "reading standard input");
        }
        stop.cancel();
    });
}

pub async fn scheduler(context: &Context, args: &args::Scheduler) -> Result<ExitStatus, Error> {
    let stop = interrupt::watch(context.talk.clone(), STOPPING.to_owned())?;
    let yard = Yard::scheduler(&context.data_dir, &args.listen, &args.blobs).await?;
    for url in yard.urls() {
        context.talk.say(&format!("serving {url}"));
    }
    serve(yard, stop).await
}

pub async fn executor(context: &Context, args: &args::Executor) -> Result<ExitStatus, Error> {
    let stop = interrupt::watch(context.talk.clone(), STOPPING.to_owned())?;
    let yard = Yard::executor(&context.data_dir, &args.scheduler, &args.name, &args.capacity, args.pressure)?;
    serve(yard, stop).await
}

/// Until a signal, which is the way a service ends well, or until a part of it fails.
async fn serve(mut yard: Yard, stop: CancellationToken) -> Result<ExitStatus, Error> {
    let result = tokio::select! {
        () = stop.cancelled() => Ok(ExitStatus::Success),
        error = yard.failed() => Err(error),
    };
    let stopped = yard.stop().await;
    result.and_then(|status| stopped.map(|()| status))
}

/// Tries on the file system of the data directory, which is made if missing.
pub fn doctor(context: &Context) -> Result<ExitStatus, Error> {
    yard::make_data_dir(&context.data_dir)?;
    let report = executor::doctor::doctor(&context.data_dir);
    Context::print(&context.output.doctor(&report))?;
    Ok(if report.container() { ExitStatus::Success } else { ExitStatus::HostCannot })
}
