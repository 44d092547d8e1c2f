//! Small plans, outcomes and a hand-driven yard.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout::checkpoint::{Checkpoint, CheckpointId, Layer, LayerId};
use rollout::failure::Failure;
use rollout::outcome::{Captured, Outcome, Reward, Times, Usage};
use rollout::plan::*;
use rollout::quantity::{Limit, Request};
use rollout::result_key::ResultKey;
use rollout::*;
use scheduler_core::event::{Capacity, Fence, RefusalClass, StepKeys};
use scheduler_core::model::Stored;
use scheduler_core::snapshot::AttemptSnapshot;
use scheduler_core::{Cluster, Command, Config, Event, Now, Record};

pub fn resources(cpu_milli: u64, memory_mib: u64) -> Resources {
    let (cpu, memory) = (MilliCpu(cpu_milli), Bytes(memory_mib << 20));
    // Above the tmpfs bound, so that the charge is what is asked.
    let disk = Bytes(300 << 20);
    Resources { request: Request { cpu, memory, disk }, limit: Limit { cpu, memory, disk, pids: 64 } }
}

pub fn step(name: &str, kind: StepKind, needs: &[u8]) -> StepPlan {
    let grader = GraderPlan {
        source: RewardSource::Exit(BTreeMap::new()),
        range: None,
        regrades: 1,
        on_agent_timeout: OnAgentTimeout::Grade,
        on_timeout: OnGraderTimeout::Invalid,
    };
    StepPlan {
        name: name.parse().unwrap(),
        kind,
        needs: needs.iter().map(|&n| StepIndex(n)).collect(),
        per: Per::Rollout,
        origin: Origin::Image,
        checkpoint: CheckpointPlan::default(),
        work: WorkPlan::Command(CommandPlan::Shell("true".into())),
        backend: BackendKind::default(),
        image: Template::literal("host"),
        layers: vec![],
        user: Template::literal("rollout"),
        workdir: Template::literal("/workspace"),
        env: BTreeMap::new(),
        env_column: None,
        files: vec![],
        inputs: vec![],
        outputs: vec![],
        resources: ResourcesPlan::Fixed(resources(1000, 64)),
        timeout: Millis(60_000).into(),
        start_timeout: Millis(60_000).into(),
        grace: Millis(1_000).into(),
        health_check: None,
        retry: RetryPlan { limit: 2, backoff: Millis(100), max_backoff: Millis(1_000) },
        idle: None,
        resume: false,
        grader: (kind == StepKind::Grader).then_some(grader),
    }
}

pub fn plan(size: u32, steps: Vec<StepPlan>) -> JobPlan {
    JobPlan {
        name: "job".parse().unwrap(),
        project: None,
        labels: BTreeMap::new(),
        tasks: TasksPlan {
            source: TaskSource::Inline(vec![]),
            filter: Filter::default(),
            on_unsupported: OnUnsupported::default(),
            id: None,
            split: Split::Train,
            epochs: 1,
            columns_used: vec![],
        },
        group: GroupPlan {
            size,
            min_valid: size.min(2),
            on_incomplete: OnIncomplete::Deliver,
            refill_limit: 2,
            over_sample: 0,
        },
        admission: AdmissionPlan { max_running: 64, priority: 50, burst: false },
        steps,
        output: OutputPlan {
            table: None,
            shard: ShardPlan::default(),
            columns: vec![],
            artifacts: true,
            retain: RetainPlan::default(),
        },
        matrix: None,
        schedule: None,
        timeout: None,
        spec_hash: "sha256:0".into(),
    }
}

/// agent -> grade
pub fn graded(size: u32) -> JobPlan {
    plan(size, vec![step("agent", StepKind::Agent, &[]), step("grade", StepKind::Grader, &[0])])
}

/// a -> b (in a's sandbox) -> grade
pub fn chained(size: u32) -> JobPlan {
    let mut b = step("b", StepKind::Agent, &[0]);
    b.origin = Origin::Live(StepIndex(0));
    plan(size, vec![step("a", StepKind::Run, &[]), b, step("grade", StepKind::Grader, &[1])])
}

