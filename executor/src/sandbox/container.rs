//! The `container` backend: sandboxes out of namespaces, cgroups, an overlay and a static init,
//! made by the [broker](crate::broker) out of pieces it made ahead, as far as those reach.
//!
//! ```text
//! executor ──socket──> broker ──clone3, execveat──> init (PID 1) ──clone──> processes
//!     └───────────────────────channel─────────────────────────┘
//! ```
//! The executor keeps one descriptor a sandbox: the channel to init. Its root, and the raw tree of what
//! it changed, are with a [keeper](crate::keeper) until a call needs them. The rest is the kernel's,
//! and dies with init.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use images::layers::Packed;
use rollout::quantity::{Limit, TMPFS_DISK_MAX};
use rollout::{BackendKind, BootTime, Bytes, Millis};
use sandbox_init::message::Streams;
use tokio::sync::watch;

use super::channel::{Channel, ChannelError, Told};
use super::files::{self, Owner};
use super::image::{Image, Images};
use super::{AdoptError, Adoption, Deed, Inheritance};
use super::{
    Backend, Ceilings, CreateError, CreationCredit, DestroyError, Driven, FileError, FileSource, LayError,
    Listing, Mounted, OciBase, Pack, PackError, Process, Sandbox, SandboxSpec, Spawn, SpawnError, Stats,
    laying, packing,
};
use crate::broker::client::Client;
use crate::broker::protocol::{Action, Create, LOWERS_MAX, Outcome, Problem};
pub use crate::broker::protocol::{Levels, Step};
use crate::broker::serve::lock;
use crate::census;
use crate::host::cgroup::{Limits, Tree, swap_is_on};
use crate::keeper::client::{Keepers, Kept};
use crate::keeper::protocol::Kind;

/// How long `kill_all` waits for the kernel.
const KILL_WAIT: Duration = Duration::from_secs(10);
/// The smallest limit of memory and of disk. A tmpfs takes a size of 0 for no limit at all, and
/// init needs a little itself.
const SIZE_LIMIT_MIN: Bytes = Bytes(1 << 20);

mod adoption;
mod checks;
mod driven;
mod process;
mod start;

use checks::refusal;
pub(super) use checks::{check, check_layers};
pub(super) use process::is_of_the_tree;
use process::{Asked, Descriptors};
pub use start::Error;

#[derive(Debug, Clone)]
pub struct ContainerConfig {
    /// Everything with a path lives here; made if missing. Two executors never share one.
    pub data_dir: PathBuf,
}

/// The backend. Dropping it lets the broker destroy every sandbox.
#[derive(Debug)]
pub struct Container {
    shared: Arc<Shared>,
    images: Arc<Images>,
    /// The tightest, and the sandboxes it allows.
    ceiling: (&'static str, u32),
    disk_limit_max: Bytes,
    /// What an earlier life left, until it is adopted or destroyed.
    inheritance: Mutex<Option<Inheritance>>,
    fail_next: Mutex<Option<Step>>,
    credit: watch::Receiver<CreationCredit>,
}

#[derive(Debug)]
struct Shared {
    client: Arc<Client>,
    keepers: Arc<Keepers>,
    tree: Tree,
    live: AtomicU32,
    /// Creations that have not ended.
    creating: AtomicU32,
    /// Whether memory limits bound swap. If not, swap must stay off.
    counts_swap: bool,
    /// Bytes that live loop disks promise together.
    disk_promised: Mutex<Bytes>,
    /// With the broker's copy: the data directory is ours until both are gone.
    _lock: OwnedFd,
}

impl Container {
    /// Removes what a previous life left, starts the broker, and is ready. Blocks for that time
    /// (it may wait for the broker of the previous life); call it within a tokio runtime, before
    /// serving.
    pub fn start(config: &ContainerConfig) -> Result<Self, Error> {
        Self::start_with(config, true)
    }

    /// The same with nothing made ahead of creations. For benches of a cold creation.
    #[doc(hidden)]
    pub fn start_cold(config: &ContainerConfig) -> Result<Self, Error> {
        Self::start_with(config, false)
    }

    /// Makes the next creation fail after `step`. For tests of the failure path.
    #[doc(hidden)]
    pub fn fail_next_after(&self, step: Step) {
        *lock(&self.fail_next) = Some(step);
    }

