//! One connection, three services: calls are told apart by their path.
//!
//! What a call may send, and for how long, is bounded before anything reads it. A refusal of the
//! transport (a message that is too large or cannot be decoded, an unknown call) gets a code of
//! docs/errors.md like any other.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::Frame;
use rollout_wire::v1::jobs_server::{self, JobsServer};
use rollout_wire::v1::nodes_server::{self, NodesServer};
use rollout_wire::v1::sandboxes_server;
use rollout_wire::{CODE_METADATA, MESSAGE_BYTES_MAX};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::header::{HeaderMap, HeaderName, HeaderValue};
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Bytes, Service};

use crate::api::{ApiCode, ApiError, CHUNK_BYTES_MAX, JobsService, SandboxesService, more_until, too_slow};
use crate::forward::Forwards;
use crate::link::NodesService;

/// Calls open at once on one connection.
pub(crate) const CALLS_PER_CONNECTION_MAX: u32 = 256;
/// Bytes of one call that wait to be read, and of all calls of a connection: one that nobody reads holds
/// up no other.
pub(crate) const CALL_WINDOW_BYTES: u32 = 64 << 10;
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = CALL_WINDOW_BYTES * CALLS_PER_CONNECTION_MAX;
/// Submits read and checked at once; the others wait for their turn.
const SUBMITS_MAX: usize = 16;
/// Bytes of a request that only names things.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// A chunk of a client file, and room.
const CHUNK_MESSAGE_BYTES_MAX: usize = CHUNK_BYTES_MAX + (64 << 10);

// What half-sent specs may keep in memory.
const _: () = assert!(SUBMITS_MAX * MESSAGE_BYTES_MAX <= 512 << 20);

/// Calls of `Nodes` and of `Sandboxes` go there; all others to `Jobs`, which answers unknown ones as
/// unimplemented.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    nodes: NodesServer<NodesService>,
    submits: JobsServer<JobsService>,
    chunks: JobsServer<JobsService>,
    small: JobsServer<JobsService>,
    sandboxes: SandboxesService,
    forwards: Forwards,
    places: Arc<Semaphore>,
    client_stall: Duration,
}

impl Route {
    pub(crate) fn new(nodes: NodesService, sandboxes: SandboxesService) -> Self {
        let jobs = sandboxes.jobs.clone();
        let client_stall = jobs.limits.client_stall;
        let forwards = Forwards::new(sandboxes.clone(), client_stall);
        let jobs = JobsServer::new(jobs).max_encoding_message_size(MESSAGE_BYTES_MAX);
        Self {
            nodes: NodesServer::new(nodes)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
            submits: jobs.clone().max_decoding_message_size(MESSAGE_BYTES_MAX),
            chunks: jobs.clone().max_decoding_message_size(CHUNK_MESSAGE_BYTES_MAX),
            small: jobs.max_decoding_message_size(SMALL_BYTES_MAX),
            sandboxes,
            forwards,
            places: Arc::new(Semaphore::new(SUBMITS_MAX)),
            client_stall,
        }
    }

    /// The request keeps coming, or the call ends.
    fn timed(&self, request: Request<Body>) -> Request<Body> {
        let (began_at, stall) = (Instant::now(), self.client_stall);
        let sleep = Box::pin(tokio::time::sleep_until(began_at + stall));
        request.map(|body| Body::new(Timed { body, sleep, began_at, received: 0, stall }))
    }
}

impl Service<Request<Body>> for Route {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // All are always ready: each call is its own task.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path().strip_prefix('/').unwrap_or_default();
        let (service, method) = path.split_once('/').unwrap_or((path, ""));
        if service == nodes_server::SERVICE_NAME {
            return coded(self.nodes.call(request));
        }
        if Forwards::takes(service, method) {
            let (forwards, method) = (self.forwards.clone(), method.to_owned());
            // Streams may be silent for as long as they like.
            let request = match Forwards::is_one_message(&method) {
                true => self.timed(request),
                false => request,
            };
            return coded(Box::pin(async move { Ok(forwards.call(&method, request).await) }));
        }
        if service == sandboxes_server::SERVICE_NAME {
            let (sandboxes, method) = (self.sandboxes.clone(), method.to_owned());
            let request = self.timed(request);
            return coded(Box::pin(async move {
                let unknown = |_| Status::unimplemented("no such call").into_http();
                Ok(sandboxes.serve(&method, request).await.unwrap_or_else(unknown))
            }));
        }
        match method {
            "PutBlob" if service == jobs_server::SERVICE_NAME => coded(self.chunks.call(request)),
            "Submit" if service == jobs_server::SERVICE_NAME => {
                let (mut route, places) = (self.clone(), self.places.clone());
                coded(Box::pin(async move {
                    // Nothing of a request is read before its turn.
                    let Ok(_place) = places.acquire_owned().await else {
                        return Ok(Status::from(ApiError::from(crate::inbox::Stopping)).into_http());
                    };
                    let request = route.timed(request);
                    route.submits.call(request).await
                }))
            }
            _ => {
                let request = self.timed(request);
                coded(self.small.call(request))
            }
        }
    }
}

