//! A recording backend whose sandboxes are values. The shell text of a step is a little script:
//! commands separated by `;`, see [`Script::run`]. Every await of the traits is a named point
//! where a test may inject a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use executor::sandbox::{
    Backend, Ceilings, CreateError, DestroyError, Exit, FileError, FileSource, LayError, Listing, Mounted,
    Pack, PackError, Process, Sandbox, SandboxSpec, Spawn, SpawnError, Stats,
};
use images::layers::{Packed, pack_directory};
use rollout::quantity::Limit;
use rollout::{Bytes, Millis};
use tokio::sync::{Notify, watch};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    Create,
    Identify,
    SetLimits,
    LayOver,
    WriteFile,
    ResetDir,
    OpenFile,
    Spawn,
    Pack,
    KillAll,
    Destroy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Fail,
    /// Until [`FakeBackend::release`].
    Hang,
}

/// Makes the error of every creation.
pub type CreateFault = fn() -> CreateError;

#[derive(Debug, Default)]
pub struct FakeBackend {
    /// Notified: the backend ended by itself.
    pub end: Notify,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    gate: Notify,
}

#[derive(Debug, Default)]
pub struct State {
    /// Ids of the sandboxes that exist.
    pub census: BTreeSet<String>,
    pub created: Vec<SandboxSpec>,
    pub spawned: Vec<Spawned>,
    pub limits_set: u32,
    /// Copied into a live sandbox.
    pub laid: Vec<Mounted>,
    /// Packed while their processes stood still.
    pub frozen: u32,
    pub faults: BTreeMap<Point, Fault>,
    pub create_error: Option<CreateFault>,
    /// Calls that reached a hanging point.
    pub hanging: u32,
}

#[derive(Debug, Clone)]
pub struct Spawned {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub user: String,
}

impl FakeBackend {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    pub fn inject(&self, point: Point, fault: Fault) {
        self.state().faults.insert(point, fault);
    }

    /// Ends every fault, and every call that hangs goes on.
    pub fn release(&self) {
        self.state().faults.clear();
        self.shared.gate.notify_waiters();
    }

