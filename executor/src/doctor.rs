//! What this host can and cannot enforce: every mechanism is tried once, made and undone, never
//! judged by a version or a configuration file.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use serde::Serialize;

use crate::ceilings::{Ceiling, Host};
use crate::host::budgets;
use crate::host::cgroup::{CPU_IDLE, Layout, PARENT, SWAP_V1, SWAP_V2, swap_is_on};
use crate::host::clone::{self, Cloned};
use crate::host::mounts::{self, Context};
use crate::host::owner::Owner;
use crate::host::{landlock, loop_disk, netns, open, seccomp, traced};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Works,
    /// Works with a bound or a weaker form: `detail` says which.
    Limited,
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// As the kernel answered, where it refused.
    pub errno: Option<i32>,
    /// What follows from it not working; none where it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consequence: Option<&'static str>,
}

/// A ceiling on sandboxes alive at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capacity {
    pub ceiling: &'static str,
    /// The kernel's number.
    pub limit: u64,
    /// Of it, what is not for idle sandboxes.
    pub reserved: u64,
    /// What an idle sandbox takes of it.
    pub each: u64,
    pub sandboxes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub checks: Vec<Check>,
    /// The tightest first.
    pub capacity: Vec<Capacity>,
}

impl Report {
    /// Whether the container backend can start here.
    pub fn container(&self) -> bool {
        self.checks.iter().all(|check| check.consequence != Some(REFUSED))
    }
}

/// The consequence of what the container backend cannot be without.
const REFUSED: &str = "the container backend is refused";

/// Tries everything. Needs root; blocks for some tens of milliseconds. `data_dir` is where
/// sandboxes would keep their disks; a scratch directory is made in it and removed.
pub fn doctor(data_dir: &Path) -> Report {
    let data_dir = data_dir.to_owned();
    // A thread of its own: what it unshares ends with it.
    let tried = std::thread::spawn(move || try_all(&data_dir)).join();
    let mut checks = tried.unwrap_or_else(|_| {
        vec![Check {
            name: "doctor",
            status: Status::Missing,
            detail: "a probe panicked".into(),
            errno: None,
            consequence: Some(REFUSED),
        }]
    });
    checks.push(fncall(&checks));
    Report { checks, capacity: capacity() }
}

/// The backend `fncall` hands on what the container backend makes: it needs nothing else.
fn fncall(checks: &[Check]) -> Check {
    let is_refused = checks.iter().any(|check| check.consequence == Some(REFUSED));
    let (status, detail) = match is_refused {
        false => (Status::Works, "sandboxes of the container backend, made ahead and used once"),
        true => (Status::Missing, "it needs the container backend"),
    };
    Check {
        name: "backend `fncall`",
        status,
        detail: detail.to_owned(),
        errno: None,
        consequence: is_refused.then_some("backend `fncall` is refused"),
    }
}

type Found = io::Result<(Status, String)>;

fn works(detail: impl Into<String>) -> Found {
    Ok((Status::Works, detail.into()))
}

fn limited(detail: impl Into<String>) -> Found {
    Ok((Status::Limited, detail.into()))
}

