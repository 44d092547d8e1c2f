//! What lies at the bottom of a sandbox: `host` (this machine's own /usr over a small skeleton),
//! `dir:PATH` (a tree on this machine) or the layers of an OCI image. All are shared, read-only, and
//! have a digest.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

use super::container::is_of_the_tree;
use super::users::{ROLLOUT_ID, Users};
use super::{CreateError, OciBase};
use crate::broker::serve::lock;
use crate::host::{mounts, open};

/// Entries of a `dir:` tree that its digest covers. A larger tree is refused: package it.
pub const DIR_ENTRIES_MAX: usize = 1_000_000;
/// A passwd file is not read past this, in bytes.
const PASSWD_MAX: u64 = 1 << 20;
/// Images remembered by one executor.
const IMAGES_MAX: usize = 256;
/// Bytes of the host's package database that identify it.
const IDENTITY_FILE_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub struct Image {
    /// `host:<hash>`, `dir:<hash>` or `oci:sha256:<hash>`.
    pub digest: String,
    /// Bottom first.
    pub lowers: Vec<PathBuf>,
    pub host_usr: bool,
    pub users: Users,
    /// Device, inode and change time of the tree's top, to see that it was replaced.
    top: (u64, u64, i64),
}

impl Image {
    fn is_current(&self) -> bool {
        self.lowers
            .first()
            .is_some_and(|lower| fs::metadata(lower).is_ok_and(|top| identity(&top) == self.top))
    }
}

/// An image once it is prepared. Whoever needs it meanwhile waits for the one who prepares it: a
/// burst prepares nothing twice, and nothing over what another already uses.
type Slot = Arc<Mutex<Option<Arc<Image>>>>;

/// Why a tree is no image here.
#[derive(Debug)]
enum Unusable {
    /// Not on this node, or not to be read here.
    Missing(String),
    /// Nothing can run in it, on any node.
    Shape(String),
    /// The machine's own trouble: it may be gone at the next try.
    Machine(io::Error),
}

impl Unusable {
    fn shape(text: impl Into<String>) -> Self {
        Self::Shape(text.into())
    }

    /// From the way to the tree.
    fn reaching(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) if is_of_the_tree(errno) => Self::Missing(error.to_string()),
            _ => Self::Machine(error),
        }
    }

    /// From a look into the tree.
    fn within(what: &str, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) if is_of_the_tree(errno) => Self::Shape(format!("{what}: {error}")),
            _ => Self::Machine(error),
        }
    }

    fn of(self, image: &str) -> CreateError {
        let image = image.to_owned();
        match self {
            Self::Missing(problem) => CreateError::ImageMissing { image, problem },
            Self::Shape(problem) => CreateError::BadRootfs { image, problem },
            Self::Machine(source) => {
                CreateError::Failed { action: format!("preparing image `{image}`"), source }
            }
        }
    }
}

#[derive(Debug)]
pub struct Images {
    data_dir: PathBuf,
    /// Sandboxes of an earlier life lie over its skeleton.
    keeps_skeleton: bool,
    /// Never forgotten: its skeleton has one place.
    host: Slot,
    directories: Mutex<BTreeMap<String, Slot>>,
    /// OCI images by digest, looked at once. Whether their layers are here is not known here: whoever
    /// brings an image holds them.
    stacks: Mutex<BTreeMap<String, Arc<Image>>>,
}

impl Images {
    /// `keeps_skeleton`: sandboxes live that an earlier executor made.
    pub fn new(data_dir: PathBuf, keeps_skeleton: bool) -> Self {
        Self {
            data_dir,
            keeps_skeleton,
            host: Slot::default(),
            directories: Mutex::default(),
            stacks: Mutex::default(),
        }
    }

    /// The image if it is prepared and still the same: one look at a directory that sandboxes
    /// use, and no wait for whoever prepares one.
    pub fn ready(&self, name: &str) -> Option<Arc<Image>> {
        let slot = match name {
            "host" => Arc::clone(&self.host),
            _ => Arc::clone(self.directories.try_lock().ok()?.get(name)?),
        };
        let known = Arc::clone(slot.try_lock().ok()?.as_ref()?);
        known.is_current().then_some(known)
    }

    /// The image of a spec, prepared once. Blocks on the disk.
    pub fn get(&self, name: &str) -> Result<Arc<Image>, CreateError> {
        let directory = name.strip_prefix("dir:").map(Path::new);
        let slot = match directory {
            None if name == "host" => Arc::clone(&self.host),
            None => {
                let problem = "only `host` and `dir:/absolute/path` can be used here";
                return Err(Unusable::shape(problem).of(name));
            }
            Some(_) => self.slot(name),
        };
        let mut slot = lock(&slot);
        if let Some(known) = slot.as_ref().filter(|known| known.is_current()) {
            return Ok(Arc::clone(known));
        }
        let prepared = match directory {
            None => self.host(),
            Some(path) => self.directory(path),
        };
        let prepared = prepared.map_err(|unusable| unusable.of(name))?;
        Ok(Arc::clone(slot.insert(Arc::new(prepared))))
    }