    /// Makes the next child that is made ahead fail after `step`. For tests of that path.
    ///
    /// # Errors
    /// The broker is gone.
    #[doc(hidden)]
    pub fn fail_next_blank_after(&self, step: Step) -> io::Result<()> {
        self.shared.client.tell(Action::FailBlank(step), &[])
    }

    /// How much is made ahead of creations.
    ///
    /// # Errors
    /// The broker is gone.
    pub async fn levels(&self) -> io::Result<Levels> {
        match self.shared.client.request(Action::Levels).await? {
            (Outcome::Levels(levels), _) => Ok(levels),
            (outcome, _) => Err(io::Error::other(format!("the broker answered {outcome:?}"))),
        }
    }

    /// The broker's end, if it ended.
    pub fn broker_gone(&self) -> Option<String> {
        self.shared.client.gone()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Not asked for yet: whoever failed to go on with it leaves it to the next one.
        if lock(&self.inheritance).is_some() {
            self.shared.keepers.leave();
            self.shared.client.leave();
        } else {
            self.shared.client.close();
            self.shared.keepers.close();
        }
    }
}

/// What a creation reserved, given back when it fails or the sandbox ends.
#[derive(Debug)]
struct Reserved {
    shared: Arc<Shared>,
    disk: Bytes,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shared.live.fetch_sub(1, Ordering::Relaxed);
        lock(&self.shared.disk_promised).0 -= self.disk.0;
    }
}

impl Container {
    fn reserve(&self, limit: &Limit) -> Result<Reserved, CreateError> {
        let used = self.shared.live.fetch_add(1, Ordering::Relaxed);
        let mut reserved = Reserved { shared: Arc::clone(&self.shared), disk: Bytes(0) };
        let (ceiling, sandboxes) = self.ceiling;
        if used >= sandboxes {
            return Err(CreateError::Busy { ceiling, used: used.into(), limit: sandboxes.into() });
        }
        self.check_limits(limit)?;
        if limit.disk > TMPFS_DISK_MAX {
            if self.disk_limit_max <= TMPFS_DISK_MAX || limit.disk > self.disk_limit_max {
                let problem = format!(
                    "{} is more than the largest writable layer here, {}",
                    limit.disk, self.disk_limit_max
                );
                return Err(CreateError::NotEnforceable { guarantee: "limit.disk", problem });
            }
            let mut promised = lock(&self.shared.disk_promised);
            let total = promised.0 + limit.disk.0;
            if total > self.disk_limit_max.0 {
                let (used, limit) = (promised.0, self.disk_limit_max.0);
                return Err(CreateError::Busy { ceiling: "disk bytes", used, limit });
            }
            promised.0 = total;
            reserved.disk = limit.disk;
        }
        Ok(reserved)
    }
}

impl Container {
    /// Whether somebody waits for a sandbox.
    pub(super) fn is_creating(&self) -> bool {
        self.shared.creating.load(Ordering::Relaxed) > 0
    }

    /// Refuses what no sandbox here could have.
    pub(super) fn check_limits(&self, limit: &Limit) -> Result<(), CreateError> {
        for (guarantee, size) in [("limit.disk", limit.disk), ("limit.memory", limit.memory)] {
            if size < SIZE_LIMIT_MIN {
                let problem =
                    format!("{size} is less than the smallest that holds a sandbox, {SIZE_LIMIT_MIN}");
                return Err(CreateError::NotEnforceable { guarantee, problem });
            }
        }
        // Somebody may have turned it on since the start.
        if !self.shared.counts_swap && !matches!(swap_is_on(), Ok(false)) {
            let problem = "swap is on, and this kernel does not count it".to_owned();
            return Err(CreateError::NotEnforceable { guarantee: "limit.memory", problem });
        }
        Ok(())
    }

    /// The image of a spec, prepared if need be.
    pub(super) async fn image(&self, name: &str) -> Result<Arc<Image>, CreateError> {
        if let Some(image) = self.images.ready(name) {
            return Ok(image);
        }
        let (images, name) = (Arc::clone(&self.images), name.to_owned());
        let prepared = tokio::task::spawn_blocking(move || images.get(&name)).await;
        prepared.map_err(|error| {
            let action = "preparing the image".to_owned();
            CreateError::Failed { action, source: io::Error::other(error) }
        })?
    }

    /// Hands the root, the writable tree and a copy of the channel to a keeper. Whatever uses them waits for its answer.
    async fn keep(&self, id: &str, fds: [OwnedFd; 3]) -> Result<Arc<Kept>, CreateError> {
        let kinds = [Kind::Root, Kind::Upper, Kind::Channel];
        let kept = self.shared.keepers.place(id, &kinds, &fds).await;
        kept.map(Arc::new).map_err(|error| self.ended_or("keeping the root", error.into()))
    }

