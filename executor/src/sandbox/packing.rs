//! Packing the writable tree of a sandbox: its processes stand still, one walk reads it, they go on.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use images::layers::{Packed, pack_upper};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Pack, PackError};
use crate::broker::serve::lock;
use crate::host::cgroup::Tree;
use crate::keeper::client::Kept;
use crate::keeper::protocol::Kind;

/// Between two looks whether every process stands still.
const FREEZE_PAUSE: Duration = Duration::from_millis(1);

/// Who wants the processes of one sandbox to stand still. They go on when nobody does any more.
#[derive(Debug, Default)]
pub(super) struct Still(Mutex<u32>);

impl Still {
    /// Tells them to stand still, if nobody did before. To be undone by [`release`](Self::release).
    pub fn hold(&self, tree: &Tree, id: &str) -> io::Result<()> {
        let mut holders = lock(&self.0);
        if *holders == 0 {
            tree.freeze(id, true)?;
        }
        *holders += 1;
        Ok(())
    }

    /// Lets them go on, unless somebody else wants them to stand still.
    pub fn release(&self, tree: &Tree, id: &str) -> io::Result<()> {
        let mut holders = lock(&self.0);
        *holders = holders.saturating_sub(1);
        if *holders > 0 {
            return Ok(());
        }
        match tree.freeze(id, false) {
            // Its cgroup is gone: it was ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Processes that were told to stand still. They go on when it is dropped, whatever happened.
struct Frozen<'a> {
    tree: &'a Tree,
    id: &'a str,
    still: &'a Still,
}

impl<'a> Frozen<'a> {
    async fn new(
        tree: &'a Tree,
        id: &'a str,
        still: &'a Still,
        within: Duration,
        until: Instant,
    ) -> Result<Self, PackError> {
        still.hold(tree, id).map_err(PackError::Freeze)?;
        let frozen = Self { tree, id, still };
        if !stands_still(tree, id, until).await.map_err(PackError::Freeze)? {
            return Err(PackError::TooSlow { what: "its processes did not stand still", within });
        }
        // A walk that is over when it is first looked at would be taken, however late.
        if Instant::now() >= until {
            return Err(PackError::TooSlow { what: "its processes stood still too late to pack", within });
        }
        Ok(frozen)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.still.release(self.tree, self.id) {
            tracing::error!(sandbox = self.id, %error, "its processes stay frozen");
        }
    }
}

/// Waits until every process stands still; false: not until then.
pub(super) async fn stands_still(tree: &Tree, id: &str, until: Instant) -> io::Result<bool> {
    while !tree.is_frozen(id)? {
        if Instant::now() >= until {
            return Ok(false);
        }
        sleep(FREEZE_PAUSE).await;
    }
    Ok(true)
}

/// Ends a walk when nobody waits for it.
#[derive(Default)]
pub(super) struct StopOnDrop(Arc<AtomicBool>);

impl StopOnDrop {
    /// Set when it is dropped.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) async fn pack(
    tree: &Tree,
    id: &str,
    still: &Still,
    kept: &Arc<Kept>,
    id_base: u32,
    pack: Pack,
) -> Result<Packed, PackError> {
    let Pack { out, below, bounds, freeze } = pack;
    let stop = StopOnDrop::default();
    let until = freeze.map(|within| (within, Instant::now() + within));
    // Dropped in this order: first they go on, then the walk ends.
    let frozen = match until {
        Some((within, until)) => Some(Frozen::new(tree, id, still, within, until).await?),
        None => None,
    };
    let (kept, flag) = (Arc::clone(kept), stop.flag());
    let walk = tokio::task::spawn_blocking(move || {
        let upper = kept.get(Kind::Upper).map_err(|error| PackError::Upper(error.into()))?;
        pack_upper(upper.as_fd(), id_base, &below, &out, &bounds, &flag).map_err(PackError::Tree)
    });
    let packed = match until {
        None => walk.await,
        Some((within, until)) => timeout_at(until, walk)
            .await
            .map_err(|_| PackError::TooSlow { what: "its workspace was not packed", within })?,
    };
    drop(frozen);
    packed.map_err(|_| PackError::Panicked)?
}