    /// An OCI image whose layers are here. Blocks on the disk.
    pub fn stacked(&self, name: &str, base: &OciBase) -> Result<Arc<Image>, CreateError> {
        let lowers: Vec<PathBuf> = base.layers.iter().map(|layer| layer.path.clone()).collect();
        let known = lock(&self.stacks).get(&base.digest).cloned();
        if let Some(known) = known.filter(|known| known.lowers == lowers) {
            return Ok(known);
        }
        let prepared = stack(&base.digest, lowers).map_err(|unusable| unusable.of(name))?;
        let prepared = Arc::new(prepared);
        let mut stacks = lock(&self.stacks);
        if stacks.len() >= IMAGES_MAX && !stacks.contains_key(&base.digest) {
            stacks.pop_first();
        }
        stacks.insert(base.digest.clone(), Arc::clone(&prepared));
        Ok(prepared)
    }

    fn slot(&self, name: &str) -> Slot {
        let mut directories = lock(&self.directories);
        if directories.len() >= IMAGES_MAX && !directories.contains_key(name) {
            directories.pop_first();
        }
        Arc::clone(directories.entry(name.to_owned()).or_default())
    }

    fn host(&self) -> Result<Image, Unusable> {
        for link in ["bin", "lib", "sbin"] {
            if !Path::new("/").join(link).is_symlink() {
                let problem = format!("/{link} is not a link into /usr, and it needs a merged /usr");
                return Err(Unusable::Missing(problem));
            }
        }
        self.skeleton().map_err(Unusable::Machine)
    }

    fn skeleton(&self) -> io::Result<Image> {
        let lower = self.data_dir.join("images").join("host");
        if !(self.keeps_skeleton && lower.exists()) {
            if lower.exists() {
                fs::remove_dir_all(&lower)?;
            }
            // Under another name until it is whole: whoever keeps one keeps a whole one.
            let staged = lower.with_extension("staged");
            if staged.exists() {
                fs::remove_dir_all(&staged)?;
            }
            build_skeleton(&staged)?;
            fs::rename(&staged, &lower)?;
        }
        let users = Users::parse(PASSWD);
        let top = identity(&fs::metadata(&lower)?);
        Ok(Image {
            digest: format!("host:{}", machine_hash()?),
            lowers: vec![lower],
            host_usr: true,
            users,
            top,
        })
    }

    fn directory(&self, path: &Path) -> Result<Image, Unusable> {
        if !path.is_absolute() {
            return Err(Unusable::shape("the path after `dir:` must be absolute"));
        }
        let real = path.canonicalize().map_err(Unusable::reaching)?;
        if real != path {
            let real = real.display();
            return Err(Unusable::Shape(format!("the path leads through a link; its real name is {real}")));
        }
        if real.parent().is_none() || self.data_dir.starts_with(&real) || real.starts_with(&self.data_dir) {
            return Err(Unusable::shape("it holds, or lies in, what belongs to the executor"));
        }
        let top = fs::metadata(&real).map_err(Unusable::reaching)?;
        let name =
            CString::new(real.as_os_str().as_bytes()).map_err(|error| Unusable::Shape(error.to_string()))?;
        let root = open::directory_itself(&name).map_err(Unusable::reaching)?;
        safe_shape(root.as_fd())?;
        let users = passwd(root.as_fd())?;
        let digest = format!("dir:{}", tree_hash(&real)?);
        Ok(Image { digest, lowers: vec![real], host_usr: false, users, top: identity(&top) })
    }
}

/// Looks into the layers as a sandbox will see them, together.
fn stack(digest: &str, lowers: Vec<PathBuf>) -> Result<Image, Unusable> {
    let opened = lowers.iter().map(|lower| {
        let name = CString::new(lower.as_os_str().as_bytes()).map_err(io::Error::from)?;
        open::directory_itself(&name)
    });
    let opened = opened.collect::<io::Result<Vec<OwnedFd>>>().map_err(Unusable::Machine)?;
    let (Some(bottom), Some(first)) = (opened.first(), lowers.first()) else {
        return Err(Unusable::shape("it has no layer"));
    };
    let mounted = match opened.len() {
        1 => None,
        _ => Some(mounts::stack(&opened).map_err(Unusable::Machine)?),
    };
    let root = mounted.as_ref().unwrap_or(bottom).as_fd();
    safe_shape(root)?;
    let users = passwd(root)?;
    let top = identity(&fs::metadata(first).map_err(Unusable::Machine)?);
    Ok(Image { digest: digest.to_owned(), lowers, host_usr: false, users, top })
}