    /// What failed a creation, if it is not that everything ended.
    fn ended_or(&self, action: &str, source: io::Error) -> CreateError {
        match self.shared.client.gone() {
            Some(reason) => CreateError::Ended { reason },
            None => CreateError::Failed { action: action.to_owned(), source },
        }
    }
}

#[tonic::async_trait]
impl Backend for Container {
    fn kind(&self) -> BackendKind {
        BackendKind::Container
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError> {
        let _creating = Creating::begin(&self.shared.creating);
        check(&spec)?;
        let reserved = self.reserve(&spec.limits)?;
        let failed = |action: &str| {
            let action = action.to_owned();
            move |source| CreateError::Failed { action, source }
        };
        let image = match spec.base.clone() {
            None => self.image(&spec.image).await?,
            Some(base) => {
                let (images, name) = (Arc::clone(&self.images), spec.image.clone());
                let prepared = tokio::task::spawn_blocking(move || images.stacked(&name, &base)).await;
                prepared.map_err(|error| failed("preparing the image")(io::Error::other(error)))??
            }
        };
        let unknown = || CreateError::UnknownUser { user: spec.user.clone(), image: spec.image.clone() };
        let user = image.users.find(&spec.user).ok_or_else(unknown)?;
        check_layers(&spec, &image)?;
        let create = Create {
            id: spec.id.clone(),
            lowers: image
                .lowers
                .iter()
                .chain(spec.layers.iter().map(|layer| &layer.at.path))
                .cloned()
                .collect(),
            host_usr: image.host_usr,
            limit: spec.limits,
            workdir: spec.workdir.clone(),
            uid: user.uid,
            gid: user.gid,
            fail_after: lock(&self.fail_next).take(),
        };
        let client = &self.shared.client;
        let (outcome, fds) =
            client.request(Action::Create(create)).await.map_err(|source| match source.kind() {
                io::ErrorKind::BrokenPipe => CreateError::Ended { reason: source.to_string() },
                _ => failed("asking the broker")(source),
            })?;
        let created = match outcome {
            Outcome::Created(created) => created,
            Outcome::Failed(failure) => {
                if !failure.left.is_empty() {
                    tracing::error!(sandbox = spec.id, left = ?failure.left, "a failed creation left something");
                }
                return Err(refusal(&spec, failure.step, failure.problem));
            }
            Outcome::Destroyed { .. } | Outcome::Levels(_) => {
                return Err(failed("asking the broker")(io::Error::other("it answered another question")));
            }
        };
        let known = Known::new(&self.shared, &spec.id, created.leaf.as_deref());
        // From here on dropping the guard destroys what the broker made.
        let mut guard = Abandoned { client: Arc::clone(client), id: Some(spec.id.clone()) };
        let [channel, root, upper] = <[OwnedFd; 3]>::try_from(fds)
            .map_err(|_| failed("asking the broker")(io::Error::other("descriptors are missing")))?;
        let copy = channel.try_clone().map_err(failed("copying the channel to init"))?;
        let kept = self.keep(&spec.id, [root, upper, copy]).await?;
        let born = Channel::born(channel).await.map_err(|(step, error)| (step.as_str(), error));
        // Long since, as a rule: init takes longer.
        let kept_too = kept.settled().await.map_err(|error| ("keeping the root", io::Error::from(error)));
        let channel = match born.and_then(|channel| kept_too.map(|()| channel)) {
            Ok(channel) => channel,
            Err((action, source)) => {
                let (left, _) = end(&self.shared, &spec.id, kept).await;
                guard.id = None;
                if !left.is_empty() {
                    tracing::error!(sandbox = spec.id, ?left, "a failed creation left something");
                }
                return Err(self.ended_or(action, source));
            }
        };
        guard.id = None;
        let image_digest = image.digest.clone();
        Ok(Box::new(ContainerSandbox {
            shared: Arc::clone(&self.shared),
            alive: Some(Alive { channel, kept, reserved }),
            _known: known,
            id: spec.id,
            layers: spec.layers,
            base: spec.base,
            workdir: spec.workdir,
            image,
            id_base: created.id_base,
            init_pid: created.init_pid,
            memory_disk: created.memory_disk,
            disk_limit: spec.limits.disk,
            image_name: spec.image,
            image_digest,
            told: BTreeMap::new(),
            driven: driven::State::default(),
        }))
    }

    async fn image_digest(&self, image: &str) -> Result<String, CreateError> {
        Ok(self.image(image).await?.digest.clone())
    }

    fn inheritance(&self) -> Option<Inheritance> {
        lock(&self.inheritance).clone()
    }

    async fn adopt(&self, _: &str, adoption: Adoption) -> Result<Box<dyn Sandbox>, AdoptError> {
        Ok(Box::new(self.take_over(adoption).await?))
    }

    async fn disinherit(&self) {
        self.destroy_unclaimed().await;
    }

    fn keep_until(&self, ends_at: BootTime) {
        self.say_keep_until(ends_at);
    }

    fn creation_credit(&self) -> CreationCredit {
        *self.credit.borrow()
    }

    async fn ended(&self) -> String {
        self.shared.client.ended().await
    }

    fn ceilings(&self) -> Ceilings {
        Ceilings { sandboxes: self.ceiling.1, disk_limit_max: self.disk_limit_max }
    }
}

/// A creation that has not ended.
struct Creating<'a>(&'a AtomicU32);

