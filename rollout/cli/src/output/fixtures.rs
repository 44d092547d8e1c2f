//! Fixed inputs of the snapshots.

pub mod sandboxes;

use executor::doctor::{Capacity, Check, Report, Status};
use rollout::Timestamp;

use crate::summary::{Detail, RewardCount, Summary};
use crate::view::{
    Artifact, BlobSum, Captured, Change, Checkpoint, CheckpointDetail, CheckpointDiff, Collected,
    Explanation, Exported, Failure, FailureCount, Groups, Job, Layer, MemoryAdvice, Node, NotRetried,
    Outcome, PassAtK, Retried, Rewards, Rollout, RolloutCounts, RolloutSteps, Schedule, Step, StepMemory,
    Submitted, User,
};

/// 2026-01-02 03:04:05 UTC.
pub const NOW: Timestamp = Timestamp(1_767_323_045_000_000);
const JOB: &str = "j0000000000007";

fn ago(seconds: i64) -> i64 {
    NOW.0 - seconds * 1_000_000
}

fn failure_count(domain: &str, code: &str, rollouts: u64, example: &str, at: &str) -> FailureCount {
    FailureCount {
        domain: domain.into(),
        code: code.into(),
        rollouts,
        example: example.into(),
        example_rollout: format!("{JOB}-{at}"),
        hint: (code == "oom_guest").then(|| "raise resources.limit.memory".into()),
    }
}

/// With a failure code that tries to clear the screen.
pub fn running_job() -> Job {
    Job {
        id: JOB.into(),
        name: "forty".into(),
        state: "running".into(),
        yard_runs: true,
        reason: None,
        spec_hash: format!("sha256:{}", "5f1c".repeat(16)),
        table_root: "/data/out".into(),
        created_at_us: ago(75),
        finished_at_us: None,
        group_size: 4,
        groups: Groups { total: 10, closed: 3, sealed: 2 },
        rollouts: RolloutCounts { total: 40, admitted: 25, ended: 14, valid: 10 },
        steps_running: 8,
        steps_ready: 3,
        rewards: Rewards {
            count: 10,
            mean: Some(0.7),
            successes: 7,
            pass_at_k: vec![PassAtK { k: 1, value: 0.7, groups: 3 }, PassAtK { k: 4, value: 1.0, groups: 2 }],
        },
        failures: vec![
            failure_count("agent", "agent_timeout", 4, "ran 2.0 s of 2 s", "g4-s0"),
            failure_count("agent", "oom_guest", 2, "the kernel killed `perl` at 64Mi", "g5-s1"),
            failure_count("task", "step\u{1b}[2Jx", 1, "first\nsecond \u{1b}]0;title\u{7}", "g6-s1"),
        ],
        failure_message: None,
        memory: None,
    }
}

/// As `show` has it.
pub fn measured_job() -> Job {
    let mib = |mib: u64| mib << 20;
    let advice = MemoryAdvice {
        code: "asks_too_much".into(),
        field: "resources.request.memory".into(),
        suggested_bytes: mib(112),
        told: "step `work` asks for 512Mi of memory and 95 of 100 attempts held at most 80Mi: with `resources.request.memory: 112Mi` more of them run at once, and its limit stays what it is".into(),
    };
    let work = StepMemory {
        step: "work".into(),
        attempts: 128,
        request_bytes: Some(mib(512)),
        kept_bytes: Some(mib(512)),
        held_most_bytes: mib(84),
        held_p95_bytes: mib(80),
        kernel_peak_bytes: Some(mib(190)),
        told: "asks 512Mi, held at most 84Mi, p95 80Mi over 128 attempts".into(),
        advice: Some(advice),
    };
    let grade = StepMemory {
        step: "grade\u{1b}[2J".into(),
        attempts: 1,
        request_bytes: None,
        kept_bytes: None,
        held_most_bytes: mib(3),
        held_p95_bytes: mib(3),
        kernel_peak_bytes: None,
        told: "asks what its row says, held at most 3Mi, p95 3Mi over 1 attempt".into(),
        advice: None,
    };
    Job { memory: Some(vec![work, grade]), ..running_job() }
}

