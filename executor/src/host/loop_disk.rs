//! Loop devices: a file as a disk that goes away with its last user.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checked;

const LOOP_CLR_FD: u64 = 0x4c01;
const LOOP_CONFIGURE: u64 = 0x4c0a;
const LOOP_CTL_GET_FREE: u64 = 0x4c82;
const FLAG_AUTOCLEAR: u32 = 4;
/// Another process may take the number we were given: asked again this often.
const TRIES_MAX: u32 = 64;
/// How long a device may take to let go of its file after its last user is gone, in pauses of
/// [`RELEASE_PAUSE`].
pub const RELEASE_TRIES_MAX: u32 = 2_000;
pub const RELEASE_PAUSE: Duration = Duration::from_millis(1);

#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// A configured loop device. It clears itself when the last user (this, or a mount) lets go.
#[derive(Debug)]
pub struct LoopDevice {
    pub number: u32,
    pub path: PathBuf,
    /// Keeps the device configured until a mount does.
    _file: File,
}

/// Puts `backing` behind a free loop device.
pub fn attach(backing: BorrowedFd<'_>, label: &Path) -> io::Result<LoopDevice> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..TRIES_MAX {
        // SAFETY: no memory involved.
        let free = checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) }.into())?;
        let number = u32::try_from(free).map_err(|_| io::Error::from_raw_os_error(libc::ERANGE))?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        // SAFETY: all-zero is a valid config.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.fd = backing.as_raw_fd().cast_unsigned();
        config.info.flags = FLAG_AUTOCLEAR;
        for (slot, byte) in config.info.file_name[..63].iter_mut().zip(label.as_os_str().as_bytes()) {
            *slot = *byte;
        }
        // SAFETY: the kernel reads one config, which is alive.
        match checked(unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }.into()) {
            Ok(_) => return Ok(LoopDevice { number, path, _file: file }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

/// Detaches a device left by a previous life.
pub fn clear(device: &Path) -> io::Result<()> {
    let file = File::open(device)?;
    // SAFETY: no memory involved.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CLR_FD) }.into())?;
    Ok(())
}

/// Loop devices whose backing file lies (or, deleted, lay) beneath `dir`: number and file.
pub fn beneath(dir: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok()) else {
            continue;
        };
        if let Some(file) = backing_file(Path::new("/sys/block"), number)
            && file.starts_with(dir)
        {
            found.push((number, file));
        }
    }
    Ok(found)
}

/// The file behind a device; none if it is free.
pub fn backing_file(sys_block: &Path, number: u32) -> Option<PathBuf> {
    let text = fs::read(sys_block.join(format!("loop{number}/loop/backing_file"))).ok()?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let text = text.strip_suffix(b" (deleted)").unwrap_or(text);
    (!text.is_empty()).then(|| PathBuf::from(std::ffi::OsStr::from_bytes(text)))
}
