//! Jobs from submit to table.

use rollout_wire::v1;
use rollout_wire::v1::jobs_client::JobsClient;
use scheduler::{Config, Reader};
use sha2::Digest;
use tonic::transport::Channel;

use crate::executor::{Behaviour, Executor};
use crate::yard::{HELLO_ROLLOUTS, Yard, code, finished, hello};

#[tokio::test]
async fn a_job_runs_from_submit_to_its_table() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour::default());
    let mut client = yard.client().await;
    let reply = client.submit(hello(&yard, "a")).await.unwrap().into_inner();
    let id = reply.job.unwrap().id;
    let job = finished(&yard, &id).await;
    assert_eq!((job.state.as_str(), job.group_size), ("finished", 4));
    let counts = job.counts.unwrap();
    assert_eq!((counts.groups_total, counts.groups_closed, counts.groups_sealed), (2, 2, 2));
    assert_eq!((counts.rollouts_ended, counts.rollouts_valid), (HELLO_ROLLOUTS, HELLO_ROLLOUTS));
    let rewards = job.rewards.unwrap();
    assert_eq!((rewards.count, rewards.successes, rewards.pass_at_k.len()), (8, 8, 4));
    assert!((rewards.sum - 8.0).abs() < 1e-9 && job.failures.is_empty());

    let summary = yard.summary(&id);
    assert_eq!((summary.groups, summary.trajectories), (2, HELLO_ROLLOUTS));
    assert_eq!(summary.statuses.get("completed"), Some(&HELLO_ROLLOUTS));
    {
        let seen = executor.seen.lock().unwrap();
        assert_eq!(seen.runs.len(), 16);
        assert!(seen.runs.values().all(|runs| *runs == 1));
        let inputs = &seen.inputs[&1];
        assert_eq!((inputs.len(), inputs[0].path.as_str(), inputs[0].size), (1, "/in/answer", 7));
    }

    // The same, as clients page through it.
    let mut rollouts = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRolloutsRequest { job: id.clone(), page_size: 3, page_token };
        let page = client.list_rollouts(request).await.unwrap().into_inner();
        assert!(page.rollouts.len() <= 3);
        rollouts.extend(page.rollouts);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(rollouts.len() as u64, HELLO_ROLLOUTS);
    assert!(rollouts.iter().all(|r| r.status == "completed" && r.reward == Some(1.0)));
    assert_eq!((rollouts[0].task_id.as_str(), rollouts[4].task_id.as_str()), ("row-0", "row-1"));
    let request = v1::ListStepsRequest { rollout: rollouts[5].id.clone() };
    let reply = client.list_steps(request).await.unwrap().into_inner();
    assert_eq!(reply.rollout.as_ref(), Some(&rollouts[5]));
    let steps = reply.steps;
    let shown: Vec<_> = steps.iter().map(|s| (s.step.as_str(), s.state.as_str(), s.node.as_str())).collect();
    assert_eq!(shown, [("work", "succeeded", "n1"), ("grade", "succeeded", "n1")]);

    let request = v1::LogsRequest {
        rollout: rollouts[5].id.clone(),
        step: "work".to_owned(),
        ..v1::LogsRequest::default()
    };
    let mut logs = client.logs(request).await.unwrap().into_inner();
    let chunk = logs.message().await.unwrap().unwrap();
    assert_eq!((chunk.stream.as_str(), chunk.data.as_slice()), ("stdout", b"hello from work\n".as_slice()));
    assert!(logs.message().await.unwrap().is_none());

    let explain = v1::ExplainRequest { target: id.clone() };
    let lines = client.explain(explain).await.unwrap().into_inner().lines;
    assert_eq!(lines, ["The job is finished."]);
    let target = format!("{}/grade", rollouts[5].id);
    let lines = client.explain(v1::ExplainRequest { target }).await.unwrap().into_inner().lines;
    assert_eq!(lines, ["Step `grade` ended well; the rollout ended as completed; its rows are sealed."]);
    assert_eq!(output(&mut client, &rollouts[5].id, "work", "answer").await.unwrap(), b"answer\n");
    let refused = output(&mut client, &rollouts[5].id, "work", "anser").await.unwrap_err();
    assert_eq!(code(&refused), "not_found");
    assert_eq!(hint(&refused), "the outputs that are kept: answer");
    let absent = v1::ListStepsRequest { rollout: format!("{id}-g7-s0") };
    let refused = client.list_steps(absent).await.unwrap_err();
    assert_eq!(hint(&refused), format!("the rollouts of this job are {id}-g0-s0 to {id}-g1-s3"));
    let nodes = client.list_nodes(v1::ListNodesRequest {}).await.unwrap().into_inner().nodes;
    assert_eq!((nodes.len(), nodes[0].state.as_str(), nodes[0].version.as_str()), (1, "attached", "fake/1"));
    assert_eq!(nodes[0].used_cpu_milli, 0);
    drop(executor);
    running.stop().await;

    // What was kept is there without a yard too.
    let config = Config::new(yard.dir.join("data"), "yard".parse().unwrap());
    let reader = Reader::open(&config).await.unwrap();
    let mut client = JobsClient::new(reader.channel());
    assert_eq!(output(&mut client, &rollouts[5].id, "work", "answer").await.unwrap(), b"answer\n");
    drop(client);
    reader.close().await.unwrap();
}

