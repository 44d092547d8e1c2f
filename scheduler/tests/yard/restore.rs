//! What the store gives back is what a naive store gives back, whatever happened, and the core
//! goes on from it. `SEED=n` replays one run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollout::checkpoint::{Checkpoint, Layer, LayerId};
use rollout::failure::Failure;
use rollout::outcome::{Captured, Outcome, Reward, Times, Usage};
use rollout::plan::{JobPlan, StepKind};
use rollout::quantity::Request;
use rollout::result_key::ResultKey;
use rollout::state::JobState;
use rollout::{
    AttemptId, BootTime, Bytes, FailureCode, GroupId, IncarnationId, JobId, MilliCpu, NodeId, RolloutId,
    StepIndex, Timestamp,
};
use scheduler::store::{self, Batch, NewJob, Reads, Writer};
use scheduler_core::command::Target;
use scheduler_core::event::{Capacity, ExpandedGroup, Fence, Measured, RefusalClass, StepKeys};
use scheduler_core::memory::HeldMemory;
use scheduler_core::model::{Patience, Stored};
use scheduler_core::retry::RetryScope;
use scheduler_core::{Cluster, Command, Config, Event, Now, Record, Snapshot};

const SPEC: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: random
tasks: {from: {inline: [{n: "1"}]}}
group: {size: 2, over_sample: 1}
defaults: {image: host, timeout: 30s, retry: {limit: 2, backoff: 1s, max_backoff: 2s}}
steps:
  - {name: fork, per: group, run: "true", checkpoint: {key: "${image.digest}/${step.hash}"}}
  - {name: setup, needs: [fork], run: "true"}
  - {name: agent, needs: [setup], from: setup, agent: {command: [solve, "${row.n}"], resume: true},
     checkpoint: {every: 1m, keep: 2}, outputs: [{name: out, path: out}]}
  - {name: grade, needs: [agent], from: image, run: "true", grader: {reward_file: /r.txt},
     inputs: [{artifact: agent.out, path: /in/out}]}
"#;

const EVENTS: u32 = 250;
const SEEDS: u64 = 6;

struct World {
    random: u64,
    now: Now,
    cluster: Cluster,
    writer: Writer,
    reads: Reads,
    stored: Stored,
    plans: BTreeMap<JobId, Arc<JobPlan>>,
    /// Sent and not ended.
    live: BTreeMap<AttemptId, Target>,
    to_seal: BTreeSet<GroupId>,
    expansions: Vec<(JobId, u32, u32)>,
    incarnations: BTreeMap<NodeId, IncarnationId>,
    /// Answers on their way.
    identify: Vec<Event>,
    reopened: usize,
    /// What each attempt held that was measured, as it was told.
    held: BTreeMap<(JobId, StepIndex), Vec<Bytes>>,
}