fn try_all(data_dir: &Path) -> Vec<Check> {
    let scratch = data_dir.join(format!("doctor-{}", std::process::id()));
    let probes: [(&str, &str, &dyn Fn() -> Found); 25] = [
        ("root", REFUSED, &root),
        ("mount namespace", REFUSED, &|| mounts::privatise().and_then(|()| works("private to this thread"))),
        ("clone3 with user, pid, mount, ipc, uts namespaces, and a pidfd of it", REFUSED, &namespaces),
        ("network namespace with loopback", REFUSED, &network),
        ("cgroup v2 leaf: clone into, kill", REFUSED, &v2_leaf),
        ("memory, cpu and pids limits", REFUSED, &limits),
        ("memory limits bound swap", REFUSED, &swap_counted),
        ("overlay from descriptors, tmpfs upper", REFUSED, &overlay),
        ("id-mapped mount of the data directory", REFUSED, &|| id_mapped(&scratch)),
        ("id-mapped mount of /usr", "image `host` is refused", &|| id_mapped(Path::new("/usr"))),
        ("openat2", REFUSED, &|| {
            open::beneath(open::directory(c"/")?.as_fd(), c"usr", libc::O_PATH, 0, open::CONFINED)?;
            works("beneath a root, no links, one mount")
        }),
        ("seccomp filter", REFUSED, &seccomp_filter),
        ("seccomp user notification", "rules that need syscall_denied events are refused", &notification),
        ("commands that start are not traced", REFUSED, &|| match traced::problem() {
            Some(problem) => Err(io::Error::other(problem)),
            None => works("fs.suid_dumpable is not 1"),
        }),
        ("landlock", "no second wall behind seccomp and capabilities", &landlock_abi),
        ("loop ext4 disk", "limit.disk above 256Mi is refused", &|| loop_ext4(&scratch)),
        ("project quota", "larger disks use loop images", &|| project_quota(data_dir)),
        ("reflink (FICLONE)", "files are copied", &|| reflink(&scratch)),
        ("file-backed EROFS", "layers are directories", &|| {
            Context::open(c"erofs")?;
            limited("the filesystem is known; no image was mounted")
        }),
        ("pressure (PSI)", "idle sandboxes go down early by MemAvailable alone", &|| {
            works(fs::read_to_string("/proc/pressure/memory")?.lines().next().unwrap_or_default())
        }),
        ("idle groups (cpu.idle)", "best-effort steps run as all others do", &cpu_idle),
        ("swap", "idle sandboxes give back page cache only", &swap),
        ("per-user budgets apart", "a sandbox may use up what others need", &budgets_apart),
        ("AppArmor", "not used; seccomp and Landlock stand", &apparmor),
        ("KVM", "microvm and vm would run under TCG, labelled so", &kvm),
    ];
    if let Err(error) = fs::create_dir_all(&scratch) {
        tracing::warn!(%error, path = %scratch.display(), "no scratch directory");
    }
    let checks = probes
        .into_iter()
        .map(|(name, consequence, probe)| match probe() {
            Ok((status, detail)) => Check { name, status, detail, errno: None, consequence: None },
            Err(error) => {
                let errno = error.raw_os_error();
                let consequence = Some(consequence);
                Check { name, status: Status::Missing, detail: error.to_string(), errno, consequence }
            }
        })
        .collect();
    if let Err(error) = fs::remove_dir_all(&scratch) {
        tracing::warn!(%error, path = %scratch.display(), "scratch directory left");
    }
    checks
}

fn root() -> Found {
    let status = fs::read_to_string("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or("0").trim();
    if nix::unistd::geteuid().is_root() {
        works(format!("effective capabilities {effective}"))
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

/// A child in new namespaces that ends when the returned pipe end closes.
struct Held {
    pid: i32,
    _end: io::PipeWriter,
}

impl Held {
    fn new(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        const ALL: i32 = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS;
        let (wait, end) = io::pipe()?;
        let (wait_fd, end_fd) = (wait.as_raw_fd(), end.as_raw_fd());
        // SAFETY: the child makes three system calls and exits.
        match unsafe { clone::fork(ALL, cgroup) }? {
            Cloned::Parent { pid } => Ok(Self { pid, _end: end }),
            Cloned::Child => {
                let mut byte = 0u8;
                // SAFETY: a one-byte buffer, as stated; nothing of the parent's is run.
                unsafe {
                    libc::close(end_fd);
                    libc::read(wait_fd, (&raw mut byte).cast(), 1);
                    libc::_exit(0)
                }
            }
        }
    }

    fn reaped(self) -> io::Result<()> {
        let pid = self.pid;
        drop(self);
        if clone::reap(pid, 5_000)? { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)) }
    }

    fn user_namespace(&self) -> io::Result<OwnedFd> {
        for file in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{file}", self.pid), "0 2147483648 65536")?;
        }
        Ok(fs::File::open(format!("/proc/{}/ns/user", self.pid))?.into())
    }
}

fn namespaces() -> Found {
    let held = Held::new(None)?;
    held.user_namespace()?;
    held.reaped()?;
    works("made, mapped, reaped")
}

fn network() -> Found {
    let before = netns::current()?;
    netns::enter_fresh()?;
    let up = netns::loopback_up();
    netns::enter(before.as_fd())?;
    up?;
    works("made and left")
}

