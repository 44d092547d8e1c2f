//! Plays a script.

use std::fmt::Write as _;
use std::sync::Arc;

use rollout::checkpoint::{Checkpoint, CheckpointId, Layer, LayerId};
use rollout::failure::Failure;
use rollout::outcome::{Captured, Outcome, Reward, Times, Usage};
use rollout::plan::JobPlan;
use rollout::quantity::Request;
use rollout::*;
use scheduler_core::event::{Capacity, ExpandedGroup, Fence, Measured, RefusalClass, StepKeys};
use scheduler_core::model::Stored;
use scheduler_core::{Cluster, Command, Config, Event, ExplainTarget, Now, Record};

const JOB: JobId = JobId::from_bits(1);

struct Yard {
    cluster: Cluster,
    stored: Stored,
    now: Now,
    plan: Arc<JobPlan>,
    incarnations: u64,
    nodes: Vec<(NodeId, IncarnationId)>,
    out: String,
}

/// A rollout without its job.
fn short(rollout: RolloutId) -> String {
    rollout.to_string().split_once('-').expect("JOB-g0-s0").1.to_owned()
}

/// A workspace that no other attempt leaves.
fn workspace_of(attempt: AttemptId) -> Checkpoint {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&attempt.rollout.group.index.to_be_bytes());
    bytes[4..8].copy_from_slice(&attempt.rollout.sample.to_be_bytes());
    bytes[8..12].copy_from_slice(&attempt.rollout.refill.to_be_bytes());
    bytes[12..16].copy_from_slice(&attempt.attempt.to_be_bytes());
    bytes[16] = attempt.step.0;
    let id = LayerId::from_bytes(bytes);
    let layer = Layer { id, blob: id.hex(), packed: Bytes(1), content: Bytes(1), entries: 1 };
    Checkpoint { image: IMAGE.to_owned(), layers: vec![layer] }
}

/// The digest of every sandbox's image.
const IMAGE: &str = "host:1";

/// Keys of steps whose spec looks nothing up in a row.
fn keys(plan: &JobPlan) -> Vec<StepKeys> {
    let row = serde_json::Map::new();
    let group = GroupId { job: JOB, index: 0 };
    let lookup = resolve::Lookup { row: &row, task_id: "row-0", group, epoch: 0, rollout: None };
    let of = |step| {
        let key = resolve::result_key(plan, step, &lookup, None).expect("a key without lookups")?;
        Some(StepKeys { step, keys: vec![Arc::new(key)] })
    };
    plan.step_indices().filter_map(of).collect()
}

/// The output of a script: each line of it, then what followed, indented.
pub fn play(text: &str) -> String {
    let (document, rest) = text.split_once("\nend\n").expect("a script has a spec between `spec` and `end`");
    let document = document.split_once("spec\n").expect("`spec` opens the spec").1;
    let checked = spec::check(document, "scenario.yaml");
    let plan = Arc::new(checked.plan.clone().unwrap_or_else(|| panic!("{}", checked.render(document))));
    let now = Now { boot: BootTime(1_000_000), wall: Timestamp(0) };
    let mut yard = Yard {
        cluster: Cluster::new(Config::default()),
        stored: Stored::default(),
        now,
        plan,
        incarnations: 0,
        nodes: vec![],
        out: String::new(),
    };
    for line in rest.lines().filter(|l| !l.trim().is_empty()) {
        writeln!(yard.out, "{line}").unwrap();
        if !line.starts_with('#') {
            yard.verb(line);
        }
    }
    yard.out
}

