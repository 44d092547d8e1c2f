//! The start of an executor whose predecessor was killed: what that one ran goes on under the same
//! incarnation, as if only the link had broken.
//!
//! An attempt is taken over if its record can be read, its sandbox lives, and its command had begun (or its
//! session served). One that had begun and cannot be taken over is told as lost. Everything else of the
//! predecessor is destroyed, and the scheduler starts it again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use rollout::failure::{Domain, Failure, FailureCode};
use rollout::outcome::{Outcome, Times};
use rollout::plan::StepKind;
use rollout::{BootTime, Bytes, IncarnationId, Timestamp};
use tokio::time::{Instant, timeout_at};

use crate::attempt::Resumed;
use crate::attempt::record::{self, Begun, EXTENSION, Record, Stage};
use crate::capture::{self, Capture, Stream};
use crate::ceilings::{FILES_PER_CAPTURE, descriptors};
use crate::clock::{began_at, boot_now, elapsed, wall_now};
use crate::lifecycle::{Adopted, Order};
use crate::sandbox::{Adoption, Mounted, OciBase, Sandbox};
use crate::workspace::Workspaces;
use crate::{Backends, attempt};

/// In the data directory: names the incarnation whose attempts are there.
const INCARNATION_FILE: &str = "incarnation";
/// Streams of a command.
const STREAMS: u8 = 2;
/// Attempts taken over at once.
const WIDTH: usize = 64;

/// An attempt that goes on.
#[derive(Debug)]
pub(crate) struct Heir {
    pub order: Order,
    pub dir: PathBuf,
    pub taken_at: Timestamp,
    pub held: Adopted,
    pub sandbox: Option<Box<dyn Sandbox>>,
    /// Of one that runs.
    pub work: Option<Work>,
}

#[derive(Debug)]
pub(crate) enum Work {
    Command(Resumed),
    Session(Begun),
}

/// What there is to go on with.
#[derive(Debug, Default)]
pub(crate) struct Estate {
    pub heirs: Vec<Heir>,
    /// The largest number in a name that may be in use.
    pub serial: u64,
    /// What nobody goes on with, to be removed with [`clear`].
    pub unkept: Vec<PathBuf>,
}

/// Under which the attempts of this data directory ran.
pub(crate) fn incarnation(data_dir: &Path) -> Option<IncarnationId> {
    std::fs::read_to_string(data_dir.join(INCARNATION_FILE)).ok()?.parse().ok()
}

/// Writes it down, for the next executor.
pub(crate) fn set_incarnation(data_dir: &Path, incarnation: IncarnationId) -> io::Result<()> {
    let staged = data_dir.join("incarnation.staged");
    std::fs::write(&staged, incarnation.to_string())?;
    std::fs::rename(staged, data_dir.join(INCARNATION_FILE))
}