pub fn held_job() -> Job {
    let reason = "more than 50 % of the last 32 ends of step `work` failed with `step_exit`";
    Job { state: "held".into(), reason: Some(reason.into()), ..running_job() }
}

pub fn finished_job() -> Job {
    Job {
        state: "finished".into(),
        finished_at_us: Some(ago(0)),
        groups: Groups { total: 10, closed: 10, sealed: 10 },
        rollouts: RolloutCounts { total: 40, admitted: 40, ended: 40, valid: 40 },
        steps_running: 0,
        steps_ready: 0,
        ..running_job()
    }
}

pub fn rewarded(reward: f32) -> Rollout {
    Rollout {
        id: format!("{JOB}-g0-s0"),
        task_id: "row-0".into(),
        status: "completed".into(),
        stop_reason: Some("stop".into()),
        failure: None,
        reward: Some(reward),
        created_at_us: Some(ago(60)),
        finished_at_us: Some(ago(50)),
        superseded: false,
    }
}

/// Two of three, and why the others are not.
pub fn retried() -> Retried {
    let reason =
        |code: &str, rollouts, why: &str| NotRetried { code: code.into(), why: why.into(), rollouts };
    Retried {
        target: JOB.into(),
        retried: 2,
        not_retried: vec![reason("agent", 1, "failed\u{1b}[2J by what the agent did")],
        job: Some(running_job()),
    }
}

fn failure() -> Failure {
    Failure {
        code: "agent_timeout".into(),
        domain: "agent".into(),
        message: "ran 2.0 s of 2 s\nlast words: \u{1b}[31mred".into(),
        hint: Some("raise its timeout".into()),
    }
}

pub fn failed_rollout() -> Rollout {
    Rollout {
        id: format!("{JOB}-g4-s0"),
        task_id: "row-4\u{202e}".into(),
        status: "truncated".into(),
        stop_reason: Some("agent_timeout".into()),
        failure: Some(failure()),
        superseded: true,
        ..rewarded(0.0)
    }
}

pub fn ended_step() -> Step {
    Step {
        step: "work".into(),
        kind: "agent".into(),
        per: "rollout".into(),
        state: "failed".into(),
        attempt: Some(0),
        node: Some("local".into()),
        placed_at_us: Some(ago(60)),
        started_at_us: Some(ago(59)),
        ended_at_us: Some(ago(57)),
        outcome: Some(Outcome {
            failure: Some(failure()),
            exit_code: None,
            signal: Some(15),
            oom: false,
            timed_out: true,
            reward: None,
            run_ms: Some(2012),
            cpu_ms: Some(1990),
            memory_peak_bytes: Some(3 << 20),
            memory_held_peak_bytes: Some(2 << 20),
            disk_peak_bytes: None,
            stdout: Captured {
                sha256: Some("ab12".into()),
                stored_bytes: 8 << 20,
                written_bytes: 12_345_678,
                truncated: true,
            },
            stderr: Captured::default(),
            artifacts: vec![Artifact {
                name: "answer".into(),
                media_type: "text/plain".into(),
                size_bytes: 3,
                sha256: "cd34".repeat(16),
            }],
            image_digest: "host:77d0".into(),
        }),
    }
}

