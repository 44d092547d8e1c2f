//! A backend that keeps every rule but one.

use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use executor::sandbox::driven::{Driven, Entry, Opened, Opening, Page, Pinned, Streams, TreeProcess};
use executor::sandbox::{
    Backend, Ceilings, CreateError, DestroyError, Exit, FileError, FileSource, LayError, Listing, Mounted,
    Pack, PackError, Process, Sandbox, SandboxSpec, Spawn, SpawnError, Stats,
};
use images::layers::Packed;
use rollout::quantity::Limit;
use rollout::{BackendKind, Bytes, MilliCpu};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};

use crate::lies::Breach;

#[derive(Debug)]
pub struct Liar {
    pub inner: Arc<dyn Backend>,
    pub breach: Breach,
}

/// The next number of a sandbox that was given another name.
static RENAMED: AtomicU32 = AtomicU32::new(0);

#[tonic::async_trait]
impl Backend for Liar {
    fn kind(&self) -> BackendKind {
        self.inner.kind()
    }

    async fn create(&self, mut spec: SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError> {
        let breach = self.breach;
        let limits = &mut spec.limits;
        match breach {
            Breach::AgreesToAnyDigest => spec.image_digest = None,
            Breach::AgreesToAnyDisk => limits.disk = Bytes(limits.disk.0.min(16 << 20)),
            Breach::AgreesToAnyImage => "host".clone_into(&mut spec.image),
            Breach::AgreesToAnyUser => "root".clone_into(&mut spec.user),
            Breach::DropsLayers => spec.layers.clear(),
            Breach::RenamesSandboxes => spec.id = format!("r{}", RENAMED.fetch_add(1, Ordering::Relaxed)),
            Breach::UnboundedCpu => limits.cpu = MilliCpu(2000),
            Breach::UnboundedDisk => limits.disk = Bytes(limits.disk.0 * 4),
            Breach::UnboundedMemory => limits.memory = Bytes(limits.memory.0 * 6),
            Breach::UnboundedTasks => limits.pids = 4096,
            Breach::RefusesLayers if !spec.layers.is_empty() => {
                let problem = "it does not like them".to_owned();
                return Err(CreateError::NotEnforceable { guarantee: "layers", problem });
            }
            _ => {}
        }
        let made = match breach {
            Breach::GoesOnAlone => {
                let (sender, made) = oneshot::channel();
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move {
                    if let Err(Ok(sandbox)) = sender.send(inner.create(spec).await) {
                        std::mem::forget(sandbox);
                    }
                });
                made.await.expect("the creation ends")
            }
            _ => self.inner.create(spec).await,
        };
        let inner = Some(made?);
        Ok(Box::new(LyingSandbox { inner, breach }))
    }

    async fn image_digest(&self, image: &str) -> Result<String, CreateError> {
        self.inner.image_digest(image).await
    }

    fn ceilings(&self) -> Ceilings {
        self.inner.ceilings()
    }

    async fn ended(&self) -> String {
        self.inner.ended().await
    }
}

#[derive(Debug)]
struct LyingSandbox {
    /// None once destroyed.
    inner: Option<Box<dyn Sandbox>>,
    breach: Breach,
}

impl LyingSandbox {
    fn inner(&self) -> &dyn Sandbox {
        self.inner.as_deref().expect("it is not destroyed yet")
    }

    fn inner_driven(&self) -> &dyn Driven {
        self.inner().driven().expect("only asked for if there is one")
    }
}

impl Drop for LyingSandbox {
    fn drop(&mut self) {
        if self.breach == Breach::ForgetsWhatIsDropped {
            std::mem::forget(self.inner.take());
        }
    }
}

#[tonic::async_trait]
impl Sandbox for LyingSandbox {
    fn image_digest(&self) -> &str {
        self.inner().image_digest()
    }

    fn image_env(&self) -> &[(String, String)] {
        self.inner().image_env()
    }

    async fn write_file(
        &self,
        path: &str,
        content: FileSource,
        mode: u32,
        owner: &str,
    ) -> Result<(), FileError> {
        let owner = if self.breach == Breach::OwnsAsRoot { "root" } else { owner };
        self.inner().write_file(path, content, mode, owner).await
    }

