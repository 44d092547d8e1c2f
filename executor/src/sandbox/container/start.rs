//! The start of the backend: what a previous life left is taken over or removed, broker and keepers are started, and the
//! host is asked how much it holds.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollout::Bytes;
use rollout::quantity::TMPFS_DISK_MAX;
use tokio::sync::watch;

use super::{Container, ContainerConfig, Shared};
use crate::broker::client::{Client, Inherited};
use crate::broker::protocol::{Action, Hello, Outcome};
use crate::ceilings::Host;
use crate::host::cgroup::{Layout, Tree, swap_is_on};
use crate::host::{budgets, landlock, traced};
use crate::keeper::client::Keepers;
use crate::sandbox::image::Images;
use crate::sandbox::{CreationCredit, Inheritance};
use crate::{census, private_dir};

/// How long a start waits for the broker of a previous life to finish its cleaning up.
const LOCK_WAIT_TRIES: u32 = 600;
const LOCK_WAIT_PAUSE: Duration = Duration::from_millis(50);
/// How often the broker is asked how much is ready.
const LEVELS_EVERY: Duration = Duration::from_secs(1);
/// Of the free bytes of the data directory, the part that loop disks may promise together.
const DISK_SHARE_PERCENT: u64 = 90;

/// Why the backend could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the container backend needs root")]
    NotRoot,
    #[error("{action} `{path}`")]
    DataDir { action: &'static str, path: PathBuf, source: io::Error },
    #[error("`{path}` is in use by another executor")]
    InUse { path: PathBuf },
    #[error("removing what a previous life left")]
    Census(#[from] census::Error),
    #[error("a previous life left what will not go: {0}")]
    Left(Box<census::Census>),
    #[error("this host's cgroups cannot hold sandboxes")]
    Layout(#[from] crate::host::cgroup::LayoutError),
    #[error("opening the cgroup parents")]
    Cgroups { source: io::Error },
    #[error("swap is on, and this kernel does not count it: no memory limit would hold")]
    Swap,
    #[error("{0}")]
    Traced(&'static str),
    #[error("starting the broker")]
    Broker { source: io::Error },
    #[error("starting the keepers")]
    Keepers { source: io::Error },
}

impl Container {
    pub(super) fn start_with(config: &ContainerConfig, ahead: bool) -> Result<Self, Error> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        let at = |action, path: &PathBuf| {
            let path = path.clone();
            move |source| Error::DataDir { action, path, source }
        };
        private_dir::make(&config.data_dir).map_err(at("making", &config.data_dir))?;
        let data_dir = config.data_dir.canonicalize().map_err(at("resolving", &config.data_dir))?;
        let left_behind = inherit(&data_dir)?;
        let lock = match &left_behind {
            Some(Inherited { data_lock, .. }) => data_lock.try_clone().map_err(at("locking", &data_dir))?,
            None => take_lock(&data_dir)?,
        };
        let adoptable = left_behind.as_ref().map_or(&[][..], |left| &left.sandboxes);
        let (found, left) = census::sweep_beside(&data_dir, adoptable, left_behind.is_some())?;
        if !found.is_empty() {
            tracing::info!(%found, "removed what a previous life left");
        }
        if !left.is_empty() {
            return Err(Error::Left(Box::new(left)));
        }
        for dir in [census::disks_dir(&data_dir), data_dir.join("images")] {
            private_dir::make(&dir).map_err(at("making", &dir))?;
        }
        let instance = census::instance(&data_dir);
        let tree = Tree::open(&Layout::discover()?, &instance).map_err(|source| Error::Cgroups { source })?;
        // Before anything is promised: what is swapped out would escape every memory limit.
        let counts_swap = tree.counts_swap();
        if !counts_swap && swap_is_on().map_err(|source| Error::Cgroups { source })? {
            return Err(Error::Swap);
        }
        if let Some(problem) = traced::problem() {
            return Err(Error::Traced(problem));
        }
        let landlock_abi = landlock::usable(landlock::abi());
        if let Err(reason) = &landlock_abi {
            tracing::warn!(reason, "no Landlock: seccomp and capabilities are the only walls of sandboxes");
        }
        let landlock_abi = landlock_abi.ok();
        let hello = Hello { data_dir: data_dir.clone(), instance, landlock_abi, ahead };
        budgets::raise();
        let host = Host::read();
        let ceiling = host.tightest();
        let disk_limit_max = disk_budget(&data_dir).map_err(at("measuring", &data_dir))?;
        let (client, keepers, inheritance) = match left_behind {
            Some(Inherited { client, keepers, sandboxes, ends_at, .. }) => {
                (client, Some(keepers), Some(Inheritance { sandboxes, ends_at }))
            }
            None => {
                let client = Client::start(&hello, &lock).map_err(|source| Error::Broker { source })?;
                (client, None, None)
            }
        };
        let credit = watch_credit(&client);
        let entrust = |control: &OwnedFd| client.tell(Action::Keeper, &[control.as_raw_fd()]);
        let is_adopting = keepers.is_some();
        let keepers = match keepers {
            Some(controls) => Keepers::inherit(controls, ceiling.1.into(), &lock, entrust),
            None => Keepers::start(ceiling.1.into(), &lock, entrust),
        };
        let keepers = keepers.map_err(|source| {
            client.close();
            Error::Keepers { source }
        })?;
        if let Some(Inheritance { sandboxes, .. }) = &inheritance
            && let Err(error) = keepers.retain(sandboxes)
        {
            tracing::warn!(%error, "descriptors of sandboxes that are gone stay with their keepers");
        }
        // Without its files a sandbox is no use: as when the broker dies.
        let (lost, broker) = (keepers.ended(), Arc::clone(&client));
        tokio::spawn(async move { broker.end(lost.await) });
        tracing::info!(sandboxes = ceiling.1, ceiling = ceiling.0, "room for sandboxes");
        let shared = Shared {
            client,
            keepers: Arc::new(keepers),
            tree,
            live: AtomicU32::new(0),
            creating: AtomicU32::new(0),
            counts_swap,
            disk_promised: Mutex::new(Bytes(0)),
            _lock: lock,
        };
        Ok(Self {
            shared: Arc::new(shared),
            images: Arc::new(Images::new(data_dir, is_adopting)),
            inheritance: Mutex::new(inheritance),
            ceiling,
            disk_limit_max,
            fail_next: Mutex::new(None),
            credit,
        })
    }
}

/// Asks the broker how much is ready, now and then, until it is gone.
fn watch_credit(client: &Arc<Client>) -> watch::Receiver<CreationCredit> {
    let (sender, credit) = watch::channel(CreationCredit::default());
    let client = Arc::downgrade(client);
    tokio::spawn(async move {
        while let Some(client) = client.upgrade() {
            let Ok((Outcome::Levels(levels), _)) = client.request(Action::Levels).await else { return };
            drop(client);
            let beside =
                if levels.hands_on_groups { levels.networks.min(levels.groups) } else { levels.networks };
            let burst = levels.blanks + beside;
            if sender.send(CreationCredit { burst, per_s_milli: levels.creations_per_s_milli }).is_err() {
                return;
            }
            tokio::time::sleep(LEVELS_EVERY).await;
        }
    });
    credit
}

/// What the broker of an executor that was killed keeps for us. One that cannot be asked is waited for, as
/// one that is asked to destroy everything.
fn inherit(data_dir: &std::path::Path) -> Result<Option<Inherited>, Error> {
    let inherited = Client::inherit(data_dir).or_else(|error| {
        tracing::warn!(%error, "the broker of a previous life does not hand over");
        Ok::<_, Error>(None)
    })?;
    Ok(inherited)
}

fn take_lock(data_dir: &std::path::Path) -> Result<OwnedFd, Error> {
    let path = data_dir.join("lock");
    let failed = |source| Error::DataDir { action: "locking", path: path.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    for _ in 0..LOCK_WAIT_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file.into()),
            Err(fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_WAIT_PAUSE),
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(Error::InUse { path: data_dir.to_owned() })
}

/// The largest disk there can be: what loop images may promise, or a tmpfs where none can be made.
fn disk_budget(data_dir: &std::path::Path) -> io::Result<Bytes> {
    let loops = std::path::Path::new("/dev/loop-control").exists()
        && ["/usr/sbin", "/sbin", "/usr/bin"]
            .iter()
            .any(|dir| std::path::Path::new(dir).join("mkfs.ext4").exists());
    if !loops {
        return Ok(TMPFS_DISK_MAX);
    }
    let stat = nix::sys::statvfs::statvfs(data_dir)?;
    let free = stat.blocks_available() * stat.fragment_size();
    Ok(Bytes((free / 100 * DISK_SHARE_PERCENT).max(TMPFS_DISK_MAX.0)))
}