/// When no incarnation is to be gone on with.
pub(crate) fn unset_incarnation(data_dir: &Path) -> io::Result<()> {
    match std::fs::remove_file(data_dir.join(INCARNATION_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

struct Heritage<'a> {
    backends: &'a Backends,
    workspaces: &'a Workspaces,
    capture_bytes_max: Bytes,
}

/// Takes over what can be before `ends_at`, when the lease is over, and lets the rest be removed.
pub(crate) async fn adopt(
    backends: &Backends,
    workspaces: &Workspaces,
    attempts_dir: &Path,
    capture_bytes_max: Bytes,
    ends_at: Option<BootTime>,
) -> Estate {
    let heritage = Heritage { backends, workspaces, capture_bytes_max };
    let mut estate = Estate::default();
    let inherited = backends.first().inheritance().map_or_else(Vec::new, |left| left.sandboxes);
    // Before anything new is made there.
    let dir = attempts_dir.to_owned();
    let left = tokio::task::spawn_blocking(move || LeftBehind::read(&dir)).await;
    let left = left.map_err(io::Error::other).and_then(|left| left);
    let (LeftBehind { paths, records }, serial) = left_behind(left, attempts_dir, &inherited);
    estate.serial = serial;
    // Of two that name one sandbox the later goes on in it; of the first only the outcome is left.
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for ((_, name), record) in &records {
        owners.insert(&record.deed.id, name);
    }
    let left = ends_at.map_or(0, |ends_at| ends_at.0.saturating_sub(boot_now().0));
    let deadline = Instant::now() + Duration::from_micros(left);
    let (heritage, owners) = (&heritage, &owners);
    let heirs: Vec<_> = records
        .iter()
        .map(|((_, name), record)| async move {
            let owns = owners.get(record.deed.id.as_str()) == Some(&name.as_str());
            let dir = attempts_dir.join(name);
            let heir = timeout_at(deadline, heritage.heir(&dir, name, record, owns)).await;
            let heir = heir.unwrap_or_else(|_| Err(Left::Lost("the lease was over first".to_owned())));
            heir.or_else(|left| {
                tracing::info!(attempt = name, reason = left.reason(), "not taken over");
                if owns { lost(record, dir, left) } else { None }.ok_or(())
            })
        })
        .collect();
    // In order: of two records of one attempt the later counts.
    let heirs: Vec<_> = stream::iter(heirs).buffered(WIDTH).collect().await;
    estate.heirs = heirs.into_iter().flatten().collect();
    for backend in backends.each() {
        let backend = Arc::clone(backend);
        tokio::spawn(async move { backend.disinherit().await });
    }
    let kept: BTreeSet<PathBuf> =
        estate.heirs.iter().flat_map(|heir| [heir.dir.clone(), record::path(&heir.dir)]).collect();
    estate.unkept = paths.into_iter().filter(|path| !kept.contains(path)).collect();
    estate
}

/// What there is to go on with, and the largest number in a name that may be in use.
fn left_behind(read: io::Result<LeftBehind>, attempts_dir: &Path, sandboxes: &[String]) -> (LeftBehind, u64) {
    let (left, unknown) = match read {
        Ok(left) => (left, 0),
        Err(error) => {
            tracing::warn!(dir = %attempts_dir.display(), %error, "what is there is neither gone on with nor removed");
            // Its names are not known, and are not to be given again: a number none of them has reached.
            (LeftBehind::default(), u64::try_from(wall_now().0).unwrap_or(0))
        }
    };
    let serial = unknown.max(last_serial(sandboxes, &left.paths));
    (left, serial)
}

/// What there is in the directory of the attempts.
#[derive(Debug, Default)]
struct LeftBehind {
    paths: Vec<PathBuf>,
    /// By number and name, oldest first.
    records: BTreeMap<(u64, String), Record>,
}

impl LeftBehind {
    /// Blocks.
    fn read(attempts_dir: &Path) -> io::Result<Self> {
        let paths: Vec<PathBuf> =
            std::fs::read_dir(attempts_dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        let read = |path: &PathBuf| {
            let name = path.file_stem().and_then(OsStr::to_str)?.to_owned();
            Some(((serial(&name)?, name), Record::read(path)?))
        };
        let written = paths.iter().filter(|path| path.extension() == Some(OsStr::new(EXTENSION)));
        let records = written.filter_map(read).collect();
        Ok(Self { paths, records })
    }
}

/// The number at the end of a name of ours.
fn serial(name: &str) -> Option<u64> {
    name.rsplit_once('-')?.1.parse().ok()
}

/// The largest in the names of sandboxes and of what is there of attempts: a directory is made before
/// anything is written down of it.
fn last_serial(sandboxes: &[String], paths: &[PathBuf]) -> u64 {
    let stems = paths.iter().filter_map(|path| path.file_stem().and_then(OsStr::to_str));
    sandboxes.iter().map(String::as_str).chain(stems).filter_map(serial).max().unwrap_or(0)
}

/// Removes what it can of these. Blocks.
pub(crate) fn clear(paths: Vec<PathBuf>) {
    for path in paths {
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "what nobody goes on with is not removed");
            }
            _ => {}
        }
    }
}

