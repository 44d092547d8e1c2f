//! One entry of the packed form as tar blocks, and back. What a header cannot say stands in PAX
//! records before it.

use std::io::{self, Read, Write};

use tar::{Builder, EntryType, Header};

use super::entry::{Entry, Kind, Mtime};
use super::runs::{Run, block_size};
use super::{ATTRIBUTE_BYTES_MAX, Error};

/// The most bytes of the PAX records of one entry: its attributes and a long list of runs.
pub(super) const PAX_BYTES_MAX: u64 = 2 << 20;
/// What fits the name fields of a header.
const NAME_FIELD_BYTES: usize = 100;
/// The most runs a file can have: every other block.
const RUNS_MAX: usize = 1 << 15;
const WHITEOUT: &[u8] = b"ROLLYARD.whiteout";
const OPAQUE: &[u8] = b"ROLLYARD.opaque";
const MARKED: &[u8] = b"1";
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// One PAX record: its length counts itself.
fn record(into: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    into.extend(length.to_string().bytes());
    into.push(b' ');
    into.extend(key);
    into.push(b'=');
    into.extend(value);
    into.push(b'\n');
}

/// `=` ends a key, so a name is written with `%` as GNU tar does.
fn escaped(name: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'%' => escaped.extend(b"%25"),
            b'=' => escaped.extend(b"%3D"),
            other => escaped.push(*other),
        }
    }
    escaped
}

pub(super) fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut unescaped = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, tail)) = rest.split_first() {
        let (byte, next) = match rest {
            [b'%', b'2', b'5', next @ ..] => (b'%', next),
            [b'%', b'3', b'D', next @ ..] => (b'=', next),
            _ => (*first, tail),
        };
        unescaped.push(byte);
        rest = next;
    }
    unescaped
}

/// Writes one entry; `data` has exactly the bytes of its runs.
pub(super) fn write(builder: &mut Builder<impl Write>, entry: &Entry, data: impl Read) -> io::Result<()> {
    let mut records = Vec::new();
    let mut header = Header::new_ustar();
    let (kind, size) = match &entry.kind {
        Kind::Directory { opaque } => {
            if *opaque {
                record(&mut records, OPAQUE, MARKED);
            }
            (EntryType::Directory, 0)
        }
        Kind::File { size, runs } => {
            let data: u64 = runs.iter().map(|run| run.length).sum();
            if data != *size {
                sparse_records(&mut records, *size, runs);
            }
            (EntryType::Regular, data)
        }
        Kind::Symlink { .. } => (EntryType::Symlink, 0),
        Kind::Link { .. } => (EntryType::Link, 0),
        Kind::Fifo => (EntryType::Fifo, 0),
        Kind::Whiteout => {
            record(&mut records, WHITEOUT, MARKED);
            (EntryType::Regular, 0)
        }
    };
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(entry.mode);
    header.set_uid(entry.uid.into());
    header.set_gid(entry.gid.into());
    let old = header.as_old_mut();
    put_name(&mut old.name, &mut records, b"path", &entry.path);
    if let Kind::Symlink { target } | Kind::Link { target } = &entry.kind {
        put_name(&mut old.linkname, &mut records, b"linkpath", target);
    }
    if entry.kind.has_inode() {
        put_mtime(&mut header, &mut records, entry.mtime);
    } else {
        header.set_mtime(0);
    }
    for (name, value) in &entry.attributes {
        record(&mut records, &[ATTRIBUTE, &escaped(name)].concat(), value);
    }
    if !records.is_empty() {
        let mut before = Header::new_ustar();
        before.set_entry_type(EntryType::XHeader);
        before.set_size(records.len() as u64);
        before.set_mode(0o644);
        before.set_mtime(0);
        before.set_uid(0);
        before.set_gid(0);
        before.as_old_mut().name[..3].copy_from_slice(b"pax");
        before.set_cksum();
        builder.append(&before, records.as_slice())?;
    }
    header.set_cksum();
    builder.append(&header, data)
}

fn put_name(field: &mut [u8; NAME_FIELD_BYTES], records: &mut Vec<u8>, key: &[u8], name: &[u8]) {
    let fits = name.len() < NAME_FIELD_BYTES;
    if !fits {
        record(records, key, name);
    }
    let length = name.len().min(NAME_FIELD_BYTES - 1);
    field[..length].copy_from_slice(&name[..length]);
}