impl World {
    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        let index = self.below(items.len().max(1) as u64);
        items.get(usize::try_from(index).unwrap()).cloned()
    }

    async fn event(&mut self, event: Event, mut batch: Batch) {
        batch.records.extend(self.cluster.apply(self.now, event));
        let plan = self.cluster.plan(self.now);
        batch.records.extend(plan.records);
        self.commit(batch).await;
        for command in plan.commands {
            match command {
                Command::Expand { job, first, count } => self.expansions.push((job, first, count)),
                Command::Start { to, attempt, .. } => drop(self.live.insert(attempt, to)),
                Command::Record { group, .. } => drop(self.to_seal.insert(group)),
                Command::Identify { node, incarnation, image } => {
                    let digest = Some("host:0".to_owned());
                    self.identify.push(Event::ImageIdentified { node, incarnation, image, digest });
                }
                Command::Reopen { group } => {
                    let expanded = ExpandedGroup { keys: keys(), ..Default::default() };
                    let stored = self.reads.sealed_group(group, expanded).await.unwrap();
                    assert_eq!(stored, self.stored.sealed_group(group), "{group}");
                    self.reopened += 1;
                    self.identify.push(Event::GroupReopened { group, stored: stored.map(Box::new) });
                }
                _ => {}
            }
        }
    }

    /// Somebody wants a failed rollout run again, of a job that runs or has ended.
    fn retry(&mut self, batch: &mut Batch) -> Option<Event> {
        let scope = RetryScope { all_failed: true, cancelled: false };
        let failed = self.stored.ends.iter().filter(|(_, ends)| scope.takes(&ends[0]).is_ok());
        let failed: Vec<RolloutId> = failed.map(|(rollout, _)| *rollout).collect();
        let rollout = self.pick(&failed)?;
        let job = rollout.group.job;
        let state = self.stored.job_state(job)?;
        if state == JobState::Cancelled {
            return None;
        }
        let reopened = self.stored.job_snapshot(job).filter(|_| state.is_final()).map(Box::new);
        batch.retried_jobs.extend(reopened.as_ref().map(|_| job));
        Some(Event::RetryAsked { job, reopened, rollouts: vec![rollout], lift: true })
    }

    async fn commit(&mut self, batch: Batch) {
        for record in &batch.records {
            self.stored.apply(record);
            if let Record::AttemptEnded { attempt, outcome, .. } = record {
                let of_step = self.held.entry((attempt.rollout.group.job, attempt.step)).or_default();
                of_step.extend(outcome.usage.memory_held_peak);
            }
            if let Record::AttemptEnded { attempt, .. } | Record::AttemptWithdrawn { attempt, .. } = record {
                self.live.remove(attempt);
            }
        }
        for group in &batch.sealed {
            self.stored.seal(*group);
        }
        self.writer.commit(&batch, self.now.wall).await.expect("a commit");
    }

    async fn submit(&mut self, bits: u64, groups_total: u32) {
        let job = JobId::from_bits(bits);
        let checked = rollout::spec::check(SPEC, "random.yaml");
        let plan = Arc::new(checked.plan.clone().unwrap_or_else(|| panic!("{}", checked.render(SPEC))));
        let created_at = Timestamp(i64::try_from(bits).unwrap());
        let new_job = NewJob {
            job,
            name: plan.name.to_string(),
            document: SPEC.to_owned(),
            source_name: "random.yaml".to_owned(),
            spec_hash: plan.spec_hash.clone(),
            table_root: "/tables".to_owned(),
            idempotency_key: format!("k{bits}"),
            request_hash: String::new(),
            groups_total,
            group_size: plan.group.started(),
            created_at,
            retain: plan.output.retain,
            sandbox: None,
            files: Vec::new(),
            images: Vec::new(),
        };
        self.stored.keys.insert(job, keys());
        self.stored.submit(job, plan.clone(), groups_total, created_at);
        self.plans.insert(job, plan.clone());
        let batch = Batch { new_jobs: vec![new_job], ..Batch::default() };
        self.event(Event::JobSubmitted { job, plan, groups_total, created_at }, batch).await;
    }

    async fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            results: self.reads.result_snapshots().await.unwrap(),
            jobs: Vec::new(),
            nodes: self.reads.node_snapshots().await.unwrap(),
        };
        for row in self.reads.unfinished_jobs().await.unwrap() {
            let plan = self.plans[&row.job].clone();
            let keys = keys();
            let expand = |_| Ok(ExpandedGroup { keys: keys.clone(), ..Default::default() });
            snapshot.jobs.push(self.reads.job_snapshot(&row, plan, expand).await.unwrap());
        }
        snapshot
    }

    fn outcome(&mut self, attempt: AttemptId) -> Outcome {
        let step = self.plans[&attempt.rollout.group.job].step(attempt.step);
        let (kind, saves) = (step.kind, step.checkpoint.after);
        let failure = match (self.below(6), kind) {
            (0, _) => Some(Failure::new(FailureCode::StartFailed, "no \u{1f980} image \0")),
            (1, StepKind::Session) => Some(Failure::new(FailureCode::DriverLost, "silent")),
            (1, StepKind::Agent) => Some(Failure::new(FailureCode::AgentTimeout, "ran 30s")),
            (1, StepKind::Run) => Some(Failure::new(FailureCode::StepExit, "exit code 3")),
            (1, StepKind::Grader) => Some(Failure::new(FailureCode::RewardBad, "NaN")),
            _ => None,
        };
        let rewarded = kind == StepKind::Grader && failure.is_none();
        let reward = rewarded.then(|| Reward { value: 0.1, components: vec![("part".to_owned(), 0.25)] });
        Outcome {
            failure,
            exit_code: Some(0),
            signal: None,
            oom: false,
            timed_out: false,
            silent: false,
            stdout: Captured::default(),
            stderr: Captured::default(),
            artifacts: Vec::new(),
            reward,
            times: Times { taken_at: self.now.wall, ended_at: self.now.wall, ..Times::default() },
            usage: self.usage(),
            image_digest: "host:0".to_owned(),
            checkpoint: saves.then(|| self.workspace()),
            actions: (kind == StepKind::Session).then(|| self.below(100)),
            parked: None,
        }
    }

    /// One in four was not measured.
    fn usage(&mut self) -> Usage {
        let held = (self.below(4) > 0).then(|| Bytes(self.below(1 << 30)));
        Usage { memory_held_peak: held, memory_peak: held.filter(|held| held.0 % 2 == 0), ..Usage::default() }
    }

    /// The sums over attempts are those over a list of all of them.
    async fn check_memory(&self) {
        for &job in self.plans.keys() {
            let mut naive: BTreeMap<StepIndex, HeldMemory> = BTreeMap::new();
            for (&(_, step), held) in
                self.held.iter().filter(|((of, _), held)| *of == job && !held.is_empty())
            {
                let sums = naive.entry(step).or_default();
                held.iter().for_each(|&held| sums.observe(held, Some(held).filter(|held| held.0 % 2 == 0)));
            }
            assert_eq!(self.reads.step_memory(job).await.unwrap(), naive, "{job}");
        }
    }

    /// No two are the same.
    fn workspace(&mut self) -> Checkpoint {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.below(u64::MAX).to_le_bytes());
        let id = LayerId::from_bytes(bytes);
        let layer = Layer { id, blob: id.hex(), packed: Bytes(5), content: Bytes(7), entries: 2 };
        Checkpoint { image: "host:0".to_owned(), layers: vec![layer] }
    }

    async fn step(&mut self) {
        let passed = self.below(900_000);
        self.now.boot = BootTime(self.now.boot.0 + passed);
        self.now.wall = Timestamp(self.now.wall.0 + i64::try_from(passed).unwrap());
        let name = ["n1", "n2"][usize::try_from(self.below(2)).unwrap()];
        let node = NodeId(name.parse().unwrap());
        let live: Vec<_> = self.live.iter().map(|(attempt, to)| (*attempt, to.clone())).collect();
        let mut batch = Batch::default();
        let event = match self.below(20) {
            0 | 1 => {
                let fresh = self.below(3) == 0 || !self.incarnations.contains_key(&node);
                if fresh {
                    let bits = self.below(u64::MAX);
                    self.incarnations.insert(node.clone(), IncarnationId::from_bits(bits));
                }
                let total = Request { cpu: MilliCpu(3_000), memory: Bytes(8 << 30), disk: Bytes(8 << 30) };
                let backends = [rollout::BackendKind::Container].into();
                let capacity = Capacity { total, sandboxes: 8, disk_limit_max: Bytes(1 << 40), backends };
                Event::NodeAttached {
                    incarnation: self.incarnations[&node],
                    node,
                    capacity,
                    held: Vec::new(),
                }
            }
            2 if self.below(3) == 0 => match self.retry(&mut batch) {
                Some(event) => event,
                None => return,
            },
            2 | 3 if !self.identify.is_empty() => self.identify.remove(0),
            2..6 => match self.incarnations.get(&node) {
                Some(&incarnation) => Event::Heartbeat { node, incarnation, measured: Measured::default() },
                None => return,
            },
            6 => match self.incarnations.get(&node).copied() {
                Some(incarnation) if self.below(4) == 0 => Event::LeaseMissing { node, incarnation },
                _ => return,
            },
            7 if self.below(8) == 0 => Event::JobCancelled {
                job: JobId::from_bits(1 + self.below(3)),
                code: if self.below(2) == 0 { FailureCode::Cancelled } else { FailureCode::JobTimeout },
                // Words of ours in a reason of theirs.
                reason: "rows are missing: by \"chance\"".to_owned(),
            },
            7 if self.below(8) == 0 => Event::GroupsUnrecorded {
                job: JobId::from_bits(1 + self.below(3)),
                problem: "too_big_for_yard: no".to_owned(),
                last: self.below(4) == 0,
            },
            8 | 9 => match self.expansions.pop() {
                Some((job, first, count)) => {
                    let group = ExpandedGroup { keys: keys(), ..Default::default() };
                    Event::GroupsExpanded { job, first, groups: vec![group; count as usize] }
                }
                None => return,
            },
            10 => {
                let groups: Vec<_> = self.to_seal.iter().copied().collect();
                let Some(group) = self.pick(&groups) else { return };
                self.to_seal.remove(&group);
                batch.sealed.push(group);
                Event::GroupsSealed { groups: vec![group] }
            }
            kind => {
                let Some((attempt, to)) = self.pick(&live) else { return };
                let at = Fence { node: to.node, incarnation: to.incarnation, generation: to.generation };
                match kind {
                    11 => {
                        let classes =
                            [RefusalClass::Busy, RefusalClass::CheckpointBad, RefusalClass::SandboxGone];
                        let class = self.pick(&classes).unwrap();
                        Event::AttemptRefused { at, attempt, class, message: "full".to_owned() }
                    }
                    12 => {
                        let checkpoint = Box::new(self.workspace());
                        Event::CheckpointTaken { at, attempt, checkpoint }
                    }
                    13 => Event::AttemptStarted { at, attempt, started_at: self.now.wall },
                    _ => {
                        let outcome = Box::new(self.outcome(attempt));
                        let kept = outcome.failure.is_none() && self.below(2) == 0;
                        Event::AttemptEnded { at, attempt, outcome, kept }
                    }
                }
            }
        };
        self.event(event, batch).await;
    }
}

