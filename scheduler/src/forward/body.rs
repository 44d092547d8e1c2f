//! The bodies of a forwarded call: what was read of it already and the rest, which can be sent again to
//! another node; and an answer that ends with a code also where its node does not.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use http_body::{Frame, SizeHint};
use rollout::NodeId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::HeaderMap;

use super::channels::node_lost;
use super::{stopped, stopping};

/// Bytes of one call that are kept until its node has taken it.
const CALL_KEPT_BYTES_MAX: usize = 5 << 20;
/// The same of all calls, in KiB.
pub(super) const KEPT_KIB_MAX: usize = 256 << 10;

/// A call that may have to be sent to one node after the other.
pub(super) struct Replay(Arc<Mutex<Call>>);

struct Call {
    rest: Body,
    /// What came, as long as it is kept, and what of it nobody took.
    frames: Vec<Bytes>,
    /// Of the frames, the one that whoever reads it gets next.
    next: usize,
    bytes: usize,
    keeps: bool,
    room: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    /// Counts who reads it; only the last does.
    reader: u64,
    over: bool,
    /// Why the rest broke off, for whoever hears from the transport only that it did.
    broken: Arc<OnceLock<Status>>,
}

impl Replay {
    pub(super) fn new(
        first: impl IntoIterator<Item = Bytes>,
        rest: Body,
        room: Arc<Semaphore>,
        broken: Arc<OnceLock<Status>>,
    ) -> Self {
        let mut call = Call {
            rest,
            frames: Vec::new(),
            next: 0,
            bytes: 0,
            keeps: true,
            room,
            held: None,
            reader: 0,
            over: false,
            broken,
        };
        for frame in first {
            call.keep(&frame);
            call.frames.push(frame);
        }
        Self(Arc::new(Mutex::new(call)))
    }

    /// From its beginning. Whoever read it before reads no more of it.
    pub(super) fn body(&self) -> Again {
        let mut call = lock(&self.0);
        call.reader += 1;
        call.next = 0;
        Again { call: Arc::clone(&self.0), reader: call.reader }
    }

    pub(super) fn can_be_sent_again(&self) -> bool {
        lock(&self.0).keeps
    }

    /// A node has taken it.
    pub(super) fn settle(&self) {
        lock(&self.0).give_up();
    }
}

fn lock(call: &Mutex<Call>) -> MutexGuard<'_, Call> {
    call.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Call {
    /// Counts a frame among what is kept, if there is room.
    fn keep(&mut self, frame: &Bytes) {
        if !self.keeps {
            return;
        }
        self.bytes += frame.len();
        let kib = u32::try_from(frame.len().div_ceil(1024)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).try_acquire_many_owned(kib);
        match room {
            Ok(more) if self.bytes <= CALL_KEPT_BYTES_MAX => match &mut self.held {
                Some(held) => held.merge(more),
                None => self.held = Some(more),
            },
            Ok(_) | Err(_) => self.give_up(),
        }
    }

    /// It is not sent again: what was read of it goes as soon as it was taken, and counts until then.
    fn give_up(&mut self) {
        self.keeps = false;
        self.let_go();
    }

    fn let_go(&mut self) {
        if !self.keeps && self.next >= self.frames.len() {
            self.frames = Vec::new();
            self.next = 0;
            self.held = None;
        }
    }
}

/// One reading of a call.
pub(super) struct Again {
    call: Arc<Mutex<Call>>,
    reader: u64,
}

impl http_body::Body for Again {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let shared = Arc::clone(&self.call);
        let mut call = lock(&shared);
        if call.reader != self.reader {
            return Poll::Ready(None);
        }
        if let Some(frame) = call.frames.get(call.next).cloned() {
            call.next += 1;
            call.let_go();
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        if call.over {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut call.rest).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    call.keep(data);
                    if call.keeps {
                        call.frames.push(data.clone());
                        call.next = call.frames.len();
                    }
                }
            }
            Some(Err(status)) => {
                call.over = true;
                call.broken.get_or_init(|| status.clone());
            }
            None => call.over = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let call = lock(&self.call);
        call.reader != self.reader
            || call.next >= call.frames.len() && (call.over || call.rest.is_end_stream())
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
    /// Resolves when the scheduler goes, and cuts it.
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    _turn: OwnedSemaphorePermit,
}

