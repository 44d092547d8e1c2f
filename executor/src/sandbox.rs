//! What every backend offers. The agent half of the executor (link, lifecycle, attempts) sees
//! sandboxes only through these traits; what a backend cannot do is refused by name.

mod adoption;
mod channel;
pub mod container;
pub mod driven;
mod files;
pub mod fncall;
mod image;
mod laying;
mod packing;
mod users;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use images::layers::{Bounds, Packed, Pinned};
use rollout::checkpoint::Layer;
use rollout::quantity::Limit;
use rollout::{BackendKind, BootTime, Bytes, Millis};
use tokio_util::sync::CancellationToken;

pub use adoption::{AdoptError, Adoption, BaseDeed, Deed, Inheritance};
pub use driven::Driven;

/// Makes sandboxes. One per executor and backend kind.
#[tonic::async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    /// As jobs name it.
    fn kind(&self) -> BackendKind;

    /// Creates a sandbox whose init runs and whose walls all stand. On any error nothing is left:
    /// provisioning is one block with one failure path.
    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError>;

    /// The digest this image has here, prepared if need be. May take as long as reading all of it.
    async fn image_digest(&self, image: &str) -> Result<String, CreateError>;

    /// Sandboxes alive, and how many could be (the tightest ceiling).
    fn ceilings(&self) -> Ceilings;

    /// What creations this node can take now, as measured a moment ago.
    fn creation_credit(&self) -> CreationCredit {
        CreationCredit::default()
    }

    /// The most sandboxes it holds that serve nobody yet.
    fn ahead_max(&self) -> u32 {
        0
    }

    /// Destroys what serves nobody yet, and makes nothing ahead any more. Before the end of the executor.
    async fn wind_up(&self) {}

    /// What an executor that was killed left here. None: nothing, or nothing that may go on.
    fn inheritance(&self) -> Option<Inheritance> {
        None
    }

    /// Takes over a sandbox of [`inheritance`](Self::inheritance). `id` is how this life names it.
    async fn adopt(&self, id: &str, adoption: Adoption) -> Result<Box<dyn Sandbox>, AdoptError> {
        let _ = (id, adoption);
        Err(AdoptError::NotOffered { backend: self.kind().as_str() })
    }

    /// Destroys what was inherited and not adopted.
    async fn disinherit(&self) {}

    /// If this executor is killed, its sandboxes may live until then, for the next one.
    fn keep_until(&self, ends_at: BootTime) {
        let _ = ends_at;
    }

    /// Resolves when no sandbox can be made any more, with the reason. Those that live may be
    /// gone too.
    async fn ended(&self) -> String {
        std::future::pending().await
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceilings {
    pub sandboxes: u32,
    /// The largest `limit.disk` that can be enforced.
    pub disk_limit_max: Bytes,
}

/// How fast sandboxes are created: so many at once out of what is ready, and then at that rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CreationCredit {
    pub burst: u32,
    /// Creations in 1,000 seconds; 0 before any was measured.
    pub per_s_milli: u64,
}

#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// Unique in this executor's life; `[a-z0-9-]`, at most 63 bytes. Names the directory and
    /// the cgroups.
    pub id: String,
    /// `host`, `dir:/absolute/path`, or an OCI image by digest, which `base` then holds.
    pub image: String,
    /// The OCI image, unpacked on this node.
    pub base: Option<Arc<OciBase>>,
    /// The digest the image must have; none: whatever it has here.
    pub image_digest: Option<String>,
    /// Between the image and the writable tree, bottom first.
    pub layers: Vec<Mounted>,
    pub limits: Limit,
    /// The user that owns `workdir`, by name (looked up in the image's /etc/passwd, `rollout` is
    /// always there with uid 1000) or as a decimal uid.
    pub user: String,
    /// Made if missing, owned by `user`.
    pub workdir: String,
}

/// An OCI image on this node. Its layers stay as long as this does.
#[derive(Debug)]
pub struct OciBase {
    /// `oci:sha256:<hex>`, of its manifest.
    pub digest: String,
    /// Bottom first.
    pub layers: Vec<Pinned>,
    /// The environment it brings, below that of a step.
    pub env: Vec<(String, String)>,
    /// Keeps it in the library of this machine.
    pub hold: Option<images::oci::library::Hold>,
}