fn identity(top: &fs::Metadata) -> (u64, u64, i64) {
    (top.dev(), top.ino(), top.ctime())
}

/// Refuses trees that would bend a mount, and trees nothing can run in.
fn safe_shape(root: BorrowedFd<'_>) -> Result<(), Unusable> {
    for place in [c"proc", c"dev", c"sys", c"etc", c"tmp"] {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let found = match open::beneath(root, place, flags, 0, open::CONFINED) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Unusable::within(&format!("/{}", place.to_string_lossy()), error)),
        };
        let mode = open::stat(found.as_fd()).map_err(Unusable::Machine)?.st_mode;
        if mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(Unusable::Shape(format!("/{} is not a directory", place.to_string_lossy())));
        }
    }
    match open::beneath(root, c"bin/sh", libc::O_PATH, 0, open::IN_ROOT) {
        Ok(_) => Ok(()),
        Err(error) => Err(Unusable::within("there is no shell at /bin/sh", error)),
    }
}

/// The image's users. No file: only `rollout` and numbers.
fn passwd(root: BorrowedFd<'_>) -> Result<Users, Unusable> {
    let file: OwnedFd =
        match open::beneath(root, c"etc/passwd", libc::O_RDONLY | libc::O_NONBLOCK, 0, open::IN_ROOT) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Users::parse("")),
            Err(error) => return Err(Unusable::within("/etc/passwd", error)),
        };
    if open::stat(file.as_fd()).map_err(Unusable::Machine)?.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Unusable::shape("/etc/passwd: not a regular file"));
    }
    let mut text = Vec::new();
    fs::File::from(file).take(PASSWD_MAX).read_to_end(&mut text).map_err(Unusable::Machine)?;
    Ok(Users::parse(&String::from_utf8_lossy(&text)))
}

/// A hash over path, kind, mode, size and modification time of every entry, in name order: it
/// changes when the tree does, and reads no content.
fn tree_hash(root: &Path) -> Result<String, Unusable> {
    let mut hash = Sha256::new();
    hash.update(root.as_os_str().as_bytes());
    let mut pending = vec![root.to_owned()];
    let mut seen = 0;
    while let Some(dir) = pending.pop() {
        let entries = fs::read_dir(&dir).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let mut entries = entries.map_err(Unusable::Machine)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        seen += entries.len();
        if seen > DIR_ENTRIES_MAX {
            return Err(Unusable::Shape(format!("the tree has more than {DIR_ENTRIES_MAX} entries")));
        }
        for entry in entries {
            let found = entry.metadata().map_err(Unusable::Machine)?;
            let path = entry.path();
            hash.update(path.as_os_str().as_bytes());
            hash.update([0]);
            for number in [u64::from(found.mode()), found.size()] {
                hash.update(number.to_le_bytes());
            }
            for number in [found.mtime(), found.mtime_nsec()] {
                hash.update(number.to_le_bytes());
            }
            if found.is_dir() {
                pending.push(path);
            }
        }
    }
    Ok(hex::encode(&hash.finalize()[..16]))
}

/// Identifies the host's /usr: its release and its package database.
fn machine_hash() -> io::Result<String> {
    let mut hash = Sha256::new();
    hash.update(std::env::consts::ARCH);
    for path in
        ["/etc/os-release", "/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/lib/apk/db/installed"]
    {
        if let Ok(file) = fs::File::open(path) {
            hash.update(path);
            io::copy(&mut file.take(IDENTITY_FILE_MAX), &mut hash)?;
        }
    }
    Ok(hex::encode(&hash.finalize()[..16]))
}

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
rollout:x:1000:1000:rollout:/home/rollout:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
";
const GROUP: &str = "root:x:0:\ntty:x:5:\nrollout:x:1000:\nnogroup:x:65534:\n";

/// Directories of the skeleton: path, mode, owner.
const DIRS: [(&str, u32, u32); 19] = [
    ("", 0o755, 0),
    ("dev", 0o755, 0),
    ("proc", 0o555, 0),
    ("sys", 0o555, 0),
    ("usr", 0o755, 0),
    ("etc", 0o755, 0),
    ("run", 0o755, 0),
    ("var", 0o755, 0),
    ("var/lib", 0o755, 0),
    ("var/log", 0o755, 0),
    ("var/cache", 0o755, 0),
    ("var/tmp", 0o1777, 0),
    ("tmp", 0o1777, 0),
    ("root", 0o700, 0),
    ("home", 0o755, 0),
    ("home/rollout", 0o755, ROLLOUT_ID),
    ("workspace", 0o755, ROLLOUT_ID),
    ("logs", 0o755, ROLLOUT_ID),
    ("in", 0o755, 0),
];

