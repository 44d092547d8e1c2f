//! Landlock as the second wall: should a capability or the seccomp filter ever be got around, no
//! device node can be made, no mount changed, no abstract socket or process outside be reached.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::{checked, fresh_fd, open};

const CREATE_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;
const FS_MAKE_CHAR: u64 = 1 << 6;
const FS_MAKE_BLOCK: u64 = 1 << 11;
/// Renames and links between directories are refused by every ruleset that does not grant this.
const FS_REFER: u64 = 1 << 13;
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
const SCOPE_SIGNAL: u64 = 1 << 1;

/// The first ABI that can grant [`FS_REFER`]: below it agents could not rename across directories.
pub const ABI_MIN: u32 = 2;
/// The first ABI with scopes.
pub const ABI_SCOPES: u32 = 6;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// The ABI of this kernel; an error if it has none.
pub fn abi() -> io::Result<u32> {
    // SAFETY: with the version flag the call takes a null attribute of size 0.
    let version = checked(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<RulesetAttr>(), 0, CREATE_VERSION)
    })?;
    Ok(u32::try_from(version).unwrap_or(0))
}

/// The ABI that sandboxes are restricted by, or why they are not.
pub fn usable(abi: io::Result<u32>) -> Result<u32, String> {
    match abi {
        Ok(abi) if abi >= ABI_MIN => Ok(abi),
        Ok(abi) => Err(format!("ABI {abi} would forbid renames between directories")),
        Err(error) => Err(error.to_string()),
    }
}

/// Restricts the calling thread and all it starts. Needs no_new_privs.
pub fn restrict(abi: u32) -> io::Result<()> {
    let scoped = if abi >= ABI_SCOPES { SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL } else { 0 };
    let attr = RulesetAttr {
        handled_access_fs: FS_MAKE_CHAR | FS_MAKE_BLOCK | FS_REFER,
        handled_access_net: 0,
        scoped,
    };
    // Older kernels refuse a longer struct only if the part they do not know is not zero.
    let size = if abi >= ABI_SCOPES { size_of::<RulesetAttr>() } else { size_of::<u64>() };
    // SAFETY: `attr` is alive and at least `size` long.
    let ruleset =
        fresh_fd(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attr, size, 0) })?;
    let root = open::directory(c"/")?;
    let rule = PathBeneathAttr { allowed_access: FS_REFER, parent_fd: root.as_fd().as_raw_fd() };
    // SAFETY: `rule` is of the kind that is named and outlives the call.
    checked(unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), RULE_PATH_BENEATH, &raw const rule, 0)
    })?;
    // SAFETY: no memory involved.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_usable_abi_there_is_a_reason_to_tell() {
        assert_eq!(usable(Ok(ABI_MIN)), Ok(ABI_MIN));
        assert!(usable(Ok(ABI_MIN - 1)).is_err_and(|reason| reason.contains("ABI 1")));
        let absent = Err(io::Error::from_raw_os_error(libc::ENOSYS));
        assert!(usable(absent).is_err_and(|reason| reason.contains("not implemented")));
    }
}
