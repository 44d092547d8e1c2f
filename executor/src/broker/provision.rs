//! Making one sandbox: one block with one failure path. Whatever exists is in a [`Record`] from
//! the moment it does; an error at any step hands the record to the same teardown that ends a
//! sandbox which lived.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rollout::Bytes;
use rollout::quantity::TMPFS_DISK_MAX;
use sandbox_init::birth::{self, Furniture, Order};
use sandbox_init::packet;

use super::blank::Blank;
use super::child;
use super::networks::{Coming, Networks};
use super::pools::disks;
use super::protocol::{Create, Created, Failure, Problem, Step};
use super::ranges::{RANGE_LEN, RANGES_MAX};
use super::serve::{Broker, lock};
use super::teardown::{Record, teardown};
use crate::host::cgroup::Limits;
use crate::host::loop_disk::LoopDevice;
use crate::host::mounts::{self, Context};
use crate::host::owner::Owner;
use crate::host::{netns, open};

/// Loop devices of one executor at once.
pub const LOOP_DISKS_MAX: usize = 256;
/// A tmpfs gets one inode for so many bytes, as ext4 would give fewer; never fewer than the
/// minimum.
const BYTES_PER_INODE: u64 = 4096;
const INODES_MIN: u64 = 1024;
/// Where mkfs is found; the broker's own environment is empty.
const TOOLS_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// An errno, or a root that cannot be one.
#[derive(Debug)]
enum Cause {
    Io(io::Error),
    Told(Problem),
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

type Failed = (Step, Cause);

/// Descriptors the broker holds until the executor has its answer. Whoever comes first closes
/// them: the thread that made the sandbox, or the teardown, after which nothing may be left.
pub type Scaffold = Arc<Mutex<Vec<OwnedFd>>>;

/// The first of a scaffold go to the executor: the channel, the root and the raw writable tree. The
/// rest is what the overlay was made of: with each goes a mount, and nobody should wait for its
/// grace period.
pub const GIVEN: usize = 3;

/// Makes the sandbox, or leaves nothing.
pub fn create(broker: &Broker, networks: &Networks, create: &Create) -> Result<(Created, Scaffold), Failure> {
    // Before anything exists: undoing a second creation would end the first sandbox.
    if !lock(&broker.names).insert(create.id.clone()) {
        return Err(Failure { step: Step::Range, problem: Problem::Errno(libc::EEXIST), left: Vec::new() });
    }
    let mut record = Record::default();
    match build(broker, networks, create, &mut record) {
        Ok((created, held)) => {
            let scaffold = Arc::new(Mutex::new(held));
            record.scaffold = Arc::clone(&scaffold);
            lock(&broker.records).insert(create.id.clone(), record);
            Ok((created, scaffold))
        }
        Err((step, cause)) => {
            let left = teardown(broker, &create.id, record);
            let problem = match cause {
                Cause::Io(error) => Problem::Errno(error.raw_os_error().unwrap_or(libc::EIO)),
                Cause::Told(problem) => problem,
            };
            Err(Failure { step, problem, left })
        }
    }
}

fn build(
    broker: &Broker,
    networks: &Networks,
    create: &Create,
    record: &mut Record,
) -> Result<(Created, Vec<OwnedFd>), Failed> {
    let at = |step: Step| move |error: io::Error| (step, Cause::Io(error));
    let done = |step: Step| match create.fail_after {
        Some(fail) if fail == step => Err((step, Cause::Io(io::Error::from_raw_os_error(libc::EIO)))),
        _ => Ok(()),
    };

    // A step that a blank has behind it can fail only where there is none.
    let mut ahead = None;
    let may_be_blank = !create.fail_after.is_some_and(Step::is_ahead);
    let child = match may_be_blank.then(|| broker.pools.blank(broker)).flatten() {
        Some(blank) => {
            let Blank { record: made, name, id_base, pid, channel, layer, .. } = blank;
            *record = Record { waited_as: Some(name.clone()), ..made };
            ahead = Some(layer);
            Child::Waits { name, id_base, pid, channel }
        }
        None => {
            let full = |used: u64, limit: u64| Problem::Full { ceiling: "uid ranges".into(), used, limit };
            let id_base = lock(&broker.ranges)
                .take()
                .ok_or_else(|| (Step::Range, Cause::Told(full(RANGES_MAX.into(), RANGES_MAX.into()))))?;
            record.id_base = Some(id_base);
            done(Step::Range)?;
            let network = broker.pools.network().map_or_else(|| networks.ask(), Coming::Ready);
            Child::Unborn { id_base, network }
        }
    };
    let base = child.id_base();
    broker.pools.note_layer(create.limit.disk);
    let (ahead, needless) = match ahead {
        Some((size, layer)) if size == create.limit.disk => (Some((layer, size)), None),
        other => (None, other),
    };
    let layer = ahead.map_or_else(|| writable(broker, create, base, record), Ok);
    let (Layer { disk, upper, work }, memory_disk) = layer.map_err(|cause| (Step::Disk, cause))?;
    done(Step::Disk)?;

    let limits = Limits::new(&create.limit, memory_disk);
    let fail_after = create.fail_after.filter(|step| !step.is_ahead());
    let (pid, channel) = match child {
        Child::Waits { name, pid, channel, .. } => {
            broker.tree.hand_on(&name, &create.id, &limits).map_err(at(Step::Cgroups))?;
            // Each of its leaves has the name of the sandbox now, or is known by it.
            record.waited_as = None;
            done(Step::Cgroups)?;
            done(Step::Attach)?;
            (pid, channel)
        }
        Child::Unborn { network, .. } => {
            record.cgroups = true;
            let group = broker.pools.group();
            let made = broker.tree.make_leaves(&create.id, group.as_deref());
            if let (Err(_), Some(group)) = (&made, &group) {
                // If it has the sandbox's name by now, it goes with the sandbox.
                broker.tree.remove_memory_group(group).map_err(at(Step::Cgroups))?;
            }
            made.map_err(at(Step::Cgroups))?;
            let (pid, channel) = start(broker, create, network, record)?;
            // Only now: until its exec the child is in the broker's memory, and no limit is to reach that.
            broker.tree.limit_made(&create.id, &limits, group.is_some()).map_err(at(Step::Cgroups))?;
            let joins = broker.tree.joins(&create.id).map_err(at(Step::Cgroups))?;
            done(Step::Cgroups)?;
            told(channel.as_fd(), hand_leaves(channel.as_fd(), &joins, fail_after))?;
            (pid, channel)
        }
    };

    let userns = namespace(broker.proc.as_fd(), pid, "user").map_err(at(Step::Layers))?;
    // By path each time, in this process's view: a tree that was replaced is the new one at once.
    let mut lowers = Vec::with_capacity(create.lowers.len());
    for lower in &create.lowers {
        let path = CString::new(lower.as_os_str().as_encoded_bytes()).unwrap_or_default();
        let lower = tree(&path).map_err(|cause| (Step::Layers, cause))?;
        lowers.push(mapped(lower.as_fd(), userns.as_fd(), 0).map_err(at(Step::Layers))?);
    }
    let usr = if create.host_usr {
        let attributes = mounts::READ_ONLY | mounts::NO_SUID | mounts::NO_DEV;
        let usr = broker.usr.as_ref().ok_or_else(|| at(Step::Layers)(io::ErrorKind::NotFound.into()))?;
        Some(mapped(usr.as_fd(), userns.as_fd(), attributes).map_err(at(Step::Layers))?)
    } else {
        None
    };
    done(Step::Layers)?;

    let root = overlay(&lowers, upper.as_fd(), work.as_fd()).map_err(at(Step::Overlay))?;
    let outside = mounts::clone_tree(root.as_fd(), c"").map_err(at(Step::Overlay))?;
    mounts::set_attributes(outside.as_fd(), mounts::NO_SUID | mounts::NO_DEV | mounts::NO_EXEC, None)
        .map_err(at(Step::Overlay))?;
    drop((work, userns));
    done(Step::Overlay)?;

    furnish(root.as_fd(), create, base).map_err(|cause| (Step::MountPoints, cause))?;
    done(Step::MountPoints)?;

    let hostname =
        CString::new(create.id.as_str()).map_err(|_| at(Step::HandIn)(io::ErrorKind::InvalidInput.into()))?;
    let shm_size = CString::new((create.limit.memory.0 / 2).to_string()).unwrap_or_default();
    let order = Order { hostname: &hostname, shm_size: &shm_size, fail_after };
    let order = order.encode().map_err(at(Step::HandIn))?;
    let handed: Vec<_> = [&root].into_iter().chain(&usr).map(AsFd::as_fd).collect();
    told(channel.as_fd(), birth::tell(channel.as_fd(), &order, &handed))?;
    drop((root, usr));
    done(Step::HandIn)?;

    // What is left is init's to do, and the executor's to hear of.
    let leaf = broker.tree.other_name(&create.id);
    let created = Created { id_base: base, init_pid: pid, memory_disk, leaf };
    let needless = needless.into_iter().flat_map(|(_, Layer { disk, upper, work })| [upper, work, disk]);
    Ok((created, [channel, outside, upper, disk].into_iter().chain(lowers).chain(needless).collect()))
}

/// Who becomes init.
enum Child {
    /// A blank.
    Waits { name: String, id_base: u32, pid: i32, channel: OwnedFd },
    /// Its network is there or being made.
    Unborn { id_base: u32, network: Coming },
}

impl Child {
    fn id_base(&self) -> u32 {
        match self {
            Self::Waits { id_base, .. } | Self::Unborn { id_base, .. } => *id_base,
        }
    }
}

/// Clones the child into the leaf of its sandbox and has it furnished, which it is beside what follows here.
fn start(
    broker: &Broker,
    create: &Create,
    network: Coming,
    record: &mut Record,
) -> Result<(i32, OwnedFd), Failed> {
    let at = |step: Step| move |error: io::Error| (step, Cause::Io(error));
    let done = |step: Step| match create.fail_after {
        Some(fail) if fail == step => Err((step, Cause::Io(io::Error::from_raw_os_error(libc::EIO)))),
        _ => Ok(()),
    };
    let leaf = broker.tree.leaf(&create.id).map_err(at(Step::Cgroups))?;
    let network = network.wait().map_err(at(Step::Network))?;
    record.network = Some(network.in_use);
    done(Step::Network)?;

    let (channel, end) = packet::pair().map_err(at(Step::Clone))?;
    let fail_after = create.fail_after.filter(|step| step.is_ahead());
    let born = born(broker, end.as_fd(), network.namespace.as_fd(), leaf.as_fd(), record);
    let pid = born.map_err(|(step, error)| at(step)(error))?;
    done(Step::Clone)?;
    drop((network.namespace, end, leaf));

    write_id_maps(broker.proc.as_fd(), pid, record.id_base.unwrap_or_default()).map_err(at(Step::IdMaps))?;
    done(Step::IdMaps)?;
    let furniture = Furniture { is_blank: false, fail_after };
    told(channel.as_fd(), hand_furniture(broker, channel.as_fd(), furniture))?;
    Ok((pid, channel))
}

/// What a fresh init mounts.
pub fn hand_furniture(broker: &Broker, channel: BorrowedFd<'_>, furniture: Furniture) -> io::Result<()> {
    let (dev, masks) = (broker.fresh_dev()?, broker.fresh_masks()?);
    birth::tell(channel, &furniture.encode(), &[broker.plan.as_fd(), dev.as_fd(), masks.as_fd()])
}

/// The groups it joins.
pub fn hand_leaves(channel: BorrowedFd<'_>, joins: &[OwnedFd], fail_after: Option<Step>) -> io::Result<()> {
    birth::tell(channel, &birth::leaves(fail_after), &joins.iter().map(AsFd::as_fd).collect::<Vec<_>>())
}

/// Clones init into its namespaces, with its end of a channel. The network came first: it is owned by the host's user
/// namespace, so nothing inside can configure it.
pub fn born(
    broker: &Broker,
    channel: BorrowedFd<'_>,
    network: BorrowedFd<'_>,
    leaf: BorrowedFd<'_>,
    record: &mut Record,
) -> Result<i32, (Step, io::Error)> {
    const NAMESPACES: i32 = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let at = |step: Step| move |error: io::Error| (step, error);
    // What the kernel counts by the owner of the user namespace is this sandbox's alone.
    let owner = Owner::assume(record.id_base.unwrap_or_default()).map_err(at(Step::Clone))?;
    netns::enter(network).map_err(at(Step::Network))?;
    let cloned = match child::start(NAMESPACES, leaf, channel, broker.init.as_fd()) {
        Ok((pid, failure)) => {
            record.init_pid = Some(pid);
            failure.map_or(Ok(pid), Err)
        }
        Err(error) => Err((Step::Clone, error)),
    };
    drop(owner);
    // This thread must not keep the sandbox's network alive.
    netns::enter(broker.host_network.as_fd()).map_err(at(Step::Network))?;
    cloned
}

/// A fresh writable layer: what it lies on, and in that the directories of an overlay.
#[derive(Debug)]
pub struct Layer {
    disk: OwnedFd,
    upper: OwnedFd,
    work: OwnedFd,
}

impl Layer {
    /// In memory, of so many bytes, for the sandbox with this range.
    pub fn in_memory(size: Bytes, base: u32) -> io::Result<Self> {
        let context = Context::open(c"tmpfs")?;
        let inodes = (size.0 / BYTES_PER_INODE).max(INODES_MIN);
        for (key, value) in [(c"size", size.0), (c"nr_inodes", inodes)] {
            context.string(key, &CString::new(value.to_string()).unwrap_or_default())?;
        }
        Self::on(context.mount(mounts::NO_SUID | mounts::NO_DEV)?, base)
    }

