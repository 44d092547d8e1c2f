//! What must hold at the end: every sandbox and every rollout has ended once, the ledger is empty.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rollout_wire::v1;
use serde_json::Value;

use super::{IDLE, LABEL, NUMBER, Run, faults, lock};
use crate::yard::Yard;

/// A hang guard, for all that runs to end.
const END_WAIT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(50);
const PAGE_ROWS: u32 = 1_000;
/// The code of what ended with its broker or its lease.
const NODE_LOST: &str = "node_lost";

pub async fn close(run: &Run, yard: &Yard, jobs: &[String]) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < END_WAIT
        && !(unfinished(run).await?.is_empty() && listed(run, true, false).await?.is_empty())
    {
        tokio::time::sleep(PAUSE).await;
    }
    for sandbox in listed(run, true, false).await? {
        run.wrong(format!("{} is not ended by its idle timeout", sandbox.id));
    }
    for job in unfinished(run).await? {
        run.wrong(format!("job {job} has not ended"));
    }
    let request = v1::KillSandboxesRequest {
        labels: [(LABEL.to_owned(), run.seed.to_string())].into(),
        reason: "the end".to_owned(),
        ..v1::KillSandboxesRequest::default()
    };
    let reply = run.client.sandboxes.clone().kill(request).await?.into_inner();
    if !reply.failed.is_empty() {
        run.wrong(format!("not ended at the end: {:?}", reply.failed.first()));
    }
    ledger(run).await?;
    sandboxes(run).await?;
    for key in jobs {
        rollouts(run, yard, key).with_context(|| format!("the tables of {key}"))?;
    }
    Ok(())
}

/// Sandboxes of this run: those that idle out, or all; those that ended, too.
async fn listed(run: &Run, idle_only: bool, ended_too: bool) -> Result<Vec<v1::Sandbox>> {
    let mut labels: BTreeMap<String, String> = [(LABEL.to_owned(), run.seed.to_string())].into();
    if idle_only {
        labels.insert(IDLE.to_owned(), "yes".to_owned());
    }
    let (mut found, mut page_token) = (Vec::new(), String::new());
    loop {
        let request =
            v1::ListSandboxesRequest { labels: labels.clone(), ended_too, page_size: PAGE_ROWS, page_token };
        let reply = run.client.sandboxes.clone().list(request).await?.into_inner();
        found.extend(reply.sandboxes);
        page_token = reply.next_page_token;
        if page_token.is_empty() {
            return Ok(found);
        }
    }
}

/// Jobs that have not ended.
async fn unfinished(run: &Run) -> Result<Vec<String>> {
    let request =
        v1::ListRequest { page_size: PAGE_ROWS, unfinished_only: true, ..v1::ListRequest::default() };
    let reply = run.client.jobs.clone().list(request).await?.into_inner();
    Ok(reply.jobs.into_iter().map(|job| job.id).collect())
}

/// The ledger is empty, and the node holds nothing.
async fn ledger(run: &Run) -> Result<()> {
    let begun = Instant::now();
    loop {
        let node = run.client.attached().await?;
        let used = node.used_cpu_milli + node.used_memory_bytes + node.used_disk_bytes;
        if used == 0 && node.sandboxes == 0 && node.held == 0 {
            return Ok(());
        }
        if begun.elapsed() > END_WAIT {
            run.wrong(format!("the ledger is not empty: {node:?}"));
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Each that was made is in the books once, under the id its maker was told, and has ended after one
/// attempt at most.
async fn sandboxes(run: &Run) -> Result<()> {
    let seen = lock(&run.seen).clone();
    let mut told: BTreeMap<String, Vec<v1::Sandbox>> = BTreeMap::new();
    for sandbox in listed(run, false, true).await? {
        told.entry(sandbox.labels[NUMBER].clone()).or_default().push(sandbox);
    }
    for (number, seen) in &seen {
        match told.get(number).map(Vec::as_slice) {
            None if seen.id.is_none() => {}
            Some([one]) => {
                let name = |id: &str| id.split('@').next().unwrap_or_default().to_owned();
                if seen.id.as_ref().is_some_and(|id| name(id) != name(&one.id)) {
                    run.wrong(format!("{number} was told to be {:?} and is {}", seen.id, one.id));
                }
                if let Some(failure) = &one.failure
                    && !seen.may_be_lost
                    && seen.is_killed
                {
                    run.wrong(format!("{number}, {}: ended undisturbed: {failure:?}", one.id));
                }
            }
            other => run.wrong(format!("{number} is in the books {} times", other.map_or(0, <[_]>::len))),
        }
    }
    for sandbox in told.into_values().flatten() {
        let why = sandbox.failure.as_ref().map_or("ended", |failure| failure.code.as_str());
        run.count(&format!("end: {why}"));
        if why == NODE_LOST && !run.lost_any() {
            run.wrong(format!("{} was lost and nothing took it along: {:?}", sandbox.id, sandbox.failure));
        }
        if sandbox.state != "ended" {
            run.wrong(format!("{} has not ended: {}", sandbox.id, sandbox.state));
        }
        let rollout = sandbox.id.split('@').next().unwrap_or_default().to_owned();
        let steps =
            run.client.jobs.clone().list_steps(v1::ListStepsRequest { rollout }).await?.into_inner().steps;
        if steps.len() > 1 {
            run.wrong(format!("{} was tried {} times: {steps:?}", sandbox.id, steps.len()));
        }
    }
    Ok(())
}

/// Every rollout of the job is in the table once, and what it says is right.
fn rollouts(run: &Run, yard: &Yard, key: &str) -> Result<()> {
    let rows = yard.rows(key, "trajectories")?;
    let text = |row: &Value, column: &str| row[column].as_str().unwrap_or_default().to_owned();
    let members: BTreeSet<String> = rows.iter().map(|row| text(row, "trajectory_id")).collect();
    if members.len() != faults::ROLLOUTS || rows.len() != faults::ROLLOUTS {
        run.wrong(format!("{key}: {} rows of {} rollouts", rows.len(), members.len()));
    }
    for row in &rows {
        let domain = text(row, "failure_domain");
        run.count(&format!("rollout: {}", if domain.is_empty() { "ended well" } else { &domain }));
        let is_lost = row["reward"].is_null() && ["node", "sandbox", "scheduler"].contains(&domain.as_str());
        if row["reward"] != 1.0 && !is_lost {
            run.wrong(format!("{key}: {row}"));
        }
    }
    let steps = yard.rows(key, "steps")?;
    let attempt =
        |step: &Value| (text(step, "trajectory_id"), text(step, "step_name"), step["attempt"].as_u64());
    let attempts: BTreeSet<_> = steps.iter().map(attempt).collect();
    if attempts.len() != steps.len() {
        run.wrong(format!("{key}: an attempt has two rows"));
    }
    for step in steps.iter().filter(|step| step["failure_code"] == NODE_LOST && !run.lost_any()) {
        run.wrong(format!("{key}: lost, and nothing took it along: {step}"));
    }
    let well: Vec<_> = steps.iter().filter(|step| step["failure_code"].is_null()).map(attempt).collect();
    let once: BTreeSet<_> = well.iter().map(|(rollout, step, _)| (rollout, step)).collect();
    if once.len() != well.len() {
        run.wrong(format!("{key}: a step that ended well ran again"));
    }
    Ok(())
}
