//! What sealing asks of a disk. The one implementation outside tests is [`LocalDisk`]; tests put
//! a disk in its place that fails or dies at a chosen operation.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;

pub(crate) trait Disk: fmt::Debug + Send {
    /// Creates or replaces a file; its bytes are durable when this returns, its name is not.
    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Puts `bytes` at offset `at`, as the end of the file; durable when this returns.
    fn append_synced(&self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
}

#[derive(Debug)]
pub(crate) struct LocalDisk;

impl Disk for LocalDisk {
    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn append_synced(&self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.set_len(at)?;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

#[cfg(test)]
pub(crate) mod faulty {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// How the chosen operation goes wrong.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Fault {
        /// Nothing of it happens.
        Before,
        /// A write leaves half its bytes; everything else does nothing.
        Half,
        /// All of it happens, and yet it reports an error.
        After,
    }

    #[derive(Debug, Clone, Copy, Default)]
    pub(crate) struct Script {
        /// Operations until the fault; none: no fault.
        pub(crate) left: Option<usize>,
        pub(crate) fault: Option<Fault>,
        /// As if the process was killed: no operation after the fault has an effect.
        pub(crate) kill: bool,
        pub(crate) dead: bool,
        /// Operations asked for so far.
        pub(crate) asked: usize,
    }

    #[derive(Debug, Clone, Default)]
    pub(crate) struct FaultyDisk(pub(crate) Arc<Mutex<Script>>);

    impl FaultyDisk {
        pub(crate) fn failing(after: usize, fault: Fault, kill: bool) -> Self {
            let script = Script { left: Some(after), fault: Some(fault), kill, ..Script::default() };
            Self(Arc::new(Mutex::new(script)))
        }

        /// No fault from here on, if none has come yet.
        pub(crate) fn heal(&self) {
            self.0.lock().unwrap().left = None;
        }

        pub(crate) fn script(&self) -> Script {
            *self.0.lock().unwrap()
        }

        fn run(
            &self,
            whole: impl FnOnce() -> io::Result<()>,
            half: impl FnOnce() -> io::Result<()>,
        ) -> io::Result<()> {
            let failed = || io::Error::from(io::ErrorKind::StorageFull);
            let fault = {
                let mut script = self.0.lock().unwrap();
                script.asked += 1;
                if script.dead {
                    return Err(failed());
                }
                let due = script.left == Some(0);
                script.left = script.left.and_then(|left| left.checked_sub(1));
                script.dead = due && script.kill;
                script.fault.filter(|_| due)
            };
            match fault {
                None => whole(),
                Some(Fault::Before) => Err(failed()),
                Some(Fault::Half) => half().and_then(|()| Err(failed())),
                Some(Fault::After) => whole().and_then(|()| Err(failed())),
            }
        }
    }

    impl Disk for FaultyDisk {
        fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            let half = || fs::write(path, &bytes[..bytes.len() / 2]);
            self.run(|| LocalDisk.write_synced(path, bytes), half)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.run(|| LocalDisk.rename(from, to), || Ok(()))
        }
        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            self.run(|| LocalDisk.sync_dir(dir), || Ok(()))
        }
        fn append_synced(&self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
            let half = || LocalDisk.append_synced(path, at, &bytes[..bytes.len() / 2]);
            self.run(|| LocalDisk.append_synced(path, at, bytes), half)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            self.run(|| LocalDisk.remove(path), || Ok(()))
        }
    }
}
