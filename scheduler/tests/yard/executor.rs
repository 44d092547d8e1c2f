//! An executor that runs nothing: it says that each attempt started and ended, and keeps the
//! protocol (lease, held attempts, acknowledgements) over any number of schedulers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blobs::BlobStore;
use bytes::Bytes;
use rollout::IncarnationId;
use rollout_wire::v1;
use rollout_wire::v1::command::Kind as Command;
use rollout_wire::v1::nodes_client::NodesClient;
use rollout_wire::v1::report::Kind as Report;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use crate::yard::{Yard, channel};

/// What the fake saw and holds.
#[derive(Debug, Default)]
pub struct Seen {
    /// Per attempt (text form), how many distinct starts were carried out.
    pub runs: BTreeMap<String, u32>,
    /// Inputs of the last start of each step index.
    pub inputs: BTreeMap<u32, Vec<v1::Input>>,
    pub welcomes: Vec<v1::Welcome>,
    pub refusals: Vec<v1::Refuse>,
    /// Ended and not acknowledged.
    unacknowledged: BTreeMap<(String, u64), v1::AttemptEnded>,
    /// Starts that were forgotten at once, in nothing that is reported.
    pub forgotten: Vec<String>,
    /// Blobs of layers to start from that were not there.
    pub missing: Vec<String>,
    /// Layers that each attempt was to start from.
    pub bases: BTreeMap<String, Vec<String>>,
    /// Steps as they were sent.
    pub steps: BTreeMap<String, v1::Step>,
    /// Started, and told to hold.
    pub running: BTreeMap<(String, u64), v1::AttemptRef>,
}

pub struct Executor {
    pub seen: Arc<Mutex<Seen>>,
    /// Ends what is held: the attempt by its text, and its reward.
    pub finish: mpsc::UnboundedSender<(String, Option<f32>)>,
    task: JoinHandle<()>,
}

#[derive(Clone)]
pub struct Behaviour {
    pub node: &'static str,
    /// Attempts start and never end.
    pub hold: bool,
    /// Attempts of this step start and never end.
    pub hold_step: Option<&'static str>,
    /// What the executor says of an end, instead of the truth.
    pub lie: Option<fn(&mut v1::Outcome)>,
    pub heartbeat: Duration,
    /// Between two lists of what is held; none: never.
    pub held: Option<Duration>,
    /// So many starts are forgotten as if they had never come.
    pub forgets: usize,
    /// What the node offers.
    pub sandboxes: u32,
    /// Where it serves calls of sandboxes.
    pub sandboxes_url: String,
    /// Every end is told a second time, as a failure.
    pub twice: bool,
    /// What every step prints beside its greeting.
    pub stdout_bytes: usize,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            node: "n1",
            hold: false,
            hold_step: None,
            lie: None,
            heartbeat: Duration::from_millis(100),
            held: None,
            forgets: 0,
            stdout_bytes: 0,
            sandboxes: 64,
            sandboxes_url: String::new(),
            twice: false,
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Executor {
    pub fn attach(yard: &Yard, behaviour: Behaviour) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let incarnation = IncarnationId::from_bits(rand::random());
        let (finish, finished) = mpsc::unbounded_channel();
        let finished = tokio::sync::Mutex::new(finished);
        let life = Life { socket: yard.socket(), incarnation, behaviour, seen: seen.clone(), finished };
        Self { seen, finish, task: tokio::spawn(life.run()) }
    }
}

struct Life {
    socket: PathBuf,
    incarnation: IncarnationId,
    behaviour: Behaviour,
    seen: Arc<Mutex<Seen>>,
    finished: tokio::sync::Mutex<mpsc::UnboundedReceiver<(String, Option<f32>)>>,
}

fn key(attempt: &v1::AttemptRef) -> String {
    format!("{}.{}.{}", attempt.rollout, attempt.step, attempt.attempt)
}

