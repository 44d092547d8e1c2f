//! `checkpoint`: what checkpoints there are, what one is made of, how two differ, and taking one
//! away. And `gc`.

use std::io::Write as _;

use images::layers::{self, Bounds};
use rollout::Bytes;
use rollout::checkpoint::{CheckpointId, Layer};
use rollout_wire::v1::{
    CollectGarbageRequest, GetCheckpointRequest, ListCheckpointsRequest, ReadLayerRequest,
    RemoveCheckpointRequest, TakeCheckpointRequest,
};

use super::Context;
use super::jobs::Target;
use super::sandbox::named;
use crate::args::{self, CheckpointCommand};
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::tree_diff::{TreeDiff, View};
use crate::view;

/// Packed bytes that `diff` fetches.
const DIFF_PACKED_BYTES_MAX: u64 = 8 << 30;
/// Bytes of files that `diff` reads.
const DIFF_CONTENT_BYTES_MAX: u64 = 64 << 30;
/// Paths that `diff` holds.
const DIFF_PATHS_MAX: u64 = 2_000_000;
/// Rows of one page.
const PAGE_ROWS: u32 = 1_000;

pub async fn checkpoint(context: &Context, command: &CheckpointCommand) -> Result<ExitStatus, Error> {
    match command {
        CheckpointCommand::Ls(args) => ls(context, args).await,
        CheckpointCommand::Show(args) => show(context, args).await,
        CheckpointCommand::Diff(args) => diff(context, args).await,
        CheckpointCommand::Take(args) => take(context, &args.sandbox).await,
        CheckpointCommand::Rm(args) => rm(context, args).await,
    }
}

fn id(text: &str) -> Result<String, Error> {
    let parsed: Result<CheckpointId, _> = text.parse();
    parsed.map(|id| id.to_string()).map_err(|_| Error::BadTarget {
        text: rollout::text::shown(text, 80),
        expected: "a checkpoint (sha256: and 64 hexadecimal digits)",
    })
}

async fn ls(context: &Context, args: &args::CheckpointLs) -> Result<ExitStatus, Error> {
    let of = match args.of.as_deref().map(Target::parse).transpose()? {
        None => String::new(),
        Some(Target::Job(job)) => job.to_string(),
        Some(Target::Rollout(rollout)) => rollout.to_string(),
        Some(Target::Step(..)) => {
            return Err(Error::BadTarget {
                text: args.of.clone().unwrap_or_default(),
                expected: "a job or a rollout",
            });
        }
    };
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let question = async |client: &Client| {
        let (mut rows, mut page_token) = (Vec::new(), String::new());
        loop {
            let page_size = u32::try_from(limit - rows.len()).unwrap_or(PAGE_ROWS).clamp(1, PAGE_ROWS);
            let request =
                ListCheckpointsRequest { of: of.clone(), removed_too: args.all, page_size, page_token };
            let reply = client.done(client.jobs().list_checkpoints(request).await)?;
            rows.extend(reply.checkpoints.into_iter().map(view::Checkpoint::from));
            page_token = reply.next_page_token;
            if page_token.is_empty() || rows.len() >= limit {
                return Ok((rows, !page_token.is_empty()));
            }
        }
    };
    let (rows, more) =
        context.ask(question, |(rows, _)| rows.iter().any(|row| row.state == "needed")).await?;
    Context::print(&context.output.checkpoints(&rows))?;
    if more {
        context.talk.say(&format!("there are more; see them with --limit above {limit}"));
    }
    Ok(ExitStatus::Success)
}

async fn detail(client: &Client, id: &str) -> Result<view::CheckpointDetail, Error> {
    let request = GetCheckpointRequest { id: id.to_owned() };
    client.done(client.jobs().get_checkpoint(request).await).map(view::CheckpointDetail::from)
}

async fn show(context: &Context, args: &args::CheckpointId) -> Result<ExitStatus, Error> {
    let id = id(&args.id)?;
    let detail = context.ask(async |client| detail(client, &id).await, |_| false).await?;
    Context::print(&context.output.checkpoint(&detail))?;
    Ok(ExitStatus::Success)
}

/// Needs a yard that runs, as the sandbox does.
async fn take(context: &Context, sandbox: &str) -> Result<ExitStatus, Error> {
    let sandbox = named(sandbox)?;
    let client = Client::connect(context.url()?).await?;
    let request = TakeCheckpointRequest { sandbox, claim: String::new() };
    let taken = client.done(client.sandboxes().take_checkpoint(request).await)?;
    if taken.id.is_empty() {
        return Err(Error::BadAnswer { problem: "a checkpoint without its name".into() });
    }
    Context::print(&context.output.checkpoint_taken(&taken.id))?;
    Ok(ExitStatus::Success)
}

async fn rm(context: &Context, args: &args::CheckpointId) -> Result<ExitStatus, Error> {
    let id = id(&args.id)?;
    let change = async |client: &Client| {
        let request = RemoveCheckpointRequest { id: id.clone() };
        client.done(client.jobs().remove_checkpoint(request).await)
    };
    let removed: Vec<_> =
        context.tell(change).await?.removed.into_iter().map(view::Checkpoint::from).collect();
    Context::print(&context.output.checkpoints(&removed))?;
    Ok(ExitStatus::Success)
}

