//! Descriptors on their way to a keeper, which nobody waits for until they are asked for again.
//!
//! What was sent is the keeper's, even if this process ends at once: the kernel holds it until it is read, and the
//! keeper reads what there is before it sees an end. Answers come in the order of what was sent.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use sandbox_init::packet;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::client::Error;
use super::protocol::{DATAGRAM_MAX, Kind, Refusal, Reply, Request};
use crate::broker::client::{receive, shut, watched};
use crate::broker::serve::lock;

/// Puts without an answer. More than a socket holds: a keeper that answers none of so many is given up by whoever waits.
const UNANSWERED_MAX: usize = 4096;

/// What has become of descriptors that were sent.
#[derive(Debug, Clone)]
enum Put {
    Sent,
    Kept,
    Refused(Refusal),
    /// The keeper is gone, or whoever reads its answers.
    Unheard,
}

impl Put {
    fn result(&self) -> Result<(), Error> {
        match self {
            Self::Kept => Ok(()),
            Self::Refused(refusal) => Err(refusal.clone().into()),
            Self::Unheard => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
            Self::Sent => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }
}

/// The answer to come.
#[derive(Debug)]
pub(super) struct Answer {
    put: Mutex<Put>,
    blocked: Condvar,
    waiting: Notify,
}

impl Answer {
    fn new(put: Put) -> Arc<Self> {
        Arc::new(Self { put: Mutex::new(put), blocked: Condvar::new(), waiting: Notify::new() })
    }

    /// For what another executor put.
    pub fn kept() -> Arc<Self> {
        Self::new(Put::Kept)
    }

    fn come(&self, put: Put) {
        *lock(&self.put) = put;
        self.blocked.notify_all();
        self.waiting.notify_waiters();
    }

    pub fn has_come(&self) -> bool {
        !matches!(*lock(&self.put), Put::Sent)
    }

    /// Waits until they are kept. Blocks.
    pub fn wait(&self, longest: Duration) -> Result<(), Error> {
        let is_sent = |put: &mut Put| matches!(put, Put::Sent);
        let waited = self.blocked.wait_timeout_while(lock(&self.put), longest, is_sent);
        waited.unwrap_or_else(PoisonError::into_inner).0.result()
    }

    /// The same without blocking.
    pub async fn settled(&self, longest: Duration) -> Result<(), Error> {
        let come = async {
            loop {
                let told = self.waiting.notified();
                if self.has_come() {
                    return;
                }
                told.await;
            }
        };
        let _timed_out = tokio::time::timeout(longest, come).await;
        lock(&self.put).result()
    }
}

/// The connection for puts.
#[derive(Debug)]
pub(super) struct Puts {
    socket: AsyncFd<OwnedFd>,
    /// In the order they were sent. None: there will be no answer any more.
    unanswered: Mutex<Option<VecDeque<Arc<Answer>>>>,
}

impl Puts {
    /// Call within a tokio runtime. `broken` is called if the keeper says what is no answer.
    pub fn over(socket: OwnedFd, broken: impl FnOnce() + Send + 'static) -> io::Result<Arc<Self>> {
        let puts = Arc::new(Self { socket: watched(socket)?, unanswered: Mutex::new(Some(VecDeque::new())) });
        let reading = Reading(Arc::clone(&puts));
        tokio::spawn(async move {
            if reading.read().await.is_err() {
                broken();
            }
        });
        Ok(puts)
    }

    /// Sends copies of descriptors, as soon as the socket has room. What comes of it is the answer's to say.
    pub async fn send(&self, id: &str, kinds: &[Kind], fds: &[RawFd]) -> Result<Arc<Answer>, Error> {
        let request = Request::Put { id: id.to_owned(), kinds: kinds.to_vec() };
        let bytes = serde_json::to_vec(&request).map_err(io::Error::from)?;
        loop {
            let mut room = self.socket.writable().await?;
            // Sent and entered under one lock, so that both are in one order.
            let mut unanswered = lock(&self.unanswered);
            let Some(waiting) = unanswered.as_mut() else {
                return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
            };
            if waiting.len() >= UNANSWERED_MAX {
                return Err(io::Error::other(format!("{UNANSWERED_MAX} puts wait for the keeper")).into());
            }
            let sent = room.try_io(|socket| packet::send(socket.as_fd(), &bytes, fds, libc::MSG_DONTWAIT));
            match sent {
                Ok(Ok(())) => {
                    let answer = Answer::new(Put::Sent);
                    waiting.push_back(Arc::clone(&answer));
                    return Ok(answer);
                }
                Ok(Err(error)) => return Err(error.into()),
                Err(_would_block) => {}
            }
        }
    }

    /// Whoever waits for an answer is woken by this.
    pub fn close(&self) {
        shut(self.socket.get_ref());
    }
}

/// Whoever reads the answers. When it is dropped, with its runtime too, nobody waits for one any more.
struct Reading(Arc<Puts>);

impl Reading {
    /// Until the keeper is gone. An error: it said what is no answer.
    async fn read(&self) -> Result<(), ()> {
        let mut buffer = [0; DATAGRAM_MAX];
        while let Ok(Some((len, _))) = receive(&self.0.socket, &mut buffer).await {
            let put = match serde_json::from_slice(&buffer[..len]) {
                Ok(Reply::Kept) => Put::Kept,
                Ok(Reply::Refused(refusal)) => Put::Refused(refusal),
                Ok(_) | Err(_) => return Err(()),
            };
            let oldest = lock(&self.0.unanswered).as_mut().and_then(VecDeque::pop_front).ok_or(())?;
            oldest.come(put);
        }
        Ok(())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let unanswered = lock(&self.0.unanswered).take();
        unanswered.into_iter().flatten().for_each(|answer| answer.come(Put::Unheard));
    }
}