impl<'a> Creating<'a> {
    fn begin(creating: &'a AtomicU32) -> Self {
        creating.fetch_add(1, Ordering::Relaxed);
        Self(creating)
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Abandoned {
    client: Arc<Client>,
    id: Option<String>,
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.client.destroy_detached(id);
        }
    }
}

#[derive(Debug)]
struct Alive {
    channel: Arc<Channel>,
    /// The root and the raw writable tree.
    kept: Arc<Kept>,
    reserved: Reserved,
}

/// The v2 leaf of a sandbox is known by its id while this lives.
#[derive(Debug)]
struct Known {
    shared: Arc<Shared>,
    id: String,
}

impl Known {
    /// `leaf`: its name, if that is not the id.
    fn new(shared: &Arc<Shared>, id: &str, leaf: Option<&str>) -> Self {
        if let Some(leaf) = leaf {
            shared.tree.know(id, leaf);
        }
        Self { shared: Arc::clone(shared), id: id.to_owned() }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.shared.tree.forget(&self.id);
    }
}

#[derive(Debug)]
struct ContainerSandbox {
    shared: Arc<Shared>,
    /// None once destroyed.
    alive: Option<Alive>,
    _known: Known,
    id: String,
    layers: Vec<Mounted>,
    base: Option<Arc<OciBase>>,
    workdir: String,
    image: Arc<Image>,
    id_base: u32,
    init_pid: i32,
    memory_disk: Bytes,
    disk_limit: Bytes,
    image_name: String,
    /// Of what it was made over: a tree may be another one by now.
    image_digest: String,
    /// Of a sandbox that was taken over: processes of an earlier executor, by number.
    told: BTreeMap<u32, Told>,
    driven: driven::State,
}

impl ContainerSandbox {
    fn alive(&self) -> &Alive {
        self.alive.as_ref().unwrap_or_else(|| unreachable!("only destroy and drop take it"))
    }

    fn owner(&self, path: &str, owner: &str) -> Result<Owner, FileError> {
        let unknown = || FileError::UnknownUser { path: path.to_owned(), user: owner.to_owned() };
        let user = self.image.users.find(owner).ok_or_else(unknown)?;
        Ok(Owner { uid: self.id_base + user.uid, gid: self.id_base + user.gid, root: self.id_base })
    }

    /// Runs a file operation where blocking is allowed.
    async fn on_files<T: Send + 'static>(
        &self,
        path: &str,
        operation: impl FnOnce(&OwnedFd, &str, &str) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        files::check_not_mounted_over(path, &self.workdir, self.image.host_usr)?;
        let kept = Arc::clone(&self.alive().kept);
        let (owned_path, workdir) = (path.to_owned(), self.workdir.clone());
        let running = tokio::task::spawn_blocking(move || {
            let io = |source| FileError::Io { path: owned_path.clone(), source };
            let root = kept.get(Kind::Root).map_err(|error| io(error.into()))?;
            operation(&root, &workdir, &owned_path)
        });
        running
            .await
            .map_err(|error| FileError::Io { path: path.to_owned(), source: io::Error::other(error) })?
    }
}