/// A scratch group under `rollyard` at a mount point, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(mount: &Path) -> io::Result<Self> {
        let path = mount.join(PARENT).join(format!("doctor-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for _ in 0..1000 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                _ => break,
            }
        }
    }
}

fn layout() -> io::Result<Layout> {
    Layout::discover().map_err(io::Error::other)
}

fn v2_leaf() -> Found {
    let scratch = Scratch::new(&layout()?.v2)?;
    let name = CString::new(scratch.0.as_os_str().as_encoded_bytes())?;
    let leaf = open::directory(&name)?;
    let held = Held::new(Some(leaf.as_fd()))?;
    fs::write(scratch.0.join("cgroup.kill"), "1")?;
    held.reaped()?;
    works(format!("{}", layout()?.v2.display()))
}

fn limits() -> Found {
    let layout = layout()?;
    let tries = [
        (&layout.memory_v1, "memory.limit_in_bytes", "memory.max", "67108864"),
        (&layout.cpu_v1, "cpu.cfs_quota_us", "cpu.max", "50000"),
        (&layout.pids_v1, "pids.max", "pids.max", "16"),
    ];
    let mut places = Vec::new();
    for (v1, on_v1, on_v2, value) in tries {
        // On v2 the controllers are enabled when the backend starts; asking for them here would
        // change a group that is not ours.
        let Some(mount) = v1 else {
            places.push(format!("{on_v2} on v2 (not written)"));
            continue;
        };
        let scratch = Scratch::new(mount)?;
        let file = scratch.0.join(on_v1);
        fs::write(&file, value)?;
        let read = fs::read_to_string(&file)?;
        if read.trim() != value {
            return Err(io::Error::other(format!("{on_v1}: wrote {value}, read {}", read.trim())));
        }
        places.push(format!("{on_v1} on v1"));
    }
    works(places.join(", "))
}

fn swap_counted() -> Found {
    let layout = layout()?;
    // On v2 a scratch group has the file only where the controller is enabled already.
    let (mount, file) = match &layout.memory_v1 {
        Some(mount) => (mount, SWAP_V1),
        None => (&layout.v2, SWAP_V2),
    };
    let scratch = Scratch::new(mount)?;
    let file = file.to_string_lossy();
    if scratch.0.join(file.as_ref()).exists() {
        works(file)
    } else if !swap_is_on()? {
        limited(format!("no {file}: sandboxes are refused once swap is on"))
    } else if layout.memory_v1.is_some() {
        Err(io::Error::other(format!("swap is on and there is no {file}")))
    } else {
        limited(format!("swap is on; whether there is {file} is seen when the backend starts"))
    }
}

fn overlay() -> Found {
    let held = Held::new(None)?;
    let userns = held.user_namespace()?;
    let made = (|| {
        let disk = Context::open(c"tmpfs")?.mount(0)?;
        for name in [c"lower", c"upper", c"work"] {
            open::make_dir(disk.as_fd(), name, 0o755)?;
        }
        let dir = |name| open::at(disk.as_fd(), name, libc::O_PATH | libc::O_DIRECTORY);
        let lower = mounts::clone_tree(disk.as_fd(), c"lower")?;
        mounts::set_attributes(lower.as_fd(), 0, Some(userns.as_fd()))?;
        let context = Context::open(c"overlay")?;
        context.descriptor(c"lowerdir+", lower.as_fd())?;
        context.descriptor(c"upperdir", dir(c"upper")?.as_fd())?;
        context.descriptor(c"workdir", dir(c"work")?.as_fd())?;
        context.flag(c"volatile")?;
        let root = context.mount(0)?;
        open::make_dir(root.as_fd(), c"written", 0o755)
    })();
    held.reaped()?;
    made?;
    works("an id-mapped lower, mounted and written")
}

fn id_mapped(path: &Path) -> Found {
    let held = Held::new(None)?;
    let userns = held.user_namespace()?;
    let mapped =
        CString::new(path.as_os_str().as_encoded_bytes()).map_err(io::Error::other).and_then(|name| {
            let dir = open::directory(&name)?;
            let copy = mounts::clone_tree(dir.as_fd(), c"")?;
            mounts::set_attributes(copy.as_fd(), mounts::READ_ONLY, Some(userns.as_fd()))
        });
    held.reaped()?;
    mapped?;
    works("")
}