/// setup, once a group -> agent (from setup) -> grade (from setup)
pub fn forked(size: u32) -> JobPlan {
    let mut setup = step("setup", StepKind::Run, &[]);
    setup.per = Per::Group;
    setup.checkpoint.after = true;
    let mut agent = step("agent", StepKind::Agent, &[0]);
    agent.origin = Origin::Checkpoint(StepIndex(0));
    let mut grade = step("grade", StepKind::Grader, &[1]);
    grade.origin = Origin::Checkpoint(StepIndex(0));
    plan(size, vec![setup, agent, grade])
}

/// `chained`, with the workspace of a and b saved, and the grader in a new sandbox over that of b.
pub fn saved_chain(size: u32) -> JobPlan {
    let mut plan = chained(size);
    plan.steps[0].checkpoint.after = true;
    plan.steps[1].checkpoint.after = true;
    plan.steps[2].origin = Origin::Checkpoint(StepIndex(1));
    plan
}

/// `saved_chain`, with the grader in the sandbox of b.
pub fn graded_there(size: u32) -> JobPlan {
    let mut plan = saved_chain(size);
    plan.steps[2].origin = Origin::Live(StepIndex(1));
    plan
}

/// `forked`, with one set-up for all groups of all jobs.
pub fn keyed(size: u32) -> JobPlan {
    let mut plan = forked(size);
    plan.steps[0].checkpoint.key = Some(Template::literal("base/"));
    plan
}

/// build, once for all rollouts -> agent (from build) -> grade (from build)
pub fn keyed_member(size: u32) -> JobPlan {
    let mut plan = keyed(size);
    plan.steps[0].per = Per::Rollout;
    plan
}

/// As an expansion has them: each key ends in the digest of the image.
fn keys(plan: &JobPlan) -> Vec<StepKeys> {
    let key = |text: &str| ResultKey {
        project: String::new(),
        image: "host".to_owned(),
        parts: vec![text.to_owned(), String::new()],
    };
    let of = |step| {
        let text = plan.step(step).checkpoint.key.as_ref()?.as_literal()?;
        Some(StepKeys { step, keys: vec![Arc::new(key(text))] })
    };
    plan.step_indices().filter_map(of).collect()
}

pub fn outcome(code: Option<FailureCode>, reward: Option<f32>) -> Box<Outcome> {
    Box::new(Outcome {
        failure: code.map(|code| Failure::new(code, "it happened")),
        exit_code: Some(0),
        signal: None,
        oom: false,
        timed_out: false,
        silent: false,
        stdout: Captured::default(),
        stderr: Captured::default(),
        artifacts: vec![],
        reward: reward.map(|value| Reward { value, components: vec![] }),
        times: Times::default(),
        usage: Usage::default(),
        image_digest: "host:0".into(),
        checkpoint: None,
        actions: None,
        parked: None,
    })
}

/// A session step; `takes_reward` as where the job has no grader.
pub fn session(name: &str, needs: &[u8], takes_reward: bool) -> StepPlan {
    let idle_timeout = Millis(60_000);
    let session = SessionPlan { idle_timeout, max_actions: Some(5), takes_reward, unclaimed: false };
    StepPlan { work: WorkPlan::Session(session), ..step(name, StepKind::Session, needs) }
}

/// Something is set up, and a driver goes on in its sandbox.
pub fn driven(size: u32) -> JobPlan {
    let mut talk = session("talk", &[0], true);
    talk.origin = Origin::Live(StepIndex(0));
    plan(size, vec![step("setup", StepKind::Run, &[]), talk])
}

/// The workspace an attempt leaves: no other attempt leaves the same.
pub fn workspace_of(attempt: AttemptId) -> Checkpoint {
    let name = Checkpoint { image: attempt.to_string(), layers: vec![] }.id().to_string();
    let id: LayerId = name.parse().unwrap();
    let layer = Layer { id, blob: id.hex(), packed: Bytes(1), content: Bytes(1), entries: 1 };
    Checkpoint { image: "host:0".into(), layers: vec![layer] }
}

pub fn capacity(cpu_milli: u64) -> Capacity {
    Capacity {
        total: Request { cpu: MilliCpu(cpu_milli), memory: Bytes(64 << 30), disk: Bytes(1 << 40) },
        sandboxes: 100,
        disk_limit_max: Bytes(1 << 30),
        backends: [BackendKind::Container].into(),
    }
}

