//! Which build of the program a process is. Two processes that hand sandboxes to each other speak the same
//! words only if they are of one.

use std::io;
use std::os::unix::fs::MetadataExt as _;

/// The file this process runs, as the kernel knows it. A program that was installed again is another.
///
/// # Errors
/// The kernel's answer.
pub fn id() -> io::Result<String> {
    let file = std::fs::metadata("/proc/self/exe")?;
    Ok(format!("{}:{}:{}:{}.{}", file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
}