/// Of the host's /etc, only what programs of its /usr need to start and to trust certificates.
const FROM_ETC: [&str; 9] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl/certs",
    "ssl/openssl.cnf",
    "pki/tls/certs",
    "ca-certificates.conf",
    "localtime",
];

fn build_skeleton(root: &Path) -> io::Result<()> {
    for (path, mode, owner) in DIRS {
        let dir = root.join(path);
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode))?;
        chown(&dir, Some(owner), Some(owner))?;
    }
    for link in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        if let Ok(target) = fs::read_link(Path::new("/").join(link)) {
            symlink(target, root.join(link))?;
        }
    }
    let files = [
        ("etc/passwd", PASSWD),
        ("etc/group", GROUP),
        ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        ("etc/resolv.conf", ""),
    ];
    for (path, text) in files {
        fs::write(root.join(path), text)?;
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(0o644))?;
    }
    symlink("/usr/lib/os-release", root.join("etc/os-release"))?;
    for path in FROM_ETC {
        let (from, to) = (Path::new("/etc").join(path), root.join("etc").join(path));
        if fs::symlink_metadata(&from).is_ok() {
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            copy_tree(&from, &to)?;
        }
    }
    Ok(())
}

/// Copies files, links and directories; anything else of /etc is no business of a sandbox.
fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    if found.is_symlink() {
        symlink(fs::read_link(from)?, to)
    } else if found.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_tree(&entry.path(), &to.join(entry.file_name()))?;
        }
        Ok(())
    } else if found.is_file() {
        fs::copy(from, to).map(drop)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images() -> (tempfile::TempDir, Images) {
        let dir = tempfile::tempdir().unwrap();
        let images = Images::new(dir.path().join("data"), false);
        (dir, images)
    }

    #[test]
    fn an_image_is_missing_only_if_its_path_says_so_and_not_for_the_machines_trouble() {
        for (errno, is_missing) in [
            (libc::ENOENT, true),
            (libc::ENOTDIR, true),
            (libc::EACCES, true),
            (libc::ELOOP, true),
            (libc::EMFILE, false),
            (libc::ENOMEM, false),
            (libc::EIO, false),
            (libc::ESTALE, false),
        ] {
            let found = Unusable::reaching(io::Error::from_raw_os_error(errno));
            assert_eq!(matches!(found, Unusable::Missing(_)), is_missing, "{found:?}");
        }
    }

    fn problem(images: &Images, name: &str) -> String {
        match images.get(name) {
            Err(CreateError::BadRootfs { problem, .. }) => problem,
            Err(error @ CreateError::ImageMissing { .. }) => error.to_string(),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn trees_that_would_bend_a_mount_are_refused_by_the_place() {
        for place in ["proc", "dev", "sys", "etc", "tmp"] {
            let (dir, images) = images();
            let root = dir.path().canonicalize().unwrap().join("root");
            fs::create_dir_all(root.join("bin")).unwrap();
            fs::write(root.join("bin/sh"), "").unwrap();
            symlink("/tmp", root.join(place)).unwrap();
            assert!(problem(&images, &format!("dir:{}", root.display())).contains(place), "{place}");
        }
    }

    #[test]
    fn names_that_are_no_usable_tree_are_refused() {
        let (dir, images) = images();
        let base = dir.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("data/inside")).unwrap();
        fs::create_dir_all(base.join("empty")).unwrap();
        fs::write(base.join("file"), "").unwrap();
        symlink(base.join("empty"), base.join("link")).unwrap();
        for (path, part) in [
            ("empty", "no shell"),
            ("link", "real name"),
            ("absent", "is not on this node: No such file"),
            ("file", "is not on this node: Not a directory"),
            ("file/below", "is not on this node: Not a directory"),
            ("data/inside", "belongs to the executor"),
            ("", "belongs to the executor"),
        ] {
            let name = format!("dir:{}", base.join(path).display());
            let name = name.trim_end_matches('/');
            assert!(problem(&images, name).contains(part), "{path}: {}", problem(&images, name));
        }
        assert!(problem(&images, "dir:relative").contains("absolute"));
        assert!(problem(&images, "docker.io/x").contains("only `host`"));
    }

    #[test]
    fn a_changed_tree_has_another_digest() {
        let (dir, _) = images();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(root.join("bin/sh"), "one").unwrap();
        let first = tree_hash(&root).unwrap();
        assert_eq!(first, tree_hash(&root).unwrap());
        fs::write(root.join("bin/sh"), "three").unwrap();
        assert_ne!(first, tree_hash(&root).unwrap());
    }
}
