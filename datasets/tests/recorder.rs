//! From a record to rows: what each column says, and which records are refused.

use arrow::array::{Array as _, AsArray as _, RecordBatch};
use arrow::datatypes::{Float32Type, Float64Type, Int32Type, Int64Type};
use datasets::Error;
use datasets::read::texts;
use datasets::record::GroupRecord;
use datasets::recorder::{self, FetchError, GroupBatches, INLINE_BYTES_MAX, no_inline};
use datasets::schema::Table;
use rollout::checkpoint::Checkpoint;
use rollout::failure::{Failure, FailureCode, Status};
use rollout::outcome::{Artifact, Captured, Outcome, Reward};
use rollout::plan::StepKind;
use rollout::{Bytes, Millis};

#[path = "support/sample.rs"]
mod sample;

fn group(seq: i64) -> GroupRecord {
    sample::group(seq, &mut sample::Blobs::default())
}

fn record(group: &GroupRecord) -> GroupBatches {
    recorder::batches(group, &no_inline).unwrap()
}

fn longs(batch: &RecordBatch, column: &str) -> Vec<Option<i64>> {
    batch.column_by_name(column).unwrap().as_primitive::<Int64Type>().iter().collect()
}

fn ints(batch: &RecordBatch, column: &str) -> Vec<Option<i32>> {
    batch.column_by_name(column).unwrap().as_primitive::<Int32Type>().iter().collect()
}

fn flags(batch: &RecordBatch, column: &str) -> Vec<bool> {
    batch.column_by_name(column).unwrap().as_boolean().iter().flatten().collect()
}

#[test]
fn a_trajectory_tells_of_the_last_attempt_and_its_grade() {
    let rows = record(&group(1)).trajectories;
    assert_eq!(rows.num_rows(), 4);
    assert_eq!(texts(&rows, "status"), ["completed", "truncated", "failed", "cancelled"].map(Some));
    assert_eq!(flags(&rows, "reward_valid"), [true, true, false, false]);
    let rewards = rows.column_by_name("reward").unwrap().as_primitive::<Float32Type>().iter();
    assert_eq!(rewards.collect::<Vec<_>>(), [Some(1.0), Some(0.5), None, None]);
    assert_eq!(ints(&rows, "attempt"), [1, 0, 0, 0].map(Some));
    assert_eq!(texts(&rows, "node_id"), ["node-odd", "node-odd", "node-gone", ""].map(Some));
    assert_eq!(texts(&rows, "image_digest"), ["host:abc", "host:abc", "host:abc", ""].map(Some));
    // Only last attempts count: the lost attempt's queue time is not in the first sum.
    assert_eq!(longs(&rows, "dur_queue_ms"), [Some(500), Some(500), Some(250), None]);
    assert_eq!(longs(&rows, "dur_env_ms"), [Some(3000), Some(3000), None, None]);
    assert_eq!(longs(&rows, "dur_grade_ms"), [Some(3000), Some(3000), None, None]);
    assert_eq!(flags(&rows, "trainable"), [false; 4]);

    let components = rows.column_by_name("reward_components").unwrap().as_list::<i32>();
    assert_eq!((0..4).map(|row| components.is_null(row)).collect::<Vec<_>>(), [false, false, true, true]);
    let first = components.value(0);
    let first = first.as_struct();
    assert_eq!(
        first.column(0).as_string::<i32>().iter().collect::<Vec<_>>(),
        [Some("tests_passed"), Some("style")]
    );
    assert_eq!(first.column(1).as_primitive::<Float64Type>().values().to_vec(), [4.0, 0.25]);
    assert_eq!(first.column(2).null_count(), 2);

    for unmeasured in
        ["guard_flags", "denied_count", "dur_model_ms", "policy_version_min", "extra", "messages"]
    {
        assert_eq!(rows.column_by_name(unmeasured).unwrap().logical_null_count(), 4, "{unmeasured}");
    }
}

