//! Waiting for the end of a job.

use rollout_wire::v1::GetRequest;
use tokio_util::sync::CancellationToken;

use super::patience::Patience;
use crate::client::Client;
use crate::error::Error;
use crate::talk::Talk;
use crate::view::Job;

#[derive(Debug)]
pub enum Waited {
    /// The job is final.
    Ended(Job),
    /// The job is held, and that ends the wait.
    Held(Job),
    /// The token was cancelled first.
    Stopped,
}

/// Watches until the job is final, held (unless `through_hold`) or `stop` is cancelled. A yard that
/// is away is waited for.
pub async fn wait(
    client: &Client,
    talk: &Talk,
    job: &str,
    through_hold: bool,
    stop: &CancellationToken,
    mut on_change: impl FnMut(&Job),
) -> Result<Waited, Error> {
    let mut patience = Patience::new(talk);
    loop {
        let error = match watch(client, job, through_hold, stop, &mut patience, &mut on_change).await {
            Ok(Some(waited)) => return Ok(waited),
            Ok(None) => {
                Error::Broken { url: client.url().to_string(), message: "the watch ended early".into() }
            }
            Err(error) => error,
        };
        tokio::select! {
            () = tokio::time::sleep(patience.pause(error)?) => {}
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
    patience: &mut Patience<'_>,
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
        patience.answered();
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