impl Yard {
    fn verb(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["submit", groups] => {
                let groups_total = groups.parse().unwrap();
                self.stored.keys.insert(JOB, keys(&self.plan));
                self.stored.submit(JOB, self.plan.clone(), groups_total, self.now.wall);
                let (plan, created_at) = (self.plan.clone(), self.now.wall);
                self.event(Event::JobSubmitted { job: JOB, plan, groups_total, created_at });
            }
            ["attach", name, cpu, memory] => self.attach(name, cpu, memory),
            ["detach", name] => {
                let (node, incarnation) = self.node(name);
                self.event(Event::NodeDetached { node, incarnation });
            }
            ["end", attempt, how, ref reward @ ..] => self.end(attempt, how, reward.first().copied()),
            ["refuse", attempt, class, ref message @ ..] => {
                let class = match class {
                    "busy" => RefusalClass::Busy,
                    "gone" => RefusalClass::SandboxGone,
                    "bad" => RefusalClass::CheckpointBad,
                    other => panic!("unknown class {other}"),
                };
                let (at, attempt) = self.running(attempt);
                self.event(Event::AttemptRefused { at, attempt, class, message: message.join(" ") });
            }
            ["identify", name, image, digest] => {
                let (node, incarnation) = self.node(name);
                let digest = (digest != "missing").then(|| digest.to_owned());
                self.event(Event::ImageIdentified { node, incarnation, image: image.to_owned(), digest });
            }
            ["retry", ref rollouts @ ..] => {
                let ended = self.stored.job_state(JOB).is_some_and(|state| state.is_final());
                let reopened = self.stored.job_snapshot(JOB).filter(|_| ended).map(Box::new);
                let rollout = |text: &&str| format!("{JOB}-{text}").parse().expect("g0-s0");
                let rollouts = rollouts.iter().map(rollout).collect();
                self.event(Event::RetryAsked { job: JOB, reopened, rollouts, lift: false });
            }
            ["wait", length] => self.wait(length.parse().unwrap()),
            ["cancel", ref reason @ ..] => {
                let (code, reason) = (FailureCode::Cancelled, reason.join(" "));
                self.event(Event::JobCancelled { job: JOB, code, reason });
            }
            ["restart"] => {
                let snapshot = self.stored.snapshot();
                let (cluster, records) = Cluster::restore(Config::default(), self.now, snapshot);
                self.cluster = cluster;
                self.tell(records);
                self.pass();
            }
            ["explain"] => self.explain(ExplainTarget::Job(JOB)),
            ["explain", attempt] => {
                let (rollout, step) = self.parse(attempt);
                self.explain(ExplainTarget::Step(rollout, step));
            }
            ["seal"] => {
                let closed: Vec<GroupId> = self.stored.snapshot().jobs[0]
                    .groups
                    .iter()
                    .filter(|g| g.closed.is_some())
                    .map(|g| g.index)
                    .map(|index| GroupId { job: JOB, index })
                    .collect();
                closed.iter().for_each(|group| self.stored.seal(*group));
                self.event(Event::GroupsSealed { groups: closed });
            }
            _ => panic!("not a verb: {line}"),
        }
    }

    fn attach(&mut self, name: &str, cpu: &str, memory: &str) {
        self.incarnations += 1;
        let node = NodeId(name.parse().unwrap());
        let incarnation = IncarnationId::from_bits(self.incarnations);
        self.nodes.retain(|(known, _)| *known != node);
        self.nodes.push((node.clone(), incarnation));
        let value = |text: &str, key: &str| text.strip_prefix(key).expect("cpu=N memory=SIZE").to_owned();
        let total = Request {
            cpu: value(cpu, "cpu=").parse().unwrap(),
            memory: value(memory, "memory=").parse().unwrap(),
            disk: Bytes(1 << 40),
        };
        let backends = [BackendKind::Container].into();
        let capacity = Capacity { total, sandboxes: 1000, disk_limit_max: Bytes(1 << 40), backends };
        self.event(Event::NodeAttached { node, incarnation, capacity, held: vec![] });
    }

    fn end(&mut self, attempt: &str, how: &str, reward: Option<&str>) {
        let failure = (how != "ok").then(|| Failure::new(how.parse().unwrap(), "as the script says"));
        let (at, attempt) = self.running(attempt);
        let kept = failure.is_none() && self.plan.continuation(attempt.step).is_some();
        let reward = reward.map(|value| Reward { value: value.parse().unwrap(), components: vec![] });
        let outcome = Box::new(Outcome {
            failure,
            exit_code: None,
            signal: None,
            oom: false,
            timed_out: false,
            silent: false,
            stdout: Captured::default(),
            stderr: Captured::default(),
            artifacts: vec![],
            reward,
            times: Times::default(),
            usage: Usage::default(),
            image_digest: IMAGE.to_owned(),
            checkpoint: self.plan.step(attempt.step).checkpoint.after.then(|| workspace_of(attempt)),
            actions: None,
            parked: None,
        });
        self.event(Event::AttemptEnded { at, attempt, outcome, kept });
    }

    fn wait(&mut self, length: Millis) {
        // Nodes that are attached beat every second.
        let mut left = length.0;
        while left > 0 {
            let step = left.min(1000);
            left -= step;
            self.now.boot = self.now.boot.after(Millis(step));
            let uses = self.cluster.nodes();
            for node in uses.into_iter().filter(|n| n.attached) {
                let (incarnation, measured) = (node.incarnation, Measured::default());
                let beat = Event::Heartbeat { node: node.node, incarnation, measured };
                assert!(self.cluster.apply(self.now, beat).is_empty());
            }
            self.pass();
        }
    }

    fn explain(&mut self, target: ExplainTarget) {
        let explanation = self.cluster.explain(self.now, target);
        for line in explanation.map_or(vec!["(not in memory)".to_owned()], |e| e.lines) {
            writeln!(self.out, "    {line}").unwrap();
        }
    }

    fn event(&mut self, event: Event) {
        let records = self.cluster.apply(self.now, event);
        self.tell(records);
        self.pass();
    }

    fn pass(&mut self) {
        loop {
            let plan = self.cluster.plan(self.now);
            let mut again = plan.wake_at == Some(self.now.boot);
            self.tell(plan.records);
            for command in plan.commands {
                self.tell_command(&command);
                if let Command::Expand { job, first, count } = command {
                    let group = ExpandedGroup { keys: keys(&self.plan), ..Default::default() };
                    let groups = vec![group; count as usize];
                    let records = self.cluster.apply(self.now, Event::GroupsExpanded { job, first, groups });
                    self.tell(records);
                    again = true;
                } else if let Command::Reopen { group } = command {
                    let stored = self.stored.sealed_group(group).map(Box::new);
                    let records = self.cluster.apply(self.now, Event::GroupReopened { group, stored });
                    self.tell(records);
                    again = true;
                }
            }
            if let Err(wrong) = self.cluster.check() {
                panic!("{}\ninvariants violated: {wrong:#?}", self.out);
            }
            if !again {
                return;
            }
        }
    }

    fn tell(&mut self, records: Vec<Record>) {
        for record in records {
            self.stored.apply(&record);
            let line = match record {
                // What follows from them is told when it happens.
                Record::StepBooks { .. } | Record::BreakerEnd { .. } => continue,
                Record::JobState { state, reason, .. } => format!("job is {} {reason}", state.as_str()),
                Record::GroupsAdmitted { first, count, .. } => {
                    format!("admit groups {first}..{}", first + count)
                }
                Record::AttemptPlaced { attempt, generation, node, continue_from, base, .. } => {
                    let on = match (continue_from, base) {
                        (Some(from), _) => format!(" in the sandbox of {}", self.name(from)),
                        (None, Some(base)) => format!(" from what {} left", self.maker(base)),
                        (None, None) => String::new(),
                    };
                    format!("place {} at generation {generation} on {node}{on}", self.name(attempt))
                }
                Record::AttemptStarted { attempt, .. } => format!("started {}", self.name(attempt)),
                Record::AttemptEnded { attempt, outcome, kept, .. } => {
                    let how = outcome.failure.map_or("ok".to_owned(), |f| f.code.to_string());
                    format!("ended {} {how}{}", self.name(attempt), if kept { ", sandbox kept" } else { "" })
                }
                Record::AttemptWithdrawn { attempt, .. } => format!("withdraw {}", self.name(attempt)),
                Record::CheckpointTaken { attempt, .. } => format!("save what {} left", self.name(attempt)),
                Record::CheckpointRemoved { attempt, why, .. } => {
                    format!("drop what {} left: {why}", self.name(attempt))
                }
                Record::ResultStored { name, attempt, .. } => {
                    format!("store what {} left as {name}", self.name(attempt))
                }
                Record::ResultDropped { name, why } => format!("drop result {name}: {why}"),
                Record::ResultUsed { rollout, step, name, .. } => {
                    let step = &self.plan.step(step).name;
                    format!("step {}/{step} finds {name}", short(rollout))
                }
                Record::ResultUnused { rollout, step } => {
                    let step = &self.plan.step(step).name;
                    format!("step {}/{step} lets go of what it found", short(rollout))
                }
                Record::StepState { rollout, step, state } => {
                    let step = &self.plan.step(step).name;
                    format!("step {}/{step} is {}", short(rollout), state.as_str())
                }
                Record::RolloutRefilled { rollout } => format!("refill: rollout {} begins", short(rollout)),
                Record::RetryAsked { rollout } => format!("rollout {} is to run again", short(rollout)),
                Record::RetrySettled { rollout } => {
                    format!("rollout {} is not asked for any more", short(rollout))
                }
                Record::GroupReopened { group } => format!("group {} is open again", group.index),
                Record::RolloutEnded { rollout, end } => {
                    let failure =
                        end.failure.map_or(String::new(), |f| format!(", {} ({})", f.code, f.domain));
                    let reward = end.reward.map_or("null".to_owned(), |r| r.value.to_string());
                    let rollout = short(rollout);
                    format!("rollout {rollout} is {}, reward {reward}{failure}", end.status.as_str())
                }
                Record::GroupClosed { group, seq, closed_as, valid } => {
                    format!(
                        "group {} closes as {} with seq {seq}, {valid} valid",
                        group.index,
                        closed_as.as_str()
                    )
                }
                Record::Lease { node, state, .. } => format!("lease of {node} is {state:?}").to_lowercase(),
                Record::Fenced { attempt, generation, .. } => {
                    format!("fenced: {} at generation {generation}", self.name(attempt))
                }
            };
            writeln!(self.out, "    {}", line.trim_end()).unwrap();
        }
    }

    fn tell_command(&mut self, command: &Command) {
        let line = match command {
            Command::Expand { first, count, .. } => format!("expand {first}..{}", first + count),
            Command::Start { to, attempt, keep, .. } => {
                format!("start {} on {}{}", self.name(*attempt), to.node, if *keep { ", keep" } else { "" })
            }
            Command::Identify { node, image, .. } => format!("ask {node} for the digest of image {image}"),
            Command::Kill { to, attempt, code, .. } => {
                format!("kill {} on {}: {code}", self.name(*attempt), to.node)
            }
            Command::Release { to, attempt } => {
                format!("release the sandbox of {} on {}", self.name(*attempt), to.node)
            }
            Command::AckEnded { attempt, .. } => format!("acknowledge {}", self.name(*attempt)),
            Command::Reopen { group } => format!("read group {} back", group.index),
            Command::Record { group, seq } => format!("record group {} under seq {seq}", group.index),
            Command::Disconnect { node, reason, .. } => format!("disconnect {node}: {reason}"),
        };
        writeln!(self.out, "  > {line}").unwrap();
    }

    fn name(&self, attempt: AttemptId) -> String {
        format!("{}/{}.{}", short(attempt.rollout), self.plan.step(attempt.step).name, attempt.attempt)
    }

    /// The attempt that left this checkpoint.
    fn maker(&self, base: CheckpointId) -> String {
        let mut all = self.stored.checkpoints.values();
        if let Some(known) = all.find(|c| c.checkpoint.id() == base) {
            return self.name(known.attempt);
        }
        assert!(self.stored.found.values().any(|found| found.id() == base), "a stored checkpoint");
        "a maker whose own was dropped".to_owned()
    }

    fn parse(&self, text: &str) -> (RolloutId, StepIndex) {
        let (rollout, step) = text.split_once('/').expect("g0-s0/step");
        let rollout = format!("{JOB}-{rollout}").parse().expect("g0-s0");
        let index = self.plan.step_indices().find(|&i| self.plan.step(i).name.as_str() == step);
        (rollout, index.expect("a step of the spec"))
    }

    /// The latest attempt of a step, as its node knows it.
    fn running(&self, text: &str) -> (Fence, AttemptId) {
        let (rollout, step) = self.parse(text);
        let latest =
            self.stored.attempts.values().filter(|a| (a.attempt.rollout, a.attempt.step) == (rollout, step));
        let latest = latest.max_by_key(|a| a.attempt.attempt).expect("the step was tried");
        let (node, incarnation, generation) = (latest.node.clone(), latest.incarnation, latest.generation);
        (Fence { node, incarnation, generation }, latest.attempt)
    }

    fn node(&self, name: &str) -> (NodeId, IncarnationId) {
        self.nodes.iter().find(|(node, _)| node.0.as_str() == name).expect("it attached").clone()
    }
}