async fn diff(context: &Context, args: &args::CheckpointDiff) -> Result<ExitStatus, Error> {
    let (from, to) = (id(&args.from)?, id(&args.to)?);
    let question = async |client: &Client| {
        let (from, to) = (detail(client, &from).await?, detail(client, &to).await?);
        compare(client, &from, &to).await
    };
    let diff = context.ask(question, |_| false).await?;
    Context::print(&context.output.checkpoint_diff(&diff))?;
    Ok(ExitStatus::Success)
}

/// Layers that both have at the bottom are fetched once.
async fn compare(
    client: &Client,
    from: &view::CheckpointDetail,
    to: &view::CheckpointDetail,
) -> Result<view::CheckpointDiff, Error> {
    let shared = from.layers.iter().zip(&to.layers).take_while(|(a, b)| a.id == b.id).count();
    let mut spent = Spent::default();
    let mut common = View::default();
    for layer in &from.layers[..shared] {
        common.lay(list(client, &from.id, layer, &mut spent).await?);
    }
    let (mut before, mut after) = (common.clone(), common);
    for layer in &from.layers[shared..] {
        before.lay(list(client, &from.id, layer, &mut spent).await?);
    }
    for layer in &to.layers[shared..] {
        after.lay(list(client, &to.id, layer, &mut spent).await?);
    }
    Ok(view::CheckpointDiff {
        from: from.id.clone(),
        to: to.id.clone(),
        same_image: from.image == to.image,
        changes: TreeDiff { before: &before, after: &after }.changes(),
    })
}

#[derive(Default)]
struct Spent {
    packed: u64,
    content: u64,
    paths: u64,
}

impl Spent {
    /// Refuses a layer before a byte of it is fetched.
    fn add(&mut self, layer: &view::Layer) -> Result<(), Error> {
        for (what, sum, more, limit) in [
            (
                "packed bytes (DIFF_PACKED_BYTES_MAX)",
                &mut self.packed,
                layer.packed_bytes,
                DIFF_PACKED_BYTES_MAX,
            ),
            (
                "bytes (DIFF_CONTENT_BYTES_MAX)",
                &mut self.content,
                layer.content_bytes,
                DIFF_CONTENT_BYTES_MAX,
            ),
            ("paths (DIFF_PATHS_MAX)", &mut self.paths, layer.entries, DIFF_PATHS_MAX),
        ] {
            *sum = sum.saturating_add(more);
            if *sum > limit {
                return Err(Error::DiffTooLarge { what, limit });
            }
        }
        Ok(())
    }
}

/// Fetches a packed layer into a file without a name and reads what is in it.
async fn list(
    client: &Client,
    checkpoint: &str,
    layer: &view::Layer,
    spent: &mut Spent,
) -> Result<Vec<layers::Listed>, Error> {
    spent.add(layer)?;
    let bad = |problem: String| Error::BadAnswer { problem };
    let claim = Layer {
        id: layer.id.parse().map_err(|error: rollout::ids::ParseIdError| bad(error.to_string()))?,
        blob: layer.blob_sha256.clone(),
        packed: Bytes(layer.packed_bytes),
        content: Bytes(layer.content_bytes),
        entries: layer.entries,
    };
    let failed = |source| Error::WriteFile { path: std::env::temp_dir(), source };
    let mut file = tempfile::tempfile().map_err(failed)?;
    let request =
        ReadLayerRequest { checkpoint: checkpoint.to_owned(), blob_sha256: layer.blob_sha256.clone() };
    let mut chunks = client.done(client.jobs().read_layer(request).await)?;
    let mut left = layer.packed_bytes;
    while let Some(chunk) = chunks.message().await.map_err(|status| client.failed(status))? {
        left = left.checked_sub(chunk.data.len() as u64).ok_or_else(|| {
            bad(format!("layer {} has more than the {} bytes it claims", layer.id, layer.packed_bytes))
        })?;
        file.write_all(&chunk.data).map_err(failed)?;
    }
    let name = layer.id.clone();
    let listing = tokio::task::spawn_blocking(move || {
        std::io::Seek::rewind(&mut file).map_err(failed)?;
        layers::list(std::io::BufReader::new(file), &claim, &Bounds::new(Bytes(DIFF_CONTENT_BYTES_MAX)))
            .map_err(|source| Error::Layer { layer: name, source: Box::new(source) })
    });
    match listing.await {
        Ok(listed) => listed,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

pub async fn gc(context: &Context, args: &args::Gc) -> Result<ExitStatus, Error> {
    let change = async |client: &Client| {
        let request =
            CollectGarbageRequest { dry_run: args.dry_run, grace_ms: args.grace.map(|grace| grace.0) };
        client.done(client.jobs().collect_garbage(request).await)
    };
    let collected = context.tell(change).await?;
    Context::print(&context.output.collected(&collected.into()))?;
    Ok(ExitStatus::Success)
}