/// Gives a refusal that has no code of its own the one that says what it is.
fn coded(call: BoxFuture<Response<Body>, Infallible>) -> BoxFuture<Response<Body>, Infallible> {
    Box::pin(async move {
        let mut response = call.await?;
        code(response.headers_mut());
        Ok(response)
    })
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

fn code(headers: &mut HeaderMap) {
    if headers.contains_key(CODE_METADATA) {
        return;
    }
    let Some(status) = headers.get(GRPC_STATUS) else { return };
    let code = match tonic::Code::from_bytes(status.as_bytes()) {
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => ApiCode::MessageTooLarge,
        tonic::Code::Unimplemented => ApiCode::UnknownCall,
        tonic::Code::DeadlineExceeded => ApiCode::ClientTooSlow,
        tonic::Code::Ok => return,
        // The only other thing the transport refuses: bytes that are no such message.
        _ => ApiCode::BadMessage,
    };
    headers.insert(CODE_METADATA, HeaderValue::from_static(code.as_str()));
    headers.insert(GRPC_STATUS, HeaderValue::from(code.status() as i32));
}

/// A body of which something must come before its time is up, again and again.
struct Timed {
    body: Body,
    sleep: Pin<Box<Sleep>>,
    began_at: Instant,
    /// Bytes.
    received: u64,
    stall: Duration,
}

impl http_body::Body for Timed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
                self.received = self.received.saturating_add(data.len() as u64);
                let until = more_until(Instant::now(), self.began_at, self.received, self.stall);
                self.sleep.as_mut().reset(until);
            }
            return Poll::Ready(frame);
        }
        ready!(self.sleep.as_mut().poll(cx));
        Poll::Ready(Some(Err(Status::deadline_exceeded(too_slow(self.stall)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use tokio::time::Interval;

    use super::*;

    /// A frame of `frame_bytes` each tick, and after `frames` nothing more, ever or to the end.
    struct Slow {
        tick: Interval,
        frame_bytes: usize,
        frames: usize,
        ends: bool,
    }

    impl http_body::Body for Slow {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            ready!(self.tick.poll_tick(cx));
            match self.frames.checked_sub(1) {
                Some(left) => {
                    self.frames = left;
                    Poll::Ready(Some(Ok(Frame::data(vec![0; self.frame_bytes].into()))))
                }
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    const TICK: Duration = Duration::from_millis(50);
    const STALL: Duration = Duration::from_millis(500);

    /// Bytes that came, or why no more did.
    async fn received(frames: usize, frame_bytes: usize, ends: bool) -> Result<usize, Status> {
        let body = Slow { tick: tokio::time::interval(TICK), frame_bytes, frames, ends };
        let (began_at, sleep) = (Instant::now(), Box::pin(tokio::time::sleep(STALL)));
        let mut timed = Timed { body: Body::new(body), sleep, began_at, received: 0, stall: STALL };
        let mut bytes = 0;
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut timed).poll_frame(cx)).await {
            bytes += frame?.into_data().map_or(0, |data| data.len());
        }
        Ok(bytes)
    }

    #[tokio::test]
    async fn a_request_over_a_slow_link_is_waited_for_and_one_that_stalls_or_drips_is_not() {
        // Three times as long as it may pause.
        assert_eq!(received(30, 32 << 10, true).await.unwrap(), 30 * (32 << 10));
        for (what, frames, frame_bytes) in [("a stall", 2, 32 << 10), ("nothing", 0, 0), ("a drip", 1_000, 1)]
        {
            let status = received(frames, frame_bytes, false).await.expect_err(what);
            assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{what}: {status:?}");
        }
    }
}
