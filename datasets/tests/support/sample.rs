//! A small job whose groups end in every way that differs in the tables. Used by the tests, by
//! `examples/sample_table.rs` and by the golden files: a change here changes those.

#![allow(dead_code, reason = "each user takes a part")]

use std::collections::BTreeMap;

use datasets::record::{GroupRecord, MemberRecord, Provenance, StepRecord};
use datasets::recorder::FetchError;
use datasets::table::TableMeta;
use rollout::failure::{Failure, FailureCode, Status};
use rollout::outcome::{Artifact, Captured, Outcome, Reward, Times, Usage};
use rollout::plan::{Split, StepKind};
use rollout::state::GroupClosedAs;
use rollout::{Bytes, GroupId, JobId, Millis, NodeId, RolloutId, Timestamp};
use sha2::Digest as _;

pub const JOB: JobId = JobId::from_bits(7);
/// 2026-01-01T00:00:00Z
const START: i64 = 1_767_225_600_000_000;

pub fn meta() -> TableMeta {
    TableMeta { job: JOB, spec_hash: spec_hash(), writer: "rollyard/sample".to_owned() }
}

fn spec_hash() -> String {
    format!("sha256:{}", sha256(b"the job document"))
}

pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(sha2::Sha256::digest(bytes))
}

/// Answers for artifacts by their digest, as a blob store would.
#[derive(Debug, Default)]
pub struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    pub fn put(&mut self, bytes: impl Into<Vec<u8>>) -> String {
        let bytes = bytes.into();
        let digest = sha256(&bytes);
        self.0.insert(digest.clone(), bytes);
        digest
    }

    pub fn fetch(&self, digest: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, FetchError> {
        let bytes = self.0.get(digest).ok_or_else(|| format!("no blob {digest}"))?;
        assert!(bytes.len() as u64 <= bytes_max, "only small artifacts are fetched");
        Ok(Some(bytes.clone()))
    }
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp(START + seconds * 1_000_000)
}

pub fn outcome() -> Outcome {
    Outcome {
        failure: None,
        exit_code: Some(0),
        signal: None,
        oom: false,
        timed_out: false,
        silent: false,
        stdout: Captured::default(),
        stderr: Captured::default(),
        artifacts: Vec::new(),
        reward: None,
        times: Times {
            checkpoint: None,
            taken_at: at(1),
            started_at: Some(at(2)),
            ended_at: at(5),
            boot: Some(Millis(1000)),
            run: Some(Millis(3000)),
        },
        usage: Usage { cpu: Some(Millis(2500)), memory_peak: Some(Bytes(64 << 20)), ..Usage::default() },
        checkpoint: None,
        actions: None,
        parked: None,
        image_digest: "host:abc".to_owned(),
    }
}

pub fn step(name: &str, kind: StepKind, attempt: u32, node: &str, outcome: Outcome) -> StepRecord {
    let (step_name, node) = (name.parse().unwrap(), NodeId(node.parse().unwrap()));
    StepRecord { step_name, kind, attempt, node: Some(node), queue: Some(Millis(250)), base: None, outcome }
}

fn graded(value: f32, components: &[(&str, f64)]) -> Reward {
    let components = components.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    Reward { value, components }
}

fn member(group: GroupId, sample: u32, steps: Vec<StepRecord>) -> MemberRecord {
    MemberRecord {
        rollout: RolloutId { group, sample, refill: 0 },
        superseded: false,
        status: Status::Completed,
        stop_reason: Some("stop".to_owned()),
        failure: None,
        reward: None,
        created_at: at(0),
        started_at: at(2),
        finished_at: at(9),
        steps,
    }
}

fn ended_by(mut member: MemberRecord, failure: Failure) -> MemberRecord {
    let consequence = failure.code.consequence();
    member.status = consequence.status;
    member.stop_reason = consequence.stop_reason.map(str::to_owned);
    member.failure = Some(failure);
    member
}

