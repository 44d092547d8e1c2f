//! The broker's life: a hello, threads that serve the requests of one executor after the other, and the
//! end of everything when an executor says so or none comes in time.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use sandbox_init::birth::{PLAN_MAX, Plan};
use sandbox_init::packet;

use super::networks::{Maker, Networks};
use super::pools::Pools;
use super::pools::groups::Groups;
use super::protocol::{Action, DATAGRAM_MAX, Hello, Outcome, Reply, Request};
use super::provision::{GIVEN, Scaffold};
use super::ranges::Ranges;
use super::teardown::{Record, teardown, teardown_but_mounts};
use super::{device_tree, orphaned, provision};
use crate::host::cgroup::{Layout, Tree};
use crate::host::{mounts, netns, open, seccomp};

/// Sandboxes made at once. A second thread gains little where mounts and networks are made (the
/// kernel serialises them), a third nothing.
pub const CREATION_WIDTH: usize = 2;

/// The static PID 1 of every sandbox.
const INIT: &[u8] = include_bytes!(env!("SANDBOX_INIT"));

/// Why the broker ended or could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{action}: {source}")]
    Setup { action: &'static str, source: io::Error },
    #[error("reading the cgroup hierarchies: {0}")]
    Layout(#[from] crate::host::cgroup::LayoutError),
    #[error("the executor sent {0}")]
    Protocol(&'static str),
}

/// Adds what was being done to an errno.
trait Doing<T> {
    fn doing(self, action: &'static str) -> Result<T, Error>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, action: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::Setup { action, source })
    }
}

/// What both threads share.
#[derive(Debug)]
pub struct Broker {
    /// To the executor that is served now.
    pub socket: Mutex<Arc<OwnedFd>>,
    /// The lock of the data directory, for the next executor and to the end of this process.
    pub lock: OwnedFd,
    /// Control sockets of the keepers: they live as long as somebody holds them.
    pub keepers: Mutex<Vec<OwnedFd>>,
    /// When the sandboxes go if no executor comes back: CLOCK_BOOTTIME, in microseconds. 0: never said.
    pub keep_until_us: AtomicU64,
    /// An executor said that everything is over.
    pub is_over: AtomicBool,
    pub data_dir: PathBuf,
    pub tree: Tree,
    pub init: OwnedFd,
    pub dev: OwnedFd,
    pub masks: OwnedFd,
    pub usr: Option<OwnedFd>,
    pub proc: OwnedFd,
    /// `/proc/self/fd/N` of a held /sys/block: the mount itself is gone from here.
    pub sys_block: PathBuf,
    /// What is the same for every init: a file that nobody can change.
    pub plan: OwnedFd,
    pub host_network: OwnedFd,
    /// Ids of sandboxes that are being made, live, or are being ended.
    pub names: Mutex<BTreeSet<String>>,
    pub records: Mutex<BTreeMap<String, Record>>,
    pub ranges: Mutex<Ranges>,
    pub pools: Pools,
}

/// A lock that is taken even if a thread panicked with it: the maps stay usable, and cleaning up
/// matters more than the panic, which ends the process anyway.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one executor after the other, then destroys everything.
pub fn run(socket: OwnedFd) -> Result<(), Error> {
    leave_the_terminal();
    let mut buffer = vec![0; DATAGRAM_MAX];
    let (len, fds) = packet::receive(socket.as_fd(), &mut buffer, 0)
        .doing("receiving the hello")?
        .ok_or(Error::Protocol("nothing"))?;
    let hello: Hello =
        serde_json::from_slice(&buffer[..len]).map_err(|_| Error::Protocol("a hello of another build"))?;
    // The next executor of this directory starts anew when it is released.
    let lock_file = fds.into_iter().next().ok_or(Error::Protocol("a hello without the lock"))?;
    let broker = Broker::start(socket, lock_file, hello)?;
    let listener = orphaned::listen(&broker.data_dir).doing("listening for the next executor")?;
    // The executor waits for this: everything that can fail at start has not.
    packet::send(broker.socket().as_fd(), b"{}", &[], 0).doing("answering the hello")?;

    let (networks, asked) = Networks::new();
    let mut left = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| asked.serve(&broker.pools.maker, broker.host_network.as_fd()));
        // The kernel kills an init with the thread that started it: these live until the end, whoever is served.
        // Whoever makes networks ends with those who ask.
        scope.spawn(|| {
            let _lifeline = Lifeline(&broker);
            broker.pools.run(&broker);
        });
        let (said, rested) = mpsc::channel();
        let serving: [_; CREATION_WIDTH] = std::array::from_fn(|_| {
            let (broker, networks, said) = (&broker, networks.clone(), said.clone());
            let (sockets, next) = mpsc::channel::<Arc<OwnedFd>>();
            let thread = scope.spawn(move || {
                for socket in next {
                    let _rest = Rest(&said);
                    broker.serve(&socket, &networks);
                }
            });
            (sockets, thread)
        });
        drop((networks, said));
        loop {
            let socket = broker.socket();
            for (sockets, _) in &serving {
                // One that is gone has said so.
                let _ = sockets.send(Arc::clone(&socket));
            }
            drop(socket);
            let has_panicked = rested.iter().take(CREATION_WIDTH).fold(false, |any, panicked| any | panicked);
            if has_panicked || broker.is_over.load(Ordering::Acquire) {
                break;
            }
            let Some(socket) = orphaned::wait(&broker, listener.as_fd()) else { break };
            *lock(&broker.socket) = Arc::new(socket);
        }
        broker.pools.end();
        destroy_all(&broker, &mut left);
        for (sockets, thread) in serving {
            drop(sockets);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    left.extend(broker.pools.destroy(&broker));
    broker.tree.remove_parents();
    orphaned::unlisten(&broker.data_dir);
    if left.is_empty() {
        Ok(())
    } else {
        Err(Error::Setup { action: "destroying all sandboxes", source: io::Error::other(left.join("; ")) })
    }
}

fn destroy_all(broker: &Broker, left: &mut Vec<String>) {
    let records = std::mem::take(&mut *lock(&broker.records));
    // All at once: to wait for one must not let another run on.
    for (id, _) in records.iter().filter(|(_, record)| record.cgroups) {
        if let Err(error) = broker.tree.kill(id) {
            left.push(format!("killing {id}: {error}"));
        }
    }
    for (id, record) in records {
        left.extend(teardown(broker, &id, record));
    }
}

/// Ends everything if its thread panics: what that started ends with it.
struct Lifeline<'a>(&'a Broker);

impl Drop for Lifeline<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_over.store(true, Ordering::Release);
            super::client::shut(&self.0.socket());
        }
    }
}

