//! A directory of Harbor tasks on its way to the yard: what cannot run is told, trees become layers
//! in the blob store, and the rows a file that stands for the directory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use datasets::harbor::{self, HarborTask, TREES, Unsupported, Wants};
use images::layers::{Bounds, Packed, pack_directory};
use rollout::Bytes;
use rollout::checkpoint::{Layer, LayerId};
use rollout::image::ImageRef;
use rollout::plan::{EnvironmentMode, JobPlan, OnUnsupported, TaskSource};
use rollout::resolve;
use rollout::spec::DiagnosticCode as Code;
use rollout_wire::v1::ClientFile;
use serde_json::{Map, Value};

use crate::builder;
use crate::client::Client;
use crate::error::Error;
use crate::local_images;
use crate::rows::ROW_FINDINGS_MAX;
use crate::spec::{Finding, Source};
use crate::upload;

/// Bytes of the files of one tree.
const TREE_BYTES_MAX: Bytes = Bytes(4 << 30);
/// Tasks named of those that are left out for one reason.
const NAMED_MAX: usize = 3;

/// The tasks of a spec with a Harbor source.
#[derive(Debug)]
pub struct Tasks {
    dir: PathBuf,
    /// The path as written in the spec.
    path: String,
    runnable: Vec<HarborTask>,
    unsupported: Vec<Unsupported>,
    skip: bool,
    /// Those of [`TREES`] that the spec looks up.
    trees: Vec<&'static str>,
    /// Generated steps grade what tasks declare.
    separate: bool,
}

impl Tasks {
    /// None if the tasks are no Harbor directory. Blocks on the disk.
    pub fn read(plan: &JobPlan, source: &Source) -> Result<Option<Self>, Error> {
        let TaskSource::Harbor { path, generated } = &plan.tasks.source else { return Ok(None) };
        let looked_up = |column: &str| plan.tasks.columns_used.iter().any(|used| used == column);
        let wants = Wants {
            mode: generated.map(|generated| generated.mode),
            image: looked_up("image"),
            solution: looked_up("solution"),
            tests: looked_up("tests"),
            can_build: builder::is_installed(),
        };
        let dir = source.dir.join(path);
        let read = harbor::read(&dir, &wants).map_err(|source| Error::Harbor { source })?;
        let mut tasks = Self {
            dir,
            path: path.clone(),
            runnable: Vec::new(),
            unsupported: Vec::new(),
            skip: plan.tasks.on_unsupported == OnUnsupported::Skip,
            trees: TREES.into_iter().filter(|tree| looked_up(tree)).collect(),
            separate: generated.is_some_and(|generated| generated.mode == EnvironmentMode::Separate),
        };
        for task in read {
            match task.and_then(|task| tasks.fits(plan, task)) {
                Ok(task) => tasks.runnable.push(task),
                Err(unsupported) => tasks.unsupported.push(unsupported),
            }
        }
        Ok(Some(tasks))
    }

    /// The task, if its values fit where the spec uses them.
    fn fits(&self, plan: &JobPlan, task: HarborTask) -> Result<HarborTask, Unsupported> {
        let row = self.row(&task, |_| Some(placeholder().to_string()));
        match resolve::row_problems(plan, 0, &row).into_iter().next() {
            None => Ok(task),
            Some(problem) => Err(Unsupported {
                task: rollout::text::shown(task.name(), 128),
                code: problem.code,
                problem: problem.problem.to_string(),
            }),
        }
    }

    fn row(&self, task: &HarborTask, layer: impl Fn(&str) -> Option<String>) -> Map<String, Value> {
        let mut row = task.row.clone();
        for &tree in self.trees.iter().filter(|tree| task.dir.join(tree).is_dir()) {
            if let Some(layer) = layer(tree) {
                row.insert(tree.to_owned(), layer.into());
            }
        }
        row
    }