/// The bytes of an output of the last attempt.
async fn output(
    client: &mut JobsClient<Channel>,
    rollout: &str,
    step: &str,
    name: &str,
) -> Result<Vec<u8>, tonic::Status> {
    let request = v1::ReadArtifactRequest {
        rollout: rollout.to_owned(),
        step: step.to_owned(),
        name: name.to_owned(),
        attempt: None,
    };
    let mut chunks = client.read_artifact(request).await?.into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await? {
        bytes.extend(chunk.data);
    }
    Ok(bytes)
}

fn hint(status: &tonic::Status) -> String {
    let hint = status.metadata().get(rollout_wire::HINT_METADATA).expect("a hint");
    hint.to_str().expect("ASCII").to_owned()
}

#[tokio::test]
async fn without_an_executor_explain_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut client = yard.client().await;
    let job = client.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap();
    let lines = client.explain(v1::ExplainRequest { target: job.id }).await.unwrap().into_inner().lines;
    assert!(lines[0].starts_with("No executor is attached"), "{lines:?}");
    running.stop().await;
}

#[tokio::test]
async fn a_rollout_that_is_not_admitted_yet_points_to_what_it_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut client = yard.client().await;
    let mut request = hello(&yard, "a");
    let narrow = request.document.replace("group: {size: 4", "admission: {max_running: 4}\ngroup: {size: 4");
    assert_ne!(narrow, request.document);
    request.document = narrow;
    let id = client.submit(request).await.unwrap().into_inner().job.unwrap().id;
    let rollout = format!("{id}-g1-s0");
    let steps = client.list_steps(v1::ListStepsRequest { rollout: rollout.clone() }).await.unwrap_err();
    let logs =
        v1::LogsRequest { rollout: rollout.clone(), step: "work".to_owned(), ..v1::LogsRequest::default() };
    let logs = client.logs(logs).await.unwrap_err();
    let explain = client.explain(v1::ExplainRequest { target: rollout }).await.unwrap_err();
    for refused in [steps, logs, explain] {
        assert_eq!(code(&refused), "not_found");
        assert!(
            hint(&refused).contains(&format!("`rollyard explain {id}` says what that waits for")),
            "{refused:?}"
        );
    }
    running.stop().await;
}

