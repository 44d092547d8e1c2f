//! What is written down of an attempt, so that the next executor goes on with it if this one is killed. It
//! need not reach the disk: what a process wrote outlives the process, and no sandbox outlives the machine.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use prost::Message as _;
use rollout::outcome::Outcome;
use rollout::{BootTime, Millis, Timestamp};
use rollout_wire::v1;
use serde::{Deserialize, Serialize};

use super::spares::Spares;
use crate::broker::serve::lock;
use crate::lifecycle::Order;
use crate::messages;
use crate::sandbox::{Deed, Sandbox, Stats};

mod changes;

pub(crate) use changes::Changes;

/// How the name of such a file ends.
pub(crate) const EXTENSION: &str = "record";

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub head: Head,
    pub deed: Deed,
    pub stage: Stage,
}

/// The first line of the file. Each line behind it is a [`Mark`], and the last whole one counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The order as it came, encoded.
    pub order: String,
    pub taken_at: Timestamp,
}

/// How far it had come.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Mark<D, S> {
    deed: D,
    stage: S,
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
    spares: Arc<Spares>,
    head: Head,
    /// Of the sandbox that it last wrote of.
    deed: Mutex<Option<Deed>>,
}

impl Book {
    /// Beside the directory of the attempt.
    pub fn new(spares: Arc<Spares>, dir: &Path, order: &Order, taken_at: Timestamp) -> Self {
        let order = hex::encode(messages::to_start(order).encode_to_vec());
        Self { path: path(dir), spares, head: Head { order, taken_at }, deed: Mutex::default() }
    }

    /// Writes how far it has come. Nothing, for a sandbox that nobody could take over.
    pub fn write(&self, sandbox: &dyn Sandbox, stage: &Stage) -> io::Result<()> {
        let Some(deed) = sandbox.deed() else { return Ok(()) };
        let written = self.append(&deed, stage);
        *lock(&self.deed) = Some(deed);
        written
    }

    /// Writes how it ended, whether or not its sandbox came back. Nothing, if there was none to write of:
    /// then nothing had begun.
    pub fn end(&self, sandbox: Option<&dyn Sandbox>, stage: &Stage) -> io::Result<()> {
        let deed = sandbox.and_then(Sandbox::deed).or_else(|| lock(&self.deed).clone());
        deed.map_or(Ok(()), |deed| self.append(&deed, stage))
    }

    fn append(&self, deed: &Deed, stage: &Stage) -> io::Result<()> {
        append(&self.spares, &self.path, Some(&self.head), deed, stage)
    }

    /// Of an attempt that comes to nothing.
    pub fn remove(&self) {
        remove(&self.spares, &self.path);
    }
}

/// The record of the attempt whose directory this is.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.with_extension(EXTENSION)
}

pub(crate) fn remove(spares: &Spares, path: &Path) {
    match spares.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "the record of an attempt stays");
        }
        _ => {}
    }
}

/// In one call, which a kill may tear: then the line before it counts.
fn append(spares: &Spares, path: &Path, head: Option<&Head>, deed: &Deed, stage: &Stage) -> io::Result<()> {
    let mut file = spares.append(path)?;
    let length = file.metadata()?.len();
    let mut lines = Vec::new();
    if let Some(head) = head
        && length == 0
    {
        serde_json::to_writer(&mut lines, head)?;
    }
    lines.push(b'\n');
    serde_json::to_writer(&mut lines, &Mark { deed, stage })?;
    file.write_all(&lines).inspect_err(|_| {
        // What found no room: without a whole head nothing behind it could be read.
        if let Err(error) = file.set_len(length) {
            tracing::warn!(path = %path.display(), %error, "the record of an attempt is cut");
        }
    })
}

impl Record {
    /// None: it cannot be read, or another build wrote it.
    pub fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read(path).ok()?;
        let mut lines = text.split(|&byte| byte == b'\n');
        let head = serde_json::from_slice(lines.next()?).ok()?;
        let Mark { deed, stage } = lines.rev().find_map(|line| serde_json::from_slice(line).ok())?;
        Some(Self { head, deed, stage })
    }

    /// Writes another stage behind it.
    pub fn goes_on(&self, spares: &Spares, path: &Path, stage: &Stage) -> io::Result<()> {
        append(spares, path, None, &self.deed, stage)
    }

    pub fn order(&self) -> Option<Order> {
        let start = v1::StartAttempt::decode(hex::decode(&self.head.order).ok()?.as_slice()).ok()?;
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
    pub fn begun(spares: &Arc<Spares>, path: PathBuf, stage: &Stage) -> Book {
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
        let head = Head { order: String::new(), taken_at: Timestamp(0) };
        let book = Book { path, spares: Arc::clone(spares), head, deed: Mutex::new(Some(deed)) };
        book.end(None, stage).unwrap();
        book
    }

    pub fn spares(dir: &Path) -> Arc<Spares> {
        let dir = dir.join("spares");
        crate::private_dir::make(&dir).unwrap();
        Arc::new(Spares::new(dir).unwrap())
    }

    /// A disk that is full for a while: what is written later can be read.
    #[test]
    fn what_found_no_room_leaves_nothing_of_itself() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        use nix::sys::signal::{SigHandler, Signal, signal};
        let dir = tempfile::tempdir().unwrap();
        let spares = spares(dir.path());
        let path = dir.path().join("job-1.record");
        let book = begun(&spares, path.clone(), &Stage::Kept);
        std::fs::write(&path, "").unwrap();
        // SAFETY: the signal is ignored, and no handler is set. Past the limit a write is then refused.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        for (room, left) in [(10, 0), (10_000, 10_000 - 10)] {
            std::fs::write(&path, vec![b' '; left]).unwrap();
            setrlimit(Resource::RLIMIT_FSIZE, room, hard).unwrap();
            let refused = book.end(None, &Stage::Kept);
            setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
            assert!(refused.is_err());
            assert_eq!(std::fs::metadata(&path).unwrap().len(), left as u64);
        }
        std::fs::write(&path, "").unwrap();
        book.end(None, &Stage::Kept).unwrap();
        assert!(Record::read(&path).is_some());
    }

    /// A kill may come in the middle of a write, and the next executor writes behind it.
    #[test]
    fn the_last_whole_line_counts_wherever_a_write_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let spares = spares(dir.path());
        let path = dir.path().join("job-1.record");
        let session = |number| {
            let (began, started_at) = (BootTime(0), Timestamp(0));
            let (boot, base) = (Millis(0), Stats::default());
            Stage::Session(Begun { number, began, started_at, boot, base, planted: None, timed_out: false })
        };
        let number = |record: Record| match record.stage {
            Stage::Session(begun) => begun.number,
            other => panic!("{other:?}"),
        };
        let book = begun(&spares, path.clone(), &session(1));
        let first = std::fs::read(&path).unwrap();
        book.end(None, &session(2)).unwrap();
        let both = std::fs::read(&path).unwrap();
        assert!(both.starts_with(&first) && Record::read(&path).map(number) == Some(2));
        for cut in first.len()..both.len() {
            std::fs::write(&path, &both[..cut]).unwrap();
            assert_eq!(Record::read(&path).map(number), Some(1), "cut at {cut}");
            book.end(None, &session(3)).unwrap();
            assert_eq!(Record::read(&path).map(number), Some(3), "cut at {cut}");
        }
        for cut in 0..first.len() {
            std::fs::write(&path, &first[..cut]).unwrap();
            assert!(Record::read(&path).is_none(), "cut at {cut}");
        }
    }
}