pub const JOB: JobId = JobId::from_bits(1);
/// Its first group.
pub const JOB_GROUP: GroupId = GroupId { job: JOB, index: 0 };

pub fn node(name: &str) -> NodeId {
    NodeId(name.parse().unwrap())
}

/// A cluster driven by hand; every record goes to the naive store, every invariant is checked.
pub struct Yard {
    pub cluster: Cluster,
    pub stored: Stored,
    pub now: Now,
    /// What the last `event` or `pass` made.
    pub records: Vec<Record>,
    pub commands: Vec<Command>,
    /// Ready steps that its placement looked at.
    pub looked_at: usize,
}

#[derive(Debug, Clone)]
pub struct Started {
    pub fence: Fence,
    pub attempt: AttemptId,
    pub continue_from: Option<AttemptId>,
    pub keep: bool,
    pub base: Option<CheckpointId>,
}

impl Yard {
    pub fn new() -> Self {
        let now = Now { boot: BootTime(1_000_000), wall: Timestamp(1) };
        Self {
            cluster: Cluster::new(Config::default()),
            stored: Stored::default(),
            now,
            records: vec![],
            commands: vec![],
            looked_at: 0,
        }
    }

    pub fn with(plan: JobPlan, groups: u32) -> Self {
        let mut yard = Self::new();
        yard.submit(JOB, plan, groups);
        yard
    }

    pub fn submit(&mut self, job: JobId, plan: JobPlan, groups_total: u32) {
        self.stored.keys.entry(job).or_insert_with(|| keys(&plan));
        let plan = Arc::new(plan);
        self.stored.submit(job, plan.clone(), groups_total, self.now.wall);
        self.event(Event::JobSubmitted { job, plan, groups_total, created_at: self.now.wall });
    }

    /// Applies, plans, answers expansions, until nothing new comes.
    pub fn event(&mut self, event: Event) {
        self.records = self.cluster.apply(self.now, event);
        self.commands.clear();
        self.looked_at = 0;
        self.pass();
    }

    pub fn pass(&mut self) {
        loop {
            let plan = self.cluster.plan(self.now);
            self.records.extend(plan.records);
            self.looked_at += plan.looked_at;
            let mut again = plan.wake_at == Some(self.now.boot);
            for command in plan.commands {
                if let Command::Expand { job, first, count } = command {
                    let groups = vec![self.stored.expanded(job); count as usize];
                    let event = Event::GroupsExpanded { job, first, groups };
                    self.records.extend(self.cluster.apply(self.now, event));
                    again = true;
                } else if let Command::Reopen { group } = command {
                    let stored = self.stored.sealed_group(group).map(Box::new);
                    self.records.extend(self.cluster.apply(self.now, Event::GroupReopened { group, stored }));
                    again = true;
                } else {
                    self.commands.push(command);
                }
            }
            self.check();
            if !again {
                break;
            }
        }
        for record in &self.records {
            self.stored.apply(record);
        }
    }

    pub fn check(&self) {
        if let Err(wrong) = self.cluster.check() {
            panic!("invariants violated: {wrong:#?}");
        }
    }

    pub fn attach(&mut self, name: &str, incarnation: u64, cpu_milli: u64) {
        let incarnation = IncarnationId::from_bits(incarnation);
        let capacity = capacity(cpu_milli);
        self.event(Event::NodeAttached { node: node(name), incarnation, capacity, held: vec![] });
    }

    pub fn starts(&self) -> Vec<Started> {
        self.commands
            .iter()
            .filter_map(|c| match c {
                Command::Start { to, attempt, continue_from, keep, base, .. } => Some(Started {
                    fence: Fence {
                        node: to.node.clone(),
                        incarnation: to.incarnation,
                        generation: to.generation,
                    },
                    attempt: *attempt,
                    continue_from: *continue_from,
                    keep: *keep,
                    base: base.as_ref().map(|checkpoint| checkpoint.id()),
                }),
                _ => None,
            })
            .collect()
    }