#[tokio::test]
async fn a_key_is_one_job_and_another_request_under_it_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut client = yard.client().await;
    let mut racing = Vec::new();
    for _ in 0..8 {
        let (mut client, request) = (client.clone(), hello(&yard, "same-key"));
        racing.push(tokio::spawn(async move { client.submit(request).await }));
    }
    let mut ids = Vec::new();
    for reply in racing {
        ids.push(reply.await.unwrap().unwrap().into_inner().job.unwrap().id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let mut other = hello(&yard, "same-key");
    other.document.push_str("# changed\n");
    let refused = client.submit(other.clone()).await.unwrap_err();
    assert_eq!(code(&refused), "idempotency_request_mismatch");

    // Resume finds the unfinished job of the same spec, whatever its key; a comment is no change.
    other.idempotency_key = "other-key".to_owned();
    other.if_unfinished = v1::submit_request::IfUnfinished::Resume.into();
    let resumed = client.submit(other).await.unwrap().into_inner();
    assert_eq!((resumed.job.unwrap().id, resumed.resumed), (ids[0].clone(), true));
    let list = v1::ListRequest { page_size: 10, ..v1::ListRequest::default() };
    assert_eq!(client.list(list).await.unwrap().into_inner().jobs.len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_submit_is_said_before_anything_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut client = yard.client().await;
    let mut with = async |change: &dyn Fn(&mut v1::SubmitRequest)| {
        let mut request = hello(&yard, "a");
        change(&mut request);
        client.submit(request).await.unwrap_err()
    };
    let bad = with(&|r| r.document = r.document.replace("group:", "gruop:")).await;
    assert_eq!(code(&bad), "spec_invalid");
    let diagnostics: serde_json::Value = serde_json::from_slice(bad.details()).unwrap();
    assert_eq!(diagnostics[0]["nearest"], "group", "{diagnostics}");
    assert!(bad.message().contains("gruop"));
    type Change<'a> = &'a dyn Fn(&mut v1::SubmitRequest);
    let cases: [(&str, Change<'_>); 8] = [
        ("bad_request", &|r| r.idempotency_key = "A".to_owned()),
        ("bad_request", &|r| r.table_root = "relative".to_owned()),
        ("bad_request", &|r| r.table_root = "/proc/self/tables".to_owned()),
        ("bad_request", &|r| r.table_root = "/dev/null/tables".to_owned()),
        ("not_available_yet", &|r| r.table_root = "s3://bucket/x".to_owned()),
        ("table_root_missing", &|r| r.table_root = String::new()),
        ("spec_invalid", &|r| r.document = r.document.replace("{n: \"7\", want: \"49\"}", "{n: \"7\"}")),
        ("file_missing", &|r| {
            r.document = r.document.replace(
                "{inline: [{n: \"6\", want: \"42\"}, {n: \"7\", want: \"49\"}]}",
                "{jsonl: tasks.jsonl}",
            );
        }),
    ];
    for (expected, change) in cases {
        let refused = with(change).await;
        assert_eq!(code(&refused), expected, "{refused:?}");
    }
    let list = v1::ListRequest { page_size: 10, ..v1::ListRequest::default() };
    assert!(client.list(list).await.unwrap().into_inner().jobs.is_empty());
    for target in ["j0000000000007", "j0000000000007-g0-s0", "nonsense", "j0000000000007-g0-s0/x"] {
        let request = v1::ExplainRequest { target: target.to_owned() };
        assert_eq!(code(&client.explain(request).await.unwrap_err()), "not_found", "{target}");
    }
    running.stop().await;
}

#[tokio::test]
async fn rows_of_an_uploaded_file_are_read_once_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let _executor = Executor::attach(&yard, Behaviour::default());
    let mut client = yard.client().await;
    let rows = "{\"n\": \"1\", \"want\": \"7\", \"id\": \"one\"}\n{\"n\": \"2\", \"want\": \"14\", \"id\": \"two\"}\n";
    let sha256 = hex::encode(sha2::Sha256::digest(rows));
    let chunk =
        |sha256: &str, data: &str| v1::BlobChunk { sha256: sha256.to_owned(), data: data.into(), size: None };
    let chunks = vec![chunk(&sha256, &rows[..10]), chunk("", &rows[10..])];
    let put = client.put_blob(tokio_stream::iter(chunks.clone())).await.unwrap().into_inner();
    assert_eq!((put.size, put.existed), (rows.len() as u64, false));
    assert!(client.put_blob(tokio_stream::iter(chunks)).await.unwrap().into_inner().existed);
    let lie = vec![chunk(&sha256.replace('a', "b"), rows)];
    assert_eq!(code(&client.put_blob(tokio_stream::iter(lie)).await.unwrap_err()), "blob_mismatch");

    let mut request = hello(&yard, "a");
    let missing = "{\"n\": \"1\", \"id\": \"one\"}\n{\"n\": \"1\", \"want\": \"7\", \"id\": \"one\"}\n";
    request.document = request.document.replace(
        "{from: {inline: [{n: \"6\", want: \"42\"}, {n: \"7\", want: \"49\"}]}}",
        "{from: {jsonl: tasks.jsonl}, id: \"${row.id}\", epochs: 3}",
    );
    let size = rows.len() as u64;
    let file = |sha256, size| vec![v1::ClientFile { path: "tasks.jsonl".to_owned(), sha256, size }];
    for (bad_rows, problem) in [
        (missing.to_owned(), "row 0: column `want` is missing"),
        (rows.replace("two", "one"), "rows 0 and 1 have the same task id `one`"),
        (rows.replace('}', ""), "line 1"),
    ] {
        let sha256 = hex::encode(sha2::Sha256::digest(&bad_rows));
        client.put_blob(tokio_stream::iter(vec![chunk(&sha256, &bad_rows)])).await.unwrap();
        request.files = file(sha256, bad_rows.len() as u64);
        let refused = client.submit(request.clone()).await.unwrap_err();
        assert_eq!(code(&refused), "rows_invalid");
        assert!(refused.message().contains(problem), "{}", refused.message());
    }
    request.files = file(sha256, size);
    let id = client.submit(request).await.unwrap().into_inner().job.unwrap().id;
    let job = finished(&yard, &id).await;
    assert_eq!(job.counts.unwrap().groups_sealed, 6);
    let request = v1::ListRolloutsRequest { job: id, page_size: 100, page_token: String::new() };
    let rollouts = client.list_rollouts(request).await.unwrap().into_inner().rollouts;
    let tasks: Vec<_> = rollouts.iter().step_by(4).map(|r| r.task_id.as_str()).collect();
    assert_eq!(tasks, ["one", "two", "one", "two", "one", "two"]);
    running.stop().await;
}

#[tokio::test]
async fn a_cancelled_job_ends_its_running_steps_and_writes_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let executor = Executor::attach(&yard, Behaviour { hold: true, ..Behaviour::default() });
    let mut client = yard.client().await;
    let id = client.submit(hello(&yard, "a")).await.unwrap().into_inner().job.unwrap().id;
    let all_run = async {
        while executor.seen.lock().unwrap().runs.len() < 8 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::yard::HANG, all_run).await.unwrap();
    let request = v1::CancelRequest { job: id.clone(), reason: "enough".to_owned() };
    let job = client.cancel(request.clone()).await.unwrap().into_inner();
    assert_eq!(job.reason, "enough");
    let job = finished(&yard, &id).await;
    assert_eq!((job.state.as_str(), job.failure_message.as_deref()), ("cancelled", Some("enough")));
    assert_eq!(yard.summary(&id).statuses.get("cancelled"), Some(&HELLO_ROLLOUTS));
    // Once more changes nothing.
    assert_eq!(client.cancel(request).await.unwrap().into_inner().state, "cancelled");
    running.stop().await;
}

#[tokio::test]
async fn a_job_is_over_when_its_timeout_is() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let _executor = Executor::attach(&yard, Behaviour { hold: true, ..Behaviour::default() });
    let mut client = yard.client().await;
    let mut request = hello(&yard, "a");
    request.document.push_str("timeout: 1s\n");
    let id = client.submit(request).await.unwrap().into_inner().job.unwrap().id;
    let job = finished(&yard, &id).await;
    assert_eq!(job.state, "cancelled");
    let codes: Vec<_> = job.failures.iter().map(|f| (f.code.as_str(), f.rollouts)).collect();
    assert_eq!(codes, [("job_timeout", HELLO_ROLLOUTS)]);
    running.stop().await;
}
