//! A layer over the tree of a sandbox that lives: copied, as nothing is mounted under it any more.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use images::layers::{Bounds, Ground, lay_over};

use super::packing::StopOnDrop;
use super::{LayError, Mounted, files};
use crate::keeper::client::Kept;
use crate::keeper::protocol::Kind;

/// Where every sandbox has a mount of its own.
const MOUNTED_OVER: [&str; 2] = ["dev", "proc"];
/// As above, with the host's /usr.
const MOUNTED_OVER_HOST: [&str; 3] = ["dev", "proc", "usr"];

/// Blocks nobody; ends soon when nobody waits for it.
pub(super) async fn lay(
    kept: &Arc<Kept>,
    id_base: u32,
    has_host_usr: bool,
    mounted: &Mounted,
) -> Result<(), LayError> {
    let stop = StopOnDrop::default();
    let (kept, flag, mounted) = (Arc::clone(kept), stop.flag(), mounted.clone());
    let laying = tokio::task::spawn_blocking(move || {
        let root = kept.get(Kind::Root).map_err(|error| LayError::Root(error.into()))?;
        let mounted_over = if has_host_usr { &MOUNTED_OVER_HOST[..] } else { &MOUNTED_OVER[..] };
        let ground = Ground { root: root.as_fd(), id_base, mounted_over };
        let bounds = Bounds::new(mounted.layer.content);
        let mut remove = |dir: BorrowedFd<'_>, name: &CStr| files::remove_tree(dir, name);
        lay_over(&mounted.at.path, ground, &bounds, &flag, &mut remove).map_err(LayError::Tree)
    });
    laying.await.map_err(|_| LayError::Panicked)?
}
