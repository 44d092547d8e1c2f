//! A yard in this process: a scheduler, an executor, or both, on one data directory. The two talk
//! over the socket there, as they would from machine to machine.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use executor::Backends;
use executor::config::{CapacityOverrides, PressureBounds, PressureOverrides, Reserves};
use executor::sandbox::container::{self, Container, ContainerConfig};
use executor::sandbox::fncall::FnCall;
use futures::future::select_all;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{AccessFlags, access};
use rollout::Name;
use scheduler::{Listener, Reader, Scheduler};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::args::{Blobs, Capacity, Pressure};
use crate::client::{SOCKET_PATH_BYTES_MAX, YardUrl};
use crate::error::{Boxed, Error};
use crate::exit::ExitStatus;

/// The socket of a yard, in its data directory.
pub const SOCKET: &str = "yard.sock";
/// The books of a scheduler, in its data directory.
const DATABASE: &str = "yard.db";
/// What belongs to the executor, in the data directory; and below it, to its sandboxes.
const NODE_DIR: &str = "node";
const SANDBOXES_DIR: &str = "sandboxes";
/// The name of the yard, and of the node of `run` and `dev`.
const LOCAL: &str = "local";

pub fn socket_url(data_dir: &Path) -> Result<YardUrl, Error> {
    let socket = data_dir.join(SOCKET);
    let bytes = socket.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        let problem = format!(
            "the path of the socket in it has {bytes} bytes; the limit is {SOCKET_PATH_BYTES_MAX} (SOCKET_PATH_BYTES_MAX)"
        );
        return Err(Error::BadDataDir { data_dir: data_dir.to_owned(), problem });
    }
    YardUrl::parse(&format!("unix:{}", socket.display()))
}

/// Whether a scheduler ever kept its books in this data directory.
pub fn has_state(data_dir: &Path) -> bool {
    data_dir.join(DATABASE).exists()
}

/// Opens what a scheduler left there, for reading.
pub async fn read(data_dir: &Path) -> Result<Reader, Error> {
    Reader::open(&scheduler::Config::new(data_dir, local_name())).await.map_err(of_scheduler)
}

pub async fn closed(reader: Reader) -> Result<(), Error> {
    reader.close().await.map_err(of_scheduler)
}

/// Makes it if it is missing, for its owner only: whoever reaches the socket rules the yard.
pub fn make_data_dir(data_dir: &Path) -> Result<(), Error> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir);
    made.map_err(|source| of_scheduler(scheduler::Error::DataDir { path: data_dir.to_owned(), source }))
}

/// Everything a yard has is in it; the socket is only the first that would fail. Asked of the kernel
/// with the rights of this process, so that nothing is written to find out.
fn check_writable(data_dir: &Path) -> Result<(), Error> {
    let asked = access(data_dir, AccessFlags::W_OK | AccessFlags::X_OK);
    asked.map_err(|errno| {
        let (path, source) = (data_dir.to_owned(), errno.into());
        of_scheduler(scheduler::Error::DataDir { path, source })
    })
}

/// Parts that run, in the order in which they are stopped.
#[derive(Debug)]
pub struct Yard {
    parts: Vec<Part>,
    urls: Vec<String>,
}

#[derive(Debug)]
struct Part {
    name: &'static str,
    stop: CancellationToken,
    /// None once its end was seen.
    task: Option<JoinHandle<Result<(), Error>>>,
}

impl Yard {
    /// A scheduler on the socket of the data directory, and a node.
    pub async fn both(
        data_dir: &Path,
        blobs: &Blobs,
        capacity: &Capacity,
        pressure: Pressure,
    ) -> Result<Self, Error> {
        let mut yard = Self::scheduler(data_dir, &[], blobs).await?;
        let url = socket_url(data_dir)?.to_string();
        match start_executor(data_dir, &url, LOCAL, capacity, pressure, 0) {
            Ok(executor) => yard.parts.insert(0, executor),
            Err(error) => {
                if let Err(error) = yard.stop().await {
                    tracing::warn!(%error, "stopping the scheduler");
                }
                return Err(error);
            }
        }
        Ok(yard)
    }

