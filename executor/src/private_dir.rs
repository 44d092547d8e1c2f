//! Directories of the executor: whoever else has a login here has no business with what agents
//! printed, or with the trees of their sandboxes.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

const MODE: u32 = 0o700;

/// Makes a directory for its owner alone, with the parents it lacks. One that is there, made by
/// hand or by an older version, is closed to everyone else.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(MODE))
}
