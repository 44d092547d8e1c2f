//! Calls that concern a live sandbox, passed on to the node that holds it.
//!
//! What goes on is what came: the frames of both directions, one after the other, with the headers, the
//! deadline and the trailers. Until the node answers, a bounded part is kept ([`body`]), to be sent again where
//! a parked sandbox came back; then nothing is: a side that takes nothing more stops the other by the flow
//! control of its connection, and a call that breaks off on one side breaks off on the other.
//! Only the name of the sandbox is read, which every first message has in its first field.

mod body;
mod channels;
mod first;
mod moved;
mod search;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rollout::{NodeId, SandboxId};
use rollout_wire::v1::sandboxes_server;
use rollout_wire::{CODE_METADATA, RUNG_METADATA, RUNG_PARKED};
use scheduler_core::sessions::Whereabouts;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::transport::Channel;
use tower::ServiceExt as _;

pub(crate) use channels::Channels;

use crate::api::{ApiCode, ApiError, Refused, SandboxesService, Told, told, whereabouts};
use body::{Answer, Replay};
use first::{FirstError, Place};
use moved::Moved;
use search::{ENDED, NOT_HERE, Search};

/// Calls under way to nodes at once.
pub const FORWARDED_CALLS_MAX: u32 = 4_096;

/// How long the refusal of a call into a sandbox that is over waits for how it ended.
const END_WAIT_MAX: Duration = Duration::from_secs(1);

/// For calls that are nearly done, once the scheduler stops; the others are told then.
const STOP_GRACE: Duration = Duration::from_millis(500);

const PAUSE: &str = "Pause";
/// The calls that nodes answer, and where the first message of each has the name.
const CALLS: [(&str, Place); 15] = [
    ("Renew", Place::Message),
    ("Finish", Place::Message),
    ("Act", Place::Message),
    ("ListActions", Place::Message),
    ("Exec", Place::Start),
    ("ReadFile", Place::Message),
    ("WriteFile", Place::Start),
    ("ListFiles", Place::Message),
    ("StatFile", Place::Message),
    ("MakeDir", Place::Message),
    ("RemoveFile", Place::Message),
    ("Forward", Place::Start),
    (PAUSE, Place::Message),
    ("Resume", Place::Message),
    ("TakeCheckpoint", Place::Message),
];

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Forwards {
    service: SandboxesService,
    places: Arc<Semaphore>,
    /// Room for calls that may have to be sent again, in KiB.
    kept: Arc<Semaphore>,
    moved: Moved,
    /// How long the first message may take to come.
    stall: Duration,
}

impl Forwards {
    pub(crate) fn new(service: SandboxesService, stall: Duration) -> Self {
        let places = Arc::new(Semaphore::new(FORWARDED_CALLS_MAX as usize));
        Self {
            service,
            places,
            kept: Arc::new(Semaphore::new(body::KEPT_KIB_MAX)),
            moved: Moved::default(),
            stall,
        }
    }

    /// Whether nodes answer this call.
    pub(crate) fn takes(service: &str, method: &str) -> bool {
        service == sandboxes_server::SERVICE_NAME && place(method).is_some()
    }

    /// Whether the request of this call is one message, and not a stream that may be silent.
    pub(crate) fn is_one_message(method: &str) -> bool {
        place(method) == Some(Place::Message)
    }

    pub(crate) async fn call(self, method: &str, request: Request<Body>) -> Response<Body> {
        let stop = self.service.jobs.stop.clone();
        let forwarded = tokio::select! {
            biased;
            forwarded = self.forward(method, request) => forwarded,
            () = stopped(stop) => Err(stopping()),
        };
        forwarded.unwrap_or_else(Status::into_http)
    }