    async fn reset_dir(&self, path: &str, mode: u32, owner: &str) -> Result<(), FileError> {
        match self.breach {
            Breach::ResetsNothing => Ok(()),
            _ => self.inner().reset_dir(path, mode, owner).await,
        }
    }

    async fn open_file(&self, path: &str) -> Result<Option<(std::fs::File, Bytes)>, FileError> {
        match (self.breach, self.inner().open_file(path).await) {
            (Breach::FollowsLinks, Err(_)) => Ok(None),
            (_, opened) => opened,
        }
    }

    async fn list(&self, path: &str, names_max: usize) -> Result<Option<Listing>, FileError> {
        let names_max = if self.breach == Breach::ListsAll { 1 << 20 } else { names_max };
        self.inner().list(path, names_max).await
    }

    async fn make_dir(&self, path: &str, owner: &str) -> Result<(), FileError> {
        self.inner().make_dir(path, owner).await
    }

    async fn spawn(&self, mut spawn: Spawn) -> Result<Box<dyn Process>, SpawnError> {
        let in_a_shell = |script: &str, argv: Vec<String>| {
            ["/bin/sh", "-c", script, "sh"].iter().map(|&text| text.to_owned()).chain(argv).collect()
        };
        match self.breach {
            Breach::CutsArguments => spawn.argv.iter_mut().for_each(|argument| argument.truncate(65_536)),
            Breach::LeavesADescriptor => spawn.argv = in_a_shell("exec 5</dev/null; exec \"$@\"", spawn.argv),
            Breach::RunsAsRoot => "root".clone_into(&mut spawn.user),
            Breach::RunsInAShell => spawn.argv = in_a_shell("exec \"$@\"", spawn.argv),
            Breach::RunsOnTheHost => return Ok(Box::new(on_the_host(spawn))),
            _ => {}
        }
        let inner = self.inner().spawn(spawn).await?;
        Ok(Box::new(LyingProcess { inner, breach: self.breach }))
    }

    fn driven(&self) -> Option<&dyn Driven> {
        self.inner().driven().map(|_| self as &dyn Driven)
    }

    fn layers(&self) -> &[Mounted] {
        self.inner().layers()
    }

    async fn lay_over(&self, layer: &Mounted) -> Result<(), LayError> {
        match self.breach {
            Breach::LaysNothing => Ok(()),
            _ => self.inner().lay_over(layer).await,
        }
    }

    async fn pack(&self, mut pack: Pack) -> Result<Packed, PackError> {
        if self.breach == Breach::PacksInItsOwnTime {
            pack.freeze = Some(Duration::from_secs(60));
        }
        self.inner().pack(pack).await
    }

    async fn kill_all(&self) -> Result<(), io::Error> {
        match self.breach {
            Breach::KillsNobody => Ok(()),
            _ => self.inner().kill_all().await,
        }
    }

    async fn stats(&self) -> Stats {
        match self.breach {
            Breach::CountsNothing => Stats::default(),
            _ => self.inner().stats().await,
        }
    }

    async fn set_limits(&self, limits: Limit) -> Result<(), io::Error> {
        match self.breach {
            Breach::KeepsLimits => Ok(()),
            _ => self.inner().set_limits(limits).await,
        }
    }

    async fn died(&self) -> String {
        match self.breach {
            Breach::NeverDies => std::future::pending().await,
            Breach::DiesAtOnce => "of a lie".to_owned(),
            _ => self.inner().died().await,
        }
    }

    async fn destroy(mut self: Box<Self>) -> Result<(), DestroyError> {
        let inner = self.inner.take().expect("it is not destroyed yet");
        match self.breach {
            Breach::DestroysNothing => {
                std::mem::forget(inner);
                Ok(())
            }
            _ => inner.destroy().await,
        }
    }
}

#[tonic::async_trait]
impl Driven for LyingSandbox {
    async fn open(&self, mut opening: Opening) -> Result<Opened, SpawnError> {
        if let (Breach::DropsInput, Streams::Pipes { stdin, .. }) = (self.breach, &mut opening.streams) {
            *stdin = None;
        }
        let Opened { process, pid, terminal } = self.inner_driven().open(opening).await?;
        let process = Box::new(LyingTree { inner: process, breach: self.breach });
        Ok(Opened { process, pid, terminal })
    }

