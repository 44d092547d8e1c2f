//! Network namespaces, made by a thread of their own: a third of what a creation costs the kernel
//! needs nothing that the rest makes, and so goes on beside it. None is made ahead of a request.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::serve::CREATION_WIDTH;
use crate::host::netns;

type Answer = io::Result<OwnedFd>;

/// Where to ask. The maker ends with the last of these.
#[derive(Debug, Clone)]
pub struct Networks(SyncSender<SyncSender<Answer>>);

/// What the maker is asked through.
#[derive(Debug)]
pub struct Asked(Receiver<SyncSender<Answer>>);

/// A namespace that is being made. Whoever drops it waits for it too, and then it goes: a creation
/// that failed leaves nothing behind it.
#[derive(Debug)]
pub struct Coming(Option<Receiver<Answer>>);

impl Networks {
    pub fn new() -> (Self, Asked) {
        let (ask, asked) = sync_channel(CREATION_WIDTH);
        (Self(ask), Asked(asked))
    }

    pub fn ask(&self) -> Coming {
        let (answer, coming) = sync_channel(1);
        // If the maker is gone, whoever waits is told.
        let _ = self.0.send(answer);
        Coming(Some(coming))
    }
}

impl Coming {
    pub fn wait(mut self) -> Answer {
        let gone = || io::Error::from_raw_os_error(libc::EPIPE);
        self.0.take().and_then(|coming| coming.recv().ok()).unwrap_or_else(|| Err(gone()))
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if let Some(coming) = self.0.take() {
            let _unwanted = coming.recv();
        }
    }
}

impl Asked {
    /// The maker's life, on a thread that stays in `home` between two namespaces.
    pub fn serve(self, home: BorrowedFd<'_>) {
        for answer in self.0 {
            // Who asked waits, unless the thread panicked.
            let _ = answer.send(netns::fresh(home));
        }
    }
}
