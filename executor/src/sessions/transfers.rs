//! Files to and from a sandbox. One that is read is the same to its last byte, or the reader is told; one
//! that is written is there whole or not at all.

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rollout::text::shown;
use rollout_wire::v1::{self, write_file_chunk::Chunk};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::actions::{PAGE_MAX, RESULT_BYTES_MAX};
use super::commands;
use super::error::{Refusal, SandboxCode};
use super::live::{Lent, Live, TRANSFERS_MAX};
use super::streams::CHUNK_BYTES;
use crate::ceilings::descriptors;
use crate::sandbox::FileSource;
use crate::sandbox::driven::{Entry, Pinned};

/// Chunks of a file on their way to a client that is slower than the disk.
const QUEUE_MAX: usize = 4;
/// Of one chunk that a client sends.
pub(super) const WRITE_CHUNK_MAX: usize = 1 << 20;
const MODE: u32 = 0o644;

/// What a file on its way counts against, for as long as it is open.
struct Held {
    _of_the_session: OwnedSemaphorePermit,
    _of_the_executor: descriptors::Held,
}

fn permit(live: &Live) -> Result<Held, Refusal> {
    let session =
        Live::permit(&live.limits.transfers, "files of one session", "TRANSFERS_MAX", TRANSFERS_MAX)?;
    Ok(Held { _of_the_session: session, _of_the_executor: descriptors::take(1)? })
}

pub(super) fn info(entry: Entry) -> v1::FileInfo {
    v1::FileInfo {
        path: entry.path,
        kind: entry.kind.as_str().to_owned(),
        size: entry.size.0,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        modified_at_us: entry.modified_at.0,
        version: entry.version.0,
        symlink_target: entry.target.unwrap_or_default(),
    }
}

/// File work, whose thread goes on when nobody waits for it: the sandbox is lent to it to its real end.
async fn to_its_end<T: Send + 'static, W>(
    live: &Arc<Live>,
    work: impl FnOnce(Lent) -> W,
) -> Result<T, Refusal>
where
    W: Future<Output = Result<T, Refusal>> + Send + 'static,
{
    let working = live.tasks().spawn(work(live.lend().await?));
    let ended = async {
        let lost = |error: tokio::task::JoinError| Refusal::new(SandboxCode::StartFailed, error.to_string());
        working.await.map_err(lost)?
    };
    live.unless_over(ended).await
}

pub(super) async fn stat(live: &Arc<Live>, path: &str) -> Result<v1::FileInfo, Refusal> {
    let asked = path.to_owned();
    let found = to_its_end(live, |lent| async move { Ok(lent.driven()?.stat(&asked).await?) }).await?;
    found.map(info).ok_or_else(|| Refusal::no_file(path))
}

pub(super) async fn list(
    live: &Arc<Live>,
    request: v1::ListFilesRequest,
) -> Result<v1::ListFilesReply, Refusal> {
    if !(1..=PAGE_MAX).contains(&request.page_size) {
        return Err(Refusal::bad("page_size", format!("1 to {PAGE_MAX}")));
    }
    let entries_max = usize::try_from(request.page_size).unwrap_or(usize::MAX);
    let (path, after) = (request.path.clone(), request.after);
    let listing = |lent: Lent| async move { Ok(lent.driven()?.list_page(&path, &after, entries_max).await?) };
    let listed = to_its_end(live, listing).await?;
    let page = listed.ok_or_else(|| Refusal::no_file(&request.path))?;
    Ok(v1::ListFilesReply { files: page.entries.into_iter().map(info).collect(), more: page.more })
}

pub(super) async fn make_dir(live: &Arc<Live>, path: &str, user: String) -> Result<v1::FileInfo, Refusal> {
    let (asked, user) = (path.to_owned(), commands::user(live, user));
    to_its_end(live, |lent| async move { Ok(lent.sandbox()?.make_dir(&asked, &user).await?) }).await?;
    stat(live, path).await
}

pub(super) async fn remove(live: &Arc<Live>, path: &str) -> Result<bool, Refusal> {
    let path = path.to_owned();
    to_its_end(live, |lent| async move { Ok(lent.driven()?.remove(&path).await?) }).await
}

