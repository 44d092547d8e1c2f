//! The action log of one session: an append-only file outside the sandbox. What is to be started is on
//! disk before it starts, what was done before anyone is told. Records that wait together are synced
//! together: whoever gets the file writes for all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use prost::Message as _;
use rollout_wire::v1;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

use super::record::{HEAD, decode, encode};
use crate::broker::serve::lock;

/// Recorded actions of one session.
pub(super) const ACTIONS_MAX: u64 = 100_000;
/// Bytes of one log; past it nothing new is begun.
pub(super) const LOG_BYTES_MAX: u64 = 1 << 30;

pub(super) const DISPATCHED: &str = "dispatched";
pub(super) const DONE: &str = "done";
pub(super) const UNKNOWN: &str = "unknown";
/// Of the record of how its driver finished the session, which is no action.
const FINISHED: &str = "finished";

/// What became of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// Where its last record is.
    Done {
        at: u64,
    },
    /// It was begun, and nothing is known of its end.
    Unknown,
}

#[derive(Debug, Clone)]
struct Known {
    ordinal: u64,
    payload: String,
    state: State,
}

#[derive(Debug, Default)]
struct Index {
    by_id: BTreeMap<Arc<str>, Known>,
    by_ordinal: Vec<Arc<str>>,
    /// Encoded and not in the file yet.
    pending: Vec<u8>,
    /// End of the file with what is pending.
    end: u64,
    /// How its driver finished the session, encoded, and the end of that record.
    finish: Option<(Vec<u8>, u64)>,
    /// Why nothing is written any more.
    failed: Option<String>,
}

/// What only the writer has to know.
#[derive(Debug, Default)]
struct Turn {
    /// The head is in the file, and its name is on disk.
    has_begun: bool,
}

/// What is to be done about an action.
#[derive(Debug, PartialEq)]
pub(crate) enum Begun {
    /// Nothing of that id was known: once [`commit`](ActionLog::commit) is through, it may start.
    New {
        ordinal: u64,
        end: u64,
    },
    /// The same was begun before: [`settled`](ActionLog::settled) gives its end.
    Known {
        ordinal: u64,
    },
    Conflict,
    /// As many as there may be.
    Spent,
    Full,
}

#[derive(Debug, thiserror::Error)]
#[error("the action log {} cannot be {action}", path.display())]
pub(crate) struct LogError {
    path: PathBuf,
    action: &'static str,
    #[source]
    source: io::Error,
}

#[derive(Debug)]
pub(crate) struct ActionLog {
    /// Opened for each write and each read: no session holds a descriptor for it.
    path: PathBuf,
    /// Whoever has it writes.
    turn: Arc<AsyncMutex<Turn>>,
    index: Mutex<Index>,
    /// Up to here the file is on disk.
    synced: AtomicU64,
    syncs: AtomicU64,
    /// Changes with every end of an action.
    settled: watch::Sender<()>,
}

impl ActionLog {
    /// Begins a new one. Its name and its bytes last from the first record on. Blocks.
    pub fn create(path: &Path) -> Result<Self, LogError> {
        let made = File::options().write(true).create_new(true).mode(0o600).open(path);
        made.map_err(|source| LogError { path: path.to_owned(), action: "made", source })?;
        Ok(Self::new(path, Index { end: HEAD.len() as u64, ..Index::default() }, 0))
    }