    /// A scheduler on the socket of the data directory and on `listen`.
    pub async fn scheduler(data_dir: &Path, listen: &[String], blobs: &Blobs) -> Result<Self, Error> {
        raise_descriptors();
        let own = socket_url(data_dir)?.to_string();
        make_data_dir(data_dir)?;
        check_writable(data_dir)?;
        // Asked before the lock is tried, since the socket must be bound before it is taken.
        if UnixStream::connect(data_dir.join(SOCKET)).await.is_ok() {
            return Err(Error::Served { data_dir: data_dir.to_owned() });
        }
        let (mut listeners, mut bound) = (Vec::new(), std::collections::BTreeSet::new());
        for address in std::iter::once(&own).chain(listen) {
            let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
            // The data directory's own socket may be named too; port 0 is a new port each time.
            let path = address.strip_prefix("unix:").unwrap_or(address);
            if bound.insert(path.to_owned()) || path.ends_with(":0") {
                listeners.push(Listener::bind(address).await.map_err(of_scheduler)?);
            }
        }
        let mut config = scheduler::Config::new(data_dir, local_name());
        config.blobs = blobs.url.clone();
        let stop = CancellationToken::new();
        let handle = Scheduler::start(config, listeners, stop.clone()).await.map_err(of_scheduler)?;
        let urls = handle.urls().to_vec();
        let task = tokio::spawn(async move { handle.wait().await.map_err(of_scheduler) });
        Ok(Self { parts: vec![Part { name: "scheduler", stop, task: Some(task) }], urls })
    }

    /// A node of the yard at `scheduler`.
    pub fn executor(
        data_dir: &Path,
        scheduler: &str,
        name: &str,
        capacity: &Capacity,
        pressure: Pressure,
    ) -> Result<Self, Error> {
        raise_descriptors();
        let executor = start_executor(data_dir, scheduler, name, capacity, pressure, NODE_SPARES)?;
        Ok(Self { parts: vec![executor], urls: Vec::new() })
    }

    /// Where it listens.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Resolves when a part ends without having been told to.
    pub async fn failed(&mut self) -> Error {
        let running = self.parts.iter_mut().filter_map(|part| Some((part.name, part.task.as_mut()?)));
        let (names, tasks): (Vec<_>, Vec<_>) = running.unzip();
        if tasks.is_empty() {
            return std::future::pending().await;
        }
        let (ended, at, _) = select_all(tasks).await;
        let part = names[at];
        if let Some(part) = self.parts.iter_mut().find(|known| known.name == part) {
            part.task = None;
        }
        flat(ended).err().unwrap_or(Error::EndedEarly { part })
    }

    /// Stops part after part and waits for each. The first error is returned, the others logged.
    pub async fn stop(self) -> Result<(), Error> {
        let mut result = Ok(());
        for part in self.parts {
            part.stop.cancel();
            let Some(task) = part.task else { continue };
            if let Err(error) = flat(task.await) {
                if result.is_ok() {
                    result = Err(error);
                } else {
                    tracing::error!(%error, part = part.name, "stopping");
                }
            }
        }
        result
    }
}

fn flat(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    match ended {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => {
            Err(service("ended_early", "a service was cancelled", error, None, ExitStatus::Failure))
        }
    }
}

/// In a data directory: images of `rollyard image`.
pub const IMAGES_DIR: &str = "images";

/// Attempts for which a node of its own has files made before they come: a burst is that large.
const NODE_SPARES: usize = 1_000;