pub fn rollout_steps() -> RolloutSteps {
    let graded = Step {
        step: "grade".into(),
        kind: "grader".into(),
        per: "rollout".into(),
        state: "succeeded".into(),
        attempt: Some(1),
        outcome: ended_step().outcome.map(|outcome| Outcome {
            failure: None,
            exit_code: Some(0),
            signal: None,
            timed_out: false,
            reward: Some(0.0),
            run_ms: Some(12),
            cpu_ms: None,
            stdout: Captured::default(),
            artifacts: Vec::new(),
            ..outcome
        }),
        ..ended_step()
    };
    let waiting = Step {
        step: "after".into(),
        kind: "run".into(),
        per: "group".into(),
        state: "waiting".into(),
        attempt: None,
        node: None,
        placed_at_us: None,
        started_at_us: None,
        ended_at_us: None,
        outcome: None,
    };
    RolloutSteps::new(failed_rollout(), vec![ended_step(), graded, waiting])
}

pub fn nodes() -> Vec<Node> {
    let attached = Node {
        name: "local".into(),
        state: "attached".into(),
        incarnation: "i0000000000009".into(),
        version: "0.1.0".into(),
        cpu_milli: Some(2000),
        cpu_used_milli: Some(1500),
        memory_bytes: Some(24 << 30),
        memory_used_bytes: Some(3 << 29),
        memory_available_bytes: Some(20 << 30),
        disk_bytes: Some(80 << 30),
        disk_used_bytes: Some(0),
        sandboxes: Some(8),
        sandboxes_max: Some(4096),
        held: Some(9),
        load_milli: Some(1520),
        backends: vec!["container".into()],
    };
    let detached = rollout_wire::v1::Node {
        name: "far".into(),
        state: "detached".into(),
        version: "0.1.0".into(),
        ..rollout_wire::v1::Node::default()
    };
    vec![attached, detached.into()]
}

pub fn explanation() -> Explanation {
    Explanation {
        target: format!("{JOB}-g4-s0/work"),
        lines: vec![
            "waits for memory: needs 512Mi, node local has 100Mi of 24Gi free".into(),
            "3 steps of this job are ahead of it\u{7}".into(),
        ],
        detail: serde_json::json!({ "waits_for": "memory" }),
    }
}

pub fn submitted() -> Submitted {
    Submitted {
        job: running_job(),
        resumed: true,
        warnings: vec![serde_json::json!({ "code": "no_reward" })],
    }
}

pub fn schedule() -> Schedule {
    Schedule {
        id: "c0000000000007".into(),
        name: "nightly\u{1b}[2J".into(),
        project: Some("post\u{202e}train".into()),
        cron: "30 2 * * mon-fri".into(),
        timezone: "Europe/Berlin".into(),
        enabled: true,
        overlap: "queue".into(),
        catch_up: true,
        spec_hash: "sha256:5f1c".into(),
        created_at_us: NOW.0 - 90_000_000,
        next_at_us: vec![NOW.0 + 60_000_000],
        next: vec!["2026-12-01 02:30".into(), "2026-12-02 02:30".into()],
        last_fire_at_us: Some(NOW.0 - 61_000_000),
        last_job: Some(JOB.into()),
        waiting_at_us: Some(NOW.0),
        fired: 1_234,
        skipped: 2,
        missed: 3,
        failed: 4,
        problem: "the fire of 2026-11-30 02:30 was left out:\u{7} the job before runs".into(),
    }
}

pub fn disabled_schedule() -> Schedule {
    Schedule {
        name: "off".into(),
        project: None,
        enabled: false,
        catch_up: false,
        next_at_us: vec![],
        next: vec![],
        last_fire_at_us: None,
        last_job: None,
        waiting_at_us: None,
        problem: String::new(),
        ..schedule()
    }
}

pub fn summary() -> Summary {
    Summary {
        job: finished_job(),
        wall_ms: 18_240,
        yard_cpu_ms: Some(812),
        detail: Some(Detail {
            clean_rewards: vec![
                RewardCount { reward: 1.0, rollouts: 16 },
                RewardCount { reward: 0.0, rollouts: 8 },
            ],
            clean_rewards_other: 0,
            attempts: 81,
            retries: 1,
            capture_truncated: 4,
            capture_truncated_example: Some(format!("{JOB}-g9-s0")),
            cpu_ms: Some(12_100),
            memory_peak_bytes: Some(64 << 20),
        }),
    }
}

