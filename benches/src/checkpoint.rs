//! Bench `checkpoint`: save what a step changed, and start over what was saved.
//!
//! `pack`: 40 changed files, packed and fsynced with their folder, beside an in-process tar of the
//! same tree, fsynced the same. `restore` and `fork`: a sandbox made over a committed checkpoint, of
//! 10 MB and 195 MB at depths 1, 8 and 32, until it is torn down again; beside one over the image
//! alone, and beside an untar of the same files. `fork` makes two of one checkpoint that live at
//! once, and counts one.
//!
//! `checkpoint [--rounds N] [--ops N]`: rounds (default 5), operations a round (default 40).

mod trees;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use executor::sandbox::container::{Container, ContainerConfig};
use executor::sandbox::{Backend, Mounted, Sandbox, SandboxSpec};
use images::layers::{Bounds, LayerStore, pack_directory, pack_upper, unpack};
use rollout::quantity::Limit;
use rollout::{Bytes, MilliCpu};
use trees::{Corpus, changed};

use crate::report::{Round, comparison, cpu_time, figure, measurement, round};

const BENCH: &str = "checkpoint";
const SIZES: [(&str, usize); 2] = [("10MB", 1_000), ("195MB", 20_000)];
const DEPTHS: [usize; 3] = [1, 8, 32];
const STORE_BYTES_MAX: u64 = 4 << 30;

pub fn main(args: &[String]) -> Result<()> {
    let option = |name: &str, default: usize| -> Result<usize> {
        match args.iter().position(|a| a == name) {
            Some(at) => args.get(at + 1).context("a number is missing")?.parse().context(name.to_owned()),
            None => Ok(default),
        }
    };
    let (rounds, ops) = (option("--rounds", 5)?.max(3), option("--ops", 40)?.max(10));
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let top = dir.path().canonicalize()?;
    let corpus = Corpus::read()?;
    pack(&top, &corpus, rounds, ops)?;
    start(&top, &corpus, rounds, ops)
}

fn synced(file: &Path) -> Result<()> {
    File::open(file)?.sync_all()?;
    File::open(file.parent().context("a folder")?)?.sync_all()?;
    Ok(())
}

fn pack(top: &Path, corpus: &Corpus, rounds: usize, ops: usize) -> Result<()> {
    let upper = top.join("upper");
    changed(&upper, corpus)?;
    let (ours, theirs) = (top.join("packed"), top.join("tar"));
    let never = AtomicBool::new(false);
    let bounds = Bounds::new(Bytes(1 << 30));
    let rollyard = |_: usize| {
        let root = File::open(&upper)?;
        pack_upper(root.as_fd(), 0, &[], &ours, &bounds, &never)?;
        synced(&ours)?;
        fs::remove_file(&ours)?;
        Ok(())
    };
    let tar = |_: usize| {
        let mut builder = tar::Builder::new(std::io::BufWriter::new(File::create(&theirs)?));
        builder.append_dir_all(".", &upper)?;
        builder.into_inner()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        synced(&theirs)?;
        fs::remove_file(&theirs)?;
        Ok(())
    };
    round(10, rollyard)?;
    round(10, tar)?;
    let (mut of, mut to): (Vec<Round>, Vec<Round>) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        of.push(round(ops, rollyard)?);
        to.push(round(ops, tar)?);
    }
    measurement(BENCH, "pack", "rollyard", &of);
    measurement(BENCH, "pack", "tar", &to);
    comparison(BENCH, "pack", ("rollyard", &of), ("tar", &to));
    Ok(())
}

/// The tree in so many layers, each a part of its files.
fn stack(
    top: &Path,
    corpus: &Corpus,
    store: &LayerStore,
    files: usize,
    depth: usize,
) -> Result<Vec<Mounted>> {
    let mut layers = Vec::new();
    for index in 0..depth {
        let part = top.join(format!("part-{files}-{depth}-{index}"));
        fs::create_dir(&part)?;
        corpus.files(&part, files * index / depth, files * (index + 1) / depth)?;
        let packed = pack_directory(&part, "", &part.with_extension("packed"), &Bounds::new(Bytes(1 << 30)))?;
        let staged = store.stage()?;
        let bounds = Bounds::new(packed.layer.content);
        unpack(File::open(&packed.file)?, &staged.tree(), &packed.layer, &bounds)?;
        let at = store.commit(staged, &packed.layer)?;
        layers.push(Mounted { layer: packed.layer, at });
        fs::remove_file(&packed.file)?;
        fs::remove_dir_all(&part)?;
    }
    Ok(layers)
}

