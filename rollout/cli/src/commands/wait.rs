//! Waiting for the end of a job.

use std::time::Duration;

use rollout_wire::v1::GetRequest;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::error::Error;
use crate::view::Job;

/// Times in a row that a watch may end early before it is given up.
const WATCH_BREAKS_MAX: u32 = 5;
/// Between a watch that broke and the next.
const WATCH_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub enum Waited {
    /// The job is final.
    Ended(Job),
    /// The job is held, and that ends the wait.
    Held(Job),
    /// The token was cancelled first.
    Stopped,
}

/// Watches until the job is final, held (unless `through_hold`) or `stop` is cancelled.
pub async fn wait(
    client: &Client,
    job: &str,
    through_hold: bool,
    stop: &CancellationToken,
    mut on_change: impl FnMut(&Job),
) -> Result<Waited, Error> {
    let mut breaks = 0;
    loop {
        let error = match watch(client, job, through_hold, stop, &mut breaks, &mut on_change).await {
            Ok(Some(waited)) => return Ok(waited),
            Ok(None) => {
                Error::Broken { url: client.url().to_string(), message: "the watch ended early".into() }
            }
            Err(error @ (Error::Broken { .. } | Error::Unreachable { .. })) => error,
            Err(error) => return Err(error),
        };
        breaks += 1;
        if breaks > WATCH_BREAKS_MAX {
            return Err(error);
        }
        tracing::debug!(%error, breaks, "watching again");
        tokio::select! {
            () = tokio::time::sleep(WATCH_PAUSE) => {}
            () = stop.cancelled() => return Ok(Waited::Stopped),
        }
    }
}

/// One watch; none if the stream ended without the end of the job.
async fn watch(
    client: &Client,
    job: &str,
    through_hold: bool,
    stop: &CancellationToken,
    breaks: &mut u32,
    on_change: &mut impl FnMut(&Job),
) -> Result<Option<Waited>, Error> {
    let request = GetRequest { job: job.to_owned() };
    let mut jobs = client.jobs();
    let reply = tokio::select! {
        reply = jobs.watch(request) => reply.map_err(|status| client.failed(status))?,
        () = stop.cancelled() => return Ok(Some(Waited::Stopped)),
    };
    let mut changes = reply.into_inner();
    loop {
        let message = tokio::select! {
            message = changes.message() => message.map_err(|status| client.failed(status))?,
            () = stop.cancelled() => return Ok(Some(Waited::Stopped)),
        };
        let Some(message) = message else { return Ok(None) };
        *breaks = 0;
        let job = Job::from(message);
        on_change(&job);
        if job.is_final() {
            return Ok(Some(Waited::Ended(job)));
        }
        if job.is_held() && !through_hold {
            return Ok(Some(Waited::Held(job)));
        }
    }
}
