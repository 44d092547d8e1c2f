//! What is written down of an attempt, so that the next executor goes on with it if this one is killed. It
//! need not reach the disk: what a process wrote outlives the process, and no sandbox outlives the machine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use prost::Message as _;
use rollout::outcome::Outcome;
use rollout::{BootTime, Millis, Timestamp};
use rollout_wire::v1;
use serde::{Deserialize, Serialize};

use crate::broker::serve::lock;
use crate::lifecycle::Order;
use crate::messages;
use crate::sandbox::{Deed, Sandbox, Stats};

mod changes;

pub(crate) use changes::Changes;

/// How the name of such a file ends.
pub(crate) const EXTENSION: &str = "record";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The order as it came, encoded.
    pub order: String,
    pub deed: Deed,
    pub taken_at: Timestamp,
    pub stage: Stage,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Its command runs, or has ended and nobody was told.
    Command(Begun),
    /// It serves calls.
    Session(Begun),
    /// It ended. `kept`: its sandbox waits for the next step.
    Ended { outcome: Box<Outcome>, kept: bool },
    /// Its end is stored by the scheduler, and its sandbox waits.
    Kept,
}

/// The beginning of the work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Begun {
    /// Of the process of a command.
    pub number: u32,
    pub began: BootTime,
    pub started_at: Timestamp,
    pub boot: Millis,
    /// The kernel's counters then.
    pub base: Stats,
    /// Of a grader: the reward file that was there before it.
    pub planted: Option<String>,
    /// It was told to end.
    pub timed_out: bool,
}

/// Where the record of one attempt is kept.
#[derive(Debug)]
pub(crate) struct Book {
    path: PathBuf,
    order: String,
    taken_at: Timestamp,
    /// Of the sandbox that it last wrote of.
    deed: Mutex<Option<Deed>>,
}

impl Book {
    /// Beside the directory of the attempt.
    pub fn new(dir: &Path, order: &Order, taken_at: Timestamp) -> Self {
        let order = hex::encode(messages::to_start(order).encode_to_vec());
        Self { path: path(dir), order, taken_at, deed: Mutex::default() }
    }

    /// Writes how far it has come. Nothing, for a sandbox that nobody could take over.
    pub fn write(&self, sandbox: &dyn Sandbox, stage: Stage) -> io::Result<()> {
        let Some(deed) = sandbox.deed() else { return Ok(()) };
        *lock(&self.deed) = Some(deed.clone());
        self.write_of(deed, stage)
    }

    /// Writes how it ended, whether or not its sandbox came back. Nothing, if there was none to write of:
    /// then nothing had begun.
    pub fn end(&self, sandbox: Option<&dyn Sandbox>, stage: Stage) -> io::Result<()> {
        let deed = sandbox.and_then(Sandbox::deed).or_else(|| lock(&self.deed).clone());
        deed.map_or(Ok(()), |deed| self.write_of(deed, stage))
    }

    fn write_of(&self, deed: Deed, stage: Stage) -> io::Result<()> {
        let record = Record { order: self.order.clone(), deed, taken_at: self.taken_at, stage };
        record.write(&self.path)
    }

    /// Of an attempt that comes to nothing.
    pub fn remove(&self) {
        remove(&self.path);
    }
}

/// The record of the attempt whose directory this is.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.with_extension(EXTENSION)
}

pub(crate) fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "the record of an attempt stays");
        }
        _ => {}
    }
}

impl Record {
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let staged = path.with_extension("staged");
        std::fs::write(&staged, serde_json::to_vec(self)?)?;
        std::fs::rename(staged, path)
    }

    /// None: it cannot be read, or another build wrote it.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    pub fn order(&self) -> Option<Order> {
        let start = v1::StartAttempt::decode(hex::decode(&self.order).ok()?.as_slice()).ok()?;
        match messages::start(&start).ok()? {
            messages::Command::Start(order) => Some(*order),
            _ => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// As after `stage` was written of a sandbox.
    pub fn begun(path: PathBuf, stage: Stage) -> Book {
        let deed = Deed {
            id: "job-1".to_owned(),
            image: "dir:base".to_owned(),
            image_digest: String::new(),
            workdir: "/".to_owned(),
            id_base: 1 << 20,
            init_pid: 2,
            memory_disk: rollout::Bytes(0),
            disk_limit: rollout::Bytes(0),
            layers: Vec::new(),
            base: None,
        };
        let book = Book { path, order: String::new(), taken_at: Timestamp(0), deed: Mutex::new(Some(deed)) };
        book.end(None, stage).unwrap();
        book
    }
}