fn start_executor(
    data_dir: &Path,
    scheduler: &str,
    name: &str,
    capacity: &Capacity,
    pressure: Pressure,
    spares: usize,
) -> Result<Part, Error> {
    let bad = |what: &str, error: Boxed| Error::Service {
        code: "bad_input",
        what: what.to_owned(),
        source: error,
        hint: None,
        exit: ExitStatus::BadInput,
    };
    let node: Name = name.parse().map_err(|error| bad("cannot use the name of the node", Box::new(error)))?;
    let scheduler = scheduler.parse().map_err(of_executor)?;
    let reserves = Reserves::default();
    let pressure = PressureBounds::here(overrides(pressure), reserves).map_err(of_executor)?;
    let node_dir = data_dir.join(NODE_DIR);
    // Anything else that is wrong is told by what needs it.
    if let Err(locked @ executor::Error::DataDirLocked { .. }) = executor::check_free(&node_dir) {
        return Err(of_executor(locked));
    }
    let container = ContainerConfig { data_dir: node_dir.join(SANDBOXES_DIR) };
    let made = tokio::task::block_in_place(|| Container::start(&container)).map_err(of_container)?;
    let made = Arc::new(made);
    let backends = Backends::from(Arc::clone(&made)).with(Arc::new(FnCall::start(made)));
    let mut config = executor::Config::new(node, node_dir, scheduler);
    config.images_dir = Some(data_dir.join(IMAGES_DIR));
    config.spares = spares;
    let Capacity { cpu, memory, disk } = *capacity;
    config.capacity = CapacityOverrides { cpu, memory, disk, sandboxes: None };
    (config.reserves, config.pressure) = (reserves, pressure);
    let stop = CancellationToken::new();
    let handle = executor::serve(config, backends, stop.clone()).map_err(of_executor)?;
    let task = tokio::spawn(async move { handle.join().await.map_err(of_executor) });
    Ok(Part { name: "executor", stop, task: Some(task) })
}

fn overrides(pressure: Pressure) -> PressureOverrides {
    let Pressure { low, ok, stall, parks } = pressure;
    PressureOverrides { low, ok, stall, parks }
}

fn local_name() -> Name {
    LOCAL.parse().expect("a constant that is a name")
}

/// Every sandbox takes descriptors; the soft limit is a default for programs that use select().
fn raise_descriptors() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

fn service(
    code: &'static str,
    what: &str,
    source: impl Into<Boxed>,
    hint: Option<&str>,
    exit: ExitStatus,
) -> Error {
    Error::Service { code, what: what.to_owned(), source: source.into(), hint: hint.map(str::to_owned), exit }
}

fn of_scheduler(error: scheduler::Error) -> Error {
    use scheduler::Error as E;
    let exit = match &error {
        E::BadAddress { .. } | E::ListenNotLoopback { .. } | E::BlobsElsewhere { .. } => ExitStatus::BadInput,
        _ => ExitStatus::Failure,
    };
    let (code, hint) = (error.code(), error.hint());
    service(code, "the scheduler cannot go on", error, hint, exit)
}

fn of_executor(error: executor::Error) -> Error {
    use executor::Error as E;
    let (code, exit) = match &error {
        E::DataDirLocked { .. } => ("data_dir_locked", ExitStatus::Failure),
        E::BadEndpoint { .. } => ("endpoint_refused", ExitStatus::BadInput),
        E::BadPressure { .. } => ("pressure_refused", ExitStatus::BadInput),
        E::Measure { .. } => ("measure_failed", ExitStatus::HostCannot),
        E::Backend { .. } => ("backend_ended", ExitStatus::Failure),
        _ => ("executor_failed", ExitStatus::Failure),
    };
    let hint = error.hint();
    service(code, "the executor cannot go on", error, hint, exit)
}

fn of_container(error: container::Error) -> Error {
    use container::Error as E;
    let doctor = Some("`rollyard doctor` says what this host can and cannot enforce");
    let (code, hint, exit) = match &error {
        E::NotRoot => ("not_root", Some("run it as root"), ExitStatus::HostCannot),
        E::InUse { .. } => (
            "data_dir_locked",
            Some("stop the other executor, or choose another --data-dir"),
            ExitStatus::Failure,
        ),
        E::DataDir { .. } => ("data_dir_failed", None, ExitStatus::Failure),
        _ => ("no_sandboxes", doctor, ExitStatus::HostCannot),
    };
    service(code, "this host cannot run sandboxes", error, hint, exit)
}