    async fn forward(self, method: &str, request: Request<Body>) -> Result<Response<Body>, Status> {
        let refused = |error: ApiError| {
            error.log();
            Status::from(error)
        };
        let stop = self.service.jobs.stop.clone();
        let place = place(method).ok_or_else(|| Status::unimplemented("no such call"))?;
        let turn = self.places.clone().try_acquire_owned().map_err(|_| {
            let message = format!(
                "{FORWARDED_CALLS_MAX} calls of sandboxes are under way (FORWARDED_CALLS_MAX), the most at once"
            );
            let error = ApiError::new(ApiCode::TooManySandboxCalls, message);
            refused(error.hint("try again when some have ended"))
        })?;
        let (head, mut body) = request.into_parts();
        let first = tokio::time::timeout(self.stall, first::read(&mut body, place)).await;
        let first = match first {
            Ok(Ok(first)) => first,
            Ok(Err(FirstError::Broken(status))) => return Err(status),
            Ok(Err(error)) => return Err(refused(ApiError::new(ApiCode::BadMessage, error.to_string()))),
            Err(_) => {
                let message = format!("no first message came within {} s", self.stall.as_secs_f64());
                return Err(refused(ApiError::new(ApiCode::ClientTooSlow, message)));
            }
        };
        let id: SandboxId =
            first.sandbox.parse().map_err(|_| refused(ApiError::not_found("sandbox", &first.sandbox)))?;
        let broken = Arc::new(OnceLock::new());
        let call = Replay::new(first.frames, body, self.kept.clone(), broken.clone());
        let mut search = Search::new(&self.service, &self.moved, &id, method);
        let mut node = search.first().await.map_err(refused)?;
        loop {
            let channel = match self.service.channels.to(&node) {
                Ok(channel) => channel,
                Err(error) => match search.next(&node, None).await.map_err(refused)? {
                    Some(next) => {
                        node = next;
                        continue;
                    }
                    None => return Err(refused(error)),
                },
            };
            let request = Request::from_parts(head.clone(), Body::new(call.body()));
            let mut answered = channel.oneshot(request).await;
            let code = answered.as_ref().ok().and_then(|answer| answer.headers().get(CODE_METADATA));
            let code = code.and_then(|code| code.to_str().ok());
            let is_elsewhere = answered.is_err() || code.is_some_and(|code| NOT_HERE.contains(&code));
            if is_elsewhere
                && broken.get().is_none()
                && call.can_be_sent_again()
                && let Some(next) = search.next(&node, code).await.map_err(refused)?
            {
                node = next;
                continue;
            }
            let is_over = code == Some(ENDED);
            call.settle();
            // Between a node and its scheduler; whoever calls has it in the message.
            let rung = answered.as_mut().ok().and_then(|answer| answer.headers_mut().remove(RUNG_METADATA));
            if method == PAUSE && rung.is_some_and(|rung| rung == RUNG_PARKED) {
                search.parked(&node).await;
            }
            if is_over && let Some(error) = end_of(&self.service, &id).await {
                return Err(refused(error));
            }
            return match answered {
                Ok(response) => {
                    Ok(response.map(|body| Body::new(Answer::new(body, node, turn, stop.clone()))))
                }
                Err(error) => {
                    if let Some(status) = broken.get() {
                        return Err(status.clone());
                    }
                    let is_late = is_late(&error);
                    let status = Status::from_error(Box::new(error));
                    if is_late {
                        return Err(status);
                    }
                    Err(refused(gone(&self.service, &id, &node, status.message()).await))
                }
            };
        }
    }
}

/// Resolves once calls are cut.
async fn stopped(stop: CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(STOP_GRACE).await;
}

/// What their callers are told: the next scheduler may take them.
fn stopping() -> Status {
    ApiError::from(crate::inbox::Stopping).into()
}

/// Whether the deadline of the caller is over, and not the node gone. A connection that ends while a call waits
/// for it is called cancelled too.
fn is_late(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .any(|error| error.is::<tonic::TimeoutExpired>())
}

fn place(method: &str) -> Option<Place> {
    CALLS.iter().find(|(name, _)| *name == method).map(|(_, place)| *place)
}