/// Group `seq` of the sample: four samples that succeed, fail at an agent's timeout with a valid
/// reward, lose their node, and are cancelled before they start. Every other group ran on another
/// node, so dictionaries differ from batch to batch; every third has no members left to grade.
pub fn group(seq: i64, blobs: &mut Blobs) -> GroupRecord {
    let index = u32::try_from(seq).unwrap();
    let group = GroupId { job: JOB, index };
    let node = if seq % 2 == 0 { "node-even" } else { "node-odd" };

    let mut agent = outcome();
    let log = blobs.put(format!("hello from group {seq}\n"));
    agent.stdout = Captured { sha256: Some(log), stored: Bytes(20), written: Bytes(20), truncated: false };
    let patch = format!("--- a\n+++ b of {seq}\n").into_bytes();
    agent.artifacts = vec![
        Artifact {
            name: "patch".to_owned(),
            media_type: "text/x-diff".to_owned(),
            size: Bytes(patch.len() as u64),
            sha256: blobs.put(patch),
        },
        Artifact {
            name: "core".to_owned(),
            media_type: "application/octet-stream".to_owned(),
            size: Bytes(1 << 30),
            sha256: sha256(b"too large to be inlined"),
        },
    ];
    let mut lost = outcome();
    lost.failure = Some(Failure::new(FailureCode::NodeLost, "the node stopped answering after 12s"));
    (lost.exit_code, lost.usage, lost.times.run) = (None, Usage::default(), None);
    let mut cut = outcome();
    cut.failure = Some(Failure::new(FailureCode::AgentTimeout, "the agent ran for 60.2s"));
    (cut.exit_code, cut.signal, cut.timed_out) = (None, Some(9), true);
    cut.stderr = Captured { sha256: Some(blobs.put("killed\n")), truncated: true, ..Captured::default() };
    let mut grade = outcome();
    grade.reward = Some(graded(0.5, &[("tests_passed", 3.0)]));
    let (agent_kind, grader) = (StepKind::Agent, StepKind::Grader);

    let mut won = member(
        group,
        0,
        vec![
            step("agent", agent_kind, 0, "node-gone", lost.clone()),
            step("agent", agent_kind, 1, node, agent),
            step("grade", grader, 0, node, grade.clone()),
        ],
    );
    won.reward = Some(graded(1.0, &[("tests_passed", 4.0), ("style", 0.25)]));
    let timed_out = member(
        group,
        1,
        vec![step("agent", agent_kind, 0, node, cut.clone()), step("grade", grader, 0, node, grade)],
    );
    let mut timed_out = ended_by(timed_out, cut.failure.unwrap());
    timed_out.reward = Some(graded(0.5, &[]));
    let gone = member(group, 2, vec![step("agent", agent_kind, 0, "node-gone", lost.clone())]);
    let gone = ended_by(gone, lost.failure.unwrap());
    let mut never = member(group, 3, Vec::new());
    (never.started_at, never.finished_at) = (never.created_at, never.created_at);
    let never = ended_by(never, Failure::new(FailureCode::Cancelled, "cancelled by its owner"));

    let dropped = seq % 3 == 0;
    let members = if dropped { vec![gone, never] } else { vec![won, timed_out, gone, never] };
    GroupRecord {
        replaces: None,
        group,
        seq,
        task_id: format!("row-{index}"),
        split: Split::Train,
        epoch: 0,
        group_size: 4,
        group_valid: if dropped { 0 } else { 2 },
        closed_as: if dropped { GroupClosedAs::Dropped } else { GroupClosedAs::Short },
        provenance: Provenance {
            spec_hash: spec_hash(),
            task_hash: format!("sha256:{}", sha256(format!("row {index}").as_bytes())),
            rules_hash: format!("sha256:{}", sha256(b"{}")),
            yard_id: "dev".to_owned(),
            executor_version: "0.1.0".to_owned(),
        },
        task_row: Some(format!(r#"{{"question":"{index} + {index} = ?"}}"#)),
        members,
        shared: Vec::new(),
    }
}
