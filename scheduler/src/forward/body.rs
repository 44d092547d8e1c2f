//! The bodies of a forwarded call: what was read of it already and the rest, and an answer that ends
//! with a code also where its node does not.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use http_body::{Frame, SizeHint};
use rollout::NodeId;
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::HeaderMap;

use super::channels::node_lost;

/// Frames that were looked at, then those that follow.
pub(super) struct Again {
    first: VecDeque<Bytes>,
    rest: Body,
    /// Why the rest broke off, for whoever hears from the transport only that it did.
    broken: Arc<OnceLock<Status>>,
}

impl Again {
    pub(super) fn new(first: VecDeque<Bytes>, rest: Body, broken: Arc<OnceLock<Status>>) -> Self {
        Self { first, rest, broken }
    }
}

impl http_body::Body for Again {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(data) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let frame = ready!(Pin::new(&mut self.rest).poll_frame(cx));
        if let Some(Err(status)) = &frame {
            self.broken.get_or_init(|| status.clone());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// What a node answers. If it breaks off, the caller is told so.
pub(super) struct Answer {
    body: Body,
    node: NodeId,
    /// It has ended, one way or the other.
    over: bool,
    _turn: OwnedSemaphorePermit,
}

impl Answer {
    pub(super) fn new(body: Body, node: NodeId, turn: OwnedSemaphorePermit) -> Self {
        Self { body, node, over: false, _turn: turn }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Err(broken)) = &frame {
            self.over = true;
            let why = rollout::text::shown(broken.message(), 200);
            let status = Status::from(node_lost(&self.node, &format!("it broke off its answer ({why})")));
            let mut trailers = HeaderMap::new();
            status.add_header(&mut trailers)?;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
