//! Checkpoints and what is collected, for people.

use std::fmt::Write as _;

use rollout::Timestamp;
use rollout::text::shown;

use super::human::{count, grid_in, length, plural, size};
use super::report::label;
use super::table::{SENTENCE_CHARS_MAX, Table};
use crate::view::{BlobSum, Change, Checkpoint, CheckpointDetail, CheckpointDiff, Collected, Layer, User};

/// The most characters of a path.
const PATH_CHARS_MAX: usize = 4096;

pub(super) fn checkpoints(table: &Table, checkpoints: &[Checkpoint]) -> String {
    let rows: Vec<_> = checkpoints
        .iter()
        .map(|checkpoint| {
            let mut row = vec![checkpoint.id.clone()];
            row.extend(taken(table, checkpoint));
            row
        })
        .collect();
    let heads = ["CHECKPOINT", "ROLLOUT", "STEP", ">TRY", "KIND", ">SIZE", ">DEPTH", ">AGE", "STATE"];
    grid_in(table.columns, "", &heads, &rows)
}

fn taken(table: &Table, checkpoint: &Checkpoint) -> Vec<String> {
    vec![
        checkpoint.rollout.clone(),
        checkpoint.step.clone(),
        checkpoint.attempt.to_string(),
        checkpoint.kind.clone(),
        size(checkpoint.packed_bytes),
        checkpoint.depth.to_string(),
        table.age(Some(checkpoint.taken_at_us)),
        state(table, checkpoint),
    ]
}

fn state(table: &Table, checkpoint: &Checkpoint) -> String {
    match (&checkpoint.removed_why, checkpoint.expires_at_us) {
        (Some(why), _) => format!("{}: {}", checkpoint.state, shown(why, SENTENCE_CHARS_MAX)),
        (None, Some(at)) if at <= table.now.0 => format!("{}, its time is over", checkpoint.state),
        (None, Some(at)) => format!("{} for {}", checkpoint.state, length(Timestamp(at).since(table.now).0)),
        (None, None) => checkpoint.state.clone(),
    }
}

pub(super) fn checkpoint(table: &Table, detail: &CheckpointDetail) -> String {
    let mut out = String::new();
    label(table.columns, &mut out, "id", &shown(&detail.id, 80));
    label(table.columns, &mut out, "image", &shown(&detail.image, SENTENCE_CHARS_MAX));
    let sum = |of: fn(&Layer) -> u64| detail.layers.iter().map(of).fold(0, u64::saturating_add);
    let (content, packed) = (sum(|layer| layer.content_bytes), sum(|layer| layer.packed_bytes));
    let layers = plural(detail.layers.len() as u64, "layer");
    label(
        table.columns,
        &mut out,
        "size",
        &format!("{layers}, {} packed into {}", size(content), size(packed)),
    );
    let row = |layer: &Layer| {
        vec![layer.id.clone(), size(layer.packed_bytes), size(layer.content_bytes), count(layer.entries)]
    };
    let rows: Vec<_> = detail.layers.iter().map(row).collect();
    let heads = ["LAYER, BOTTOM FIRST", ">PACKED", ">CONTENT", ">ENTRIES"];
    _ = write!(out, "\n{}", grid_in(table.columns, "", &heads, &rows));
    let rows: Vec<_> = detail.taken.iter().map(|checkpoint| taken(table, checkpoint)).collect();
    let heads = ["TAKEN OF", "STEP", ">TRY", "KIND", ">SIZE", ">DEPTH", ">AGE", "STATE"];
    _ = write!(out, "\n{}", grid_in(table.columns, "", &heads, &rows));
    if detail.users.is_empty() {
        _ = writeln!(out, "\nno sandbox was started from it");
        return out;
    }
    let row = |user: &User| {
        let state = if user.running { "runs" } else { "ended" };
        vec![user.rollout.clone(), user.step.clone(), user.attempt.to_string(), state.to_owned()]
    };
    let rows: Vec<_> = detail.users.iter().map(row).collect();
    _ = write!(out, "\n{}", grid_in(table.columns, "", &["STARTED FROM IT", "STEP", ">TRY", "STATE"], &rows));
    out
}

pub(super) fn diff(table: &Table, diff: &CheckpointDiff) -> String {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), size);
    let row = |change: &Change| {
        vec![
            change.change.to_owned(),
            change.kind.to_owned(),
            bytes(change.from_bytes),
            bytes(change.to_bytes),
            shown(&change.path, PATH_CHARS_MAX),
        ]
    };
    let rows: Vec<_> = diff.changes.iter().map(row).collect();
    let mut out = grid_in(table.columns, "", &["CHANGE", "KIND", ">FROM", ">TO", "PATH"], &rows);
    if !diff.same_image {
        _ = writeln!(out, "\nthey lie over different images, which are not compared");
    }
    out
}

pub(super) fn collected(table: &Table, collected: &Collected) -> String {
    let mut out = String::new();
    let (freed, removed) = match collected.dry_run {
        true => ("would be freed", "would go"),
        false => ("freed", "removed"),
    };
    let sum = |sum: BlobSum| format!("{} in {}", size(sum.bytes), plural(sum.blobs, "blob"));
    let expired =
        format!("{} whose time is over {removed}", plural(collected.expired_checkpoints, "checkpoint"));
    label(table.columns, &mut out, "expired", &expired);
    label(table.columns, &mut out, "layers", &format!("{} {freed}", sum(collected.layers)));
    label(table.columns, &mut out, "unnamed", &format!("{} {freed}", sum(collected.unnamed)));
    label(table.columns, &mut out, "kept", &sum(collected.kept));
    out
}
