//! A layer over the tree of a sandbox that lives: copied, as nothing is mounted under it any more.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use images::layers::{Bounds, Ground, lay_over};

use super::packing::StopOnDrop;
use super::{LayError, Mounted, files};

/// Where every sandbox has a mount of its own.
const MOUNTED_OVER: [&str; 2] = ["dev", "proc"];
/// As above, with the host's /usr.
const MOUNTED_OVER_HOST: [&str; 3] = ["dev", "proc", "usr"];

/// Blocks nobody; ends soon when nobody waits for it.
pub(super) async fn lay(
    root: &Arc<OwnedFd>,
    id_base: u32,
    has_host_usr: bool,
    mounted: &Mounted,
) -> Result<(), LayError> {
    let stop = StopOnDrop::default();
    let (root, flag, mounted) = (Arc::clone(root), stop.flag(), mounted.clone());
    let laying = tokio::task::spawn_blocking(move || {
        let mounted_over = if has_host_usr { &MOUNTED_OVER_HOST[..] } else { &MOUNTED_OVER[..] };
        let ground = Ground { root: root.as_fd(), id_base, mounted_over };
        let bounds = Bounds::new(mounted.layer.content);
        lay_over(&mounted.at.path, ground, &bounds, &flag, &mut |dir, name| files::remove_tree(dir, name))
    });
    laying.await.map_err(|_| LayError::Panicked)?.map_err(LayError::Tree)
}