// ---- reading ----------------------------------------------------------------------------------

/// Opens the version that is asked for; empty: whatever is there.
async fn pinned(live: &Arc<Live>, path: &str, version: &str) -> Result<Pinned, Refusal> {
    let asked = path.to_owned();
    let opened = to_its_end(live, |lent| async move { Ok(lent.driven()?.open_pinned(&asked).await) }).await?;
    match opened {
        Ok(Some(pinned)) if version.is_empty() || pinned.entry.version.0 == version => Ok(pinned),
        // Something else took its place, or nothing did.
        Ok(_) | Err(_) if !version.is_empty() => Err(Refusal::changed(path)),
        Ok(_) => Err(Refusal::no_file(path)),
        Err(error) => Err(error.into()),
    }
}

fn still_the_same(pinned: &Pinned) -> Result<(), Refusal> {
    let path = &pinned.entry.path;
    match pinned.version_now() {
        Ok(version) if version == pinned.entry.version => Ok(()),
        Ok(_) => Err(Refusal::changed(path)),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &str, error: &std::io::Error) -> Refusal {
    Refusal::new(SandboxCode::StartFailed, format!("`{}` cannot be read: {error}", shown(path, 200)))
}

/// Reads a file chunk by chunk, as fast as they are taken.
pub(super) async fn read(
    live: &Arc<Live>,
    request: v1::ReadFileRequest,
) -> Result<mpsc::Receiver<Result<v1::FileChunk, Status>>, Refusal> {
    let permit = permit(live)?;
    let pinned = pinned(live, &request.path, &request.version).await?;
    let size = pinned.entry.size.0;
    if request.offset > size {
        return Err(Refusal::bad("offset", format!("it has {size} bytes")));
    }
    let end = request.size.map_or(size, |asked| size.min(request.offset.saturating_add(asked)));
    let (chunks, queue) = mpsc::channel(QUEUE_MAX + 1);
    // Room for it is kept: a reader that is slow holds up no end, and is told all the same.
    let last_word = chunks.clone().try_reserve_owned();
    let session = Arc::clone(live);
    live.tasks().spawn(async move {
        let _permit = permit;
        let sending = send_file(&session, &request.claim, &chunks, pinned, request.offset, end);
        let sent = tokio::select! {
            sent = sending => sent,
            () = chunks.closed() => Ok(()),
            () = session.over() => Err(Refusal::ended(&session.name())),
        };
        if let (Err(refusal), Ok(last_word)) = (sent, last_word) {
            last_word.send(Err(refusal.into()));
        }
    });
    Ok(queue)
}

async fn send_file(
    live: &Live,
    claim: &str,
    chunks: &mpsc::Sender<Result<v1::FileChunk, Status>>,
    pinned: Pinned,
    mut offset: u64,
    end: u64,
) -> Result<(), Refusal> {
    let mut first = Some(info(pinned.entry.clone()));
    let pinned = Arc::new(pinned);
    while first.is_some() || offset < end {
        let Ok(room) = chunks.reserve().await else { return Ok(()) };
        let len = usize::try_from(end - offset).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let file = Arc::clone(&pinned);
        let read = tokio::task::spawn_blocking(move || {
            let mut data = vec![0; len];
            let read = file.file.read_exact_at(&mut data, offset);
            // Before it is sent: no chunk is of another version than the first.
            still_the_same(&file)?;
            read.map_err(|error| unreadable(&file.entry.path, &error))?;
            Ok::<_, Refusal>(data)
        });
        let data =
            read.await.map_err(|error| Refusal::new(SandboxCode::StartFailed, error.to_string()))??;
        offset += data.len() as u64;
        live.check_claim(claim)?;
        room.send(Ok(v1::FileChunk { info: first.take(), data }));
    }
    Ok(())
}

/// A whole file as a result.
pub(super) async fn get(live: &Arc<Live>, path: &str) -> Result<v1::ActResult, Refusal> {
    let held = descriptors::take(1)?;
    let mut pinned = pinned(live, path, "").await?;
    let size = pinned.entry.size.0;
    if size > RESULT_BYTES_MAX as u64 {
        let words = format!("it has {size} bytes, and a recorded action reads {RESULT_BYTES_MAX}");
        return Err(Refusal::new(SandboxCode::FileTooLarge, words));
    }
    let read = tokio::task::spawn_blocking(move || {
        let _held = held;
        let mut data = Vec::new();
        let limit = RESULT_BYTES_MAX as u64 + 1;
        let read = (&mut pinned.file).take(limit).read_to_end(&mut data);
        still_the_same(&pinned)?;
        read.map_err(|error| unreadable(&pinned.entry.path, &error))?;
        Ok(v1::ActResult { data, ..v1::ActResult::default() })
    });
    read.await.map_err(|error| Refusal::new(SandboxCode::StartFailed, error.to_string()))?
}

// ---- writing ----------------------------------------------------------------------------------

pub(super) async fn put(live: &Arc<Live>, put: v1::PutFile) -> Result<v1::ActResult, Refusal> {
    let content = FileSource::Bytes(put.data);
    place(live, &put.path, content, put.mode, put.user).await?;
    Ok(v1::ActResult::default())
}

async fn place(
    live: &Arc<Live>,
    path: &str,
    content: FileSource,
    mode: Option<u32>,
    user: String,
) -> Result<(), Refusal> {
    let (path, mode, user) = (path.to_owned(), mode.unwrap_or(MODE), commands::user(live, user));
    let placing =
        |lent: Lent| async move { Ok(lent.sandbox()?.write_file(&path, content, mode, &user).await?) };
    to_its_end(live, placing).await
}

/// Gathers a file beside the sandbox, and places it when all of it has come.
pub(super) async fn write(
    live: &Arc<Live>,
    start: v1::WriteFileStart,
    chunks: &mut Streaming<v1::WriteFileChunk>,
) -> Result<v1::FileInfo, Refusal> {
    let _permit = permit(live)?;
    let limit = live.step.resources.limit.disk;
    if start.size > limit.0 {
        let words = format!("{} bytes do not fit a workspace of {limit}", start.size);
        return Err(Refusal::new(SandboxCode::WorkspaceFull, words));
    }
    let file = live.unless_over(gather(live, &start.claim, start.size, chunks)).await?;
    // Another may drive it by now.
    live.check_claim(&start.claim)?;
    let stop = CancellationToken::new();
    let _nobody_waits = stop.clone().drop_guard();
    let content = FileSource::Stoppable { file, stop };
    place(live, &start.path, content, start.mode, start.user).await?;
    stat(live, &start.path).await
}

async fn gather(
    live: &Live,
    claim: &str,
    size: u64,
    chunks: &mut Streaming<v1::WriteFileChunk>,
) -> Result<std::fs::File, Refusal> {
    let failed = |error: std::io::Error| {
        Refusal::new(SandboxCode::StorageFailed, format!("the file cannot be gathered: {error}"))
    };
    let path = live.upload_path();
    let options =
        tokio::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).await;
    let mut file = options.map_err(failed)?;
    // Without a name nothing of it can be left.
    tokio::fs::remove_file(&path).await.map_err(failed)?;
    let mut gathered = 0u64;
    while let Some(chunk) = chunks.message().await.map_err(|error| broken_off(&error))? {
        let Some(Chunk::Data(data)) = chunk.chunk else {
            return Err(Refusal::bad("chunk", "behind the first come only data"));
        };
        if data.len() > WRITE_CHUNK_MAX {
            return Err(Refusal::bad("data", format!("at most {WRITE_CHUNK_MAX} bytes a chunk")));
        }
        gathered += data.len() as u64;
        if gathered > size {
            return Err(Refusal::bad("size", format!("more than the {size} bytes that were announced")));
        }
        live.check_claim(claim)?;
        file.write_all(&data).await.map_err(failed)?;
    }
    if gathered != size {
        let words = format!("{gathered} bytes came of the {size} that were announced; nothing was written");
        return Err(Refusal::bad("size", words));
    }
    file.flush().await.map_err(failed)?;
    Ok(file.into_std().await)
}

pub(super) fn broken_off(status: &Status) -> Refusal {
    Refusal::new(SandboxCode::BadRequest, format!("the call broke off: {}", status.message()))
}