impl Life {
    async fn run(self) {
        loop {
            let _ = self.session().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn session(&self) -> Result<(), tonic::Status> {
        let mut client = NodesClient::new(channel(&self.socket).await);
        let (reports, stream) = mpsc::channel(1024);
        let send = |kind| {
            let batch = v1::ReportBatch { reports: vec![v1::Report { kind: Some(kind) }] };
            reports.try_send(batch).map_err(|_| tonic::Status::unavailable("gone"))
        };
        send(Report::Hello(self.hello()))?;
        let mut commands = client.attach(ReceiverStream::new(stream)).await?.into_inner();
        let again: Vec<_> = self.seen.lock().unwrap().unacknowledged.values().cloned().collect();
        for ended in again {
            send(Report::Ended(ended))?;
        }
        let mut beats = tokio::time::interval(self.behaviour.heartbeat);
        let mut lists = tokio::time::interval(self.behaviour.held.unwrap_or(Duration::from_secs(3600)));
        let mut finished = self.finished.lock().await;
        let mut sequence = 0;
        let mut blobs = None;
        loop {
            let batch = tokio::select! {
                _ = beats.tick() => {
                    sequence += 1;
                    send(Report::Heartbeat(v1::Heartbeat { sequence, ..v1::Heartbeat::default() }))?;
                    continue;
                }
                _ = lists.tick(), if self.behaviour.held.is_some() => {
                    send(Report::Held(v1::Held { held: self.held() }))?;
                    continue;
                }
                Some((attempt, reward)) = finished.recv() => {
                    let held = {
                        let mut seen = self.seen.lock().unwrap();
                        let held = seen.running.keys().find(|(key, _)| *key == attempt).cloned();
                        held.map(|held| (held.1, seen.running.remove(&held).expect("it is held")))
                    };
                    let (generation, attempt) = held.expect("it runs");
                    let reward = reward.map(|value| v1::Reward { value, components: Vec::new() });
                    send(Report::Ended(self.ended(attempt, generation, None, reward, Vec::new())))?;
                    continue;
                }
                batch = commands.message() => batch?,
            };
            let Some(batch) = batch else { return Ok(()) };
            for command in batch.commands {
                match command.kind {
                    Some(Command::Welcome(welcome)) => {
                        blobs = Some(BlobStore::open(&welcome.blobs).expect("the yard's blobs"));
                        self.seen.lock().unwrap().welcomes.push(welcome);
                    }
                    Some(Command::Refuse(refuse)) => {
                        self.seen.lock().unwrap().refusals.push(refuse);
                        return Ok(());
                    }
                    Some(Command::Start(start)) => {
                        for report in self.start(start, blobs.as_ref().expect("welcome first")).await {
                            send(report)?;
                        }
                    }
                    Some(Command::Kill(kill)) => {
                        let attempt = kill.attempt.expect("an attempt");
                        let held = (key(&attempt), kill.generation);
                        if self.seen.lock().unwrap().running.remove(&held).is_some() {
                            let failure = v1::Failure {
                                code: kill.code,
                                domain: "scheduler".to_owned(),
                                message: kill.reason,
                                hint: String::new(),
                            };
                            let ended = self.ended(attempt, kill.generation, Some(failure), None, Vec::new());
                            send(Report::Ended(ended))?;
                        }
                    }
                    Some(Command::EndedAck(ack)) => {
                        let attempt = ack.attempt.expect("an attempt");
                        self.seen.lock().unwrap().unacknowledged.remove(&(key(&attempt), ack.generation));
                    }
                    _ => {}
                }
            }
        }
    }

    fn hello(&self) -> v1::Hello {
        v1::Hello {
            node: self.behaviour.node.to_owned(),
            incarnation: self.incarnation.to_string(),
            capacity: Some(v1::Capacity {
                cpu_milli: 64_000,
                memory_bytes: 64 << 30,
                disk_bytes: 64 << 30,
                sandboxes: self.behaviour.sandboxes,
                disk_limit_max_bytes: 8 << 30,
                backends: vec!["container".to_owned()],
            }),
            held: self.held(),
            version: "fake/1".to_owned(),
            sandboxes_url: self.behaviour.sandboxes_url.clone(),
        }
    }

    fn held(&self) -> Vec<v1::HeldAttempt> {
        use v1::held_attempt::Phase;
        let seen = self.seen.lock().unwrap();
        let held = |attempt: &v1::AttemptRef, generation, phase: Phase| v1::HeldAttempt {
            attempt: Some(attempt.clone()),
            generation,
            phase: phase.into(),
        };
        let running = seen.running.iter().map(|((_, generation), a)| held(a, *generation, Phase::Running));
        let ended = seen
            .unacknowledged
            .values()
            .map(|e| held(e.attempt.as_ref().expect("an attempt"), e.generation, Phase::Ended));
        running.chain(ended).collect()
    }

    async fn start(&self, start: v1::StartAttempt, blobs: &BlobStore) -> Vec<Report> {
        let attempt = start.attempt.expect("an attempt");
        let step = start.step.expect("a step");
        let held = (key(&attempt), start.generation);
        {
            let mut seen = self.seen.lock().unwrap();
            // The same attempt at the same generation is the same command, sent again.
            if seen.running.contains_key(&held) || seen.unacknowledged.contains_key(&held) {
                return Vec::new();
            }
            if seen.forgotten.len() < self.behaviour.forgets {
                seen.forgotten.push(held.0);
                return Vec::new();
            }
            *seen.runs.entry(held.0.clone()).or_default() += 1;
            seen.inputs.insert(attempt.step, start.inputs.clone());
            let layers = start.base.iter().flat_map(|base| &base.layers);
            seen.bases.insert(held.0.clone(), layers.map(|layer| layer.blob_sha256.clone()).collect());
            seen.steps.insert(held.0.clone(), step.clone());
        }
        let started = Report::Started(v1::AttemptStarted {
            attempt: Some(attempt.clone()),
            generation: start.generation,
            started_at_us: now(),
        });
        let base = start.base.unwrap_or_default();
        for layer in &base.layers {
            if !blobs.contains(&layer.blob_sha256).await.expect("the yard's blobs") {
                self.seen.lock().unwrap().missing.push(format!("{}: {}", held.0, layer.blob_sha256));
            }
        }
        if self.behaviour.hold || self.behaviour.hold_step == Some(step.name.as_str()) {
            self.seen.lock().unwrap().running.insert(held, attempt);
            return vec![started];
        }
        let mut artifacts = Vec::new();
        for output in &step.outputs {
            let blob = blobs.put(Bytes::from(format!("{}\n", output.name))).await.expect("a blob");
            artifacts.push(v1::Artifact {
                name: output.name.clone(),
                media_type: output.media_type.clone(),
                size: blob.size,
                sha256: blob.sha256,
            });
        }
        let stdout = blobs
            .put(Bytes::from(format!(
                "hello from {}\n{}",
                step.name,
                "x".repeat(self.behaviour.stdout_bytes)
            )))
            .await
            .expect("a blob");
        let reward = step.grader.is_some().then(|| v1::Reward { value: 1.0, components: Vec::new() });
        let mut ended = self.ended(attempt, start.generation, None, reward, artifacts);
        let outcome = ended.outcome.as_mut().expect("an outcome");
        outcome.stdout = Some(v1::Captured {
            sha256: Some(stdout.sha256),
            stored_bytes: stdout.size,
            written_bytes: stdout.size,
            truncated: false,
        });
        if step.checkpoint_after {
            let packed = Bytes::from(format!("what {} changed", held.0));
            let blob = blobs.put(packed).await.expect("a blob");
            let mut layers = base.layers;
            layers.push(v1::Layer {
                id: format!("sha256:{}", blob.sha256),
                blob_sha256: blob.sha256,
                packed_bytes: blob.size,
                content_bytes: blob.size,
                entries: 1,
            });
            outcome.checkpoint = Some(v1::Checkpoint { image: "host:0".to_owned(), layers });
        }
        if let Some(lie) = self.behaviour.lie {
            lie(outcome);
            let mut seen = self.seen.lock().unwrap();
            seen.unacknowledged.insert(held, ended.clone());
        }
        let mut reports = vec![started, Report::Ended(ended.clone())];
        if self.behaviour.twice {
            let failure = v1::Failure {
                code: "agent_exit".to_owned(),
                domain: "agent".to_owned(),
                message: "told again, and otherwise".to_owned(),
                hint: String::new(),
            };
            ended.outcome.as_mut().expect("an outcome").failure = Some(failure);
            reports.push(Report::Ended(ended));
        }
        reports
    }

    fn ended(
        &self,
        attempt: v1::AttemptRef,
        generation: u64,
        failure: Option<v1::Failure>,
        reward: Option<v1::Reward>,
        artifacts: Vec<v1::Artifact>,
    ) -> v1::AttemptEnded {
        let now = now();
        let outcome = v1::Outcome {
            exit_code: failure.is_none().then_some(0),
            failure,
            reward,
            artifacts,
            times: Some(v1::Times {
                taken_at_us: now,
                started_at_us: Some(now),
                ended_at_us: now,
                boot_ms: Some(1),
                run_ms: Some(1),
                checkpoint_ms: None,
            }),
            image_digest: "host:0".to_owned(),
            ..v1::Outcome::default()
        };
        let held = (key(&attempt), generation);
        let ended =
            v1::AttemptEnded { attempt: Some(attempt), generation, outcome: Some(outcome), kept: false };
        self.seen.lock().unwrap().unacknowledged.insert(held, ended.clone());
        ended
    }
}

fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}