fn put_mtime(header: &mut Header, records: &mut Vec<u8>, Mtime { seconds, nanos }: Mtime) {
    // What eleven octal digits hold.
    const SECONDS_MAX: u64 = (1 << 33) - 1;
    let fits = u64::try_from(seconds).ok().filter(|seconds| *seconds <= SECONDS_MAX);
    header.set_mtime(fits.unwrap_or_default());
    if fits.is_none() || nanos != 0 {
        // Seconds are rounded down, as the kernel has them; a decimal fraction counts up from there.
        record(records, b"mtime", format!("{seconds}.{nanos:09}").as_bytes());
    }
}

fn sparse_records(records: &mut Vec<u8>, size: u64, runs: &[Run]) {
    let numbers = runs.iter().flat_map(|run| [run.offset, run.length]).map(|number| number.to_string());
    record(records, b"GNU.sparse.major", b"0");
    record(records, b"GNU.sparse.minor", b"1");
    record(records, b"GNU.sparse.size", size.to_string().as_bytes());
    record(records, b"GNU.sparse.numblocks", runs.len().to_string().as_bytes());
    record(records, b"GNU.sparse.map", numbers.collect::<Vec<_>>().join(",").as_bytes());
}

/// What PAX records say.
#[derive(Debug, Default)]
struct Records {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    mtime: Option<Mtime>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    size: Option<u64>,
    runs: Option<Vec<Run>>,
    is_whiteout: bool,
    is_opaque: bool,
}

pub(super) fn number(text: &[u8]) -> Option<u64> {
    let plain = !text.is_empty() && text.len() <= 20 && text.iter().all(u8::is_ascii_digit);
    plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// Keys and values, in their order. None: these are no PAX records.
pub(super) fn pax_records(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ')?;
        let length = usize::try_from(number(&bytes[..space])?).ok()?;
        let (record, rest) = bytes.split_at_checked(length)?;
        let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        bytes = rest;
    }
    Some(records)
}

impl Records {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut records = Self::default();
        for (key, value) in pax_records(bytes)? {
            records.take(key, value)?;
        }
        Some(records)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.target = Some(value.to_vec()),
            b"mtime" => self.mtime = Some(mtime(value)?),
            b"GNU.sparse.major" => return (value == b"0").then_some(()),
            b"GNU.sparse.minor" => return (value == b"1").then_some(()),
            b"GNU.sparse.numblocks" => {}
            b"GNU.sparse.size" => self.size = Some(number(value)?),
            b"GNU.sparse.map" => self.runs = Some(runs(value)?),
            key if key == WHITEOUT => self.is_whiteout = value == MARKED,
            key if key == OPAQUE => self.is_opaque = value == MARKED,
            key => {
                let name = key.strip_prefix(ATTRIBUTE)?;
                self.attributes.push((unescaped(name), value.to_vec()));
            }
        }
        Some(())
    }
}

fn mtime(value: &[u8]) -> Option<Mtime> {
    let text = std::str::from_utf8(value).ok()?;
    let (seconds, nanos) = text.split_once('.')?;
    let nanos = (nanos.len() == 9).then(|| number(nanos.as_bytes())).flatten()?;
    Some(Mtime { seconds: seconds.parse().ok()?, nanos: u32::try_from(nanos).ok()? })
}

fn runs(value: &[u8]) -> Option<Vec<Run>> {
    if value.is_empty() {
        return Some(Vec::new());
    }
    let mut numbers = value.split(|byte| *byte == b',').map(number);
    let mut runs = Vec::new();
    while let Some(offset) = numbers.next() {
        runs.push(Run { offset: offset?, length: numbers.next()?? });
        if runs.len() > RUNS_MAX {
            return None;
        }
    }
    Some(runs)
}

