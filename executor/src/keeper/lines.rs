//! Requests to a keeper that no thread waits for: descriptors are put, and waited for when they are asked for again; they
//! are dropped, which waits for the kernel.
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
use super::protocol::{DATAGRAM_MAX, Refusal, Reply, Request};
use crate::broker::client::{receive, shut, watched};
use crate::broker::serve::lock;

/// Requests without an answer. More than a socket holds: a keeper that answers none of so many is given up by whoever waits.
const UNANSWERED_MAX: usize = 4096;

/// What has become of a request.
#[derive(Debug, Clone)]
enum Fate {
    Sent,
    Done,
    Refused(Refusal),
    /// The keeper is gone, or whoever reads its answers.
    Unheard,
}

impl Fate {
    fn result(&self) -> Result<(), Error> {
        match self {
            Self::Done => Ok(()),
            Self::Refused(refusal) => Err(refusal.clone().into()),
            Self::Unheard => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
            Self::Sent => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }
}

/// The answer to come.
#[derive(Debug)]
pub(super) struct Answer {
    fate: Mutex<Fate>,
    blocked: Condvar,
    waiting: Notify,
}

impl Answer {
    fn new(fate: Fate) -> Arc<Self> {
        Arc::new(Self { fate: Mutex::new(fate), blocked: Condvar::new(), waiting: Notify::new() })
    }

    /// For what another executor put.
    pub fn kept() -> Arc<Self> {
        Self::new(Fate::Done)
    }

    fn come(&self, fate: Fate) {
        *lock(&self.fate) = fate;
        self.blocked.notify_all();
        self.waiting.notify_waiters();
    }

    pub fn has_come(&self) -> bool {
        !matches!(*lock(&self.fate), Fate::Sent)
    }

    /// Waits until it has come. Blocks.
    pub fn wait(&self, longest: Duration) -> Result<(), Error> {
        let is_sent = |fate: &mut Fate| matches!(fate, Fate::Sent);
        let waited = self.blocked.wait_timeout_while(lock(&self.fate), longest, is_sent);
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
        lock(&self.fate).result()
    }
}

/// A connection whose answers are read as they come.
#[derive(Debug)]
pub(super) struct Line {
    socket: AsyncFd<OwnedFd>,
    /// In the order they were sent. None: there will be no answer any more.
    unanswered: Mutex<Option<VecDeque<Arc<Answer>>>>,
}

impl Line {
    /// Call within a tokio runtime. `broken` is called if the keeper says what is no answer.
    pub fn over(socket: OwnedFd, broken: impl FnOnce() + Send + 'static) -> io::Result<Arc<Self>> {
        let line = Arc::new(Self { socket: watched(socket)?, unanswered: Mutex::new(Some(VecDeque::new())) });
        let reading = Reading(Arc::clone(&line));
        tokio::spawn(async move {
            if reading.read().await.is_err() {
                broken();
            }
        });
        Ok(line)
    }

    /// Sends a request with copies of descriptors, as soon as the socket has room. What comes of it is the answer's to say.
    pub async fn send(&self, request: &Request, fds: &[RawFd]) -> Result<Arc<Answer>, Error> {
        let bytes = serde_json::to_vec(request).map_err(io::Error::from)?;
        loop {
            let mut room = self.socket.writable().await?;
            // Sent and entered under one lock, so that both are in one order.
            let mut unanswered = lock(&self.unanswered);
            let Some(waiting) = unanswered.as_mut() else {
                return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
            };
            if waiting.len() >= UNANSWERED_MAX {
                return Err(io::Error::other(format!("{UNANSWERED_MAX} requests wait for the keeper")).into());
            }
            let sent = room.try_io(|socket| packet::send(socket.as_fd(), &bytes, fds, libc::MSG_DONTWAIT));
            match sent {
                Ok(Ok(())) => {
                    let answer = Answer::new(Fate::Sent);
                    waiting.push_back(Arc::clone(&answer));
                    return Ok(answer);
                }
                Ok(Err(error)) => return Err(error.into()),
                Err(_would_block) => {}
            }
        }
    }

    /// Requests without an answer by now.
    pub fn len(&self) -> usize {
        lock(&self.unanswered).as_ref().map_or(0, VecDeque::len)
    }

    /// Whoever waits for an answer is woken by this.
    pub fn close(&self) {
        shut(self.socket.get_ref());
    }
}

/// Whoever reads the answers. When it is dropped, with its runtime too, nobody waits for one any more.
struct Reading(Arc<Line>);

impl Reading {
    /// Until the keeper is gone. An error: it said what is no answer.
    async fn read(&self) -> Result<(), ()> {
        let mut buffer = [0; DATAGRAM_MAX];
        while let Ok(Some((len, _))) = receive(&self.0.socket, &mut buffer).await {
            let fate = match serde_json::from_slice(&buffer[..len]) {
                Ok(Reply::Kept | Reply::Dropped) => Fate::Done,
                Ok(Reply::Refused(refusal)) => Fate::Refused(refusal),
                Ok(_) | Err(_) => return Err(()),
            };
            let oldest = lock(&self.0.unanswered).as_mut().and_then(VecDeque::pop_front).ok_or(())?;
            oldest.come(fate);
        }
        Ok(())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let unanswered = lock(&self.0.unanswered).take();
        unanswered.into_iter().flatten().for_each(|answer| answer.come(Fate::Unheard));
    }
}