    /// Waits (hang guard) until `done` holds of the state.
    pub async fn until(&self, what: &str, done: impl Fn(&State) -> bool) {
        for _ in 0..6000 {
            if done(&self.state()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never: {what}: {:?}", self.state());
    }

    pub async fn until_empty(&self) {
        self.until("an empty census", |state| state.census.is_empty()).await;
    }
}

impl Shared {
    async fn pass(&self, point: Point) -> Result<(), io::Error> {
        let gate = self.gate.notified();
        let fault = self.state.lock().unwrap().faults.get(&point).copied();
        match fault {
            None => Ok(()),
            Some(Fault::Fail) => Err(io::Error::other("injected")),
            Some(Fault::Hang) => {
                self.state.lock().unwrap().hanging += 1;
                gate.await;
                Ok(())
            }
        }
    }
}

#[tonic::async_trait]
impl Backend for FakeBackend {
    fn kind(&self) -> rollout::BackendKind {
        rollout::BackendKind::Container
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError> {
        let passed = self.shared.pass(Point::Create).await;
        passed.map_err(|source| CreateError::Failed { action: "clone3".to_owned(), source })?;
        let mut state = self.state();
        if let Some(error) = state.create_error {
            return Err(error());
        }
        assert!(state.census.insert(spec.id.clone()), "id {} used twice", spec.id);
        state.created.push(spec.clone());
        let inner = Inner { spec, shared: self.shared.clone(), ..Inner::new() };
        Ok(Box::new(FakeSandbox { inner: Arc::new(inner) }))
    }

    async fn image_digest(&self, image: &str) -> Result<String, CreateError> {
        let missing = || CreateError::ImageMissing { image: image.to_owned(), problem: "gone".to_owned() };
        self.shared.pass(Point::Identify).await.map_err(|_| missing())?;
        Ok("host:fake".to_owned())
    }

    fn ceilings(&self) -> Ceilings {
        Ceilings { sandboxes: 64, disk_limit_max: Bytes(1 << 40) }
    }

    async fn ended(&self) -> String {
        self.end.notified().await;
        "the broker is gone".to_owned()
    }
}

#[derive(Debug, Clone)]
enum Node {
    File(Vec<u8>),
    /// A sparse file of so many bytes.
    Huge(u64),
    Other(&'static str),
}

#[derive(Debug)]
pub struct FakeSandbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    spec: SandboxSpec,
    shared: Arc<Shared>,
    files: Mutex<BTreeMap<String, Node>>,
    stats: Mutex<Stats>,
    processes: Mutex<Vec<Arc<FakeProcess>>>,
    /// Descriptors held by processes in the background.
    background: Mutex<Vec<OwnedFd>>,
    death: watch::Sender<Option<String>>,
}

impl Inner {
    fn new() -> Self {
        let stats = Stats {
            oom_kills: Some(0),
            pids_denied: Some(0),
            cpu: Some(Millis(0)),
            memory_peak: Some(Bytes(0)),
            memory_held: Some(Bytes(0)),
            disk_used: Some(Bytes(0)),
            disk_size: Some(Bytes(1 << 20)),
            inodes_free: Some(1000),
        };
        Self {
            spec: SandboxSpec {
                id: String::new(),
                image: String::new(),
                base: None,
                image_digest: None,
                layers: Vec::new(),
                limits: rollout::Resources::default().limit,
                user: String::new(),
                workdir: String::new(),
            },
            shared: Arc::default(),
            files: Mutex::default(),
            stats: Mutex::new(stats),
            processes: Mutex::default(),
            background: Mutex::default(),
            death: watch::channel(None).0,
        }
    }

    fn reason(&self) -> Option<String> {
        self.death.borrow().clone()
    }
}

#[tonic::async_trait]
impl Sandbox for FakeSandbox {
    fn image_digest(&self) -> &str {
        "host:fake"
    }

    async fn write_file(&self, path: &str, content: FileSource, _: u32, _: &str) -> Result<(), FileError> {
        let path = path.to_owned();
        let passed = self.inner.shared.pass(Point::WriteFile).await;
        passed.map_err(|source| FileError::Io { path: path.clone(), source })?;
        let bytes = match content {
            FileSource::Bytes(bytes) => bytes,
            FileSource::File(mut file) | FileSource::Stoppable { mut file, .. } => {
                let mut bytes = Vec::new();
                io::Read::read_to_end(&mut file, &mut bytes).unwrap();
                bytes
            }
            FileSource::Part { file, offset, size } => {
                let mut bytes = vec![0; usize::try_from(size).unwrap()];
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, offset).unwrap();
                bytes
            }
        };
        self.inner.files.lock().unwrap().insert(path, Node::File(bytes));
        Ok(())
    }

    async fn reset_dir(&self, path: &str, _: u32, _: &str) -> Result<(), FileError> {
        let passed = self.inner.shared.pass(Point::ResetDir).await;
        passed.map_err(|source| FileError::Io { path: path.to_owned(), source })?;
        self.inner.files.lock().unwrap().retain(|file, _| !file.starts_with(path));
        Ok(())
    }

    async fn open_file(&self, path: &str) -> Result<Option<(std::fs::File, Bytes)>, FileError> {
        let passed = self.inner.shared.pass(Point::OpenFile).await;
        passed.map_err(|source| FileError::Io { path: path.to_owned(), source })?;
        assert!(path.starts_with('/'), "relative paths are resolved by the agent: {path}");
        let node = self.inner.files.lock().unwrap().get(path).cloned();
        let mut file = tempfile::tempfile().unwrap();
        let size = match node {
            None => return Ok(None),
            Some(Node::Other(found)) => return Err(FileError::NotAFile { path: path.to_owned(), found }),
            Some(Node::Huge(size)) => {
                file.set_len(size).unwrap();
                size
            }
            Some(Node::File(bytes)) => {
                file.write_all(&bytes).unwrap();
                io::Seek::rewind(&mut file).unwrap();
                bytes.len() as u64
            }
        };
        Ok(Some((file, Bytes(size))))
    }

    async fn list(&self, path: &str, _: usize) -> Result<Option<Listing>, FileError> {
        let files = self.inner.files.lock().unwrap();
        match files.get(path) {
            Some(Node::Other(found)) => {
                return Err(FileError::NotAFile { path: path.to_owned(), found });
            }
            Some(_) => return Ok(Some(Listing::File)),
            None => {}
        }
        let inside = files.keys().filter_map(|file| file.strip_prefix(path)?.strip_prefix('/'));
        let names: BTreeSet<String> =
            inside.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
        Ok((!names.is_empty()).then(|| Listing::Directory(names.into_iter().collect())))
    }

    async fn make_dir(&self, path: &str, _: &str) -> Result<(), FileError> {
        assert!(path.starts_with('/'), "{path}");
        Ok(())
    }

    async fn spawn(&self, spawn: Spawn) -> Result<Box<dyn Process>, SpawnError> {
        let passed = self.inner.shared.pass(Point::Spawn).await;
        passed.map_err(|source| SpawnError::Setup { action: "fork".to_owned(), source })?;
        if let Some(reason) = self.inner.reason() {
            return Err(SpawnError::Dead { reason });
        }
        let Spawn { argv, env, cwd, user, stdout, stderr } = spawn;
        self.inner.shared.state.lock().unwrap().spawned.push(Spawned { argv: argv.clone(), env, cwd, user });
        let text = match argv.as_slice() {
            [sh, e, c, text] if [sh, e, c] == ["/bin/sh", "-e", "-c"] => text.clone(),
            [program, ..] => {
                let source = io::Error::from(io::ErrorKind::NotFound);
                return Err(SpawnError::Exec { program: program.clone(), source });
            }
            [] => panic!("no argv"),
        };
        let process = Arc::new(FakeProcess::new(self.inner.clone()));
        self.inner.processes.lock().unwrap().push(process.clone());
        let (stdout, stderr) = (Some(stdout.into()), Some(stderr.into()));
        let script = Script { text, inner: self.inner.clone(), process: process.clone(), stdout, stderr };
        tokio::spawn(script.run());
        Ok(Box::new(Shown(process)))
    }

    fn layers(&self) -> &[Mounted] {
        &self.inner.spec.layers
    }

    /// Its plain files, over whatever was there.
    async fn lay_over(&self, layer: &Mounted) -> Result<(), LayError> {
        self.inner.shared.state.lock().unwrap().laid.push(layer.clone());
        let passed = self.inner.shared.pass(Point::LayOver).await;
        passed.map_err(|source| {
            let (action, path) = ("write", "/tests/run".to_owned());
            LayError::Tree(images::layers::Error::Io { action, path, source })
        })?;
        let mut pending = vec![layer.at.path.clone()];
        while let Some(dir) = pending.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                    continue;
                }
                let name = format!("/{}", path.strip_prefix(&layer.at.path).unwrap().display());
                let node = Node::File(std::fs::read(&path).unwrap());
                self.inner.files.lock().unwrap().insert(name, node);
            }
        }
        Ok(())
    }

    /// Its files as they are; a node of another kind is no part of a layer.
    async fn pack(&self, pack: Pack) -> Result<Packed, PackError> {
        if pack.freeze.is_some() {
            self.inner.shared.state.lock().unwrap().frozen += 1;
        }
        let passed = self.inner.shared.pass(Point::Pack).await;
        passed.map_err(PackError::Freeze)?;
        let dir = tempfile::tempdir().unwrap();
        for (path, node) in self.inner.files.lock().unwrap().iter() {
            match node {
                Node::File(bytes) => {
                    let path = dir.path().join(path.trim_start_matches('/'));
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    std::fs::write(path, bytes).unwrap();
                }
                Node::Huge(_) | Node::Other(_) => {
                    let (path, problem) = (path.clone(), "it is no file".to_owned());
                    return Err(PackError::Tree(images::layers::Error::Entry { path, problem }));
                }
            }
        }
        pack_directory(dir.path(), "", &pack.out, &pack.bounds).map_err(PackError::Tree)
    }

    async fn kill_all(&self) -> Result<(), io::Error> {
        self.inner.shared.pass(Point::KillAll).await?;
        for process in self.inner.processes.lock().unwrap().drain(..) {
            process.end(Exit::Signal(9));
        }
        self.inner.background.lock().unwrap().clear();
        Ok(())
    }

    async fn stats(&self) -> Stats {
        *self.inner.stats.lock().unwrap()
    }

    async fn set_limits(&self, _: Limit) -> Result<(), io::Error> {
        self.inner.shared.state.lock().unwrap().limits_set += 1;
        self.inner.shared.pass(Point::SetLimits).await
    }

    async fn died(&self) -> String {
        let mut death = self.inner.death.subscribe();
        let died = death.wait_for(Option::is_some).await.unwrap().clone();
        died.unwrap()
    }

    async fn destroy(self: Box<Self>) -> Result<(), DestroyError> {
        let passed = self.inner.shared.pass(Point::Destroy).await;
        self.bury();
        let id = self.inner.spec.id.clone();
        passed.map_err(|_| DestroyError { id, left: vec!["a mount".to_owned()] })
    }
}