#[test]
fn what_a_group_runs_once_is_a_step_of_no_trajectory_and_checkpoints_go_by_id() {
    let mut group = group(1);
    let left = Checkpoint { image: "host:abc".to_owned(), layers: Vec::new() };
    let mut setup = sample::step("setup", StepKind::Run, 0, "node-odd", sample::outcome());
    setup.outcome.checkpoint = Some(left.clone());
    setup.outcome.times.checkpoint = Some(Millis(40));
    group.shared = vec![setup];
    group.members[0].steps[1].base = Some(left.id());
    let (rows, id) = (record(&group), left.id().to_string());
    assert_eq!(rows.trajectories.num_rows(), 4);
    assert_eq!(texts(&rows.trajectories, "ckpt_start"), [Some(&*id), None, None, None]);
    let steps = rows.steps;
    assert_eq!(texts(&steps, "step_name")[..3], ["setup", "agent", "agent"].map(Some));
    assert_eq!(texts(&steps, "trajectory_id")[0], None);
    assert_eq!(texts(&steps, "ckpt_out")[..2], [Some(&*id), None]);
    assert_eq!(texts(&steps, "ckpt_in")[..3], [None, None, Some(&*id)]);
    assert_eq!(longs(&steps, "ckpt_ms")[..2], [Some(40), None]);
}