    /// The upper is the sandbox's root and belongs to its uid 0.
    fn on(disk: OwnedFd, base: u32) -> io::Result<Self> {
        let dir = |name| {
            open::make_dir(disk.as_fd(), name, 0o755)?;
            open::at(disk.as_fd(), name, libc::O_PATH | libc::O_DIRECTORY)
        };
        let (upper, work) = (dir(c"upper")?, dir(c"work")?);
        open::change_owner(upper.as_fd(), base, base)?;
        Ok(Self { disk, upper, work })
    }
}

/// The writable layer, and its size if it counts as memory.
fn writable(
    broker: &Broker,
    create: &Create,
    base: u32,
    record: &mut Record,
) -> Result<(Layer, Bytes), Cause> {
    let size = create.limit.disk;
    if size <= TMPFS_DISK_MAX {
        return Ok((Layer::in_memory(size, base)?, size));
    }
    let path = broker.disk_path(&create.id);
    let taken = lock(&broker.records).values().filter(|record| record.disk.is_some()).count();
    if taken >= LOOP_DISKS_MAX {
        let (used, limit) = (taken as u64, LOOP_DISKS_MAX as u64);
        return Err(Cause::Told(Problem::Full { ceiling: "loop disks".into(), used, limit }));
    }
    if let Some(ahead) = broker.pools.disk(size.0) {
        let pooled = broker.pooled_disk_path(&ahead.name);
        // The device is known by the name its file had last.
        if let Err(error) = fs::rename(&pooled, &path) {
            ahead.destroy(broker);
            return Err(error.into());
        }
        record.disk = Some((ahead.device, size.0));
        fs::remove_file(&path)?;
        return Ok((Layer::on(ahead.mount, base)?, Bytes(0)));
    }
    let device = disks::attach(&path, size.0);
    // Behind the device it lives on; without a name nothing of it can be left.
    fs::remove_file(&path)?;
    let device = device?;
    record.disk = Some((device.number, size.0));
    Ok((Layer::on(mount_ext4(&device)?, base)?, Bytes(0)))
}

pub fn mount_ext4(device: &LoopDevice) -> io::Result<OwnedFd> {
    let context = Context::open(c"ext4")?;
    let source = CString::new(device.path.as_os_str().as_encoded_bytes()).unwrap_or_default();
    context.string(c"source", &source)?;
    context.flag(c"noinit_itable")?;
    context.mount(mounts::NO_SUID | mounts::NO_DEV)
}

/// No journal: the disk is never mounted twice.
pub fn format_ext4(path: &std::path::Path) -> io::Result<()> {
    let status = Command::new("mkfs.ext4")
        .env("PATH", TOOLS_PATH)
        .args([
            "-q",
            "-F",
            "-m",
            "0",
            "-O",
            "^has_journal,^resize_inode",
            "-E",
            "lazy_itable_init=1,nodiscard",
        ])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("mkfs.ext4: {status}"))) }
}

