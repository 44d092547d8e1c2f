//! The service for sandboxes, as far as the scheduler answers it itself: creating, listing, ending,
//! claiming and forking them. A sandbox of a client is a job of one session, so queueing, placement,
//! restarts and lost nodes are those of jobs. What concerns a live sandbox goes to its node (see
//! `forward`).

mod claim;
mod create;
mod document;
mod ending;
mod fork;
mod kill;
mod view;

use std::sync::Arc;

use rollout::SandboxId;
use rollout::text::shown;
use rollout_wire::{MESSAGE_BYTES_MAX, v1};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

pub(crate) use ending::of_row as end_of_sandbox;
pub(crate) use view::{Told, told, whereabouts};

use super::{ApiCode, ApiError, JobsService};
use crate::forward::Channels;
use crate::news::News;

/// Calls of the scheduler that wait for a sandbox to be ready, to end or to be free, at once.
const WAITING_CALLS_MAX: usize = 16_384;
/// Bytes of a request.
const REQUEST_BYTES_MAX: usize = 2 << 20;
/// Characters of a caller's text that an error repeats.
const SHOWN_CHARS_MAX: usize = 120;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SandboxesService {
    pub(crate) jobs: JobsService,
    pub(crate) channels: Channels,
    news: News,
    desks: claim::Desks,
    waiting: Arc<Semaphore>,
}

/// Why a call is refused: by the scheduler, or in the words of a node.
#[derive(Debug)]
pub(crate) enum Refused {
    Here(ApiError),
    ByNode(Status),
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self::Here(error)
    }
}

impl From<crate::Error> for Refused {
    fn from(error: crate::Error) -> Self {
        Self::Here(error.into())
    }
}

impl From<crate::inbox::Stopping> for Refused {
    fn from(stopping: crate::inbox::Stopping) -> Self {
        Self::Here(stopping.into())
    }
}

impl SandboxesService {
    pub(crate) fn new(jobs: JobsService, channels: Channels, news: News) -> Self {
        let waiting = Arc::new(Semaphore::new(WAITING_CALLS_MAX));
        Self { jobs, channels, news, desks: claim::Desks::new(), waiting }
    }

    pub(crate) const fn news(&self) -> &News {
        &self.news
    }

    /// A place among those that wait.
    fn waits(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.waiting.clone().try_acquire_owned().map_err(|_| {
            let message =
                format!("{WAITING_CALLS_MAX} calls wait for sandboxes (WAITING_CALLS_MAX), the most at once");
            ApiError::new(ApiCode::TooManySandboxCalls, message).hint("try again when some have ended")
        })
    }

    /// One of the calls that the scheduler answers; none if `method` is no such call.
    pub(crate) async fn serve(
        &self,
        method: &str,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, http::Request<Body>> {
        macro_rules! call {
            ($answer:path) => {{
                let service = self.clone();
                unary(request, move |message| {
                    let service = service.clone();
                    async move { $answer(&service, message).await }
                })
                .await
            }};
        }
        Ok(match method {
            "Create" => call!(create::create),
            "Get" => call!(view::get),
            "List" => call!(view::list),
            "Kill" => call!(kill::kill),
            "Claim" => call!(claim::claim),
            "Fork" => call!(fork::fork),
            _ => return Err(request),
        })
    }
}

async fn unary<Q, A, F>(
    request: http::Request<Body>,
    mut answer: impl FnMut(Q) -> F + Send,
) -> http::Response<Body>
where
    Q: prost::Message + Default + Send + 'static,
    A: prost::Message + Default + Send + 'static,
    F: Future<Output = Result<A, Refused>> + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Q>| {
        let answered = answer(request.into_inner());
        async move {
            match answered.await {
                Ok(message) => Ok(Response::new(message)),
                Err(Refused::ByNode(status)) => Err(status),
                Err(Refused::Here(error)) => {
                    error.log();
                    Err(Status::from(error))
                }
            }
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default())
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    grpc.unary(service, request).await
}

/// Text that names no sandbox, and a name that nobody has, are the same to a caller.
fn sandbox_id(text: &str) -> Result<SandboxId, ApiError> {
    text.parse().map_err(|error: rollout::ids::ParseIdError| {
        let form = error.form;
        ApiError::not_found("sandbox", text).hint(format!("a sandbox is named {form}"))
    })
}

/// A bounded text of a caller.
fn bounded(field: &str, text: &str, bytes_max: usize) -> Result<(), ApiError> {
    if text.len() > bytes_max {
        return Err(ApiError::bad_request(field, format!("{} bytes, at most {bytes_max}", text.len())));
    }
    Ok(())
}

/// Labels as a spec takes them; checked where sandboxes are looked for by them.
fn check_labels(labels: &std::collections::BTreeMap<String, String>) -> Result<(), ApiError> {
    use rollout::spec::{LABEL_BYTES_MAX, LABELS_MAX};
    if labels.len() > LABELS_MAX {
        return Err(ApiError::bad_request(
            "labels",
            format!("{} labels, at most {LABELS_MAX}", labels.len()),
        ));
    }
    for (key, value) in labels {
        if key.parse::<rollout::Name>().is_err() {
            let problem = format!("`{}` is not a name", shown(key, SHOWN_CHARS_MAX));
            return Err(ApiError::bad_request("labels", problem));
        }
        bounded("labels", value, LABEL_BYTES_MAX)?;
    }
    Ok(())
}

/// What a node holds a sandbox by, for calls of the scheduler itself.
fn client(
    channel: tonic::transport::Channel,
) -> v1::sandboxes_client::SandboxesClient<tonic::transport::Channel> {
    v1::sandboxes_client::SandboxesClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}
