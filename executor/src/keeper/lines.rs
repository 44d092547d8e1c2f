//! Requests to a keeper that no thread waits for: descriptors are put, and waited for when they are asked for again; they
//! are dropped, which waits for the kernel.
//!
//! Answers come in the order of what was sent. What has none yet may be lost with this process: whoever hands on a sandbox
//! waits for it first.

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

/// Requests without an answer, past which one is refused. As a rule a socket holds fewer.
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
    /// Call within a tokio runtime. `ended` is called when there will be no answer any more.
    pub fn over(socket: OwnedFd, ended: impl FnOnce() + Send + 'static) -> io::Result<Arc<Self>> {
        let line = Arc::new(Self { socket: watched(socket)?, unanswered: Mutex::new(Some(VecDeque::new())) });
        let reading = Reading(Arc::clone(&line));
        tokio::spawn(async move {
            reading.read().await;
            ended();
        });
        Ok(line)
    }

    /// Sends a request with copies of descriptors, as soon as the socket has room. What comes of it is the answer's to say.
    pub async fn send(
        &self,
        request: &Request,
        fds: &[RawFd],
        longest: Duration,
    ) -> Result<Arc<Answer>, Error> {
        let bytes = serde_json::to_vec(request).map_err(io::Error::from)?;
        loop {
            let room = tokio::time::timeout(longest, self.socket.writable()).await;
            let mut room = room.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
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
    /// Until the keeper is gone, or says what is no answer.
    async fn read(&self) {
        let mut buffer = [0; DATAGRAM_MAX];
        while let Ok(Some((len, _))) = receive(&self.0.socket, &mut buffer).await {
            let fate = match serde_json::from_slice(&buffer[..len]) {
                Ok(Reply::Kept | Reply::Dropped) => Fate::Done,
                Ok(Reply::Refused(refusal)) => Fate::Refused(refusal),
                Ok(_) | Err(_) => return,
            };
            let Some(oldest) = lock(&self.0.unanswered).as_mut().and_then(VecDeque::pop_front) else {
                return;
            };
            oldest.come(fate);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let unanswered = lock(&self.0.unanswered).take();
        unanswered.into_iter().flatten().for_each(|answer| answer.come(Fate::Unheard));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn put(id: &str) -> Request {
        Request::Put { id: id.to_owned(), kinds: Vec::new() }
    }

    fn line() -> (Arc<Line>, OwnedFd, Arc<AtomicBool>) {
        let (ours, theirs) = packet::pair().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        (Line::over(ours, move || seen.store(true, Ordering::Relaxed)).unwrap(), theirs, ended)
    }

    fn answer(theirs: &OwnedFd, reply: &Reply) {
        packet::send(theirs.as_fd(), &serde_json::to_vec(reply).unwrap(), &[], 0).unwrap();
    }

    async fn until(ended: &AtomicBool) {
        while !ended.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn answers_are_those_of_the_requests_in_their_order() {
        let (line, theirs, _) = line();
        let file = std::fs::File::open("/dev/null").unwrap();
        let first = line.send(&put("a"), &[file.as_raw_fd()], LONG).await.unwrap();
        let second = line.send(&put("b"), &[], LONG).await.unwrap();
        assert!(!first.has_come() && line.len() == 2);
        answer(&theirs, &Reply::Kept);
        first.settled(LONG).await.unwrap();
        assert!(!second.has_come());
        answer(&theirs, &Reply::Refused(Refusal::Full { used: 4, limit: 4 }));
        let refused = second.settled(LONG).await.unwrap_err();
        assert!(refused.to_string().contains("4 of 4"), "{refused}");
        // On a thread that may block, too.
        let waited = tokio::task::spawn_blocking(move || second.wait(LONG)).await.unwrap();
        assert!(waited.is_err());
    }

    #[tokio::test]
    async fn nobody_waits_for_a_line_that_ended_and_that_is_said() {
        let (line, theirs, ended) = line();
        let waiting = line.send(&put("a"), &[], LONG).await.unwrap();
        drop(theirs);
        let unheard = waiting.settled(LONG).await.unwrap_err();
        assert!(
            matches!(unheard, Error::Io(ref error) if error.kind() == io::ErrorKind::BrokenPipe),
            "{unheard}"
        );
        until(&ended).await;
        assert!(line.send(&put("b"), &[], LONG).await.is_err());
    }

    #[tokio::test]
    async fn what_is_no_answer_and_one_that_nobody_asked_for_end_a_line() {
        for reply in [Reply::Lent, Reply::Kept] {
            let (_line, theirs, ended) = line();
            answer(&theirs, &reply);
            until(&ended).await;
        }
    }

    #[tokio::test]
    async fn a_keeper_that_says_nothing_is_waited_for_so_long() {
        let (line, _theirs, _) = line();
        let short = Duration::from_millis(10);
        let waiting = line.send(&put("a"), &[], LONG).await.unwrap();
        let late = waiting.settled(short).await.unwrap_err();
        assert!(matches!(late, Error::Io(ref error) if error.kind() == io::ErrorKind::TimedOut), "{late}");
        // Until the socket is full: then the sending takes too long.
        let full = loop {
            if let Err(full) = line.send(&put("a"), &[], short).await {
                break full;
            }
        };
        assert!(matches!(full, Error::Io(ref error) if error.kind() == io::ErrorKind::TimedOut), "{full}");
        assert!(line.len() < UNANSWERED_MAX, "{} were sent", line.len());
    }
}