/// Asks the node that has a sandbox, wherever it is by now, as a call that is passed on would; with which
/// node answered. `question` gets the sandbox's name on that node.
pub(crate) async fn ask<T>(
    service: &SandboxesService,
    id: &SandboxId,
    mut question: impl AsyncFnMut(Channel, String) -> Result<T, Status>,
) -> Result<(NodeId, T), Refused> {
    let moved = Moved::default();
    let mut search = Search::new(service, &moved, id, "Fork");
    let mut node = search.first().await?;
    loop {
        let name = SandboxId { node: Some(node.clone()), ..id.clone() }.to_string();
        let (code, refused) = match service.channels.to(&node) {
            Err(error) => (None, Refused::Here(error)),
            Ok(channel) => match question(channel, name).await {
                Ok(answer) => return Ok((node, answer)),
                Err(status) => match status.metadata().get(CODE_METADATA).and_then(|code| code.to_str().ok())
                {
                    Some(code) => (Some(code.to_owned()), Refused::ByNode(status)),
                    // It has no code of its own: nobody answered.
                    None => (None, gone(service, id, &node, status.message()).await.into()),
                },
            },
        };
        let is_elsewhere = code.as_deref().is_none_or(|code| NOT_HERE.contains(&code));
        if !is_elsewhere {
            return Err(refused);
        }
        node = match search.next(&node, code.as_deref()).await? {
            Some(next) => next,
            None if code.as_deref() == Some(ENDED) => {
                return Err(end_of(service, id).await.map_or(refused, Refused::from));
            }
            None => return Err(refused),
        };
    }
}

/// How a sandbox ended that its node says is over. The end of it may be on its way here: it is waited for a
/// moment, and without it the words of the node stand.
async fn end_of(service: &SandboxesService, id: &SandboxId) -> Option<ApiError> {
    let until = Instant::now() + END_WAIT_MAX;
    let listening = service.news().of(id.rollout.group.job);
    loop {
        let mut heard = std::pin::pin!(listening.next());
        heard.as_mut().enable();
        match told(service, id, ApiCode::SandboxEnded).await {
            Ok(Told::Ended(error)) => return Some(error),
            Ok(Told::NotOfClient) => return None,
            Ok(Told::Lives) => {}
            Err(error) => {
                error.log();
                return None;
            }
        }
        tokio::select! {
            () = service.jobs.stop.cancelled() => return None,
            () = tokio::time::sleep_until(until) => return None,
            () = heard => {}
        }
    }
}

/// The node of a sandbox: as its name says, or by the books.
async fn node_of(service: &SandboxesService, id: &SandboxId) -> Result<NodeId, ApiError> {
    if let Some(node) = &id.node {
        return Ok(node.clone());
    }
    match whereabouts(service, id).await? {
        Whereabouts::Runs(node) => Ok(node),
        Whereabouts::Waits | Whereabouts::Starts(_) | Whereabouts::Parked | Whereabouts::Thaws => {
            Err(ApiError::new(ApiCode::SandboxNotReady, format!("sandbox {id} is not ready yet"))
                .hint("try again when it runs"))
        }
        Whereabouts::Over => Err(is_gone(service, id).await),
    }
}

/// How it ended, if the store has that by now.
async fn is_gone(service: &SandboxesService, id: &SandboxId) -> ApiError {
    if let Ok(Told::Ended(error)) = told(service, id, ApiCode::SandboxGone).await {
        return error;
    }
    ApiError::new(ApiCode::SandboxGone, format!("sandbox {id} has ended, or there never was one"))
        .hint("create another; `rollyard checkpoint ls` has what was saved of it")
}

/// What a caller is told when a node does not answer: by the books, the sandbox may be gone with it.
async fn gone(service: &SandboxesService, id: &SandboxId, node: &NodeId, why: &str) -> ApiError {
    if search::is_over(service, id).await.unwrap_or(false) {
        return is_gone(service, id).await;
    }
    channels::node_lost(node, &rollout::text::shown(why, 200))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("transport error")]
    struct Transport(#[source] Box<dyn std::error::Error + Send + Sync>);

    #[test]
    fn only_a_deadline_is_not_the_end_of_a_node() {
        let cancelled = || Status::cancelled("operation was canceled");
        assert!(is_late(&Transport(Box::new(tonic::TimeoutExpired(())))));
        assert!(!is_late(&Transport(Box::new(cancelled()))));
        assert!(!is_late(&Transport(Box::new(Transport(Box::new(cancelled()))))));
    }
}
