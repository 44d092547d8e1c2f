//! Dropping capabilities for good.

use std::io;

use super::checked;

pub const CAP_KILL: u32 = 5;
pub const CAP_SETGID: u32 = 6;
pub const CAP_SETUID: u32 = 7;
pub const CAP_SETPCAP: u32 = 8;

/// What the init of a sandbox keeps, in its own user namespace: to change to the user of a
/// process, to drop these four for it, and to kill it.
pub const OF_INIT: u64 = 1 << CAP_KILL | 1 << CAP_SETGID | 1 << CAP_SETUID | 1 << CAP_SETPCAP;

/// Capability numbers the kernel could ever know: two words.
const CAPABILITIES_END: u32 = 64;
/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// Effective, permitted and inheritable of the first 32, then of the others.
type Sets = [u32; 6];

/// Of the calling thread.
fn sets() -> io::Result<Sets> {
    let (mut header, mut sets) = (Header { version: VERSION_3, pid: 0 }, Sets::default());
    // SAFETY: version 3 reads the header and writes two entries of three words.
    checked(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    Ok(sets)
}

/// The kernel takes out of the ambient set what is not both permitted and inheritable.
fn set(sets: &Sets) -> io::Result<()> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: version 3 reads the header and two entries of three words.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) })?;
    Ok(())
}

/// Leaves exactly `kept`, effective and permitted; nothing that an exec would keep.
pub fn keep_only(kept: u64) -> io::Result<()> {
    let [low, high] = [kept & 0xffff_ffff, kept >> 32].map(|word| u32::try_from(word).unwrap_or(0));
    set(&[low, low, 0, high, high, 0])
}

/// Leaves `kept` alone to be had at any exec from here on. Needs SETPCAP.
pub fn bound(kept: u64) -> io::Result<()> {
    for capability in 0..CAPABILITIES_END {
        if kept & (1 << capability) != 0 {
            continue;
        }
        // SAFETY: prctl with integers touches no memory.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        if dropped < 0 {
            let error = io::Error::last_os_error();
            // Past the last capability of this kernel.
            if error.raw_os_error() == Some(libc::EINVAL) {
                break;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Lets an exec as somebody who is not root keep every capability that is permitted.
pub fn keep_over_exec() -> io::Result<()> {
    let mut sets = sets()?;
    [sets[2], sets[5]] = [sets[1], sets[4]];
    set(&sets)?;
    let permitted = u64::from(sets[4]) << 32 | u64::from(sets[1]);
    for capability in (0..CAPABILITIES_END).filter(|capability| permitted & (1 << capability) != 0) {
        // SAFETY: prctl with integers touches no memory.
        let raised =
            unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, capability, 0, 0) };
        checked(raised.into())?;
    }
    Ok(())
}

/// Makes effective again what is permitted. A change of the effective user alone leaves it so.
pub fn restore_effective() -> io::Result<()> {
    let mut sets = sets()?;
    [sets[0], sets[3]] = [sets[1], sets[4]];
    set(&sets)
}

/// No exec gains privileges from here on.
pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: prctl with integers touches no memory.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    Ok(())
}