    /// What was placed and has not ended, by the store.
    pub fn open(&self) -> Vec<Started> {
        let open = self.stored.attempts.values().filter(|a| a.outcome.is_none());
        let started = |a: &AttemptSnapshot| Started {
            fence: Fence { node: a.node.clone(), incarnation: a.incarnation, generation: a.generation },
            attempt: a.attempt,
            continue_from: a.continue_from,
            keep: false,
            base: a.base,
        };
        open.map(started).collect()
    }

    pub fn end(&mut self, started: &Started, code: Option<FailureCode>, reward: Option<f32>) {
        self.end_with(started, outcome(code, reward));
    }

    /// It ends, and leaves a workspace that is named by its attempt.
    pub fn end_saved(&mut self, started: &Started, code: Option<FailureCode>, reward: Option<f32>) {
        let mut outcome = outcome(code, reward);
        outcome.checkpoint = Some(workspace_of(started.attempt));
        self.end_with(started, outcome);
    }

    pub fn end_with(&mut self, started: &Started, outcome: Box<Outcome>) {
        let is_graded = |f: &Failure| f.domain == Domain::Agent && f.code.consequence().should_grade;
        let kept = started.keep && outcome.failure.as_ref().is_none_or(is_graded);
        let (at, attempt) = (started.fence.clone(), started.attempt);
        self.event(Event::AttemptEnded { at, attempt, outcome, kept });
    }

    pub fn refuse(&mut self, started: &Started, class: RefusalClass, message: &str) {
        let (at, attempt, message) = (started.fence.clone(), started.attempt, message.to_owned());
        self.event(Event::AttemptRefused { at, attempt, class, message });
    }

    /// The scheduler starts anew from what it stored; its executors are not back yet.
    pub fn restart(&mut self) {
        let (cluster, records) = Cluster::restore(Config::default(), self.now, self.stored.snapshot());
        assert!(records.is_empty(), "{records:?}");
        self.cluster = cluster;
        self.records.clear();
        self.commands.clear();
        self.pass();
    }

    pub fn later(&mut self, wait: Millis) {
        self.now.boot = self.now.boot.after(wait);
        self.now.wall = Timestamp(self.now.wall.0 + i64::try_from(wait.0).unwrap() * 1000);
        self.records.clear();
        self.commands.clear();
        self.pass();
    }

    /// Every question what an image is gets `digest` for an answer.
    pub fn answer(&mut self, digest: Option<&str>) {
        let asked: Vec<(NodeId, IncarnationId, String)> = self
            .commands
            .iter()
            .filter_map(|command| match command {
                Command::Identify { node, incarnation, image } => {
                    Some((node.clone(), *incarnation, image.clone()))
                }
                _ => None,
            })
            .collect();
        assert!(!asked.is_empty(), "nothing was asked: {:?}", self.commands);
        let mut made = (Vec::new(), Vec::new());
        for (node, incarnation, image) in asked {
            let digest = digest.map(str::to_owned);
            self.event(Event::ImageIdentified { node, incarnation, image, digest });
            made.0.append(&mut self.records);
            made.1.append(&mut self.commands);
        }
        (self.records, self.commands) = made;
    }

    /// Asks for these to be run again.
    pub fn retry(&mut self, job: JobId, rollouts: Vec<RolloutId>, lift: bool) {
        let ended = self.stored.job_state(job).is_some_and(state::JobState::is_final);
        let reopened = self.stored.job_snapshot(job).filter(|_| ended).map(Box::new);
        self.event(Event::RetryAsked { job, reopened, rollouts, lift });
    }

    /// Ends of rollouts, as stored.
    pub fn ends(&self) -> Vec<&scheduler_core::record::RolloutEnd> {
        assert!(self.stored.ends.values().all(|e| e.len() == 1), "a rollout ended twice");
        self.stored.ends.values().flatten().collect()
    }

    pub fn seal_all(&mut self) {
        let groups: Vec<GroupId> = self
            .records
            .iter()
            .filter_map(|r| match r {
                Record::GroupClosed { group, .. } => Some(*group),
                _ => None,
            })
            .collect();
        for group in &groups {
            self.stored.seal(*group);
        }
        self.event(Event::GroupsSealed { groups });
    }
}