/// Runs `probe` in a forked child; its result is the exit status.
fn in_child(probe: impl Fn() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: the child runs `probe`, which makes system calls only, and exits.
    match unsafe { clone::fork(0, None) }? {
        Cloned::Child => {
            let code = probe().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        Cloned::Parent { pid } => match exit_code(pid)? {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        },
    }
}

/// Waits for a child of ours. One that was killed has no code.
fn exit_code(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` is a valid place; the pid is of our own child.
    if unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if libc::WIFEXITED(status) {
        Ok(libc::WEXITSTATUS(status))
    } else {
        Err(io::Error::other("the probe was killed"))
    }
}

fn seccomp_filter() -> Found {
    let program = seccomp::program();
    in_child(|| {
        crate::host::capabilities::no_new_privileges()?;
        seccomp::install(&program)?;
        // The filter must answer, not the kernel behind it.
        // SAFETY: a null path is never read: the call is refused first.
        match unsafe { libc::umount2(std::ptr::null(), 0) } {
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EPERM) => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
    })?;
    works(format!("{} instructions", program.len()))
}

fn notification() -> Found {
    const GET_ACTION_AVAIL: libc::c_ulong = 2;
    let action: u32 = 0x7fc0_0000; // SECCOMP_RET_USER_NOTIF
    // SAFETY: the kernel reads one u32.
    if unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAIL, 0, &raw const action) } < 0 {
        return Err(io::Error::last_os_error());
    }
    limited("the kernel offers it; no round trip was made, and no rule uses it yet")
}

fn landlock_abi() -> Found {
    let abi = landlock::usable(Ok(landlock::abi()?)).map_err(io::Error::other)?;
    in_child(|| {
        crate::host::capabilities::no_new_privileges()?;
        landlock::restrict(abi)
    })?;
    if abi < landlock::ABI_SCOPES {
        limited(format!("ABI {abi}: no scopes for signals and abstract sockets"))
    } else {
        works(format!("ABI {abi}"))
    }
}

fn loop_ext4(scratch: &Path) -> Found {
    let path = scratch.join("probe.img");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path)?;
    file.set_len(16 << 20)?;
    crate::broker::provision::format_ext4(&path)?;
    let device = loop_disk::attach(file.as_fd(), &path)?;
    fs::remove_file(&path)?;
    let context = Context::open(c"ext4")?;
    context.string(c"source", &CString::new(device.path.as_os_str().as_encoded_bytes())?)?;
    context.mount(0)?;
    works(format!("{}", device.path.display()))
}

fn project_quota(data_dir: &Path) -> Found {
    const Q_XGETQSTAT: i32 = 0x5805;
    const PROJECT: i32 = 2;
    let dir = fs::File::open(data_dir)?;
    let mut state = [0u64; 32];
    // SAFETY: the buffer is larger than fs_quota_stat, which the call fills.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            dir.as_raw_fd(),
            (Q_XGETQSTAT << 8) | PROJECT,
            0,
            state.as_mut_ptr(),
        )
    };
    if asked < 0 {
        return Err(io::Error::last_os_error());
    }
    limited("the filesystem keeps quotas; this build uses loop images")
}

fn reflink(scratch: &Path) -> Found {
    const FICLONE: u64 = 0x4004_9409;
    fs::write(scratch.join("from"), "x")?;
    let (from, to) = (fs::File::open(scratch.join("from"))?, fs::File::create(scratch.join("to"))?);
    // SAFETY: two open descriptors.
    if unsafe { libc::ioctl(to.as_raw_fd(), FICLONE, from.as_raw_fd()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    works("")
}

fn cpu_idle() -> Found {
    let layout = Layout::discover().map_err(io::Error::other)?;
    let mount = layout.cpu_v1.unwrap_or(layout.v2);
    // The root of a hierarchy has none: only a group in it tells.
    let group = mount.join(PARENT);
    let made = match fs::create_dir(&group) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error),
    };
    let probe = group.join(format!("doctor-idle-{}", std::process::id()));
    let found = fs::create_dir(&probe).and_then(|()| {
        let written = fs::write(probe.join(CPU_IDLE), "1");
        fs::remove_dir(&probe)?;
        written
    });
    if made {
        // Another may be using it by now.
        let _ = fs::remove_dir(&group);
    }
    found?;
    works("")
}

fn swap() -> Found {
    match fs::read_to_string("/proc/swaps")?.lines().count().saturating_sub(1) {
        0 => Err(io::Error::other("none is on")),
        count => works(format!("{count} areas")),
    }
}

/// Two user namespaces by two owners: when one has used up its inotify instances, the other has all
/// of its own.
fn budgets_apart() -> Found {
    const OWNERS: [u32; 2] = [0x8000_0000, 0x8001_0000];
    let unknown = || io::Error::other("the kernel has no such setting");
    let instances = budgets::INOTIFY_INSTANCES.value().ok_or_else(unknown)?;
    let watches = budgets::INOTIFY_WATCHES.value().ok_or_else(unknown)?;
    let (open_files, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let grants = format!("each sandbox has {instances} inotify instances and {watches} watches of its own");
    if instances + 64 > open_files {
        return limited(format!("{grants}; more than one process could use up"));
    }
    let (mut used_up, hog) = io::pipe()?;
    let (stay, end) = io::pipe()?;
    let hog_pid = owned_child(OWNERS[0], || {
        // SAFETY: system calls on integers and one byte.
        unsafe {
            while libc::inotify_init1(libc::IN_CLOEXEC) >= 0 {}
            let refused = (*libc::__errno_location()).to_le_bytes();
            libc::close(end.as_raw_fd());
            libc::write(hog.as_raw_fd(), refused.as_ptr().cast(), 1);
            let mut byte = 0u8;
            libc::read(stay.as_raw_fd(), (&raw mut byte).cast(), 1);
        }
        0
    })?;
    drop(hog);
    let mut refused = [0];
    let met = used_up.read_exact(&mut refused);
    // SAFETY: a system call on integers.
    let other = owned_child(OWNERS[1], || unsafe {
        if libc::inotify_init1(libc::IN_CLOEXEC) >= 0 { 0 } else { *libc::__errno_location() }
    })
    .and_then(exit_code);
    drop(end);
    exit_code(hog_pid)?;
    met?;
    match (i32::from(refused[0]), other?) {
        (libc::EMFILE, 0) => works(grants),
        (libc::EMFILE, errno) => Err(io::Error::from_raw_os_error(errno)),
        (other, _) => Err(io::Error::from_raw_os_error(other)),
    }
}

/// Runs `probe` in a child in a user namespace of `owner`.
fn owned_child(owner: u32, probe: impl Fn() -> i32) -> io::Result<i32> {
    let owner = Owner::assume(owner)?;
    // SAFETY: the child runs `probe`, which makes system calls only, and exits.
    let child = match unsafe { clone::fork(libc::CLONE_NEWUSER, None) } {
        // SAFETY: ends the child at once.
        Ok(Cloned::Child) => unsafe { libc::_exit(probe()) },
        Ok(Cloned::Parent { pid }) => Ok(pid),
        Err(error) => Err(error),
    };
    drop(owner);
    child
}

fn apparmor() -> Found {
    let modules = fs::read_to_string("/sys/kernel/security/lsm")?;
    if modules.split(',').any(|module| module == "apparmor") {
        limited("active; no profile is loaded")
    } else {
        Err(io::Error::other(format!("active modules: {}", modules.trim())))
    }
}

fn kvm() -> Found {
    fs::File::options().read(true).write(true).open("/dev/kvm")?;
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let virtualises = cpu.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    if virtualises {
        limited("the device opens; no guest was booted, which alone would prove it")
    } else {
        Err(io::Error::other("the device opens, but the processor shows neither vmx nor svm"))
    }
}

/// The ceilings of a node, tightest first.
fn capacity() -> Vec<Capacity> {
    let row = |ceiling: Ceiling| {
        let Ceiling { name, limit, reserved, each } = ceiling;
        Capacity { ceiling: name, limit, reserved, each, sandboxes: ceiling.sandboxes() }
    };
    let mut host = Host::read();
    // As an executor raises its own.
    host.open_files.0 = host.open_files.1;
    host.ceilings().into_iter().map(row).collect()
}