impl Broker {
    pub fn disk_path(&self, id: &str) -> PathBuf {
        self.data_dir.join("disks").join(format!("{id}.img"))
    }

    /// Of a disk that no sandbox has yet.
    pub fn pooled_disk_path(&self, name: &str) -> PathBuf {
        self.data_dir.join("disks").join(name)
    }
}

fn proc_file(proc: BorrowedFd<'_>, pid: i32, file: &str, flags: i32) -> io::Result<OwnedFd> {
    open::at(proc, &CString::new(format!("{pid}/{file}")).unwrap_or_default(), flags)
}

/// Of our own child, whose pid nobody else can have.
pub fn namespace(proc: BorrowedFd<'_>, pid: i32, kind: &str) -> io::Result<OwnedFd> {
    proc_file(proc, pid, &format!("ns/{kind}"), libc::O_RDONLY)
}

pub fn write_id_maps(proc: BorrowedFd<'_>, pid: i32, base: u32) -> io::Result<()> {
    let map = format!("0 {base} {RANGE_LEN}");
    for file in ["uid_map", "gid_map"] {
        let name = CString::new(format!("{pid}/{file}")).unwrap_or_default();
        open::write_at(proc, &name, map.as_bytes())?;
    }
    Ok(())
}

/// The executor looked at the tree by this name; whoever puts a link there since is refused.
fn tree(path: &CStr) -> Result<OwnedFd, Cause> {
    open::directory_itself(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR) => {
            Cause::Told(Problem::BadRootfs("its path leads through a link or a file by now".to_owned()))
        }
        _ => error.into(),
    })
}