pub fn doctor() -> Report {
    let check = |name, status, detail: &str, errno, consequence: Option<&'static str>| Check {
        name,
        status,
        detail: detail.into(),
        errno,
        consequence,
    };
    Report {
        checks: vec![
            check("root", Status::Works, "effective uid 0", None, None),
            check("loop disks", Status::Limited, "8 at most", None, None),
            check(
                "memory, cpu and pids limits",
                Status::Missing,
                "no memory controller\u{1b}[2J",
                Some(2),
                Some("the container backend is refused"),
            ),
        ],
        capacity: vec![Capacity {
            ceiling: "open files of the executor",
            limit: 20_000,
            reserved: 9_529,
            each: 1,
            sandboxes: 10_471,
        }],
    }
}

pub fn exported() -> Vec<Exported> {
    let copy = |table: &str, rows, bytes| Exported {
        table: table.to_owned(),
        path: format!("/data/{table}\u{1b}[2J.parquet"),
        rows,
        bytes,
    };
    vec![copy("trajectories", 12_000, 5 << 20), copy("steps", 0, 900)]
}

pub fn checkpoints() -> Vec<Checkpoint> {
    let needed = Checkpoint {
        id: format!("sha256:{}", "a1".repeat(32)),
        rollout: format!("{JOB}-g0-s1"),
        step: "work".into(),
        attempt: 0,
        ordinal: 0,
        kind: "after".into(),
        state: "needed".into(),
        packed_bytes: 3 << 20,
        content_bytes: 9 << 20,
        depth: 2,
        taken_at_us: ago(90),
        expires_at_us: None,
        removed_at_us: None,
        removed_why: None,
    };
    let kept = Checkpoint { state: "kept".into(), expires_at_us: Some(ago(-3_600)), ..needed.clone() };
    let removed = Checkpoint {
        state: "removed".into(),
        removed_at_us: Some(ago(5)),
        removed_why: Some("chunk_corrupt: \u{1b}[2J".into()),
        ..needed.clone()
    };
    vec![needed, kept, removed]
}

pub fn checkpoint() -> CheckpointDetail {
    let layer = |byte: &str, entries| Layer {
        id: format!("sha256:{}", byte.repeat(32)),
        blob_sha256: byte.repeat(32),
        packed_bytes: 1 << 20,
        content_bytes: 4 << 20,
        entries,
    };
    CheckpointDetail {
        id: format!("sha256:{}", "a1".repeat(32)),
        image: "host:abc\u{7}".into(),
        layers: vec![layer("b2", 40), layer("c3", 1)],
        taken: checkpoints(),
        users: vec![User {
            rollout: format!("{JOB}-g0-s2"),
            step: "grade".into(),
            attempt: 1,
            running: true,
        }],
    }
}

pub fn checkpoint_diff() -> CheckpointDiff {
    let change = |change, path: &str, from_bytes, to_bytes| Change {
        change,
        kind: "file",
        from_bytes,
        to_bytes,
        path: path.into(),
        path_hex: None,
    };
    CheckpointDiff {
        from: format!("sha256:{}", "a1".repeat(32)),
        to: format!("sha256:{}", "a2".repeat(32)),
        same_image: false,
        changes: vec![
            change("added", "root/\u{1b}[2Jnew", None, Some(2_048)),
            change("changed", "root/old", Some(1), Some(2)),
            change("removed", "tmp/x", Some(7), None),
        ],
    }
}

pub fn collected() -> Collected {
    Collected {
        dry_run: false,
        expired_checkpoints: 12,
        layers: BlobSum { blobs: 14, bytes: 300 << 20 },
        unnamed: BlobSum { blobs: 1, bytes: 9 },
        kept: BlobSum { blobs: 4_000, bytes: 5 << 30 },
    }
}