/// Of the first step, whatever the row.
fn keys() -> Vec<StepKeys> {
    let parts = vec![String::new(), "/1".to_owned()];
    let key = ResultKey { project: "p".to_owned(), image: "host".to_owned(), parts };
    vec![StepKeys { step: StepIndex(0), keys: vec![Arc::new(key)] }]
}

/// How many rollouts ended, attempts were made, checkpoints are left and groups were read back.
async fn run(seed: u64) -> (usize, usize, usize, usize) {
    let dir = tempfile::tempdir().unwrap();
    let (writer, reads, _) = store::open(dir.path(), None).await.unwrap();
    let config = Config::default();
    let mut world = World {
        random: seed,
        now: Now { boot: BootTime(1_000_000), wall: Timestamp(1_000_000) },
        cluster: Cluster::new(config.clone()),
        writer,
        reads,
        stored: Stored::default(),
        plans: BTreeMap::new(),
        live: BTreeMap::new(),
        to_seal: BTreeSet::new(),
        expansions: Vec::new(),
        incarnations: BTreeMap::new(),
        identify: Vec::new(),
        reopened: 0,
        held: BTreeMap::new(),
    };
    for bits in 1..=3 {
        let groups = 1 + u32::try_from(world.below(5)).unwrap();
        world.submit(bits, groups).await;
    }
    for event in 0..EVENTS {
        world.step().await;
        if event % 5 != 0 {
            continue;
        }
        let snapshot = world.snapshot().await;
        assert_eq!(snapshot, world.stored.snapshot(), "seed {seed}, event {event}");
        world.check_memory().await;
        if world.below(10) == 0 {
            // A restart: the core goes on from the store alone.
            let live = Patience::of(&world.cluster, world.now);
            let (cluster, records) = Cluster::restore(config.clone(), world.now, snapshot);
            assert_eq!(
                Patience::of(&cluster, world.now),
                live,
                "seed {seed}, event {event}: restored != live"
            );
            assert_eq!(cluster.check(), Ok(()), "seed {seed}, event {event}");
            world.cluster = cluster;
            world.expansions.clear();
            world.to_seal.clear();
            let batch = Batch { records, ..Batch::default() };
            world.event(Event::GroupsSealed { groups: Vec::new() }, batch).await;
        }
    }
    assert!(world.stored.ends.values().all(|ends| ends.len() == 1), "seed {seed}");
    assert!(world.held.values().map(Vec::len).sum::<usize>() > 10, "seed {seed}: nothing was measured");
    let saved = world.stored.checkpoints.len();
    (world.stored.ends.len(), world.stored.attempts.len(), saved, world.reopened)
}

#[tokio::test]
async fn the_store_gives_back_what_a_naive_store_does() {
    let one = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let (mut ended, mut attempts, mut saved, mut reopened) = (0, 0, 0, 0);
    for seed in one.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        println_seed(seed);
        let (more_ended, more_attempts, more_saved, more_reopened) = run(seed).await;
        ended += more_ended;
        attempts += more_attempts;
        saved += more_saved;
        reopened += more_reopened;
    }
    // Random yards in which nothing happens would prove nothing.
    assert!(
        one.is_some() || (ended >= 20 && attempts >= 100 && saved >= 20 && reopened > 0),
        "{ended} ended, {attempts} attempts, {saved} checkpoints, {reopened} read back"
    );
}

/// Shown when the test fails.
#[allow(clippy::print_stdout)]
fn println_seed(seed: u64) {
    println!("SEED={seed}");
}
