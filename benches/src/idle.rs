//! Bench `idle`: what an idle sandbox takes, and how long its next call waits, on each rung of the ladder.
//! In it a process holds 64 MiB of memory and has read 32 MiB of a file; the next call touches all of it.
//! Through a whole yard: scheduler and executor in processes of their own.
//!
//! Rung `frozen`: paused on a host without swap, so that only cached files go. Rung `reclaimed`: with swap
//! in compressed memory (zram), which the bench adds where it may and takes away again, however it ends.
//! Rung `parked`: saved and ended on the node, where the yard offers it; its next call runs a program.
//!
//! `idle [--ops N]`: pauses on each rung (default 30; a third of it for `parked`).
//!
//! Figures, each named `RUNG.FIGURE`: `resident_after_bytes`, what its memory group is charged (swapped
//! pages are not; `zram_bytes` says what they take compressed); `freeze_us`, from the call until its processes
//! stand still; `resume_p50_ms`, `resume_p99_ms`, of the next call. Before all: figure
//! `running.resident_bytes` and `running.call_p50_ms`, the same call while it runs.

mod load;
mod zram;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use executor::census;
use rollout_wire::v1;
use serde_json::{Value, json};

use crate::create::floor::build_true;
use crate::report::{figure, not_here, option, tell};
use crate::yard::{Client, Yard, program, small};

const BENCH: &str = "idle";
/// A hang guard.
const WAIT: Duration = Duration::from_secs(60);
const LOOK_PAUSE: Duration = Duration::from_micros(20);
const SWAP_BYTES: u64 = 512 << 20;

pub fn main(args: &[String]) -> Result<()> {
    if args.first().is_some_and(|arg| arg == zram::KEEP) {
        return zram::keep(SWAP_BYTES);
    }
    let ops = option(args, "--ops", 30)?.max(3);
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let image = dir.path().join("rootfs");
    build_true(&image)?;
    load::build(&image)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;

    let host_swaps = zram::swap_is_on()?;
    if host_swaps {
        not_here(BENCH, "frozen", "swap is on here: a pause goes on to the rung reclaimed");
    } else {
        let mut yard = Yard::start(&dir.path().join("frozen"), &[])?;
        runtime.block_on(rung(&yard, &image, "frozen", ops, None))?;
        runtime.block_on(parked(&yard, &image, (ops / 3).max(3)))?;
        yard.stop()?;
        ensure!(yard.left()?.is_empty(), "left: {:?}", yard.left()?);
    }

    let swap = if host_swaps { Ok(None) } else { zram::Swap::add().map(Some) };
    match swap {
        Err(reason) => {
            let words = format!("no swap: {reason:#}; only cached files are given back, as on rung frozen");
            not_here(BENCH, "reclaimed", &words);
        }
        Ok(swap) => {
            let mut yard = Yard::start(&dir.path().join("reclaimed"), &[])?;
            let measured = runtime.block_on(rung(&yard, &image, "reclaimed", ops, swap.as_ref()));
            yard.stop()?;
            // Before what went wrong is told.
            if let Some(swap) = swap {
                swap.remove()?;
            }
            measured?;
        }
    }
    Ok(())
}

/// A sandbox at work: it is ready, and its memory is touched.
async fn loaded(yard: &Yard, image: &Path, client: &Client, key: &str) -> Result<String> {
    client.attached().await?;
    let mut request = small(key, image);
    request.request_memory = "256Mi".to_owned();
    request.limit_memory = "256Mi".to_owned();
    // On a disk of its own: what is read of it is cached, and can be given back.
    request.limit_disk = "300Mi".to_owned();
    let sandbox = client.create(request).await?.id;
    load::start(client, &sandbox).await?;
    let bytes = groups(yard)?.iter().map(|group| resident(group)).sum::<u64>();
    ensure!(bytes >= load::MEMORY_BYTES, "the load is {bytes} bytes only");
    Ok(sandbox)
}

