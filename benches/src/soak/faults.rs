//! What goes wrong on purpose: SIGKILL of executor, scheduler and broker, after so many sandboxes each.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::life;
use super::{Every, Run};
use crate::report::tell;
use crate::yard::Yard;

/// Between two looks at how far it is.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A hang guard, for a node that comes back.
const BACK_WAIT: Duration = Duration::from_secs(240);
const BACK_PAUSE: Duration = Duration::from_millis(50);
/// At least this much of its lease (8 s from the last heartbeat, one a second) an executor has left when it is
/// killed.
const LEASE_LEFT_MIN: Duration = Duration::from_secs(6);
/// Rollouts of a job.
pub const ROLLOUTS: usize = 20;

pub struct Faults {
    run: Arc<Run>,
    every: Every,
    kills: BTreeMap<&'static str, usize>,
    jobs: Vec<String>,
    probes: usize,
    /// Executors that did not come back within the lease.
    late: usize,
}

impl Faults {
    pub fn new(run: Arc<Run>, every: Every) -> Self {
        let kills = ["broker", "executor", "scheduler"].into_iter().map(|part| (part, 0)).collect();
        Self { run, every, kills, jobs: Vec::new(), probes: 0, late: 0 }
    }

    pub fn kills(&self) -> BTreeMap<&'static str, usize> {
        self.kills.clone()
    }

    /// Their keys.
    pub fn jobs(&self) -> &[String] {
        &self.jobs
    }

    /// Does what is due after as many sandboxes as were begun.
    pub async fn look(&mut self, yard: &mut Yard, sandboxes: usize) -> Result<()> {
        let begun = self.run.begun.load(Ordering::SeqCst).min(sandboxes);
        let due = |done: usize, every: usize| begun / every > done;
        if due(self.jobs.len(), self.every.job) {
            let key = format!("job-{}", self.jobs.len());
            submit(yard, &key, &self.run.image)?;
            self.jobs.push(key);
        }
        if due(self.kills["scheduler"], self.every.scheduler) {
            yard.kill_scheduler()?;
            yard.start_scheduler()?;
            self.count("scheduler");
        }
        if due(self.kills["broker"], self.every.broker) {
            self.run.lost.begins();
            ensure!(yard.kill_broker()?, "there is no broker to kill");
            self.count("broker");
            self.back(yard).await?;
            self.run.lost.ends();
        }
        if due(self.kills["executor"], self.every.executor) {
            self.restart(yard).await?;
        }
        if !yard.executor_runs()? {
            self.run.wrong(format!("the executor ended by itself\n{}", yard.logs()));
            self.run.lost.begins();
            self.back(yard).await?;
            self.run.lost.ends();
        }
        Ok(())
    }

    /// Sees to it that everything runs before the books are closed.
    pub async fn settle(&mut self, yard: &mut Yard) -> Result<()> {
        if yard.executor_runs()? {
            self.back(yard).await?;
        } else {
            self.run.lost.begins();
            self.back(yard).await?;
            self.run.lost.ends();
        }
        if self.kills["executor"] > 0 && self.late == self.kills["executor"] {
            self.run.wrong(format!("none of {} executors came within the lease of its sandboxes", self.late));
        }
        Ok(())
    }

    /// SIGKILL of the executor, and another at once: within the lease nothing is lost, and it goes on as the
    /// same incarnation.
    async fn restart(&mut self, yard: &mut Yard) -> Result<()> {
        let before = self.run.client.attached().await?.incarnation;
        self.run.executor.begins();
        let killed_at = Instant::now();
        yard.kill_executor()?;
        yard.start_executor()?;
        self.count("executor");
        let run = Arc::clone(&self.run);
        let late = {
            let back = self.back(yard);
            tokio::pin!(back);
            match tokio::time::timeout_at((killed_at + LEASE_LEFT_MIN).into(), &mut back).await {
                Ok(back) => {
                    back?;
                    false
                }
                Err(_) => {
                    run.lost.begins();
                    back.await?;
                    true
                }
            }
        };
        let after = self.run.client.attached().await?.incarnation;
        if late {
            self.late += 1;
            self.run.lost.ends();
        } else if before != after {
            self.run.wrong(format!("incarnation {before} was not taken over: {after}\n{}", yard.logs()));
        }
        self.run.executor.ends();
        let took = if late { "after its lease" } else { "within its lease" };
        self.run.count(&format!("executor: back {took}"));
        tell(&format!("executor: back {took}, after {} ms", killed_at.elapsed().as_millis()));
        Ok(())
    }

    fn count(&mut self, part: &'static str) {
        *self.kills.entry(part).or_default() += 1;
    }

    /// Waits until the node makes sandboxes again. An executor that ended since
    /// its broker is gone is started again, as whoever supervises it would.
    async fn back(&mut self, yard: &mut Yard) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.probes += 1;
            let probe = life::probe(&self.run, self.probes);
            tokio::pin!(probe);
            let works = loop {
                if !yard.executor_runs()? {
                    yard.start_executor()?;
                }
                tokio::select! {
                    works = &mut probe => break works,
                    () = tokio::time::sleep(BACK_PAUSE) => {}
                }
                ensure!(begun.elapsed() < BACK_WAIT, "the node does not come back\n{}", yard.logs());
            };
            if works {
                return Ok(());
            }
        }
    }
}

/// A job of a few rollouts: under this key it is the same job, however often it is asked for.
pub fn submit(yard: &Yard, key: &str, image: &Path) -> Result<String> {
    let rows = (0..ROLLOUTS).map(|n| format!("{{n: \"{n}\"}}")).collect::<Vec<_>>().join(", ");
    let spec = format!(
        "apiVersion: rollyard/v1
kind: RolloutJob
name: soak
tasks: {{from: {{inline: [{rows}]}}}}
group: {{size: 1}}
admission: {{max_running: 8}}
defaults: {{image: 'dir:{}', timeout: 60s, retry: {{limit: 10, backoff: 100ms, max_backoff: 200ms}}, resources: {{request: {{cpu: 10m, memory: 16Mi}}, limit: {{cpu: 1, memory: 64Mi, disk: 8Mi, pids: 32}}}}}}
steps:
  - {{name: work, env: {{N: '${{row.n}}'}}, run: 'test ! -e answer && sleep 0.1 && echo $((N * 7)) > answer', outputs: [{{name: answer, path: answer}}]}}
  - {{name: grade, needs: [work], env: {{N: '${{row.n}}'}}, inputs: [{{artifact: work.answer, path: /in/answer}}], grader: {{}}, run: 'test $(cat /in/answer) = $((N * 7)) && r=1 || r=0; echo $r > /logs/verifier/reward.txt'}}
output: {{shard: {{rows: 8, flush: 1s}}}}
",
        image.display()
    );
    yard.submit(key, &spec)
}