    /// Rows as they will be, but for the layers of their trees.
    pub fn rows(&self) -> impl Iterator<Item = Map<String, Value>> + '_ {
        self.runnable.iter().map(|task| self.row(task, |_| Some(placeholder().to_string())))
    }

    /// What stops the job: tasks that cannot run and may not be left out, or none that can.
    pub fn faults(&self) -> Vec<Finding> {
        let file = self.dir.to_string_lossy().into_owned();
        if self.skip {
            let none = self.runnable.is_empty().then(|| {
                let message = format!("none of {} tasks can run here", self.unsupported.len());
                Finding::error_at(Code::NoTaskLeft, &file, 1, "tasks.from.harbor", message)
            });
            return none.into_iter().collect();
        }
        let finding = |unsupported: &Unsupported| {
            let Unsupported { task, code, problem } = unsupported;
            let file = self.dir.join(task).to_string_lossy().into_owned();
            Finding::error_at(*code, &file, 1, "tasks.from.harbor", format!("task `{task}`: {problem}"))
        };
        let mut findings: Vec<Finding> =
            self.unsupported.iter().take(ROW_FINDINGS_MAX).map(finding).collect();
        let more = self.unsupported.len() - findings.len();
        if more > 0 {
            let message =
                format!("and {more} more; the limit is {ROW_FINDINGS_MAX} at once (ROW_FINDINGS_MAX)");
            findings.push(Finding::error_at(Code::TooLarge, &file, 1, "tasks.from.harbor", message));
        }
        findings
    }

    /// For people: which tasks are left out and why, and what may surprise in the others.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.skip && !self.unsupported.is_empty() {
            let (run, all) = (self.runnable.len(), self.runnable.len() + self.unsupported.len());
            notes.push(format!("{run} of {all} tasks run; the others are left out:"));
            let mut reasons: BTreeMap<&str, Vec<&Unsupported>> = BTreeMap::new();
            for unsupported in &self.unsupported {
                reasons.entry(unsupported.code.as_str()).or_default().push(unsupported);
            }
            for (code, tasks) in reasons {
                let named: Vec<&str> = tasks.iter().take(NAMED_MAX).map(|task| task.task.as_str()).collect();
                let more = if tasks.len() > NAMED_MAX { ", ..." } else { "" };
                let problem = tasks.first().map_or("", |task| task.problem.as_str());
                notes.push(format!("  {} {code} ({}{more}): {problem}", tasks.len(), named.join(", ")));
            }
        }
        let bare = self.runnable.iter().filter(|task| self.separate && task.artifacts() == 0).count();
        if bare > 0 {
            notes.push(format!(
                "{bare} tasks declare no artifacts: their graders see nothing of what the agent did"
            ));
        }
        notes
    }

    /// Packs and uploads the trees and the rows; the file that stands for the directory.
    pub async fn upload(&self, client: &Client) -> Result<ClientFile, Error> {
        let scratch =
            tempfile::tempdir().map_err(|source| Error::WriteFile { path: std::env::temp_dir(), source })?;
        let rows = scratch.path().join("rows.jsonl");
        let failed = |source| Error::WriteFile { path: rows.clone(), source };
        let mut file = BufWriter::new(File::create(&rows).map_err(failed)?);
        // Tasks often share a tree: each is stored once.
        let mut stored: BTreeMap<LayerId, Layer> = BTreeMap::new();
        // So they do what their images are built from.
        let mut built: BTreeMap<LayerId, String> = BTreeMap::new();
        for task in &self.runnable {
            let mut layers = BTreeMap::new();
            for &tree in self.trees.iter().filter(|tree| task.dir.join(tree).is_dir()) {
                let packed = pack_tree(&task.dir.join(tree), tree, scratch.path()).await?;
                let layer = match stored.entry(packed.layer.id) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(place) => {
                        let (layer, file) = (packed.layer, packed.file.clone());
                        upload::put(client, file, &layer.blob, layer.packed.0).await?;
                        place.insert(layer).clone()
                    }
                };
                std::fs::remove_file(&packed.file).map_err(failed)?;
                layers.insert(tree, layer);
            }
            let mut row = self.row(task, |tree| layers.get(tree).map(ToString::to_string));
            if task.needs_build {
                let image = build(client, &task.dir.join("environment"), scratch.path(), &mut built).await?;
                row.insert("image".to_owned(), image.into());
            }
            let line = serde_json::to_string(&row).map_err(std::io::Error::from).map_err(failed)?;
            writeln!(file, "{line}").map_err(failed)?;
        }
        file.into_inner().map_err(std::io::IntoInnerError::into_error).map_err(failed)?;
        let (sha256, size) = upload::put_file(client, rows.clone()).await?;
        Ok(ClientFile { path: self.path.clone(), sha256, size })
    }
}

/// Builds the Dockerfile of `context` and hands the image in; what a row calls it.
async fn build(
    client: &Client,
    context: &Path,
    scratch: &Path,
    built: &mut BTreeMap<LayerId, String>,
) -> Result<String, Error> {
    let packed = pack_tree(context, "environment", scratch).await?;
    let failed = |source| Error::WriteFile { path: packed.file.clone(), source };
    std::fs::remove_file(&packed.file).map_err(failed)?;
    if let Some(known) = built.get(&packed.layer.id) {
        return Ok(known.clone());
    }
    let archive = scratch.join("image.tar");
    builder::build(context, &context.join("Dockerfile"), &archive).await?;
    let reference = ImageRef::Archive { path: archive.display().to_string() }.to_string();
    let mut pins = BTreeMap::new();
    local_images::hand_in(client, scratch, std::slice::from_ref(&reference), &mut pins).await?;
    std::fs::remove_file(&archive).map_err(failed)?;
    let pin = pins.get(&reference).map(|pin| format!("stored:{}", pin.digest));
    let pin =
        pin.ok_or_else(|| Error::BadAnswer { problem: "an image was handed in without a digest".into() })?;
    built.insert(packed.layer.id, pin.clone());
    Ok(pin)
}

/// A layer of the right form, where only its place in a row matters.
fn placeholder() -> Layer {
    let id = LayerId::from_bytes([0; 32]);
    Layer { id, blob: id.hex(), packed: Bytes(0), content: Bytes(0), entries: 0 }
}

/// The environment mode that every task of `dir` has, if they agree.
pub fn common_mode(dir: &Path) -> Result<Option<EnvironmentMode>, Error> {
    let wants = Wants { mode: None, image: false, solution: false, tests: false, can_build: false };
    let read = harbor::read(dir, &wants).map_err(|source| Error::Harbor { source })?;
    let mut modes = read.iter().flatten().map(|task| task.mode);
    let first = modes.next();
    Ok(first.filter(|first| modes.all(|mode| mode == *first)))
}

async fn pack_tree(tree: &Path, name: &'static str, scratch: &Path) -> Result<Packed, Error> {
    let (root, out) = (tree.to_owned(), scratch.join("tree"));
    let packing = tokio::task::spawn_blocking(move || {
        pack_directory(&root, name, &out, &Bounds::new(TREE_BYTES_MAX))
            .map_err(|source| Error::Tree { path: root, source: Box::new(source) })
    });
    match packing.await {
        Ok(packed) => packed,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}