#[test]
fn an_agent_that_did_nothing_until_its_deadline_is_marked() {
    let silent = || {
        let mut outcome = sample::outcome();
        outcome.timed_out = true;
        outcome
    };
    let byte = || Captured {
        sha256: Some(sample::sha256(b"x")),
        stored: Bytes(1),
        written: Bytes(1),
        truncated: false,
    };
    let dropped = Captured { written: Bytes(1), truncated: true, ..Captured::default() };
    let artifact = Artifact {
        name: "patch".to_owned(),
        media_type: "text/plain".to_owned(),
        size: Bytes(0),
        sha256: sample::sha256(b""),
    };
    let agent = StepKind::Agent;
    let table = [
        (agent, silent(), true),
        (agent, Outcome { stdout: byte(), ..silent() }, false),
        (agent, Outcome { stderr: byte(), ..silent() }, false),
        (agent, Outcome { stdout: dropped, ..silent() }, false),
        (agent, Outcome { artifacts: vec![artifact], ..silent() }, false),
        (agent, sample::outcome(), false),
        (StepKind::Run, silent(), false),
    ];
    for (number, (kind, outcome, marked)) in table.into_iter().enumerate() {
        let mut group = group(1);
        group.members[0].steps = vec![sample::step("work", kind, 0, "n", outcome)];
        let rows = record(&group).trajectories;
        let expected = marked.then_some(r#"{"zero_activity":true}"#);
        assert_eq!(texts(&rows, "extra"), [expected, None, None, None], "case {number}");
    }
    // Only the last attempt of a step counts.
    let mut group = group(1);
    let steps = [silent(), sample::outcome()].into_iter().zip(0..);
    group.members[0].steps = steps.map(|(o, n)| sample::step("work", agent, n, "n", o)).collect();
    assert_eq!(texts(&record(&group).trajectories, "extra"), [None; 4]);
}

#[test]
fn actions_of_sessions_are_tool_calls() {
    let mut group = group(1);
    let session = |name, attempt, actions| {
        let outcome = Outcome { actions: Some(actions), ..sample::outcome() };
        sample::step(name, StepKind::Session, attempt, "n", outcome)
    };
    let setup = sample::step("setup", StepKind::Run, 0, "n", sample::outcome());
    group.members[0].steps = vec![setup, session("ask", 0, 90), session("ask", 1, 4), session("judge", 0, 3)];
    assert_eq!(ints(&record(&group).trajectories, "n_tool_calls")[0], Some(7), "of the last attempts");
    group.members[0].steps = vec![session("ask", 0, u64::MAX), session("judge", 0, 3)];
    assert_eq!(ints(&record(&group).trajectories, "n_tool_calls")[0], Some(i32::MAX));
}

#[test]
fn steps_keep_every_attempt_and_missing_values_stay_missing() {
    let rows = record(&group(1)).steps;
    assert_eq!(texts(&rows, "step_name"), ["agent", "agent", "grade", "agent", "grade", "agent"].map(Some));
    assert_eq!(ints(&rows, "attempt"), [0, 1, 0, 0, 0, 0].map(Some));
    assert_eq!(ints(&rows, "exit_code"), [None, Some(0), Some(0), None, Some(0), None]);
    assert_eq!(texts(&rows, "failure_code")[3], Some("agent_timeout"));
    assert_eq!(flags(&rows, "timed_out"), [false, false, false, true, false, false]);
    assert_eq!(flags(&rows, "capture_truncated"), [false, false, false, true, false, false]);
    assert_eq!(longs(&rows, "cpu_ms"), [None, Some(2500), Some(2500), Some(2500), Some(2500), None]);
    assert_eq!(longs(&rows, "disk_peak_bytes"), [None; 6]);
    assert_eq!(longs(&rows, "memory_held_peak_bytes"), [None; 6]);
    let stdout = format!("sha256:{}", sample::sha256(b"hello from group 1\n"));
    assert_eq!(texts(&rows, "stdout_artifact")[1], Some(&*stdout));
    assert_eq!(texts(&rows, "stdout_artifact")[0], None);
}

#[test]
fn what_an_attempt_held_is_beside_the_peak_of_the_kernel() {
    let mut group = group(1);
    group.members[0].steps[1].outcome.usage.memory_held_peak = Some(Bytes(3 << 20));
    let rows = record(&group).steps;
    assert_eq!(longs(&rows, "memory_held_peak_bytes")[..2], [None, Some(3 << 20)]);
    assert_eq!(longs(&rows, "rss_peak_bytes")[..2], [None, Some(64 << 20)]);
}

#[test]
fn every_table_carries_the_seq_and_turns_are_empty() {
    let batches = record(&group(5));
    assert_eq!(batches.turns.num_rows(), 0);
    for table in Table::WRITTEN {
        let batch = batches.of(table).unwrap();
        assert_eq!(batch.schema(), table.schema());
        assert!(longs(batch, "seq").iter().all(|&seq| seq == Some(5)), "{table}");
    }
    assert!(batches.of(Table::Events).is_none() && batches.of(Table::Tensors).is_none());
}

#[test]
fn artifacts_are_inlined_up_to_the_bound_and_only_from_last_attempts() {
    let mut blobs = sample::Blobs::default();
    let mut group = sample::group(3, &mut blobs);
    let mut artifact = |name: &str, size: u64| {
        let bytes = vec![b'x'; usize::try_from(size).unwrap()];
        let (name, media_type) = (name.to_owned(), "text/plain".to_owned());
        Artifact { name, media_type, size: Bytes(size), sha256: blobs.put(bytes) }
    };
    let mut first = sample::outcome();
    first.artifacts = vec![artifact("of_a_lost_attempt", 1)];
    let mut last = sample::outcome();
    last.artifacts = vec![
        artifact("empty", 0),
        artifact("largest", INLINE_BYTES_MAX),
        artifact("over", INLINE_BYTES_MAX + 1),
    ];
    group.members[0].steps = vec![
        sample::step("agent", StepKind::Agent, 0, "n", first),
        sample::step("agent", StepKind::Agent, 1, "n", last),
    ];
    let rows = recorder::batches(&group, &|digest, max| blobs.fetch(digest, max)).unwrap().artifacts;
    assert_eq!(texts(&rows, "name"), ["empty", "largest", "over"].map(Some));
    let inline: Vec<_> = rows
        .column_by_name("inline")
        .unwrap()
        .as_binary::<i32>()
        .iter()
        .map(|b| b.map(|b| b.len() as u64))
        .collect();
    assert_eq!(inline, [Some(0), Some(INLINE_BYTES_MAX), None]);
    assert_eq!(longs(&rows, "size")[2], Some(i64::try_from(INLINE_BYTES_MAX).unwrap() + 1));
}

#[test]
fn inlining_stops_at_the_bound_of_the_group() {
    let mut blobs = sample::Blobs::default();
    let mut group = sample::group(3, &mut blobs);
    let bytes = vec![b'x'; usize::try_from(INLINE_BYTES_MAX).unwrap()];
    let artifact = |index: u32| Artifact {
        name: format!("a{index}"),
        media_type: "text/plain".to_owned(),
        size: Bytes(INLINE_BYTES_MAX),
        sha256: sample::sha256(&bytes),
    };
    let mut outcome = sample::outcome();
    outcome.artifacts = (0..1030).map(artifact).collect();
    group.members[0].steps = vec![sample::step("agent", StepKind::Agent, 0, "n", outcome)];
    let rows = recorder::batches(&group, &|_, _| Ok(Some(bytes.clone()))).unwrap().artifacts;
    assert_eq!((rows.num_rows(), rows.column_by_name("inline").unwrap().null_count()), (1030, 6));
}

#[test]
fn a_failed_or_wrong_fetch_is_an_error_not_a_null() {
    let group = group(1);
    let failing = |_: &str, _: u64| Err(FetchError::from("the store is away"));
    assert!(matches!(recorder::batches(&group, &failing), Err(Error::Fetch { .. })));
    let wrong = |_: &str, _: u64| Ok(Some(b"other bytes".to_vec()));
    assert!(matches!(recorder::batches(&group, &wrong), Err(Error::FetchedOther { .. })));
}

#[test]
fn records_that_contradict_themselves_are_refused() {
    type Change = fn(&mut GroupRecord);
    let changes: [(&str, Change); 13] = [
        ("negative", |g| g.seq = -1),
        ("no members", |g| g.members.clear()),
        ("another group", |g| g.members[1].rollout.group.index = 99),
        ("twice", |g| g.members[1].rollout.sample = 0),
        ("group_valid is 3", |g| g.group_valid = 3),
        ("has a reward and failed with node_lost", |g| {
            g.members[0].failure = Some(Failure::new(FailureCode::NodeLost, "lost"));
        }),
        ("is NaN", |g| g.members[0].reward = Some(Reward { value: f32::NAN, components: Vec::new() })),
        ("is inf", |g| g.members[0].reward = Some(Reward { value: f32::INFINITY, components: Vec::new() })),
        ("failed without a failure", |g| {
            (g.members[3].status, g.members[3].failure) = (Status::Failed, None)
        }),
        ("too long", |g| {
            let message = "m".repeat(5000);
            g.members[2].failure.as_mut().unwrap().message = message;
        }),
        ("not a JSON object", |g| g.task_row = Some("[1]".to_owned())),
        ("not a sha256", |g| g.members[0].steps[1].outcome.stdout.sha256 = Some("../x".to_owned())),
        ("not a sha256", |g| g.members[0].steps[1].outcome.artifacts[0].sha256 = "A".repeat(64)),
    ];
    for (expected, change) in changes {
        let mut group = group(1);
        change(&mut group);
        match recorder::batches(&group, &no_inline) {
            Err(Error::Contradiction { what, .. }) => assert!(what.contains(expected), "{what}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn values_that_fit_no_column_are_refused_by_name() {
    let mut long = group(1);
    long.members[0].steps[0].queue = Some(Millis(u64::MAX));
    assert!(matches!(
        recorder::batches(&long, &no_inline),
        Err(Error::OutOfRange { table: Table::Steps, column: "queue_ms", .. })
    ));
    let mut large = group(1);
    large.group_size = u32::MAX;
    assert!(matches!(
        recorder::batches(&large, &no_inline),
        Err(Error::OutOfRange { table: Table::Trajectories, column: "group_size", .. })
    ));
    let mut unknown = group(1);
    unknown.members[0].stop_reason = Some("bored".to_owned());
    assert!(matches!(
        recorder::batches(&unknown, &no_inline),
        Err(Error::UnknownValue { column: "stop_reason", value, .. }) if value == "bored"
    ));
    let mut superseded = group(1);
    superseded.members[0].superseded = true;
    assert!(matches!(
        recorder::superseded_batches(&superseded, &no_inline),
        Err(Error::Contradiction { what, .. }) if what.contains("has a reward and was replaced")
    ));
}

#[test]
fn a_replaced_rollout_has_rows_apart_from_those_of_its_group() {
    let mut group = group(1);
    assert_eq!(recorder::superseded_batches(&group, &no_inline).unwrap(), None);
    group.members[2].superseded = true;
    let mut next = group.members[2].clone();
    (next.rollout.refill, next.superseded) = (1, false);
    group.members.insert(3, next);
    let kept = record(&group);
    assert_eq!(ints(&kept.trajectories, "refill_round"), [0, 0, 1, 0].map(Some));
    assert_eq!(flags(&kept.trajectories, "superseded"), [false; 4]);
    let replaced = recorder::superseded_batches(&group, &no_inline).unwrap().unwrap();
    assert_eq!(texts(&replaced.trajectories, "trajectory_id").len(), 1);
    assert_eq!(flags(&replaced.trajectories, "superseded"), [true]);
    assert_eq!(ints(&replaced.trajectories, "group_valid"), [Some(2)], "of the group as it closed");
    assert_eq!((replaced.steps.num_rows(), kept.steps.num_rows()), (1, 6));
}