/// Ends a sandbox and lets go of its descriptors; what is left of it, and whether its keeper took them. The last hold on its
/// mounts ends while the broker works: the kernel waits a grace period for each, and the broker waits for a disk that is
/// still mounted.
async fn end(shared: &Arc<Shared>, id: &str, kept: Arc<Kept>) -> (Vec<String>, io::Result<()>) {
    let destroyed = broker_destroy(Arc::clone(shared), id.to_owned());
    let (left, released) = tokio::join!(destroyed, kept.release());
    (left, released.map_err(io::Error::from))
}

async fn broker_destroy(shared: Arc<Shared>, id: String) -> Vec<String> {
    match shared.client.request(Action::Destroy { id: id.clone() }).await {
        Ok((Outcome::Destroyed { left }, _)) => left,
        Ok((outcome, _)) => vec![format!("the broker answered {outcome:?}")],
        // The kernel killed every init with the broker: only the cgroups are left to us.
        Err(_) => {
            let named = id.clone();
            let removed = tokio::task::spawn_blocking(move || census::remove_leaf(&shared.tree, &id)).await;
            removed.unwrap_or_else(|error| vec![format!("removing the cgroups of {named}: {error}")])
        }
    }
}

/// Blocks: the keeper is asked.
fn read_stats(tree: &Tree, kept: &Kept, id: &str) -> Stats {
    let mut stats = Stats {
        oom_kills: tree.oom_kills(id),
        pids_denied: tree.forks_refused(id),
        cpu: tree.cpu_us(id).map(|us| Millis(us / 1000)),
        memory_peak: tree.memory_peak(id),
        memory_held: tree.memory_held(id),
        ..Stats::default()
    };
    let disk = |root: OwnedFd| nix::sys::statvfs::fstatvfs(root.as_fd()).ok();
    if let Some(disk) = kept.get(Kind::Root).ok().and_then(disk) {
        let bytes = |blocks: u64| Some(Bytes(blocks * disk.fragment_size()));
        stats.disk_size = bytes(disk.blocks());
        stats.disk_used = bytes(disk.blocks() - disk.blocks_free());
        stats.inodes_free = Some(disk.files_available());
    }
    stats
}

#[tonic::async_trait]
impl Sandbox for ContainerSandbox {
    fn image_digest(&self) -> &str {
        &self.image_digest
    }

    fn image_env(&self) -> &[(String, String)] {
        self.base.as_ref().map_or(&[], |base| &base.env)
    }

    async fn write_file(
        &self,
        path: &str,
        content: FileSource,
        mode: u32,
        owner: &str,
    ) -> Result<(), FileError> {
        let owner = self.owner(path, owner)?;
        self.on_files(path, move |root, workdir, path| {
            files::write(root.as_fd(), workdir, path, content, mode, owner)
        })
        .await
    }

    async fn reset_dir(&self, path: &str, mode: u32, owner: &str) -> Result<(), FileError> {
        let owner = self.owner(path, owner)?;
        self.on_files(path, move |root, workdir, path| {
            files::reset_dir(root.as_fd(), workdir, path, mode, owner)
        })
        .await
    }

    async fn open_file(&self, path: &str) -> Result<Option<(File, Bytes)>, FileError> {
        self.on_files(path, |root, workdir, path| files::read(root.as_fd(), workdir, path)).await
    }

    async fn list(&self, path: &str, names_max: usize) -> Result<Option<Listing>, FileError> {
        let list = move |root: &OwnedFd, workdir: &str, path: &str| {
            files::list(root.as_fd(), workdir, path, names_max)
        };
        self.on_files(path, list).await
    }

    async fn make_dir(&self, path: &str, owner: &str) -> Result<(), FileError> {
        let owner = self.owner(path, owner)?;
        self.on_files(path, move |root, workdir, path| files::make_dir(root.as_fd(), workdir, path, owner))
            .await
    }

    async fn spawn(&self, spawn: Spawn) -> Result<Box<dyn Process>, SpawnError> {
        self.spawn_numbered(self.number(), spawn).await
    }

    fn deed(&self) -> Option<Deed> {
        Some(self.written_down())
    }

    fn number(&self) -> u32 {
        self.alive().channel.ticket()
    }

    fn find(&self, number: u32) -> Option<Box<dyn Process>> {
        Some(Box::new(self.found(number)?))
    }

    async fn entrust(&self, number: u32, ends: Vec<OwnedFd>) -> Result<(), io::Error> {
        self.hand_over(number, ends).await
    }

    async fn entrusted(&self, number: u32, count: u8) -> Result<Vec<OwnedFd>, io::Error> {
        self.handed_over(number, count).await
    }