/// Says that a thread serves no more, and whether it panicked.
struct Rest<'a>(&'a mpsc::Sender<bool>);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        // The other end is in the scope of these threads.
        let _ = self.0.send(std::thread::panicking());
    }
}

/// A session of its own, so that Ctrl-C reaches the executor alone and the teardown is orderly;
/// a service manager's SIGTERM to the whole group neither. What ends this process is the socket.
fn leave_the_terminal() {
    // SAFETY: no memory involved; SIG_IGN is a valid disposition, reset by init for programs.
    unsafe {
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"rollyard-broker".as_ptr(), 0, 0, 0);
        libc::umask(0);
    }
}

impl Broker {
    fn start(socket: OwnedFd, lock_file: OwnedFd, hello: Hello) -> Result<Self, Error> {
        let layout = Layout::discover()?;
        let tree = Tree::open(&layout, &hello.instance).doing("opening the cgroup parents")?;
        let block = open::directory(c"/sys/block").doing("opening /sys/block")?;
        let host_network = netns::current().doing("opening the network namespace")?;
        let maker = Maker::new(host_network.as_fd()).doing("counting network namespaces")?;
        let groups = Groups::new(&tree).doing("looking at a fresh memory group")?;

        mounts::privatise().doing("making a mount namespace")?;
        shed_mounts(&hello.data_dir).doing("letting go of mounts")?;
        let proc = open::directory(c"/proc").doing("opening /proc")?;
        let usr = open::directory(c"/usr").ok();
        let plan = Plan {
            landlock_abi: hello.landlock_abi,
            masked: device_tree::masked(proc.as_fd()).doing("listing what is masked in /proc")?,
            filter: seccomp::program(),
        };
        let too_long = || io::Error::other(format!("it is longer than {PLAN_MAX} bytes"));
        let plan = plan.encode().ok_or_else(too_long).doing("writing the plan of every init")?;
        let broker = Self {
            plan: sealed(c"plan", &plan, Sealed::ToRead).doing("sealing the plan in memory")?,
            dev: device_tree::dev().doing("making /dev")?,
            masks: device_tree::masks().doing("making the masks")?,
            init: sealed(c"init", INIT, Sealed::ToRun).doing("sealing init in memory")?,
            sys_block: PathBuf::from(format!("/proc/self/fd/{}", block.as_raw_fd())),
            ranges: Mutex::new(Ranges::new(seed(&hello.instance))),
            data_dir: hello.data_dir,
            pools: Pools::new(maker, groups, hello.ahead),
            names: Mutex::default(),
            records: Mutex::default(),
            socket: Mutex::new(Arc::new(socket)),
            lock: lock_file,
            keepers: Mutex::default(),
            keep_until_us: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            tree,
            usr,
            proc,
            host_network,
        };
        // Lives as long as the process; its number is in `sys_block`.
        std::mem::forget(block);
        Ok(broker)
    }

