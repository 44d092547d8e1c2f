//! Small C programs for hostile work, made static so that they run in any root.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `source` to `dir/name`. A missing compiler is an error that says so.
pub fn compile(dir: &Path, name: &str, source: &str) -> io::Result<PathBuf> {
    let (from, to) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&from, source)?;
    let status =
        Command::new("cc").args(["-O1", "-w", "-static", "-pthread", "-o"]).arg(&to).arg(&from).status();
    let status = status.map_err(|error| io::Error::new(error.kind(), format!("running cc: {error}")))?;
    if status.success() { Ok(to) } else { Err(io::Error::other(format!("cc of {name}: {status}"))) }
}
