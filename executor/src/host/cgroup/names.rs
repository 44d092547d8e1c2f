//! Names of leaves. A leaf of v1 takes the id of its sandbox, whatever it was called before; one of v2 keeps the
//! name it was made with. So a set of leaves that was made ahead keeps another name in the v2 tree, and carries the
//! id in an attribute that only the host's root can set.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{MutexGuard, PoisonError};

use super::{Limits, MEMORY, PAGE_MAX, Tree, name};
use crate::host::{checked, open};

const SANDBOX: &CStr = c"trusted.rollyard.sandbox";
/// An id has at most 63 bytes.
const ID_MAX: usize = 64;

/// The sandbox that the leaf of v2 in `parent` was given to, if it has another name.
pub fn sandbox_of(parent: BorrowedFd<'_>, leaf: &CStr) -> Option<String> {
    let dir = open::at(parent, leaf, libc::O_RDONLY | libc::O_DIRECTORY).ok()?;
    let mut id = [0_u8; ID_MAX];
    // SAFETY: a C string, and a buffer of the stated length.
    let len = unsafe { libc::fgetxattr(dir.as_raw_fd(), SANDBOX.as_ptr(), id.as_mut_ptr().cast(), id.len()) };
    let id = id.get(..usize::try_from(len).ok()?)?;
    String::from_utf8(id.to_vec()).ok()
}

impl Tree {
    fn known(&self) -> MutexGuard<'_, std::collections::BTreeMap<String, String>> {
        // A map is usable whoever panicked with it.
        self.leaves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The v2 leaf of a sandbox has this name.
    pub fn know(&self, id: &str, leaf: &str) {
        self.known().insert(id.to_owned(), leaf.to_owned());
    }

    /// The sandbox is gone.
    pub fn forget(&self, id: &str) {
        self.known().remove(id);
    }

    /// The name of a sandbox's v2 leaf, if it is not its id.
    pub fn other_name(&self, id: &str) -> Option<String> {
        self.known().get(id).cloned()
    }

    /// What is at `path`, which begins with an id, beneath the parent in a hierarchy.
    pub(super) fn path(&self, place: usize, path: &str) -> io::Result<CString> {
        let id = path.split('/').next().unwrap_or_default();
        match self.known().get(id) {
            Some(leaf) if place == 0 => name(&format!("{leaf}{}", &path[id.len()..])),
            _ => name(path),
        }
    }

    /// Gives leaves that were made ahead to a sandbox, with its limits. On an error some may have its name.
    pub fn hand_on(&self, from: &str, id: &str, limits: &Limits) -> io::Result<()> {
        let leaf: OwnedFd = open::at(self.dirs[0].as_fd(), &name(from)?, libc::O_RDONLY | libc::O_DIRECTORY)?;
        // SAFETY: a C string, and bytes of the stated length.
        let set =
            unsafe { libc::fsetxattr(leaf.as_raw_fd(), SANDBOX.as_ptr(), id.as_ptr().cast(), id.len(), 0) };
        checked(set.into())?;
        self.know(id, from);
        for dir in &self.dirs[1..] {
            open::rename(dir.as_fd(), &name(from)?, &name(id)?)?;
        }
        self.limit(id, limits)?;
        self.check_memory_limit(id, limits)
    }

    /// The kernel rounds down to whole pages.
    pub(super) fn check_memory_limit(&self, id: &str, limits: &Limits) -> io::Result<()> {
        if self.places[MEMORY].1 && limits.memory.0 - self.memory_limit(id)?.min(limits.memory.0) >= PAGE_MAX
        {
            return Err(io::Error::from_raw_os_error(libc::EBADMSG));
        }
        Ok(())
    }
}
