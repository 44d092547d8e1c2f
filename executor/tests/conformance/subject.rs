//! The backends under test: how each starts, what it says no to, and how to see what it left.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use executor::census;
use executor::sandbox::container::{Container, ContainerConfig};
use executor::sandbox::fncall::FnCall;
use executor::sandbox::{Backend, Sandbox, SandboxSpec};
use rollout::Bytes;
use rollout::backend::FNCALL_DISK;
use rollout::quantity::{Limit, Resources};

/// What a backend may decline, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Sandboxes over saved layers.
    Layers,
    /// Saving what a sandbox changed.
    Pack,
    /// Copying a layer into a live sandbox.
    LayOver,
    /// Being driven from outside.
    Driven,
    /// Disks of whatever size the ceilings allow.
    AnyDisk,
    /// Images that are stacks of layers.
    OciImage,
}

pub struct Subject {
    /// As jobs name it.
    pub kind: &'static str,
    pub start: fn(&Path) -> Started,
    /// What it cannot do, each with a word of the refusal.
    pub refuses: &'static [(Ability, &'static str)],
    /// The disk of sandboxes in these tests.
    pub disk: Bytes,
}

/// A backend that runs.
pub struct Started {
    pub backend: Arc<dyn Backend>,
    /// What there is of sandboxes that nobody holds, in words.
    pub left: Look,
    /// Ends whatever keeps its sandboxes alive, as a crash would.
    pub crash: Arc<dyn Fn() + Send + Sync>,
}

pub type Look = Arc<dyn Fn() -> Option<String> + Send + Sync>;

pub static CONTAINER: Subject =
    Subject { kind: "container", start: start_container, refuses: &[], disk: Bytes(16 << 20) };

pub static FNCALL: Subject = Subject {
    kind: "fncall",
    start: start_fncall,
    refuses: &[
        (Ability::Layers, "layers: "),
        (Ability::Pack, "does not offer saving a workspace"),
        (Ability::LayOver, "does not offer layers over a live sandbox"),
        (Ability::AnyDisk, "limit.disk: "),
        (Ability::OciImage, "image: "),
    ],
    disk: FNCALL_DISK,
};

fn container(dir: &Path) -> (Container, PathBuf) {
    let data_dir = dir.join("data");
    let config = ContainerConfig { data_dir: data_dir.clone() };
    let backend = Container::start(&config).expect("the backend starts");
    (backend, data_dir.canonicalize().unwrap())
}

fn start_container(dir: &Path) -> Started {
    let (backend, data_dir) = container(dir);
    let crashed = data_dir.clone();
    Started {
        backend: Arc::new(backend),
        left: Arc::new(move || {
            let census = census::take(&data_dir).unwrap();
            (!census.holds_no_sandbox()).then(|| census.to_string())
        }),
        crash: Arc::new(move || kill_every_process(&crashed)),
    }
}

fn start_fncall(dir: &Path) -> Started {
    let (backend, started) = fncall(dir);
    // The first sandbox of every rule is one that had been made before.
    let limits = Limit { disk: FNCALL_DISK, ..Resources::default().limit };
    let asked = spec("warm".to_owned(), limits);
    let warming = backend.warm(&asked);
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(warming)).expect("warm");
    started
}

/// With nothing made ahead.
pub fn fncall(dir: &Path) -> (Arc<FnCall>, Started) {
    let (made, data_dir) = container(dir);
    let backend = Arc::new(FnCall::start(Arc::new(made)));
    let (looked, crashed) = (Arc::clone(&backend), data_dir.clone());
    let left = move || {
        let mut census = census::take(&data_dir).unwrap();
        let parked = looked.parked();
        census.cgroups.retain(|name| !parked.contains(name));
        if census.cgroups.is_empty() {
            census.processes.clear();
        }
        (!census.holds_no_sandbox()).then(|| census.to_string())
    };
    let crash = Arc::new(move || kill_every_process(&crashed));
    let started = Started { backend: Arc::<FnCall>::clone(&backend), left: Arc::new(left), crash };
    (backend, started)
}

/// Of the sandboxes of this data directory; they are in cgroups that nothing else is in.
pub fn kill_every_process(data_dir: &Path) {
    for pid in census::take(data_dir).unwrap().processes {
        let _ended_meanwhile =
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
    }
}

/// After the backend is gone: nothing of it may be there.
pub fn left_at_the_end(dir: &Path) -> Option<String> {
    let data_dir = dir.join("data").canonicalize().unwrap();
    let census = census::take(&data_dir).unwrap();
    if census.is_empty() {
        census::remove_parents(&data_dir).expect("the parents are empty");
        return None;
    }
    Some(census.to_string())
}

/// What a rule works with.
pub struct Yard {
    pub subject: &'static Subject,
    pub backend: Arc<dyn Backend>,
    pub left: Look,
    pub crash: Arc<dyn Fn() + Send + Sync>,
    /// Scratch, removed afterwards.
    pub dir: PathBuf,
    pub next: AtomicU32,
}

impl fmt::Debug for Yard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Yard").field("backend", &self.backend).finish_non_exhaustive()
    }
}

pub fn spec(id: String, limits: Limit) -> SandboxSpec {
    SandboxSpec {
        id,
        image: "host".into(),
        base: None,
        image_digest: None,
        layers: Vec::new(),
        limits,
        user: "rollout".into(),
        workdir: "/workspace".into(),
    }
}

impl Yard {
    pub fn limits(&self) -> Limit {
        let mut limit = Resources::default().limit;
        (limit.memory, limit.disk, limit.pids) = (Bytes(256 << 20), self.subject.disk, 64);
        limit
    }

    pub fn spec(&self) -> SandboxSpec {
        spec(format!("s{}", self.next.fetch_add(1, Ordering::Relaxed)), self.limits())
    }

    pub async fn sandbox(&self) -> Box<dyn Sandbox> {
        self.backend.create(self.spec()).await.expect("created")
    }

    /// Waits until nothing is left of sandboxes that ended; what is there after all.
    pub async fn left_in_the_end(&self) -> Option<String> {
        let deadline = std::time::Instant::now() + crate::rule::CLEAN_UP;
        loop {
            let left = (self.left)();
            if left.is_none() || std::time::Instant::now() > deadline {
                return left;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}