    async fn give_up(&self, number: u32) {
        self.let_go(number).await;
    }

    async fn spawn_numbered(&self, number: u32, spawn: Spawn) -> Result<Box<dyn Process>, SpawnError> {
        let Spawn { argv, env, cwd, user, stdout, stderr } = spawn;
        let asked = Asked { argv: &argv, env: &env, cwd: &cwd, user: &user };
        let kind = Descriptors { streams: Streams::Output, has_report: false, has_group: false };
        let (process, _) = self.started(number, &asked, kind, &[stdout, stderr], &[]).await?;
        Ok(Box::new(process))
    }

    fn driven(&self) -> Option<&dyn Driven> {
        Some(self)
    }

    fn layers(&self) -> &[Mounted] {
        &self.layers
    }

    async fn lay_over(&self, layer: &Mounted) -> Result<(), LayError> {
        laying::lay(&self.alive().kept, self.id_base, self.image.host_usr, layer).await
    }

    async fn pack(&self, pack: Pack) -> Result<Packed, PackError> {
        packing::pack(&self.shared.tree, &self.id, &self.driven.still, &self.alive().kept, self.id_base, pack)
            .await
    }

    async fn kill_all(&self) -> Result<(), io::Error> {
        match tokio::time::timeout(KILL_WAIT, self.alive().channel.kill_all()).await {
            Ok(Ok(_)) => Ok(()),
            // A dead sandbox has no process left.
            Ok(Err(ChannelError::Dead(_))) => Ok(()),
            Ok(Err(ChannelError::Io(error))) => Err(error),
            Err(_) => {
                let processes = self.shared.tree.processes(&self.id).map_or(0, |pids| pids.len());
                let left = processes.saturating_sub(1);
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("{left} killed processes do not end")))
            }
        }
    }

    async fn stats(&self) -> Stats {
        let (shared, kept, id) = (Arc::clone(&self.shared), Arc::clone(&self.alive().kept), self.id.clone());
        let read = tokio::task::spawn_blocking(move || read_stats(&shared.tree, &kept, &id)).await;
        read.unwrap_or_else(|error| {
            tracing::error!(sandbox = self.id, %error, "its counters were not read");
            Stats::default()
        })
    }

    async fn memory_held(&self) -> Option<Bytes> {
        if self.shared.creating.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let (shared, id) = (Arc::clone(&self.shared), self.id.clone());
        tokio::task::spawn_blocking(move || shared.tree.memory_held(&id)).await.ok().flatten()
    }

    async fn set_limits(&self, limits: Limit) -> Result<(), io::Error> {
        // A lower memory limit makes the kernel take pages back before it answers.
        let (shared, id) = (Arc::clone(&self.shared), self.id.clone());
        let limits = Limits::new(&limits, self.memory_disk);
        let limited = tokio::task::spawn_blocking(move || shared.tree.limit(&id, &limits));
        limited.await.map_err(io::Error::other)?
    }

    async fn yield_cpu(&self) -> Result<bool, io::Error> {
        let (shared, id) = (Arc::clone(&self.shared), self.id.clone());
        let yielded = tokio::task::spawn_blocking(move || shared.tree.yield_cpu(&id));
        yielded.await.map_err(io::Error::other)?
    }

    async fn died(&self) -> String {
        let reason = self.alive().channel.died().await;
        self.shared.client.gone().unwrap_or(reason)
    }

    async fn destroy(mut self: Box<Self>) -> Result<(), DestroyError> {
        let Some(alive) = self.alive.take() else { return Ok(()) };
        // Given up only when nothing is left: until then the sandbox counts.
        let Alive { channel, kept, reserved } = alive;
        // If this future is dropped half way, the broker still ends the sandbox.
        let mut guard = Abandoned { client: Arc::clone(&self.shared.client), id: Some(self.id.clone()) };
        channel.close();
        let (left, released) = end(&self.shared, &self.id, kept).await;
        if let Err(error) = released {
            tracing::debug!(sandbox = self.id, %error, "its descriptors went with their keeper");
        }
        guard.id = None;
        drop(reserved);
        if left.is_empty() { Ok(()) } else { Err(DestroyError { id: self.id.clone(), left }) }
    }
}

impl Drop for ContainerSandbox {
    fn drop(&mut self) {
        if let Some(alive) = self.alive.take() {
            alive.channel.close();
            self.shared.client.destroy_detached(self.id.clone());
        }
    }
}