fn spec(id: String, layers: Vec<Mounted>) -> SandboxSpec {
    SandboxSpec {
        id,
        image: "host".to_owned(),
        base: None,
        image_digest: None,
        layers,
        limits: Limit { cpu: MilliCpu(1000), memory: Bytes(256 << 20), disk: Bytes(64 << 20), pids: 64 },
        user: "rollout".to_owned(),
        workdir: "/workspace".to_owned(),
    }
}

/// Makes sandboxes over the same layers; `n` live at once. The times are of one creation each, the
/// teardown is not in them.
async fn starts(backend: &Container, layers: &[Mounted], name: &str, ops: usize, n: usize) -> Result<Round> {
    let (cpu, mut latencies, mut wall) = (cpu_time(), Vec::new(), Duration::ZERO);
    for index in 0..ops.div_ceil(n) {
        let mut live: Vec<Box<dyn Sandbox>> = Vec::new();
        for member in 0..n {
            let spec = spec(format!("{name}-{index}-{member}"), layers.to_vec());
            let began = Instant::now();
            live.push(backend.create(spec).await?);
            latencies.push(began.elapsed());
            wall += began.elapsed();
        }
        for sandbox in live {
            sandbox.destroy().await?;
        }
    }
    Ok(Round { latencies, wall, cpu: cpu_time().saturating_sub(cpu) })
}

fn start(top: &Path, corpus: &Corpus, rounds: usize, ops: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    let backend = Container::start(&ContainerConfig { data_dir: top.join("yard") })?;
    let mut serial = 0;
    for (size, files) in SIZES {
        let tar = tarred(top, corpus, files)?;
        for depth in DEPTHS {
            let store = LayerStore::open(&top.join("layers"), STORE_BYTES_MAX)?;
            let layers = stack(top, corpus, &store, files, depth)?;
            let mut subjects: [(&str, &str, Vec<Round>); 3] =
                [("restore", "rollyard", vec![]), ("fork", "rollyard", vec![]), ("restore", "image", vec![])];
            let mut untarred = Vec::new();
            for _ in 0..rounds {
                for (index, (_, _, rounds)) in subjects.iter_mut().enumerate() {
                    serial += 1;
                    let over = if index == 2 { &[][..] } else { &layers };
                    let live = if index == 1 { 2 } else { 1 };
                    rounds.push(runtime.block_on(starts(
                        &backend,
                        over,
                        &format!("b{serial}"),
                        ops,
                        live,
                    ))?);
                }
                untarred.push(round(1, |_| untar(top, &tar))?);
            }
            for (case, subject, rounds) in &subjects {
                measurement(BENCH, &format!("{case}-{size}-depth{depth}"), subject, rounds);
            }
            let name = format!("restore-{size}-depth{depth}");
            measurement(BENCH, &name, "untar", &untarred);
            comparison(BENCH, &name, ("rollyard", &subjects[0].2), ("image", &subjects[2].2));
            comparison(BENCH, &name, ("rollyard", &subjects[0].2), ("untar", &untarred));
            for (index, metric) in [(0, "restore_ms"), (1, "fork_ms")] {
                figure(
                    BENCH,
                    metric,
                    &[("size", size.into()), ("depth", depth.into())],
                    median_ms(&subjects[index].2),
                );
            }
            drop(layers);
            drop(store);
            fs::remove_dir_all(top.join("layers"))?;
        }
        fs::remove_file(tar)?;
    }
    drop(backend);
    Ok(())
}

fn median_ms(rounds: &[Round]) -> f64 {
    let mut all: Vec<Duration> = rounds.iter().flat_map(|round| round.latencies.iter().copied()).collect();
    all.sort_unstable();
    all[all.len() / 2].as_secs_f64() * 1e3
}

fn tarred(top: &Path, corpus: &Corpus, files: usize) -> Result<PathBuf> {
    let (tree, tar) = (top.join("whole"), top.join("whole.tar"));
    corpus.files(&tree, 0, files)?;
    let mut builder = tar::Builder::new(std::io::BufWriter::new(File::create(&tar)?));
    builder.append_dir_all(".", &tree)?;
    builder.finish()?;
    drop(builder);
    fs::remove_dir_all(tree)?;
    Ok(tar)
}

fn untar(top: &Path, tar: &Path) -> Result<()> {
    let into = top.join("untarred");
    tar::Archive::new(std::io::BufReader::new(File::open(tar)?)).unpack(&into)?;
    // Not part of what is compared, but no restore may leave it.
    fs::remove_dir_all(into)?;
    Ok(())
}
