//! The one way a sandbox ends: after a request, a failed creation, or the executor's death.

use std::os::fd::{AsFd, OwnedFd};

use super::networks::{InUse, Network};
use super::pools::say;
use super::provision::{Scaffold, namespace};
use super::serve::{Broker, lock};
use crate::host::loop_disk::{RELEASE_PAUSE, RELEASE_TRIES_MAX};
use crate::host::{clone, loop_disk};

/// How long the processes of a killed sandbox may take to be gone.
const REAP_WAIT_MS: i32 = 10_000;

/// What exists of a sandbox. Filled as it is made, so a half-made one is undone by the same code.
#[derive(Debug, Default)]
pub struct Record {
    pub id_base: Option<u32>,
    pub cgroups: bool,
    pub init_pid: Option<i32>,
    /// What its leaves were called while it was a blank, some of which may still be.
    pub waited_as: Option<String>,
    pub network: Option<InUse>,
    /// Number of the loop device, and bytes it promised.
    pub disk: Option<(u32, u64)>,
    pub scaffold: Scaffold,
}

/// Ends what the record names, goes on past what will not go, and returns that.
pub fn teardown(broker: &Broker, id: &str, record: Record) -> Vec<String> {
    teardown_but_mounts(broker, id, record).0
}

/// The same, with the last hold on what it had mounted: to be dropped when nobody waits any more, for that takes a grace
/// period of the kernel, which the end of init would else wait for. What is on a disk is not left to it.
pub fn teardown_but_mounts(broker: &Broker, id: &str, mut record: Record) -> (Vec<String>, Option<OwnedFd>) {
    let mut left = Vec::new();
    // Of an init that is gone there is none. Without one for another reason its end takes longer, and is none the worse.
    let namespace = |kind| match namespace(broker.proc.as_fd(), record.init_pid?, kind) {
        Ok(namespace) => Some(namespace),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::EACCES)) => None,
        Err(error) => {
            say(format_args!("the {kind} namespace of {id}, which ends: {error}"));
            None
        }
    };
    let (mut mounts, network) = (namespace("mnt"), namespace("net"));
    let mut gone = true;
    for leaf in [Some(id), record.waited_as.as_deref()].into_iter().flatten().filter(|_| record.cgroups) {
        if let Err(error) = broker.tree.kill(leaf) {
            left.push(format!("killing {leaf}: {error}"));
        }
    }
    if let Some(pid) = record.init_pid {
        match clone::reap(pid, REAP_WAIT_MS) {
            Ok(true) => {}
            Ok(false) => {
                gone = false;
                left.push(format!("init {pid} of {id} is still there"));
            }
            Err(error) => {
                gone = false;
                left.push(format!("waiting for init {pid} of {id}: {error}"));
            }
        }
    }
    if record.cgroups {
        if gone && let Some(place) = broker.pools.group_place() {
            // One that does not take its new name is removed with the rest.
            let moved = broker.tree.rename_memory_group(id, &place);
            broker.pools.take_back(moved.is_ok().then_some(place));
        }
        left.extend(broker.tree.remove(id));
        left.extend(record.waited_as.iter().flat_map(|leaf| broker.tree.remove(leaf)));
    }
    if let (Some(in_use), Some(namespace), true) = (record.network.take(), network, gone) {
        broker.pools.bury(Network { namespace, in_use });
    }
    lock(&record.scaffold).clear();
    if let Some((number, _)) = record.disk {
        mounts = None;
        let ours = || {
            loop_disk::backing_file(&broker.sys_block, number)
                .is_some_and(|file| file == broker.disk_path(id))
        };
        let mut tries = 0;
        while ours() && tries < RELEASE_TRIES_MAX {
            tries += 1;
            std::thread::sleep(RELEASE_PAUSE);
        }
        if ours() {
            left.push(format!("loop device {number} of {id} is still in use"));
        }
    }
    // A range whose processes may live on is not given to another sandbox.
    if let (Some(base), true) = (record.id_base, gone) {
        lock(&broker.ranges).free(base);
    }
    lock(&broker.names).remove(id);
    (left, mounts)
}