impl FakeSandbox {
    fn bury(&self) {
        for process in self.inner.processes.lock().unwrap().drain(..) {
            process.end(Exit::Signal(9));
        }
        self.inner.background.lock().unwrap().clear();
        self.inner.shared.state.lock().unwrap().census.remove(&self.inner.spec.id);
    }
}

impl Drop for FakeSandbox {
    fn drop(&mut self) {
        self.bury();
    }
}

#[derive(Debug)]
struct FakeProcess {
    exit: watch::Sender<Option<Exit>>,
    on_term: Mutex<Option<Exit>>,
    inner: Arc<Inner>,
}

impl FakeProcess {
    fn new(inner: Arc<Inner>) -> Self {
        Self { exit: watch::channel(None).0, on_term: Mutex::new(Some(Exit::Signal(15))), inner }
    }

    fn end(&self, exit: Exit) {
        self.exit.send_if_modified(|current| current.is_none() && current.replace(exit).is_none());
    }
}

#[derive(Debug)]
struct Shown(Arc<FakeProcess>);

#[tonic::async_trait]
impl Process for Shown {
    async fn wait(&self) -> Result<Exit, SpawnError> {
        let mut exit = self.0.exit.subscribe();
        let mut death = self.0.inner.death.subscribe();
        tokio::select! {
            biased;
            exit = exit.wait_for(Option::is_some) => Ok(exit.unwrap().unwrap()),
            reason = death.wait_for(Option::is_some) => {
                let reason = reason.unwrap().clone().unwrap();
                Err(SpawnError::Dead { reason })
            }
        }
    }