/// Why an attempt is not taken over.
enum Left {
    /// It had not begun.
    Fresh(String),
    /// What it had done is lost, if it had begun.
    Lost(String),
}

impl Left {
    fn reason(&self) -> &str {
        match self {
            Self::Fresh(reason) | Self::Lost(reason) => reason,
        }
    }
}

/// One that had begun must not run again in the same generation: its sandbox was lost.
fn lost(record: &Record, dir: PathBuf, left: Left) -> Option<Heir> {
    let (Stage::Command(begun) | Stage::Session(begun), Left::Lost(reason)) = (&record.stage, left) else {
        return None;
    };
    let order = record.order()?;
    let message = format!("the sandbox was lost while no executor was there: {reason}");
    let failure = match order.step.kind {
        StepKind::Grader => Failure::caused_by(FailureCode::GraderLost, Domain::Sandbox, message),
        StepKind::Agent | StepKind::Run | StepKind::Session => Failure::new(FailureCode::NodeLost, message),
    };
    let times = Times {
        taken_at: record.head.taken_at,
        started_at: Some(begun.started_at),
        ended_at: wall_now(),
        boot: Some(begun.boot),
        run: Some(elapsed(began_at(begun.began))),
        checkpoint: None,
    };
    let outcome =
        Outcome { image_digest: record.deed.image_digest.clone(), ..Outcome::unmeasured(failure, times) };
    let held = Adopted::Ended { outcome: Box::new(outcome), kept: false, has_sandbox: false };
    Some(Heir { order, dir, taken_at: record.head.taken_at, held, sandbox: None, work: None })
}