    async fn stat(&self, path: &str) -> Result<Option<Entry>, FileError> {
        let mut entry = self.inner_driven().stat(path).await?;
        if let (Breach::ShowsIdsOfTheHost, Some(entry)) = (self.breach, &mut entry) {
            entry.uid += 65_536;
        }
        Ok(entry)
    }

    async fn list_page(
        &self,
        path: &str,
        after: &str,
        entries_max: usize,
    ) -> Result<Option<Page>, FileError> {
        self.inner_driven().list_page(path, after, entries_max).await
    }

    async fn open_pinned(&self, path: &str) -> Result<Option<Pinned>, FileError> {
        self.inner_driven().open_pinned(path).await
    }

    async fn remove(&self, path: &str) -> Result<bool, FileError> {
        self.inner_driven().remove(path).await
    }

    async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        match self.breach {
            Breach::ConnectsToTheHost => TcpStream::connect(("127.0.0.1", port)).await,
            _ => self.inner_driven().connect(port).await,
        }
    }

    async fn freeze(&self, within: Duration) -> io::Result<()> {
        match self.breach {
            Breach::FreezesNothing => Ok(()),
            _ => self.inner_driven().freeze(within).await,
        }
    }

    fn thaw(&self) -> io::Result<()> {
        self.inner_driven().thaw()
    }

    async fn reclaim(&self) -> io::Result<Bytes> {
        self.inner_driven().reclaim().await
    }
}

#[derive(Debug)]
struct LyingProcess {
    inner: Box<dyn Process>,
    breach: Breach,
}

#[tonic::async_trait]
impl Process for LyingProcess {
    async fn wait(&self) -> Result<Exit, SpawnError> {
        let exit = self.inner.wait().await?;
        Ok(if self.breach == Breach::ExitsWell { Exit::Code(0) } else { exit })
    }

    async fn signal(&self, signal: i32) -> Result<(), io::Error> {
        match self.breach {
            Breach::SignalsNobody => Ok(()),
            _ => self.inner.signal(signal).await,
        }
    }
}

#[derive(Debug)]
struct LyingTree {
    inner: Box<dyn TreeProcess>,
    breach: Breach,
}

#[tonic::async_trait]
impl Process for LyingTree {
    async fn wait(&self) -> Result<Exit, SpawnError> {
        self.inner.wait().await
    }

    async fn signal(&self, signal: i32) -> Result<(), io::Error> {
        self.inner.signal(signal).await
    }
}

#[tonic::async_trait]
impl TreeProcess for LyingTree {
    async fn kill_tree(&self) -> io::Result<()> {
        match self.breach {
            Breach::KillsOneOfATree => self.inner.signal(9).await,
            _ => self.inner.kill_tree().await,
        }
    }
}

/// Whoever owns nothing on the host: what runs there must do no harm.
const NOBODY: u32 = 65_534;

/// A process with no walls at all.
fn on_the_host(spawn: Spawn) -> HostProcess {
    let mut child = Command::new(&spawn.argv[0])
        .args(&spawn.argv[1..])
        .current_dir("/tmp")
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::null())
        .stdout(spawn.stdout)
        .stderr(spawn.stderr)
        .spawn()
        .expect("it starts");
    let (sender, exited) = watch::channel(None);
    tokio::task::spawn_blocking(move || {
        let status = child.wait().expect("it ends");
        let exit = status.code().map_or_else(|| Exit::Signal(status.signal().unwrap_or(0)), Exit::Code);
        sender.send_replace(Some(exit));
    });
    HostProcess { exited }
}

#[derive(Debug)]
struct HostProcess {
    exited: watch::Receiver<Option<Exit>>,
}

#[tonic::async_trait]
impl Process for HostProcess {
    async fn wait(&self) -> Result<Exit, SpawnError> {
        let mut exited = self.exited.clone();
        let exit = exited.wait_for(Option::is_some).await.expect("its waiter tells");
        Ok(exit.unwrap_or(Exit::Code(0)))
    }

    async fn signal(&self, _: i32) -> Result<(), io::Error> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