    async fn signal(&self, signal: i32) -> Result<(), io::Error> {
        assert_eq!(signal, 15);
        if let Some(exit) = *self.0.on_term.lock().unwrap() {
            self.0.end(exit);
        }
        Ok(())
    }
}

struct Script {
    text: String,
    inner: Arc<Inner>,
    process: Arc<FakeProcess>,
    stdout: Option<std::fs::File>,
    stderr: Option<std::fs::File>,
}

impl Script {
    /// | command | what it does |
    /// |---|---|
    /// | `out T`, `err T`, `hex H` | writes |
    /// | `spam N` | writes N bytes |
    /// | `exit N`, `signal N` | ends |
    /// | `sleep` | runs until it is killed |
    /// | `stubborn`, `term N` | ignores SIGTERM, exits with N at SIGTERM |
    /// | `write P T`, `huge P`, `node P KIND` | makes a file, a sparse file of 1 GiB, something else |
    /// | `copy P P` | copies a file |
    /// | `oom`, `full`, `inodes`, `forks` | what the kernel counts |
    /// | `clean` | empties the disk again |
    /// | `background` | leaves a process that holds the output open |
    /// | `die` | ends the sandbox |
    async fn run(mut self) {
        let mut exit = Exit::Code(0);
        for command in std::mem::take(&mut self.text).split(';') {
            let mut words = command.trim().splitn(3, ' ');
            let mut word = || words.next().unwrap_or_default().to_owned();
            match word().as_str() {
                "" | "true" => {}
                "out" => self.write(true, word().into_bytes()).await,
                "err" => self.write(false, word().into_bytes()).await,
                "hex" => self.write(true, (0..=255).collect()).await,
                "spam" => self.write(true, vec![b'y'; word().parse().unwrap()]).await,
                "exit" => exit = Exit::Code(word().parse().unwrap()),
                "signal" => exit = Exit::Signal(word().parse().unwrap()),
                "stubborn" => *self.process.on_term.lock().unwrap() = None,
                "term" => {
                    *self.process.on_term.lock().unwrap() = Some(Exit::Code(word().parse().unwrap()));
                }
                "write" => self.node(word(), Node::File(word().into_bytes())),
                "copy" => {
                    let (from, to) = (word(), word());
                    let node = self.inner.files.lock().unwrap()[&from].clone();
                    self.node(to, node);
                }
                "huge" => self.node(word(), Node::Huge(1 << 30)),
                "node" => self.node(word(), Node::Other(word().leak())),
                "oom" => self.count(|stats| stats.oom_kills = Some(1)),
                "full" => self.count(|stats| stats.disk_used = stats.disk_size),
                "inodes" => self.count(|stats| stats.inodes_free = Some(0)),
                "clean" => self.count(|stats| stats.disk_used = Some(Bytes(0))),
                "forks" => self.count(|stats| stats.pids_denied = Some(4)),
                "background" => {
                    let held = self.stdout.as_ref().unwrap().try_clone().unwrap();
                    self.inner.background.lock().unwrap().push(held.into());
                }
                "die" => {
                    self.inner.death.send_replace(Some("init is gone".to_owned()));
                    return;
                }
                "sleep" => {
                    self.process.exit.subscribe().wait_for(Option::is_some).await.unwrap();
                    return;
                }
                other => panic!("no such command: {other}"),
            }
        }
        drop((self.stdout.take(), self.stderr.take()));
        self.process.end(exit);
    }

    async fn write(&mut self, is_stdout: bool, bytes: Vec<u8>) {
        let stream = if is_stdout { &mut self.stdout } else { &mut self.stderr };
        let mut file = stream.take().unwrap();
        let written = tokio::task::spawn_blocking(move || {
            file.write_all(&bytes).unwrap();
            file
        });
        *stream = Some(written.await.unwrap());
    }

    fn node(&self, path: String, node: Node) {
        self.inner.files.lock().unwrap().insert(path, node);
    }

    fn count(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.inner.stats.lock().unwrap());
    }
}
