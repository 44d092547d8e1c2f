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

/// A namespace that is being made. Dropped, it goes.
#[derive(Debug)]
pub struct Coming(Receiver<Answer>);

impl Networks {
    pub fn new() -> (Self, Asked) {
        let (ask, asked) = sync_channel(CREATION_WIDTH);
        (Self(ask), Asked(asked))
    }

    pub fn ask(&self) -> Coming {
        let (answer, coming) = sync_channel(1);
        // If the maker is gone, whoever waits is told.
        let _ = self.0.send(answer);
        Coming(coming)
    }
}

impl Coming {
    pub fn wait(self) -> Answer {
        self.0.recv().unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EPIPE)))
    }
}

impl Asked {
    /// The maker's life, on a thread that stays in `home` between two namespaces.
    pub fn serve(self, home: BorrowedFd<'_>) {
        for answer in self.0 {
            // Nobody waits for it any more if the creation failed meanwhile.
            let _ = answer.send(netns::fresh(home));
        }
    }
}