    /// Goes on after what a session had recorded when it was parked: `from` is that log, and becomes the
    /// beginning of this one. Blocks.
    pub fn resumed(path: &Path, from: &Path) -> Result<Self, LogError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source| LogError { path, action, source }
        };
        // Beside it first: a log is whole or not there.
        let staged = path.with_added_extension("staged");
        let made = File::options().write(true).create(true).truncate(true).mode(0o600).open(&staged);
        let mut made = made.map_err(failed("made"))?;
        let mut file = File::open(from).map_err(failed("opened"))?;
        io::copy(&mut file, &mut made).and_then(|_| made.sync_all()).map_err(failed("written"))?;
        std::fs::rename(&staged, path).map_err(failed("named"))?;
        Self::resume(path)
    }

    /// What a session that is over left: whatever was begun and not ended is unknown for ever. Nothing
    /// can be appended to it. Blocks.
    pub fn past(path: &Path) -> Result<Self, LogError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source| LogError { path, action, source }
        };
        let file = File::open(path).map_err(failed("opened"))?;
        let mut index = Index { failed: Some("its session is over".into()), ..Index::default() };
        scan(&mut io::BufReader::new(file), |at, action| index.take(at, &action)).map_err(failed("read"))?;
        Ok(Self::new(path, index, u64::MAX))
    }

    /// Goes on with the log of an executor that was killed, behind its last whole record. Whatever was begun
    /// and not ended is unknown for ever. Blocks.
    pub fn resume(path: &Path) -> Result<Self, LogError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source| LogError { path, action, source }
        };
        let mut index = Index { end: HEAD.len() as u64, ..Index::default() };
        let file = File::options().read(true).write(true).open(path).map_err(failed("opened"))?;
        let mut reader = io::BufReader::new(&file);
        let whole = scan(&mut reader, |at, action| index.take(at, &action)).map_err(failed("read"))?;
        // A torn record was never told of.
        file.set_len(whole).and_then(|()| file.sync_data()).map_err(failed("cut"))?;
        index.end = whole.max(HEAD.len() as u64);
        let log = Self::new(path, index, if whole > 0 { whole } else { 0 });
        if let Ok(mut turn) = log.turn.try_lock() {
            turn.has_begun = whole > 0;
        }
        Ok(log)
    }

    fn new(path: &Path, index: Index, synced: u64) -> Self {
        Self {
            path: path.to_owned(),
            turn: Arc::default(),
            index: Mutex::new(index),
            synced: AtomicU64::new(synced),
            syncs: AtomicU64::new(0),
            settled: watch::Sender::new(()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Actions that are recorded.
    pub fn count(&self) -> u64 {
        lock(&self.index).by_ordinal.len() as u64
    }

    /// With what is not in the file yet.
    pub fn bytes(&self) -> u64 {
        lock(&self.index).end
    }

    /// How often the file was synced.
    #[cfg(test)]
    fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Whether an action of that id was begun, and with that payload.
    pub fn look_up(&self, id: &str, payload: &str) -> Option<Begun> {
        let index = lock(&self.index);
        let known = index.by_id.get(id)?;
        let same = known.payload == payload;
        Some(if same { Begun::Known { ordinal: known.ordinal } } else { Begun::Conflict })
    }

    /// Looks the action up; one that is new is recorded as dispatched.
    pub fn begin(&self, id: &str, payload: &str, actions_max: Option<u64>) -> Result<Begun, LogError> {
        let mut index = lock(&self.index);
        if let Some(known) = index.by_id.get(id) {
            let same = known.payload == payload;
            return Ok(if same { Begun::Known { ordinal: known.ordinal } } else { Begun::Conflict });
        }
        self.check(&index)?;
        let ordinal = index.by_ordinal.len() as u64;
        if actions_max.is_some_and(|max| ordinal >= max) {
            return Ok(Begun::Spent);
        }
        if ordinal >= ACTIONS_MAX || index.end >= LOG_BYTES_MAX {
            return Ok(Begun::Full);
        }
        let id: Arc<str> = id.into();
        index.append(&v1::Action {
            ordinal,
            action_id: id.as_ref().to_owned(),
            payload_sha256: payload.to_owned(),
            state: DISPATCHED.to_owned(),
            result: None,
        });
        let known = Known { ordinal, payload: payload.to_owned(), state: State::Running };
        index.by_id.insert(Arc::clone(&id), known);
        index.by_ordinal.push(id);
        Ok(Begun::New { ordinal, end: index.end })
    }

    /// Whether of any action nobody knows if it happened.
    pub(super) fn has_unknown(&self) -> bool {
        lock(&self.index).by_id.values().any(|known| matches!(known.state, State::Unknown))
    }

    /// Records how the action ended. When this returns it is on disk, and who waits is told.
    pub async fn end(self: &Arc<Self>, id: &str, result: v1::ActResult) -> Result<(), LogError> {
        let ended = match self.append_end(id, result) {
            Ok((at, end)) => self.commit(end).await.map(|()| at),
            Err(error) => Err(error),
        };
        let state = ended.as_ref().map_or(State::Unknown, |&at| State::Done { at });
        self.settle(id, state);
        ended.map(drop)
    }

    /// Where the record begins, and where the log then ends.
    fn append_end(&self, id: &str, result: v1::ActResult) -> Result<(u64, u64), LogError> {
        let mut index = lock(&self.index);
        self.check(&index)?;
        let missing = || self.error("written", io::ErrorKind::NotFound.into());
        let known = index.by_id.get(id).cloned().ok_or_else(missing)?;
        let at = index.end;
        index.append(&v1::Action {
            ordinal: known.ordinal,
            action_id: id.to_owned(),
            payload_sha256: known.payload,
            state: DONE.to_owned(),
            result: Some(result),
        });
        Ok((at, index.end))
    }

    /// Records, once, how the driver finished the session; gives where the log then ends. It lasts once
    /// [`commit`](Self::commit) is through.
    pub fn finish(&self, said: &v1::FinishSessionRequest) -> Result<u64, LogError> {
        let mut index = lock(&self.index);
        self.check(&index)?;
        if let Some((_, end)) = &index.finish {
            return Ok(*end);
        }
        let data = said.encode_to_vec();
        let result = v1::ActResult { data: data.clone(), ..v1::ActResult::default() };
        let ordinal = index.by_ordinal.len() as u64;
        index.append(&v1::Action {
            ordinal,
            state: FINISHED.to_owned(),
            result: Some(result),
            ..v1::Action::default()
        });
        let end = index.end;
        index.finish = Some((data, end));
        Ok(end)
    }

    /// The end of the record, if the session was finished with these words.
    pub fn finished(&self, said: &v1::FinishSessionRequest) -> Option<u64> {
        let index = lock(&self.index);
        index.finish.as_ref().filter(|(data, _)| *data == said.encode_to_vec()).map(|(_, end)| *end)
    }

    /// How its driver had finished the session, if it had.
    pub fn last_word(&self) -> Option<v1::FinishSessionRequest> {
        let index = lock(&self.index);
        let (data, _) = index.finish.as_ref()?;
        v1::FinishSessionRequest::decode(data.as_slice()).ok()
    }

    /// Nothing will be known of its end.
    pub fn lose(&self, id: &str) {
        self.settle(id, State::Unknown);
    }

    fn settle(&self, id: &str, state: State) {
        if let Some(known) = lock(&self.index).by_id.get_mut(id) {
            known.state = state;
        }
        self.settled.send_replace(());
    }

    /// Waits until an action has ended, and gives it with its result.
    pub async fn settled(self: &Arc<Self>, ordinal: u64) -> Result<v1::Action, LogError> {
        let mut changed = self.settled.subscribe();
        loop {
            let action = self.action(ordinal).await?;
            if action.state != DISPATCHED {
                return Ok(action);
            }
            // The sender is `self`.
            let _ = changed.changed().await;
        }
    }

    /// An action as it is now.
    pub async fn action(self: &Arc<Self>, ordinal: u64) -> Result<v1::Action, LogError> {
        let (id, known) = {
            let index = lock(&self.index);
            let found = usize::try_from(ordinal).ok().and_then(|at| index.by_ordinal.get(at));
            let found = found.and_then(|id| Some((Arc::clone(id), index.by_id.get(id)?.clone())));
            found.ok_or_else(|| self.error("read", io::ErrorKind::NotFound.into()))?
        };
        let state = match known.state {
            State::Done { at } => {
                let log = Arc::clone(self);
                let read = tokio::task::spawn_blocking(move || log.read(at)).await;
                return read.map_err(|error| self.error("read", io::Error::other(error)))?;
            }
            State::Running => DISPATCHED,
            State::Unknown => UNKNOWN,
        };
        Ok(v1::Action {
            ordinal,
            action_id: id.as_ref().to_owned(),
            payload_sha256: known.payload,
            state: state.to_owned(),
            result: None,
        })
    }

    fn read(&self, at: u64) -> Result<v1::Action, LogError> {
        let failed = |source| self.error("read", source);
        let file = File::open(&self.path).map_err(failed)?;
        let mut frame = [0; 4];
        file.read_exact_at(&mut frame, at).map_err(failed)?;
        let len = usize::try_from(u32::from_le_bytes(frame)).unwrap_or(usize::MAX);
        if len > super::record::RECORD_MAX {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        }
        let mut bytes = vec![0; len + super::record::FRAME];
        file.read_exact_at(&mut bytes, at).map_err(failed)?;
        decode(&bytes).map(|(action, _)| action).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }

    /// Waits until the log is on disk up to `end`.
    pub async fn commit(self: &Arc<Self>, end: u64) -> Result<(), LogError> {
        loop {
            if self.synced.load(Ordering::Acquire) >= end {
                return Ok(());
            }
            let turn = Arc::clone(&self.turn).lock_owned().await;
            if self.synced.load(Ordering::Acquire) >= end {
                return Ok(());
            }
            // With the turn: who had it before may have failed.
            self.check(&lock(&self.index))?;
            let log = Arc::clone(self);
            // The turn goes along: a caller that goes away does not tear the write.
            let flushed = tokio::task::spawn_blocking(move || log.flush(turn)).await;
            let failed = |source| self.error("written", source);
            flushed.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)?;
        }
    }

    /// Writes what is pending. After a failed write or sync nobody knows what is on disk: it is the last.
    /// A file that cannot be opened is as it was: what is pending stays so.
    fn flush(&self, mut turn: OwnedMutexGuard<Turn>) -> io::Result<()> {
        if lock(&self.index).failed.is_some() {
            return Ok(());
        }
        let file = File::options().append(true).open(&self.path)?;
        let (bytes, end) = {
            let mut index = lock(&self.index);
            (std::mem::take(&mut index.pending), index.end)
        };
        let written = self.write(file, turn.has_begun, &bytes);
        match &written {
            Ok(()) => {
                turn.has_begun = true;
                self.syncs.fetch_add(1, Ordering::Relaxed);
                self.synced.store(end, Ordering::Release);
            }
            Err(error) => lock(&self.index).failed = Some(error.to_string()),
        }
        written
    }

    fn write(&self, mut file: File, has_begun: bool, bytes: &[u8]) -> io::Result<()> {
        if !has_begun {
            file.write_all(HEAD)?;
        }
        file.write_all(bytes).and_then(|()| file.sync_data())?;
        if !has_begun {
            File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
        }
        Ok(())
    }

    fn check(&self, index: &Index) -> Result<(), LogError> {
        let failed = |reason: &String| self.error("written", io::Error::other(reason.clone()));
        index.failed.as_ref().map_or(Ok(()), |reason| Err(failed(reason)))
    }

    fn error(&self, action: &'static str, source: io::Error) -> LogError {
        LogError { path: self.path.clone(), action, source }
    }
}

impl Index {
    fn append(&mut self, action: &v1::Action) {
        let bytes = encode(action);
        self.end += bytes.len() as u64;
        self.pending.extend(bytes);
    }

    /// A record that was read at `at`.
    fn take(&mut self, at: u64, action: &v1::Action) {
        if action.state == FINISHED {
            let data = action.result.as_ref().map(|result| result.data.clone()).unwrap_or_default();
            self.finish = Some((data, at));
            return;
        }
        let id: Arc<str> = action.action_id.as_str().into();
        let state = if action.state == DONE { State::Done { at } } else { State::Unknown };
        if let Some(known) = self.by_id.get_mut(&id) {
            known.state = state;
            return;
        }
        let ordinal = self.by_ordinal.len() as u64;
        self.by_id.insert(Arc::clone(&id), Known { ordinal, payload: action.payload_sha256.clone(), state });
        self.by_ordinal.push(id);
    }
}

/// Reads records up to the first that is not whole; gives where that begins. 0: there is no head.
fn scan(from: &mut impl io::Read, mut found: impl FnMut(u64, v1::Action)) -> io::Result<u64> {
    let mut head = [0; HEAD.len()];
    match from.read_exact(&mut head) {
        // Made and not begun.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
        other => other?,
    }
    if head != *HEAD {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no action log of this version"));
    }
    let mut at = HEAD.len() as u64;
    loop {
        let mut bytes = vec![0; super::record::FRAME];
        match from.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(at),
            other => other?,
        }
        let len = bytes.first_chunk::<4>().map_or(0, |len| u32::from_le_bytes(*len));
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > super::record::RECORD_MAX {
            return Ok(at);
        }
        bytes.resize(super::record::FRAME + len, 0);
        match from.read_exact(&mut bytes[super::record::FRAME..]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(at),
            other => other?,
        }
        let Some((action, len)) = decode(&bytes) else { return Ok(at) };
        found(at, action);
        at += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(code: i32) -> v1::ActResult {
        v1::ActResult { exit_code: Some(code), stdout: vec![7; 100], ..v1::ActResult::default() }
    }

    async fn begin(log: &Arc<ActionLog>, id: &str) -> u64 {
        let Begun::New { ordinal, end } = log.begin(id, "p", None).unwrap() else { panic!("{id} is known") };
        log.commit(end).await.unwrap();
        ordinal
    }

    #[tokio::test]
    async fn an_action_is_begun_once_and_its_end_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(ActionLog::create(&dir.path().join("log")).unwrap());
        assert_eq!(begin(&log, "a").await, 0);
        assert_eq!(log.begin("a", "p", None).unwrap(), Begun::Known { ordinal: 0 });
        assert_eq!(log.begin("a", "other", None).unwrap(), Begun::Conflict);
        assert_eq!(log.action(0).await.unwrap().state, "dispatched");
        let waiting = tokio::spawn({
            let log = Arc::clone(&log);
            async move { log.settled(0).await }
        });
        log.end("a", result(3)).await.unwrap();
        let action = waiting.await.unwrap().unwrap();
        assert_eq!((action.state.as_str(), action.result), ("done", Some(result(3))));
        assert_eq!(begin(&log, "b").await, 1);
        log.lose("b");
        assert_eq!(log.settled(1).await.unwrap().state, "unknown");
        assert_eq!(log.begin("c", "p", Some(2)).unwrap(), Begun::Spent);
        assert_eq!(log.begin("b", "p", Some(2)).unwrap(), Begun::Known { ordinal: 1 });
        assert!(log.action(2).await.is_err());
    }

    #[tokio::test]
    async fn how_a_session_was_finished_is_told_again_and_is_no_action() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(ActionLog::create(&dir.path().join("log")).unwrap());
        begin(&log, "a").await;
        let said = v1::FinishSessionRequest { reward: Some(0.5), ..v1::FinishSessionRequest::default() };
        assert_eq!(log.finished(&said), None);
        let end = log.finish(&said).unwrap();
        assert_eq!((log.finish(&said).unwrap(), log.finished(&said)), (end, Some(end)), "recorded once");
        log.commit(end).await.unwrap();
        assert_eq!(std::fs::metadata(log.path()).unwrap().len(), end);
        log.end("a", result(0)).await.unwrap();
        let past = Arc::new(ActionLog::past(log.path()).unwrap());
        assert_eq!((past.count(), past.settled(0).await.unwrap().result), (1, Some(result(0))));
        assert!(past.finished(&said).is_some());
        assert_eq!(past.finished(&v1::FinishSessionRequest::default()), None, "other words");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn records_that_wait_together_are_synced_together() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(ActionLog::create(&dir.path().join("log")).unwrap());
        // While the file is busy, whatever comes waits for one sync.
        let busy = Arc::clone(&log.turn).lock_owned().await;
        let ends: Vec<_> = (0..200)
            .map(|n| {
                let Begun::New { end, .. } = log.begin(&n.to_string(), "p", None).unwrap() else { panic!() };
                let log = Arc::clone(&log);
                tokio::spawn(async move { log.commit(end).await })
            })
            .collect();
        drop(busy);
        for end in ends {
            end.await.unwrap().unwrap();
        }
        assert_eq!(log.syncs(), 1);
        let past = ActionLog::past(log.path()).unwrap();
        assert_eq!(past.count(), 200);
    }

    #[tokio::test]
    async fn what_a_crash_left_is_read_up_to_the_first_torn_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Arc::new(ActionLog::create(&path).unwrap());
        begin(&log, "a").await;
        log.end("a", result(0)).await.unwrap();
        begin(&log, "b").await;
        let begun = std::fs::metadata(&path).unwrap().len();
        log.end("b", result(1)).await.unwrap();
        let bytes = std::fs::read(&path).unwrap();
        // At every byte of the last record: `b` was begun, and no more is known of it.
        for cut in usize::try_from(begun).unwrap()..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let past = Arc::new(ActionLog::past(&path).unwrap());
            assert_eq!(past.count(), 2);
            assert_eq!(past.settled(0).await.unwrap().result, Some(result(0)));
            assert_eq!(past.settled(1).await.unwrap().state, "unknown", "cut at {cut}");
            assert!(past.begin("c", "p", None).is_err(), "nothing is added to it");
            assert_eq!(past.begin("b", "p", None).unwrap(), Begun::Known { ordinal: 1 });
        }
        std::fs::write(&path, &bytes[..7]).unwrap();
        assert_eq!(ActionLog::past(&path).unwrap().count(), 0);
        std::fs::write(&path, b"rollyard-acts-2\nxxxxxx").unwrap();
        assert!(ActionLog::past(&path).is_err(), "another version is not guessed at");
    }

    #[tokio::test]
    async fn a_log_that_cannot_be_written_promises_nothing_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(ActionLog::create(&dir.path().join("log")).unwrap());
        make_full(&log);
        let Begun::New { end, .. } = log.begin("a", "p", None).unwrap() else { panic!() };
        assert!(log.commit(end).await.is_err());
        assert!(log.begin("b", "p", None).is_err());
        assert!(log.end("a", result(0)).await.is_err());
    }

    /// Every write fails from now on.
    fn make_full(log: &ActionLog) {
        std::fs::remove_file(log.path()).unwrap();
        std::os::unix::fs::symlink("/dev/full", log.path()).unwrap();
    }

    #[tokio::test]
    async fn of_two_that_wait_behind_a_failed_write_neither_is_told_it_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(ActionLog::create(&dir.path().join("log")).unwrap());
        begin(&log, "first").await;
        let whole = std::fs::read(log.path()).unwrap();
        let busy = Arc::clone(&log.turn).lock_owned().await;
        let waiting: Vec<_> = ["a", "b"]
            .map(|id| {
                let Begun::New { end, .. } = log.begin(id, "p", None).unwrap() else { panic!() };
                let log = Arc::clone(&log);
                tokio::spawn(async move { log.commit(end).await })
            })
            .into();
        tokio::task::yield_now().await;
        make_full(&log);
        // The first of them has its turn, fails, and then the disk has room again.
        let (log_of_first, path) = (Arc::clone(&log), log.path().to_owned());
        let first = tokio::task::spawn_blocking(move || log_of_first.flush(busy));
        assert!(first.await.unwrap().is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &whole).unwrap();
        for waits in waiting {
            assert!(waits.await.unwrap().is_err());
        }
        assert_eq!(std::fs::read(&path).unwrap(), whole, "nothing is written behind a torn record");
    }

    #[tokio::test]
    async fn a_log_holds_no_descriptor_and_outlives_one_it_could_not_have() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Arc::new(ActionLog::create(&path).unwrap());
        begin(&log, "a").await;
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let names: Vec<_> = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
        assert!(!names.contains(&path), "{names:?}");
        let away = dir.path().join("away");
        std::fs::rename(&path, &away).unwrap();
        let Begun::New { end, .. } = log.begin("b", "p", None).unwrap() else { panic!() };
        assert!(log.commit(end).await.is_err(), "nothing is promised");
        std::fs::rename(&away, &path).unwrap();
        log.commit(end).await.unwrap();
        log.end("a", result(4)).await.unwrap();
        assert_eq!(log.settled(0).await.unwrap().result, Some(result(4)));
        assert_eq!(ActionLog::past(&path).unwrap().count(), 2);
    }
}