/// A copy of a shared tree whose owners are shifted into the sandbox's range.
fn mapped(tree: BorrowedFd<'_>, userns: BorrowedFd<'_>, attributes: u64) -> io::Result<OwnedFd> {
    let copy = mounts::clone_tree(tree, c"")?;
    mounts::set_attributes(copy.as_fd(), attributes, Some(userns))?;
    Ok(copy)
}

/// The overlay, mounted by the host's root: trusted.* marks that nothing inside can set. Nothing
/// redirects, nothing is indexed, and nothing is synced: the upper is never mounted again.
fn overlay(lowers: &[OwnedFd], upper: BorrowedFd<'_>, work: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let context = Context::open(c"overlay")?;
    // The kernel wants the topmost first.
    for lower in lowers.iter().rev() {
        context.descriptor(c"lowerdir+", lower.as_fd())?;
    }
    context.descriptor(c"upperdir", upper)?;
    context.descriptor(c"workdir", work)?;
    for (key, value) in
        [(c"redirect_dir", c"nofollow"), (c"metacopy", c"off"), (c"index", c"off"), (c"xino", c"off")]
    {
        context.string(key, value)?;
    }
    context.flag(c"volatile")?;
    context.mount(mounts::NO_SUID | mounts::NO_DEV)
}

/// Makes the places for mounts and the working directory. Nothing has run in the tree yet: what
/// bends these paths can only be the image.
fn furnish(root: BorrowedFd<'_>, create: &Create, base: u32) -> Result<(), Cause> {
    for place in ["dev", "proc"] {
        directory(root, place, base)?;
    }
    if create.host_usr {
        directory(root, "usr", base)?;
    }
    let mut dir = None;
    for part in create.workdir.split('/').filter(|part| !part.is_empty()) {
        let parent = dir.as_ref().map_or(root, |dir: &OwnedFd| dir.as_fd());
        dir = Some(directory(parent, part, base)?);
    }
    if let Some(dir) = dir {
        let (uid, gid) = (base + create.uid, base + create.gid);
        let found = open::stat(dir.as_fd())?;
        if (found.st_uid, found.st_gid) != (uid, gid) {
            open::change_owner(dir.as_fd(), uid, gid)?;
        }
    }
    Ok(())
}