/// Paused and called again, `ops` times.
async fn rung(yard: &Yard, image: &Path, name: &str, ops: usize, swap: Option<&zram::Swap>) -> Result<()> {
    let client = Client::new(&yard.socket())?;
    let sandbox = loaded(yard, image, &client, name).await?;
    let mut calls = 0;
    let mut call = async |client: &Client| -> Result<f64> {
        calls += 1;
        let begun = Instant::now();
        client.act(program(&sandbox, "", &format!("call-{calls}"), &load::ASK), 0).await?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    };
    let mut running = Vec::new();
    for _ in 0..ops {
        running.push(call(&client).await?);
    }
    let before = groups(yard)?.iter().map(|group| resident(group)).sum::<u64>();
    let (mut residents, mut freezes, mut resumes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut compressed, mut reclaimed) = (Vec::new(), Vec::new());
    for _ in 0..ops {
        let stands = still(&yard.sandboxes_dir())?;
        let begun = Instant::now();
        let request = v1::PauseSandboxRequest { sandbox: sandbox.clone(), ..Default::default() };
        let stopped = tokio::task::spawn_blocking(move || stands.wait(begun));
        let reply = client.sandboxes.clone().pause(request).await?.into_inner();
        freezes.push(stopped.await??.as_secs_f64() * 1e6);
        ensure!(reply.rung == name, "paused, it is {}, not {name}", reply.rung);
        reclaimed.push(reply.reclaimed_bytes as f64);
        residents.push(groups(yard)?.iter().map(|group| resident(group)).sum::<u64>() as f64);
        compressed.push(swap.map_or(0.0, |swap| swap.used_bytes() as f64));
        resumes.push(call(&client).await?);
    }
    let load = json!({"memory_bytes": load::MEMORY_BYTES, "cached_bytes": load::CACHED_BYTES});
    let fields = |more: &[(&'static str, Value)]| {
        let mut fields = vec![("subject", json!("rollyard")), ("n", json!(ops)), ("load", load.clone())];
        fields.extend_from_slice(more);
        fields
    };
    if name == "frozen" {
        figure(BENCH, "running.resident_bytes", &fields(&[]), before as f64);
        figure(BENCH, "running.call_p50_ms", &fields(&[]), at(&mut running, 0.5));
    }
    let told = [
        ("before_bytes", json!(before)),
        ("reclaimed_bytes", json!(at(&mut reclaimed, 0.5))),
        ("zram_bytes", json!(at(&mut compressed, 0.5))),
    ];
    figure(BENCH, &format!("{name}.resident_after_bytes"), &fields(&told), at(&mut residents, 0.5));
    figure(BENCH, &format!("{name}.freeze_us"), &fields(&[]), at(&mut freezes, 0.5));
    for (figure_name, quantile) in [("resume_p50_ms", 0.5), ("resume_p99_ms", 0.99)] {
        figure(BENCH, &format!("{name}.{figure_name}"), &fields(&[]), at(&mut resumes, quantile));
    }
    end(&client, &sandbox).await
}

/// Saved and ended, and called again.
async fn parked(yard: &Yard, image: &Path, ops: usize) -> Result<()> {
    let client = Client::new(&yard.socket())?;
    let sandbox = loaded(yard, image, &client, "parked").await?;
    // Wherever it comes back.
    let name = sandbox.split('@').next().unwrap_or_default().to_owned();
    let (mut residents, mut resumes) = (Vec::new(), Vec::new());
    for n in 0..ops {
        let output = yard.run(&["pause", "--park", &name])?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let reason = said.lines().next().unwrap_or_default();
            not_here(BENCH, "parked", &format!("this yard parks nothing: {reason}"));
            return end(&client, &sandbox).await;
        }
        let told: Value = serde_json::from_slice(&output.stdout)?;
        let rung = told.pointer("/rung").or_else(|| told.pointer("/0/rung")).and_then(Value::as_str);
        ensure!(rung == Some("parked"), "told to park, it is {rung:?}");
        residents.push(gone(yard).await? as f64);
        let begun = Instant::now();
        client.act(program(&name, "", &format!("call-{n}"), &["/true"]), 0).await?;
        resumes.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let fields = [("subject", json!("rollyard")), ("n", json!(ops))];
    figure(BENCH, "parked.resident_after_bytes", &fields, at(&mut residents, 1.0));
    for (figure_name, quantile) in [("resume_p50_ms", 0.5), ("resume_p99_ms", 0.99)] {
        figure(BENCH, &format!("parked.{figure_name}"), &fields, at(&mut resumes, quantile));
    }
    end(&client, &name).await
}

/// What is left of a parked sandbox on its node, once it has ended there: memory and disk.
async fn gone(yard: &Yard) -> Result<u64> {
    let begun = Instant::now();
    loop {
        let census = census::take(&yard.sandboxes_dir())?;
        let memory: u64 = groups(yard)?.iter().map(|group| resident(group)).sum();
        let disk: u64 =
            census.files.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum();
        if census.holds_no_sandbox() && memory + disk == 0 || begun.elapsed() > WAIT {
            if memory + disk > 0 {
                tell(&format!("after {WAIT:?} there is still: {census}"));
            }
            return Ok(memory + disk);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn end(client: &Client, sandbox: &str) -> Result<()> {
    let request = v1::KillSandboxesRequest {
        sandboxes: vec![sandbox.to_owned()],
        ..v1::KillSandboxesRequest::default()
    };
    let reply = client.sandboxes.clone().kill(request).await?.into_inner();
    ensure!(reply.failed.is_empty(), "{:?}", reply.failed);
    Ok(())
}

/// The groups of the sandboxes there are, in every hierarchy.
fn leaves(sandboxes_dir: &Path) -> Result<Vec<PathBuf>> {
    let leaves = census::leaves(sandboxes_dir)?.into_iter();
    Ok(leaves.filter(|(name, _)| !name.starts_with("pool.")).map(|(_, leaf)| leaf).collect())
}

/// Those that count memory.
fn groups(yard: &Yard) -> Result<Vec<PathBuf>> {
    let leaves = leaves(&yard.sandboxes_dir())?.into_iter();
    Ok(leaves.filter(|leaf| usage_file(leaf).is_some()).collect())
}

fn usage_file(group: &Path) -> Option<PathBuf> {
    ["memory.usage_in_bytes", "memory.current"]
        .map(|name| group.join(name))
        .into_iter()
        .find(|file| file.exists())
}

/// What a group is charged; 0 if it is gone.
fn resident(group: &Path) -> u64 {
    let text = usage_file(group).and_then(|file| std::fs::read_to_string(file).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The file that says whether processes stand still.
struct Stands(PathBuf);

fn still(sandboxes_dir: &Path) -> Result<Stands> {
    let events = leaves(sandboxes_dir)?.into_iter().map(|leaf| leaf.join("cgroup.events"));
    Ok(Stands(events.into_iter().find(|file| file.exists()).context("a group that can be frozen")?))
}

impl Stands {
    /// How long after `begun` they stood still.
    fn wait(self, begun: Instant) -> Result<Duration> {
        loop {
            if std::fs::read_to_string(&self.0)?.lines().any(|line| line == "frozen 1") {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > WAIT {
                bail!("it does not stand still");
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }
}

fn at(values: &mut [f64], quantile: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
    let index = (values.len().saturating_sub(1) as f64 * quantile).round() as usize;
    values.get(index).copied().unwrap_or(f64::NAN)
}