/// The records before an entry, read whole within their bound.
pub(super) fn read_records(entry: &mut tar::Entry<'_, impl Read>) -> Result<Vec<u8>, Error> {
    let size = entry.header().entry_size().map_err(|error| Error::format(error.to_string()))?;
    if size > PAX_BYTES_MAX {
        return Err(Error::bound(b"", "bytes of records of one entry", PAX_BYTES_MAX));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(|error| Error::format(error.to_string()))?;
    Ok(bytes)
}

/// What a header and the records before it say; the path was not looked at yet.
pub(super) fn parse(header: &Header, records: Option<&[u8]>) -> Result<Entry, Error> {
    let bad = |problem: &str| Error::format(problem);
    let number = |read: io::Result<u64>| read.map_err(|error| Error::format(error.to_string()));
    let records = match records {
        Some(bytes) => Records::parse(bytes).ok_or_else(|| bad("its records are not those of a layer"))?,
        None => Records::default(),
    };
    let as_field = |field: &[u8; NAME_FIELD_BYTES]| {
        field.iter().take_while(|byte| **byte != 0).copied().collect::<Vec<u8>>()
    };
    let old = header.as_old();
    let path = records.path.unwrap_or_else(|| as_field(&old.name));
    let target = records.target.unwrap_or_else(|| as_field(&old.linkname));
    let refused = |what: &str| Err(Error::entry(&path, format!("it is {what}")));
    let stored = number(header.entry_size())?;
    let kind = match header.entry_type() {
        EntryType::Regular if records.is_whiteout => Kind::Whiteout,
        EntryType::Regular => {
            let size = records.size.unwrap_or(stored);
            let whole = if size == 0 { Vec::new() } else { vec![Run { offset: 0, length: size }] };
            let runs = records.runs.unwrap_or(whole);
            check_runs(&path, size, stored, &runs)?;
            Kind::File { size, runs }
        }
        EntryType::Directory => Kind::Directory { opaque: records.is_opaque },
        EntryType::Symlink => Kind::Symlink { target },
        EntryType::Link => Kind::Link { target },
        EntryType::Fifo => Kind::Fifo,
        EntryType::Char => return refused("a character device"),
        EntryType::Block => return refused("a block device"),
        other => return refused(&format!("of the tar type {:?}", char::from(other.as_byte()))),
    };
    if stored != 0 && !matches!(kind, Kind::File { .. }) {
        return Err(Error::entry(&path, "it has content and is no file"));
    }
    let attribute_bytes: usize =
        records.attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
    if attribute_bytes > ATTRIBUTE_BYTES_MAX {
        return Err(Error::bound(&path, "bytes of attributes", ATTRIBUTE_BYTES_MAX as u64));
    }
    let mut attributes = records.attributes;
    attributes.sort_unstable();
    if attributes.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::entry(&path, "it has an attribute twice"));
    }
    let id = |read| number(read).and_then(|id| u32::try_from(id).map_err(|_| bad("an id is too large")));
    let seconds = number(header.mtime())?;
    let mtime = records.mtime.unwrap_or(Mtime { seconds: i64::try_from(seconds).unwrap_or(0), nanos: 0 });
    let mode = header.mode().map_err(|error| Error::format(error.to_string()))?;
    let (uid, gid) = (id(header.uid())?, id(header.gid())?);
    Ok(Entry { path, kind, mode, uid, gid, mtime, attributes })
}

/// Runs lie in the file, ascending and apart, and are as long as what is stored.
fn check_runs(path: &[u8], size: u64, stored: u64, runs: &[Run]) -> Result<(), Error> {
    let mut end = 0;
    let mut sum = 0u64;
    for (index, run) in runs.iter().enumerate() {
        let apart = if index == 0 { run.offset >= end } else { run.offset > end };
        let until = run.offset.checked_add(run.length).filter(|until| apart && *until <= size);
        let Some(until) = until.filter(|_| run.length > 0 && run.offset % block_size(size) == 0) else {
            return Err(Error::entry(path, "its runs of data are out of order"));
        };
        end = until;
        sum += run.length;
    }
    if sum != stored {
        return Err(Error::entry(path, format!("its data is {stored} bytes, its runs say {sum}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_records_length_counts_itself() {
        for length in 0..1200 {
            let mut bytes = Vec::new();
            record(&mut bytes, b"path", &vec![b'x'; length]);
            let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
            assert_eq!(number(&bytes[..digits]), Some(bytes.len() as u64));
            assert_eq!(Records::parse(&bytes).unwrap().path.unwrap().len(), length);
        }
    }

    #[test]
    fn attribute_names_and_values_of_any_bytes_survive() {
        for name in [&b"user.a"[..], b"user.a=b%=", b"user.%25%3D%", b"user.\xff\n"] {
            let mut bytes = Vec::new();
            record(&mut bytes, &[ATTRIBUTE, &escaped(name)].concat(), b"\n12 path=x\n\0");
            let records = Records::parse(&bytes).unwrap();
            assert_eq!(records.attributes, [(name.to_vec(), b"\n12 path=x\n\0".to_vec())]);
            assert_eq!(records.path, None);
        }
    }

    #[test]
    fn records_that_are_no_records_are_refused() {
        for bad in [
            &b"x"[..],
            b"10 path=a",
            b"9 path=a\n\n",
            b"3 \n",
            b"99999999999999999999 path=a\n",
            b"14 unknown=a\n\n",
            b"13 mtime=1.5\n",
            b"-9 path=a\n",
        ] {
            assert!(Records::parse(bad).is_none(), "{}", bad.escape_ascii());
        }
    }
}