/// The directory `name` in `parent`, made if missing, never through a symlink.
fn directory(parent: BorrowedFd<'_>, name: &str, base: u32) -> Result<OwnedFd, Cause> {
    let path = CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let open_it = || {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        open::beneath(parent, &path, flags, 0, open::CONFINED)
    };
    match open_it() {
        Ok(found) => Ok(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            open::make_dir(parent, &path, 0o755)?;
            let made = open_it()?;
            open::change_owner(made.as_fd(), base, base)?;
            Ok(made)
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)) => {
            Err(Cause::Told(Problem::BadRootfs(format!("`{name}` is not a directory but a link or a file"))))
        }
        Err(error) => Err(error.into()),
    }
}

/// Waits until there is something to read, if only the end. ETIMEDOUT: there is not.
pub fn until_readable(channel: BorrowedFd<'_>, timeout_ms: i32) -> io::Result<()> {
    let mut waiting = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one entry, as stated.
        match unsafe { libc::poll(&raw mut waiting, 1, timeout_ms) } {
            0 => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            ready if ready > 0 => return Ok(()),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// A child that failed before it listened reported what says more than the broken pipe.
fn told(channel: BorrowedFd<'_>, sent: io::Result<()>) -> Result<(), Failed> {
    sent.map_err(|error| reported(channel).unwrap_or((Step::HandIn, Cause::Io(error))))
}

/// Of the kernel alone, which `libc` has not: a filter cannot be compiled.
const ENOTSUPP: i32 = 524;

/// What the child said before it ended, if it said anything.
fn reported(channel: BorrowedFd<'_>) -> Option<Failed> {
    let (step, errno) = birth::failure(receive(channel, &mut [0; 16])?)?;
    let error = match (step, errno) {
        (Step::Seccomp, ENOTSUPP) => {
            io::Error::other("this host has no room left for compiled filters (net.core.bpf_jit_limit)")
        }
        _ => io::Error::from_raw_os_error(errno),
    };
    Some((step, Cause::Io(error)))
}

/// What waits on a channel, if anything does.
pub fn receive<'a>(channel: BorrowedFd<'_>, bytes: &'a mut [u8; 16]) -> Option<&'a [u8]> {
    // A child that ended before it read our last word leaves a reset ahead of its own: once.
    let received = packet::receive_into(channel, bytes, libc::MSG_DONTWAIT)
        .or_else(|_reset| packet::receive_into(channel, bytes, libc::MSG_DONTWAIT))
        .ok()?;
    bytes.get(..received.len)
}
