//! Bench `session`: a driver in a sandbox, through a whole yard: scheduler and executor in processes of
//! their own, gRPC over the scheduler's socket, a session step that the driver has claimed.
//!
//! Case `exec`: a process with its streams, from the call to its end. Case `act`: the same program as a
//! recorded action, which is on disk before it starts and before it is answered. Both beside the floor, a
//! bare process at a socket pair that runs the same static binary, in turn within one run.
//! Figure `fast_forward_per_s`: recorded actions that a driver which came back sends again, a second.
//!
//! `session [--rounds N] [--ops N]`: rounds (default 5, at least 3), calls a round (default 400).

mod floor;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rollout_wire::v1;
use serde_json::json;

use crate::create::floor::build_true;
use crate::report::{comparison, figure, measurement, option, round};
use crate::yard::{Client, Yard, program};

const BENCH: &str = "session";
const WARM_UP_OPS: usize = 20;
const DRIVER: &str = "bench";
const TRUE: &str = "/true";

pub fn main(args: &[String]) -> Result<()> {
    let (rounds, ops) = (option(args, "--rounds", 5)?.max(3), option(args, "--ops", 400)?.max(10));
    let dir = tempfile::Builder::new().prefix("rollyard-bench-").tempdir()?;
    let rootfs = dir.path().join("rootfs");
    build_true(&rootfs)?;
    // Before there is a second thread.
    let floor = floor::Resident::start(&rootfs.join("true"))?;
    let mut yard = Yard::start(&dir.path().join("home"), &[])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();

    let client = Client::new(&yard.socket())?;
    runtime.block_on(client.attached())?;
    let job = yard.submit("session", &spec(&rootfs))?;
    let session = runtime.block_on(claim(&client, &job))?;
    let act = |client: &Client, session: &v1::Session, n: usize| {
        let request = program(&session.sandbox, &session.claim, &format!("a-{n}"), &[TRUE]);
        runtime.block_on(client.act(request, 0))
    };
    for n in 0..WARM_UP_OPS {
        act(&client, &session, n)?;
        runtime.block_on(exec(&client, &session))?;
        floor.call()?;
    }
    let (mut execs, mut acts, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for r in 0..rounds {
        floors.push(round(ops, |_| floor.call())?);
        execs.push(round(ops, |_| runtime.block_on(exec(&client, &session)))?);
        let first = WARM_UP_OPS + r * ops;
        acts.push(round(ops, |n| act(&client, &session, first + n).map(drop))?);
    }
    measurement(BENCH, "exec", "floor", &floors);
    for (case, rounds) in [("exec", &execs), ("act", &acts)] {
        measurement(BENCH, case, "rollyard", rounds);
        comparison(BENCH, case, ("rollyard", rounds), ("floor", &floors));
    }

    // The driver is gone, and comes back under its name.
    drop(client);
    let recorded = WARM_UP_OPS + rounds * ops;
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        let client = Client::new(&yard.socket())?;
        let session = runtime.block_on(claim(&client, &job))?;
        ensure!(session.actions == recorded as u64, "{} actions are recorded", session.actions);
        for n in 0..recorded {
            let reply = act(&client, &session, n)?;
            ensure!(reply.repeated && reply.ordinal == n as u64, "it was done again: {reply:?}");
        }
        rates.push(recorded as f64 / begun.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    let fields = [("subject", json!("rollyard")), ("n", json!(recorded)), ("rounds", json!(rates))];
    figure(BENCH, "fast_forward_per_s", &fields, rates[rates.len() / 2]);
    drop(entered);
    drop(runtime);
    yard.stop()
}

fn spec(rootfs: &Path) -> String {
    format!(
        "apiVersion: rollyard/v1
kind: RolloutJob
name: session
tasks: {{from: {{inline: [{{}}]}}}}
group: {{size: 1}}
defaults: {{image: 'dir:{}', timeout: 4h, resources: {{request: {{cpu: 10m, memory: 16Mi}}, limit: {{cpu: 2, memory: 128Mi, disk: 16Mi, pids: 64}}}}}}
steps:
  - {{name: play, session: {{idle_timeout: 1h}}, idle: {{park_after: 4h}}}}
",
        rootfs.display()
    )
}

async fn claim(client: &Client, job: &str) -> Result<v1::Session> {
    let request = v1::ClaimSessionRequest {
        job: job.to_owned(),
        wait_ms: 60_000,
        driver: DRIVER.to_owned(),
        ttl_ms: 600_000,
        ..v1::ClaimSessionRequest::default()
    };
    let reply = client.sandboxes.clone().claim(request).await?.into_inner();
    reply.session.context("the session is there to be claimed")
}

/// From the call to the end of the process.
async fn exec(client: &Client, session: &v1::Session) -> Result<()> {
    let start = v1::ExecStart {
        sandbox: session.sandbox.clone(),
        claim: session.claim.clone(),
        command: Some(v1::exec_start::Command::Argv(v1::Argv { items: vec![TRUE.to_owned()] })),
        ..v1::ExecStart::default()
    };
    let start = v1::ExecInput { input: Some(v1::exec_input::Input::Start(start)) };
    // The input stays open: one that closes it is a client that went away.
    let inputs = futures::StreamExt::chain(tokio_stream::once(start), tokio_stream::pending());
    let mut outputs = client.sandboxes.clone().exec(inputs).await?.into_inner();
    while let Some(output) = outputs.message().await? {
        if let Some(v1::exec_output::Output::Ended(ended)) = output.output {
            ensure!(ended.exit_code == Some(0), "{ended:?}");
            return Ok(());
        }
    }
    anyhow::bail!("the stream ends without an end of the process")
}
