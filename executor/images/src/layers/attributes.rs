//! Extended attributes: which of them belong to a tree, and which are a filesystem's or an
//! overlay's own.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use xattr::FileExt;

use super::pack::Dropped;
use super::walk::Owners;
use super::{ATTRIBUTE_BYTES_MAX, ATTRIBUTE_OVERHEAD_BYTES, Error};

/// The mark of overlayfs: a directory that hides those below it.
pub(super) const OPAQUE: &str = "trusted.overlay.opaque";
const OVERLAY: &[u8] = b"trusted.overlay.";
/// What overlayfs notes for itself and derives again.
const DERIVED: [&[u8]; 4] =
    [b"trusted.overlay.origin", b"trusted.overlay.impure", b"trusted.overlay.uuid", b"trusted.overlay.nlink"];
const USER: &[u8] = b"user.";
/// The marks of an overlay that somebody without privileges mounts.
const USER_OVERLAY: &[u8] = b"user.overlay.";
const ACL: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const SECURITY: &[u8] = b"security.";

const ACL_HEADER_BYTES: usize = 4;
const ACL_ENTRY_BYTES: usize = 8;
const ACL_VERSION: [u8; ACL_HEADER_BYTES] = [2, 0, 0, 0];
const ACL_USER: u16 = 0x02;
const ACL_GROUP: u16 = 0x08;

pub(super) type Attribute = (Vec<u8>, Vec<u8>);

#[derive(Debug, Default)]
pub(super) struct Found {
    /// Sorted by name.
    pub kept: Vec<Attribute>,
    pub opaque: bool,
}

/// Reads what an open file or directory carries.
pub(super) fn read(file: &File, path: &[u8], owners: Owners, dropped: &mut Dropped) -> Result<Found, Error> {
    let mut found = Found::default();
    let names = match file.list_xattr() {
        Ok(names) => names,
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(found),
        Err(error) => return Err(Error::io("list the attributes of", path)(error)),
    };
    let mut bytes = 0;
    for name in names {
        let name = name.into_vec();
        let value = || {
            let value = file.get_xattr(OsStr::from_bytes(&name));
            let value = value.map_err(Error::io("read an attribute of", path))?;
            value.ok_or_else(|| Error::Changed { path: super::error::shown(path) })
        };
        let shown = || name.escape_ascii().to_string();
        if name == OPAQUE.as_bytes() {
            if !owners.has_marks() || value()? != b"y" {
                return Err(Error::entry(path, format!("it carries an overlay mark, `{}`", shown())));
            }
            found.opaque = true;
        } else if owners.has_marks() && DERIVED.contains(&name.as_slice()) {
        } else if name.starts_with(OVERLAY) {
            return Err(Error::entry(path, format!("it carries an overlay mark, `{}`", shown())));
        } else if name.starts_with(USER_OVERLAY) {
            dropped.overlay_attributes += 1;
        } else if name.starts_with(SECURITY) {
            dropped.security_attributes += 1;
        } else if name.starts_with(USER) || ACL.contains(&name.as_slice()) {
            let mut value = value()?;
            if !name.starts_with(USER) {
                value = shifted_acl(&value, owners)
                    .ok_or_else(|| Error::entry(path, "its access list names ids outside of its range"))?;
            }
            bytes += name.len() + value.len() + ATTRIBUTE_OVERHEAD_BYTES;
            if bytes > ATTRIBUTE_BYTES_MAX {
                return Err(Error::bound(path, "bytes of attributes", ATTRIBUTE_BYTES_MAX as u64));
            }
            found.kept.push((name, value));
        } else {
            return Err(Error::entry(path, format!("it carries the attribute `{}`", shown())));
        }
    }
    found.kept.sort_unstable();
    Ok(found)
}

/// An access list as the layer numbers ids. None: it is none, or names others.
fn shifted_acl(value: &[u8], owners: Owners) -> Option<Vec<u8>> {
    renumbered_acl(value, |id| owners.inside(id))
}

/// An access list with other ids. None: it is none, or names one that has no other number.
fn renumbered_acl(value: &[u8], number: impl Fn(u32) -> Option<u32>) -> Option<Vec<u8>> {
    let mut shifted = value.to_vec();
    let (header, entries) = shifted.split_at_mut_checked(ACL_HEADER_BYTES)?;
    if *header != ACL_VERSION || entries.len() % ACL_ENTRY_BYTES != 0 {
        return None;
    }
    for entry in entries.chunks_exact_mut(ACL_ENTRY_BYTES) {
        let (tag, id) = entry.split_at_mut(4);
        if matches!(u16::from_le_bytes([tag[0], tag[1]]), ACL_USER | ACL_GROUP) {
            let number = number(u32::from_le_bytes([id[0], id[1], id[2], id[3]]))?;
            id.copy_from_slice(&number.to_le_bytes());
        }
    }
    Some(shifted)
}

/// Whether an attribute of a packed layer may be set on a node.
pub(super) fn check(path: &[u8], (name, value): &Attribute) -> Result<(), Error> {
    let is_user = name.starts_with(USER) && !name.starts_with(USER_OVERLAY);
    let is_acl = ACL.contains(&name.as_slice()) && shifted_acl(value, Owners::Above(0)).is_some();
    if (is_user || is_acl) && !name.contains(&0) {
        return Ok(());
    }
    Err(Error::entry(path, format!("it carries the attribute `{}`", name.escape_ascii())))
}

pub(super) fn set(file: &File, path: &[u8], attributes: &[Attribute]) -> Result<(), Error> {
    for (name, value) in attributes {
        let set = file.set_xattr(OsStr::from_bytes(name), value);
        set.map_err(Error::io("set an attribute of", path))?;
    }
    Ok(())
}

/// Gives an open file or directory these attributes of a layer, and no other that one could have.
/// `id_base` is the host's number of the layer's root.
pub(super) fn replace(file: &File, path: &[u8], attributes: &[Attribute], id_base: u32) -> Result<(), Error> {
    let names = match file.list_xattr() {
        Ok(names) => names.collect(),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Vec::new(),
        Err(error) => return Err(Error::io("list the attributes of", path)(error)),
    };
    for name in names {
        let bytes = name.as_bytes();
        let is_of_a_layer = bytes.starts_with(USER) || ACL.contains(&bytes);
        if is_of_a_layer && attributes.iter().all(|(kept, _)| kept != bytes) {
            file.remove_xattr(&name).map_err(Error::io("remove an attribute of", path))?;
        }
    }
    for (name, value) in attributes {
        let acl = ACL.contains(&name.as_slice());
        let shifted = if acl { renumbered_acl(value, |id| id.checked_add(id_base)) } else { None };
        let set = file.set_xattr(OsStr::from_bytes(name), shifted.as_ref().unwrap_or(value));
        set.map_err(Error::io("set an attribute of", path))?;
    }
    Ok(())
}

/// Marks a directory as hiding those below it.
pub(super) fn set_opaque(file: &File) -> io::Result<()> {
    file.set_xattr(OPAQUE, b"y")
}