    pub fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&lock(&self.socket))
    }

    /// A copy of the shared /dev, for one sandbox.
    pub fn fresh_dev(&self) -> io::Result<OwnedFd> {
        mounts::clone_tree(self.dev.as_fd(), c"")
    }

    pub fn fresh_masks(&self) -> io::Result<OwnedFd> {
        mounts::clone_tree(self.masks.as_fd(), c"")
    }

    /// Until the executor is gone, or says that everything is over.
    fn serve(&self, socket: &OwnedFd, networks: &Networks) {
        let mut buffer = vec![0; DATAGRAM_MAX];
        let mut is_gone = false;
        loop {
            // One datagram is one request, so both threads may wait on the one socket.
            let (len, fds) = match packet::receive(socket.as_fd(), &mut buffer, 0) {
                Ok(Some(received)) => received,
                // Told once, ahead of what an executor that was killed had asked for.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => continue,
                Ok(None) | Err(_) => return,
            };
            let Ok(request) = serde_json::from_slice::<Request>(&buffer[..len]) else { return };
            // What nobody waits for.
            let mut mounts = None;
            let (outcome, scaffold) = match request.action {
                // Nobody would claim it.
                Action::Create(_) if is_gone => continue,
                Action::Create(create) => {
                    let creating = self.pools.creating();
                    match provision::create(self, networks, &create) {
                        Ok((created, scaffold)) => {
                            creating.done();
                            (Outcome::Created(created), scaffold)
                        }
                        Err(failure) => (Outcome::Failed(failure), Scaffold::default()),
                    }
                }
                Action::Levels => (Outcome::Levels(self.pools.levels()), Scaffold::default()),
                Action::FailBlank(step) => {
                    self.pools.fail_next_blank(step);
                    continue;
                }
                Action::Keeper => {
                    lock(&self.keepers).extend(fds);
                    continue;
                }
                Action::KeepUntil { ends_at_us } => {
                    self.keep_until_us.store(ends_at_us, Ordering::Release);
                    continue;
                }
                Action::End => {
                    self.is_over.store(true, Ordering::Release);
                    // The other thread sees the end.
                    super::client::shut(socket);
                    return;
                }
                Action::Destroy { id } => {
                    let record = lock(&self.records).remove(&id);
                    let mut left = Vec::new();
                    if let Some(record) = record {
                        (left, mounts) = teardown_but_mounts(self, &id, record);
                    }
                    (Outcome::Destroyed { left }, Scaffold::default())
                }
            };
            let Ok(bytes) = serde_json::to_vec(&Reply { ticket: request.ticket, outcome }) else { return };
            // A teardown that comes with the answer waits here until the rest is closed.
            let mut held = lock(&scaffold);
            let given: Vec<_> = held.iter().take(GIVEN).map(AsRawFd::as_raw_fd).collect();
            // What an executor that is gone was to get, the next one finds or has destroyed.
            is_gone |= packet::send(socket.as_fd(), &bytes, &given, 0).is_err();
            held.clear();
            drop(mounts);
        }
    }
}

/// Spreads the uid ranges of the host's executors.
fn seed(instance: &str) -> u32 {
    instance.get(..8).and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

/// Detaches, in this private namespace only, the mounts no sandbox is built from: each is copied
/// at every creation and dropped at every end.
fn shed_mounts(data_dir: &Path) -> io::Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let needless = |point: &&str| {
        let point = Path::new(point);
        ["/sys", "/dev", "/proc"]
            .iter()
            .any(|top| point.starts_with(top) && (*top == "/sys" || point != Path::new(top)))
            && !data_dir.starts_with(point)
    };
    for point in points.filter(needless).collect::<Vec<_>>().into_iter().rev() {
        if let Ok(path) = std::ffi::CString::new(point) {
            // One that will not go (its parent went first, or an escaped name) costs only time.
            let _ = mounts::detach(&path);
        }
    }
    Ok(())
}

/// What a file in memory is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sealed {
    ToRun,
    ToRead,
}

/// A file that nobody can change and no path names.
fn sealed(name: &CStr, bytes: &[u8], what_for: Sealed) -> io::Result<OwnedFd> {
    use std::io::Write;
    use std::os::fd::FromRawFd;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let kind = if what_for == Sealed::ToRun { libc::MFD_EXEC } else { libc::MFD_NOEXEC_SEAL };
    // Kernels before 6.3 know neither kind and need none.
    // SAFETY: the name is a C string; the result is a fresh descriptor or an error.
    let fd = unsafe {
        match libc::memfd_create(name.as_ptr(), flags | kind) {
            -1 => libc::memfd_create(name.as_ptr(), flags),
            fd => fd,
        }
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh and ours, as above.
    let mut file = fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(bytes)?;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: no memory involved.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // Executing wants a descriptor that nobody holds for writing.
    fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map(OwnedFd::from)
}