impl Answer {
    pub(super) fn new(body: Body, node: NodeId, turn: OwnedSemaphorePermit, stop: CancellationToken) -> Self {
        Self { body, node, over: false, stopped: Box::pin(stopped(stop)), _turn: turn }
    }

    /// The last of it.
    fn end(&mut self, status: &Status) -> Result<Frame<Bytes>, Status> {
        self.over = true;
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers)?;
        Ok(Frame::trailers(trailers))
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
        if self.stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(self.end(&stopping())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Err(broken)) = &frame {
            let why = rollout::text::shown(broken.message(), 200);
            let status = Status::from(node_lost(&self.node, &format!("it broke off its answer ({why})")));
            return Poll::Ready(Some(self.end(&status)));
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

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;

    const FRAME: usize = 1 << 20;

    /// The rest of a call whose client says nothing more.
    struct Silence;

    impl http_body::Body for Silence {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Pending
        }
    }

    /// A client that says this much and then is silent.
    fn silent_after(frames: usize, room: usize) -> (Replay, Arc<Semaphore>) {
        let room = Arc::new(Semaphore::new(room));
        let first = (0..frames).map(|_| Bytes::from(vec![7; FRAME]));
        (Replay::new(first, Body::new(Silence), Arc::clone(&room), Arc::default()), room)
    }

    /// Whether there was a frame.
    fn takes(again: &mut Again) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        matches!(Pin::new(again).poll_frame(&mut cx), Poll::Ready(Some(Ok(_))))
    }

    fn kept(call: &Replay) -> usize {
        lock(&call.0).frames.iter().map(Bytes::len).sum()
    }

    #[test]
    fn what_was_taken_is_let_go_as_soon_as_a_node_has_the_call() {
        let (call, room) = silent_after(4, 8 << 10);
        let mut again = call.body();
        while takes(&mut again) {}
        assert_eq!((kept(&call), room.available_permits()), (4 * FRAME, 4 << 10));
        call.settle();
        assert_eq!((kept(&call), room.available_permits()), (0, 8 << 10));
        assert!(!takes(&mut again));
    }

    #[test]
    fn what_a_node_takes_later_counts_until_then() {
        let (call, room) = silent_after(4, 8 << 10);
        let mut again = call.body();
        assert!(takes(&mut again));
        call.settle();
        assert_eq!((kept(&call), room.available_permits()), (4 * FRAME, 4 << 10));
        for left in [2, 1, 0] {
            assert!(takes(&mut again), "{left}");
        }
        assert_eq!((kept(&call), room.available_permits()), (0, 8 << 10));
    }

    #[test]
    fn a_call_for_which_there_is_no_room_is_read_once_from_its_beginning() {
        let (call, room) = silent_after(4, 2 << 10);
        assert!(!call.can_be_sent_again());
        let mut again = call.body();
        for left in [3, 2, 1, 0] {
            assert!(takes(&mut again), "{left}");
        }
        assert!(!takes(&mut again));
        assert_eq!((kept(&call), room.available_permits()), (0, 2 << 10));
    }

    #[test]
    fn the_next_reader_begins_anew() {
        let (call, _) = silent_after(3, 8 << 10);
        let mut first = call.body();
        assert!(takes(&mut first) && takes(&mut first));
        let mut second = call.body();
        assert!(!takes(&mut first));
        assert!(takes(&mut second) && takes(&mut second) && takes(&mut second) && !takes(&mut second));
    }
}
