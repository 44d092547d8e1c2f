//! What a tar of unknown make says about one entry: its header and the records before it, PAX or
//! GNU, read within bounds.

use std::io::{self, Read};

use tar::{Entry, EntryType};

use super::archive::{self, PAX_BYTES_MAX, pax_records, unescaped};
use super::entry::Mtime;
use super::{ATTRIBUTE_BYTES_MAX, Error, PATH_BYTES_MAX, attributes};

const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
const SPARSE: &[u8] = b"GNU.sparse.";

/// Records that wait for their entry.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pax: Option<Vec<u8>>,
    long_path: Option<Vec<u8>>,
    long_target: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct Header {
    pub kind: EntryType,
    pub path: Vec<u8>,
    pub target: Vec<u8>,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Mtime,
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.pax.is_none() && self.long_path.is_none() && self.long_target.is_none()
    }

    /// Whether this entry is a record of a later one.
    pub fn take(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool, Error> {
        let place = match entry.header().entry_type() {
            EntryType::XHeader => &mut self.pax,
            EntryType::GNULongName => &mut self.long_path,
            EntryType::GNULongLink => &mut self.long_target,
            // Said of the whole archive: comments.
            EntryType::XGlobalHeader => {
                bounded(entry)?;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        if place.is_some() {
            return Err(Error::format("records follow records of the same kind"));
        }
        *place = Some(bounded(entry)?);
        Ok(true)
    }

    /// The entry they belong to.
    pub fn finish(self, entry: &Entry<'_, impl Read>) -> Result<Header, Error> {
        let found = entry.header();
        let of_header = |read: io::Result<u64>| read.map_err(|error| Error::format(error.to_string()));
        let text = |long: Option<Vec<u8>>| {
            long.map(|long| long.split(|b| *b == 0).next().unwrap_or_default().to_vec())
        };
        let path = text(self.long_path).unwrap_or_else(|| found.path_bytes().into_owned());
        let target = text(self.long_target)
            .or_else(|| found.link_name_bytes().map(std::borrow::Cow::into_owned))
            .unwrap_or_default();
        let size = of_header(found.entry_size())?;
        let old = found.as_old();
        // Some writers leave out what is zero.
        let number = |field: &[u8], read: io::Result<u64>| {
            if field.iter().all(|byte| matches!(byte, 0 | b' ')) { Ok(0) } else { of_header(read) }
        };
        let mode = u32::try_from(number(&old.mode, found.mode().map(u64::from))?).unwrap_or_default();
        let seconds = i64::try_from(number(&old.mtime, found.mtime())?).unwrap_or(0);
        let mut header = Header {
            kind: found.entry_type(),
            path,
            target,
            size,
            mode: mode & 0o7777,
            uid: id(number(&old.uid, found.uid())?),
            gid: id(number(&old.gid, found.gid())?),
            mtime: Mtime { seconds, nanos: 0 },
            attributes: Vec::new(),
        };
        if let Some(pax) = self.pax {
            let records = pax_records(&pax).ok_or_else(|| Error::format("its records are no PAX records"))?;
            for (key, value) in records {
                header.record(key, value)?;
            }
        }
        header.check()?;
        Ok(header)
    }
}

/// Past what any sandbox numbers it is refused all the same.
fn id(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Header {
    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let numeric = || archive::number(value).ok_or_else(|| Error::format("a record holds no number"));
        match key {
            b"path" => self.path = value.to_vec(),
            b"linkpath" => self.target = value.to_vec(),
            b"uid" => self.uid = id(numeric()?),
            b"gid" => self.gid = id(numeric()?),
            b"size" => {
                if numeric()? != self.size {
                    return Err(Error::entry(&self.path, "its records say another size than its header"));
                }
            }
            b"mtime" => {
                self.mtime = time(value).ok_or_else(|| Error::format("a record holds no time"))?;
            }
            key if key.starts_with(SPARSE) => {
                return Err(Error::entry(&self.path, "it is a sparse file, which no OCI layer holds"));
            }
            key => {
                if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                    self.attributes.push((unescaped(name), value.to_vec()));
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        if self.path.len() > PATH_BYTES_MAX {
            return Err(Error::bound(&self.path, "bytes of one path", PATH_BYTES_MAX as u64));
        }
        let holds_data = matches!(self.kind, EntryType::Regular | EntryType::Continuous);
        if self.size != 0 && !holds_data {
            return Err(Error::entry(&self.path, "it has content and is no file"));
        }
        Ok(())
    }

    /// Leaves out what no sandbox can carry, and says how many; refuses marks of an overlay.
    pub fn keep_attributes(&mut self, path: &[u8]) -> Result<u64, Error> {
        let before = self.attributes.len();
        self.attributes.retain(|(name, _)| !name.starts_with(b"security."));
        let dropped = before - self.attributes.len();
        let holds = matches!(self.kind, EntryType::Regular | EntryType::Continuous | EntryType::Directory);
        let bytes: usize = self.attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > ATTRIBUTE_BYTES_MAX {
            return Err(Error::bound(path, "bytes of attributes", ATTRIBUTE_BYTES_MAX as u64));
        }
        self.attributes.iter().try_for_each(|attribute| attributes::check(path, attribute))?;
        if !holds && !self.attributes.is_empty() {
            return Err(Error::entry(path, "it has attributes and is neither file nor directory"));
        }
        self.attributes.sort_unstable();
        if self.attributes.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::entry(path, "it has an attribute twice"));
        }
        Ok(dropped as u64)
    }
}

fn bounded(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, Error> {
    let size = entry.header().entry_size().map_err(|error| Error::format(error.to_string()))?;
    if size > PAX_BYTES_MAX {
        return Err(Error::bound(b"", "bytes of records of one entry", PAX_BYTES_MAX));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(Error::stream)?;
    Ok(bytes)
}

/// Seconds with any number of decimals; what is finer than a nanosecond is cut.
fn time(value: &[u8]) -> Option<Mtime> {
    let text = std::str::from_utf8(value).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = seconds.parse().ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    // A decimal fraction counts away from zero, the kernel's up.
    let is_before = text.starts_with('-') && nanos > 0;
    Some(if is_before {
        Mtime { seconds: seconds.checked_sub(1)?, nanos: 1_000_000_000 - nanos }
    } else {
        Mtime { seconds, nanos }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_any_number_of_decimals() {
        for (text, expected) in [
            ("1", Some((1, 0))),
            ("1.5", Some((1, 500_000_000))),
            ("1.1234567899", Some((1, 123_456_789))),
            ("-1.25", Some((-2, 750_000_000))),
            ("", None),
            ("1.x", None),
            ("x.1", None),
        ] {
            assert_eq!(time(text.as_bytes()).map(|time| (time.seconds, time.nanos)), expected, "{text}");
        }
    }
}