impl Heritage<'_> {
    async fn heir(&self, dir: &Path, name: &str, record: &Record, owns: bool) -> Result<Heir, Left> {
        let order = record.order().ok_or_else(|| Left::Fresh("its record cannot be read".to_owned()))?;
        let taken_at = record.head.taken_at;
        let heir =
            |held, sandbox, work, order| Heir { order, dir: dir.to_owned(), taken_at, held, sandbox, work };
        match &record.stage {
            Stage::Ended { outcome, kept } => {
                let sandbox =
                    if *kept && owns { self.sandbox(&order, name, record).await.ok() } else { None };
                let has_sandbox = sandbox.is_some();
                let held = Adopted::Ended { outcome: outcome.clone(), kept: *kept, has_sandbox };
                Ok(heir(held, sandbox, None, order))
            }
            Stage::Kept if owns => {
                let sandbox = self.sandbox(&order, name, record).await.map_err(Left::Lost)?;
                Ok(heir(Adopted::Kept, Some(sandbox), None, order))
            }
            Stage::Command(begun) if owns => {
                let sandbox = self.sandbox(&order, name, record).await.map_err(Left::Lost)?;
                let work = match self.command(sandbox.as_ref(), dir, begun).await {
                    Ok(work) => Work::Command(work),
                    Err(left) => {
                        attempt::destroy(sandbox).await;
                        return Err(left);
                    }
                };
                let held = Adopted::Running { started_at: begun.started_at };
                Ok(heir(held, Some(sandbox), Some(work), order))
            }
            Stage::Session(begun) if owns => {
                let sandbox = self.sandbox(&order, name, record).await.map_err(Left::Lost)?;
                let held = Adopted::Running { started_at: begun.started_at };
                Ok(heir(held, Some(sandbox), Some(Work::Session(begun.clone())), order))
            }
            Stage::Kept | Stage::Command(_) | Stage::Session(_) => {
                Err(Left::Fresh("its sandbox is another's".to_owned()))
            }
        }
    }

    async fn sandbox(&self, order: &Order, name: &str, record: &Record) -> Result<Box<dyn Sandbox>, String> {
        let deed = record.deed.clone();
        let pin = |tree: &PathBuf| {
            self.workspaces.pin(tree).ok_or_else(|| format!("layer {} is gone", tree.display()))
        };
        let mut layers = Vec::with_capacity(deed.layers.len());
        for (layer, tree) in &deed.layers {
            layers.push(Mounted { layer: layer.clone(), at: pin(tree)? });
        }
        let base = match &deed.base {
            None => None,
            Some(base) => {
                let layers = base.trees.iter().map(pin).collect::<Result<_, _>>()?;
                let (digest, env) = (base.digest.clone(), base.env.clone());
                Some(Arc::new(OciBase { digest, layers, env, hold: None }))
            }
        };
        let backend = self.backends.of(order.step.backend).ok_or("its backend is not offered here")?;
        let adopted = backend.adopt(name, Adoption { deed, layers, base }).await;
        adopted.map_err(|error| crate::storage::chain(&error))
    }

    async fn command(&self, sandbox: &dyn Sandbox, dir: &Path, begun: &Begun) -> Result<Resumed, Left> {
        let process = sandbox.find(begun.number);
        let process = process.ok_or_else(|| Left::Fresh("its command had not begun".to_owned()))?;
        let streams = self.streams(sandbox, dir, begun).await;
        let [stdout, stderr] = streams.map_err(Left::Lost)?;
        Ok(Resumed { begun: begun.clone(), process, stdout, stderr })
    }

    async fn streams(
        &self,
        sandbox: &dyn Sandbox,
        dir: &Path,
        begun: &Begun,
    ) -> Result<[Capture; STREAMS as usize], String> {
        let ends = sandbox.entrusted(begun.number, STREAMS).await.map_err(|error| error.to_string())?;
        let [stdout, stderr] =
            <[_; STREAMS as usize]>::try_from(ends).map_err(|_| "its streams are not there".to_owned())?;
        let held = descriptors::wait_for(2 * FILES_PER_CAPTURE).await.map_err(|error| error.to_string())?;
        let held = Arc::new(held);
        let resume = |stream, end| {
            let path = capture::path(dir, stream);
            Capture::resume(path, self.capture_bytes_max, end, Arc::clone(&held))
                .map_err(|error| format!("its output: {error}"))
        };
        Ok([resume(Stream::Stdout, stdout)?, resume(Stream::Stderr, stderr)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_use_that_only_a_directory_has() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("job-7")).unwrap();
        std::fs::write(at("job-5.record"), "of another build").unwrap();
        std::fs::write(at("job-6.staged"), "half").unwrap();
        let left = LeftBehind::read(dir.path()).unwrap();
        assert!(left.records.is_empty());
        assert_eq!(last_serial(&["job-3".to_owned()], &left.paths), 7);
        assert_eq!(last_serial(&["job-9".to_owned()], &left.paths), 9);
        assert_eq!(last_serial(&[], &[]), 0);
    }

    #[test]
    fn where_the_names_cannot_be_read_none_of_them_is_given_again() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("job-7")).unwrap();
        let sandboxes = ["job-9".to_owned()];
        let (left, serial) = left_behind(LeftBehind::read(dir.path()), dir.path(), &sandboxes);
        assert_eq!((left.paths.len(), serial), (1, 9));
        let absent = dir.path().join("absent");
        let before = u64::try_from(wall_now().0).unwrap();
        let (left, serial) = left_behind(LeftBehind::read(&absent), &absent, &sandboxes);
        // A million names a second since 1970 would not reach it.
        assert!(left.paths.is_empty() && serial >= before, "{serial}");
        // A name that is known and larger still counts.
        let larger = [format!("job-{}", u64::MAX)];
        assert_eq!(left_behind(LeftBehind::read(&absent), &absent, &larger).1, u64::MAX);
    }

    #[test]
    fn what_cannot_be_removed_keeps_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("job-2/deep")).unwrap();
        std::fs::write(at("job-2/deep/file"), "").unwrap();
        std::fs::write(at("job-3.record"), "").unwrap();
        // No file has anything below it.
        let never = at("job-3.record").join("file");
        clear(vec![never, at("job-1"), at("job-2"), at("job-3.record")]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