/// A layer under a sandbox. It stays on the node as long as the sandbox does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub layer: Layer,
    pub at: Pinned,
}

/// Why a sandbox could not be made. `code()` is the stable code.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The image, or the working directory in it, cannot be used anywhere: no shell, a link or a
    /// file where a directory belongs. Code `bad_rootfs`.
    #[error("image `{image}` cannot be used as a root: {problem}")]
    BadRootfs { image: String, problem: String },
    /// The image is not there, cannot be read, or is another one, on this node: another may have
    /// it. Code `image_missing`.
    #[error("image `{image}` is not on this node: {problem}")]
    ImageMissing { image: String, problem: String },
    /// A guarantee this host cannot give. Code `not_enforceable`.
    #[error("this host cannot enforce {guarantee}: {problem}")]
    NotEnforceable { guarantee: &'static str, problem: String },
    /// No room now: names the ceiling, its value and the use. Code `node_busy`.
    #[error("{ceiling} is at its limit: {used} of {limit}")]
    Busy { ceiling: &'static str, used: u64, limit: u64 },
    /// The user does not exist in the image. Code `unknown_user`.
    #[error("user `{user}` is not in /etc/passwd of image `{image}`")]
    UnknownUser { user: String, image: String },
    /// No sandbox can be made any more in this life of the executor; nothing is wrong with what
    /// was asked. Code `backend_ended`.
    #[error("the sandbox backend ended: {reason}")]
    Ended { reason: String },
    /// A system call or the broker failed. Code `start_failed`.
    #[error("{action}: {source}")]
    Failed { action: String, source: std::io::Error },
}

/// A live sandbox. Dropping it without [`destroy`](Sandbox::destroy) still tears it down, in the
/// background; `destroy` is the one path and waits until nothing is left.
#[tonic::async_trait]
pub trait Sandbox: Send + Sync + fmt::Debug {
    /// Digest of the base: `host:<hash>`, `dir:<hash>` or `oci:sha256:<hash>`.
    fn image_digest(&self) -> &str;

    /// The environment its image brings.
    fn image_env(&self) -> &[(String, String)] {
        &[]
    }

    /// Writes a file before or between steps. The path is resolved beneath the sandbox's root,
    /// never outside, never through a symlink that the sandbox made; parents are created, owned
    /// by `owner`. Replaces what is there.
    async fn write_file(
        &self,
        path: &str,
        content: FileSource,
        mode: u32,
        owner: &str,
    ) -> Result<(), FileError>;

    /// Makes an empty directory owned by `owner`, removing what was there (a file, a symlink, a
    /// tree).
    async fn reset_dir(&self, path: &str, mode: u32, owner: &str) -> Result<(), FileError>;

    /// Opens a regular file for reading, beneath the root, no symlink followed, without blocking
    /// on a FIFO. `None` if nothing is there. Relative paths start at `workdir` of the spec.
    async fn open_file(&self, path: &str) -> Result<Option<(std::fs::File, Bytes)>, FileError>;

    /// What is at an absolute path, beneath the root, no symlink followed. `None` if nothing is
    /// there. More than `names_max` names in a directory are an error.
    async fn list(&self, path: &str, names_max: usize) -> Result<Option<Listing>, FileError>;

    /// Makes a directory owned by `owner` if there is none; its parents as
    /// [`write_file`](Sandbox::write_file) does.
    async fn make_dir(&self, path: &str, owner: &str) -> Result<(), FileError>;

    /// Starts a process as `user`. Exactly fds 0 (from /dev/null), 1 and 2 are open in it.
    async fn spawn(&self, spawn: Spawn) -> Result<Box<dyn Process>, SpawnError>;

    /// What the next executor needs to take it over. None: it dies with this one.
    fn deed(&self) -> Option<Deed> {
        None
    }

    /// A number for a process that is still to be started, by which the next executor finds it.
    fn number(&self) -> u32 {
        0
    }

    /// As [`spawn`](Self::spawn), under a number of [`number`](Self::number).
    async fn spawn_numbered(&self, number: u32, spawn: Spawn) -> Result<Box<dyn Process>, SpawnError> {
        let _ = number;
        self.spawn(spawn).await
    }

    /// A process that an earlier executor started under that number. None: it never began.
    fn find(&self, number: u32) -> Option<Box<dyn Process>> {
        let _ = number;
        None
    }

    /// Has copies of the executor's ends of the streams of a process held where the next executor finds
    /// them, until they are [given up](Self::give_up).
    async fn entrust(&self, number: u32, ends: Vec<OwnedFd>) -> Result<(), std::io::Error> {
        let _ = (number, ends);
        Ok(())
    }

    /// The first `count` of what was entrusted for a process, in order.
    async fn entrusted(&self, number: u32, count: u8) -> Result<Vec<OwnedFd>, std::io::Error> {
        let _ = (number, count);
        Err(std::io::ErrorKind::Unsupported.into())
    }

    async fn give_up(&self, number: u32) {
        let _ = number;
    }

    /// What a driver outside needs of it. None: this backend serves no sessions.
    fn driven(&self) -> Option<&dyn Driven> {
        None
    }

    /// The layers it was made over, bottom first.
    fn layers(&self) -> &[Mounted];

    /// Lays another layer over all that is there, as copies: what the sandbox would show if it had
    /// been made with it on top. The copies are part of what it changed. Its processes must be dead.
    /// Nothing is written through a link of the sandbox; after an error a part of it may be there.
    async fn lay_over(&self, layer: &Mounted) -> Result<(), LayError>;

    /// Packs what the sandbox changed since it was made. Without a freeze, its processes must be
    /// dead. If this future is dropped, its processes go on and packing ends soon; a half written
    /// file is removed.
    async fn pack(&self, pack: Pack) -> Result<Packed, PackError>;

    /// Kills every process but init and waits until they are gone (bounded; past the bound the
    /// error says how many are left).
    async fn kill_all(&self) -> Result<(), std::io::Error>;

    /// Counters of the kernel since the sandbox was made.
    async fn stats(&self) -> Stats;

    /// What it holds in memory now and nobody can drop: a look that costs little, and that is not taken (none) while
    /// other sandboxes are being made, which go first.
    async fn memory_held(&self) -> Option<Bytes> {
        self.stats().await.memory_held
    }

    /// Rewrites the cgroup limits for the next step of the chain. The disk limit is fixed.
    async fn set_limits(&self, limits: Limit) -> Result<(), std::io::Error>;

    /// From now on its processes run when nobody else wants the processor. False: this host has no such
    /// thing, and they run as all others do.
    async fn yield_cpu(&self) -> Result<bool, std::io::Error> {
        Ok(false)
    }

    /// Resolves when the sandbox is dead for a reason of its own (init gone, broker gone).
    async fn died(&self) -> String;

    /// Ends everything: processes, mounts, network namespace, cgroups, disk image, directory.
    /// Goes on past a failing item and reports it.
    async fn destroy(self: Box<Self>) -> Result<(), DestroyError>;
}

/// What to pack, and how.
#[derive(Debug)]
pub struct Pack {
    /// A file that is not there yet.
    pub out: PathBuf,
    /// Directories of the layers below, bottom first, that become part of the new one.
    pub below: Vec<PathBuf>,
    pub bounds: Bounds,
    /// Stop the processes meanwhile, for at most so long.
    pub freeze: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Nothing was stopped, and nothing packed.
    #[error("backend {backend} does not offer saving a workspace")]
    NotOffered { backend: &'static str },
    /// The processes could not be stopped, or the tree not be packed, in the time given. They go
    /// on.
    #[error("{what} within {} ms", within.as_millis())]
    TooSlow { what: &'static str, within: Duration },
    #[error("stopping the processes of the sandbox")]
    Freeze(#[source] std::io::Error),
    #[error("reaching what the sandbox changed")]
    Upper(#[source] std::io::Error),
    #[error("packing the workspace")]
    Tree(#[source] images::layers::Error),
    #[error("packing the workspace panicked")]
    Panicked,
}

#[derive(Debug, thiserror::Error)]
pub enum LayError {
    #[error("opening the workspace")]
    Root(#[source] std::io::Error),
    /// Nothing was copied.
    #[error("backend {backend} does not offer layers over a live sandbox")]
    NotOffered { backend: &'static str },
    #[error("copying a layer into the workspace")]
    Tree(#[source] images::layers::Error),
    #[error("copying a layer into the workspace panicked")]
    Panicked,
}

/// What a path holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing {
    /// A regular file.
    File,
    /// Its names, sorted.
    Directory(Vec<String>),
}

#[derive(Debug)]
pub enum FileSource {
    Bytes(Vec<u8>),
    /// Copied from its start.
    File(std::fs::File),
    /// The same, until somebody stops it: then nothing is written.
    Stoppable {
        file: std::fs::File,
        stop: CancellationToken,
    },
    /// `size` bytes of a file, from `offset` on.
    Part {
        file: std::fs::File,
        offset: u64,
        size: u64,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A directory, a FIFO, a device, a socket, a symlink. Says which.
    #[error("`{path}` is a {found}, not a regular file")]
    NotAFile { path: String, found: &'static str },
    /// What should be a directory on the way is something else.
    #[error("`{path}` cannot be reached: `{part}` is a {found}, not a directory")]
    NotADirectory { path: String, part: String, found: &'static str },
    #[error("`{path}` leads out of the sandbox or through a symlink")]
    Escapes { path: String },
    #[error("`{path}` cannot be a path here: {problem}")]
    BadPath { path: String, problem: &'static str },
    /// Who is to own the file does not exist in the image.
    #[error("`{path}` cannot belong to `{user}`, who is not in /etc/passwd of the image")]
    UnknownUser { path: String, user: String },
    /// The workspace is full (`ENOSPC` or quota).
    #[error("no space left in the workspace for `{path}`")]
    Full { path: String },
    #[error("`{path}`: {source}")]
    Io { path: String, source: std::io::Error },
}

#[derive(Debug)]
pub struct Spawn {
    pub argv: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub user: String,
    /// Write ends; the read ends belong to the caller's capture.
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// As the kernel answered execve: not found, not executable, bad format, too long.
    #[error("cannot run `{program}`: {source}")]
    Exec { program: String, source: std::io::Error },
    /// The directory to start in is gone, shut, or no directory: the image is so, or an earlier
    /// process of the sandbox made it so.
    #[error("cannot start in `{workdir}`: {source}")]
    Workdir { workdir: String, source: std::io::Error },
    #[error("user `{user}` is not in /etc/passwd of the image")]
    UnknownUser { user: String },
    /// pids limit reached, memory limit reached, the machine's own trouble.
    #[error("cannot start a process in the sandbox: {action}: {source}")]
    Setup { action: String, source: std::io::Error },
    #[error("the sandbox is dead: {reason}")]
    Dead { reason: String },
}

/// A process in a sandbox.
#[tonic::async_trait]
pub trait Process: Send + Sync + fmt::Debug {
    /// The status from the kernel; may be called again and gives the same.
    async fn wait(&self) -> Result<Exit, SpawnError>;
    /// To the process's group.
    async fn signal(&self, signal: i32) -> Result<(), std::io::Error>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// None = not measured on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    pub oom_kills: Option<u64>,
    /// Forks refused by the pids limit.
    pub pids_denied: Option<u64>,
    pub cpu: Option<Millis>,
    /// With cached files, as the kernel counts it.
    pub memory_peak: Option<Bytes>,
    /// Anonymous memory and files in memory alone, now.
    pub memory_held: Option<Bytes>,
    /// Bytes in the writable layer now, and its size.
    pub disk_used: Option<Bytes>,
    pub disk_size: Option<Bytes>,
    /// Inodes free in the writable layer.
    pub inodes_free: Option<u64>,
}

/// Items that would not go. Census finds them again at the next start.
#[derive(Debug, thiserror::Error)]
#[error("sandbox {id}: not removed: {}", left.join("; "))]
pub struct DestroyError {
    pub id: String,
    pub left: Vec<String>,
}
