//! Network namespaces: taken from those made ahead, else made by a thread of their own beside the
//! rest of the creation, since a third of what that costs the kernel needs nothing the rest makes.
//!
//! Each serves one sandbox and goes with it. One that was used is never used again: nothing proves
//! that its tables, counters, sockets and settings are as they were.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use super::serve::{CREATION_WIDTH, lock};
use crate::host::netns;
use crate::host::netns_ledger::Ledger;

type Answer = io::Result<Network>;

/// A namespace, and that it counts as one in use.
#[derive(Debug)]
pub struct Network {
    pub namespace: OwnedFd,
    pub in_use: InUse,
}

/// A namespace counts for as long as this lives: in a pool, then in the record of a sandbox.
#[derive(Debug)]
pub struct InUse(Arc<AtomicUsize>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes namespaces, and knows how many wait for the kernel to take them down.
#[derive(Debug)]
pub struct Maker {
    ledger: Mutex<Ledger>,
    in_use: Arc<AtomicUsize>,
}

impl Maker {
    /// The calling thread stays in `home`.
    pub fn new(home: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { ledger: Mutex::new(Ledger::open(home)?), in_use: Arc::default() })
    }

    /// The calling thread is in `home` before and after.
    pub fn make(&self, home: BorrowedFd<'_>) -> Answer {
        let namespace = netns::fresh(home)?;
        lock(&self.ledger).enter(namespace.as_fd())?;
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Ok(Network { namespace, in_use: InUse(Arc::clone(&self.in_use)) })
    }

    /// Namespaces nobody uses that the kernel has not begun to take down. One whose processes
    /// ended before its sandbox did is still in use here.
    pub fn pending(&self) -> io::Result<usize> {
        let in_use = self.in_use.load(Ordering::Relaxed);
        Ok(lock(&self.ledger).count()?.saturating_sub(in_use))
    }
}

/// Where to ask. The thread that makes them ends with the last of these.
#[derive(Debug, Clone)]
pub struct Networks(SyncSender<SyncSender<Answer>>);

/// What that thread is asked through.
#[derive(Debug)]
pub struct Asked(Receiver<SyncSender<Answer>>);

/// A namespace that is there or being made. Whoever drops it waits for it too, and then it goes: a
/// creation that failed leaves nothing behind it.
#[derive(Debug)]
pub enum Coming {
    Ready(Network),
    Asked(Waiting),
}

#[derive(Debug)]
pub struct Waiting(Option<Receiver<Answer>>);

impl Networks {
    pub fn new() -> (Self, Asked) {
        let (ask, asked) = sync_channel(CREATION_WIDTH);
        (Self(ask), Asked(asked))
    }

    pub fn ask(&self) -> Coming {
        let (answer, coming) = sync_channel(1);
        // If the maker is gone, whoever waits is told.
        let _ = self.0.send(answer);
        Coming::Asked(Waiting(Some(coming)))
    }
}

impl Coming {
    pub fn wait(self) -> Answer {
        let gone = || io::Error::from_raw_os_error(libc::EPIPE);
        match self {
            Self::Ready(network) => Ok(network),
            Self::Asked(mut waiting) => {
                waiting.0.take().and_then(|coming| coming.recv().ok()).unwrap_or_else(|| Err(gone()))
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(coming) = self.0.take() {
            let _unwanted = coming.recv();
        }
    }
}

impl Asked {
    /// Makes what is asked for, on a thread that stays in `home` between two namespaces.
    pub fn serve(self, maker: &Maker, home: BorrowedFd<'_>) {
        for answer in self.0 {
            // Who asked waits, unless the thread panicked.
            let _ = answer.send(maker.make(home));
        }
    }
}
