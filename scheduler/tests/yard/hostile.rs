//! Clients that send what no client of this version sends: each is refused by a code, none takes
//! the scheduler with it, and what is echoed is safe to print.

use rollout_wire::{MESSAGE_BYTES_MAX, v1};
use tonic::{Code, Request, Status};

use crate::executor::{Behaviour, Executor};
use crate::yard::{HELLO, Yard, code, finished, hello};

fn hostile() -> Vec<String> {
    let long = "x".repeat(300);
    let texts = [
        "\0",
        "a\0b",
        "\u{202e}txt.exe",
        "../../etc/passwd",
        "\u{1f980}",
        "a\nlevel=ERROR forged=1",
        "\u{1b}[2J\u{1b}]0;x\u{7}",
        "\r",
        "\u{2028}",
        "\u{feff}",
        "j0000000000007-g0-s0\n",
        "j0000000000007/\u{1b}[31m",
        &long,
    ];
    texts.into_iter().map(str::to_owned).collect()
}

/// Refused by its own code as something the caller got wrong, in words any terminal may show.
fn refused(what: &str, status: &Status) {
    let wrong = [Code::InvalidArgument, Code::NotFound, Code::FailedPrecondition, Code::Unimplemented];
    assert!(wrong.contains(&status.code()), "{what}: {status:?}");
    assert!(!code(status).is_empty(), "{what}: {status:?}");
    let plain = |c: char| c == '\n' || c == ' ' || c.is_ascii_graphic();
    assert!(status.message().chars().all(plain), "{what}: {:?}", status.message());
    assert!(code(status) == "spec_invalid" || !status.message().contains('\n'), "{what}: {status:?}");
    assert!(status.message().len() < 3_000, "{what}: {} bytes", status.message().len());
}

#[tokio::test]
async fn hostile_text_in_any_field_is_refused_by_a_code_and_safe_to_print() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut client = yard.client().await;
    for text in hostile() {
        let what = text.escape_debug().to_string();
        let check = |field: &str, status: Option<Status>| {
            let status = status.unwrap_or_else(|| panic!("{field}={what}: accepted"));
            refused(&format!("{field}={what}"), &status);
        };
        let job = || v1::GetRequest { job: text.clone() };
        check("get", client.get(job()).await.err());
        check("watch", client.watch(job()).await.err());
        let cancel = v1::CancelRequest { job: text.clone(), reason: text.clone() };
        check("cancel", client.cancel(cancel).await.err());
        let list = v1::ListRequest { page_size: 1, page_token: text.clone(), ..v1::ListRequest::default() };
        check("list", client.list(list).await.err());
        let list = v1::ListRolloutsRequest { job: text.clone(), page_size: 1, page_token: text.clone() };
        check("list_rollouts", client.list_rollouts(list).await.err());
        let steps = v1::ListStepsRequest { rollout: text.clone() };
        check("list_steps", client.list_steps(steps).await.err());
        check("explain", client.explain(v1::ExplainRequest { target: text.clone() }).await.err());
        let logs =
            v1::LogsRequest { rollout: text.clone(), step: text.clone(), ..v1::LogsRequest::default() };
        check("logs", client.logs(logs).await.err());
        let chunk = v1::BlobChunk { sha256: text.clone(), ..v1::BlobChunk::default() };
        check("put_blob", client.put_blob(tokio_stream::once(chunk)).await.err());

        let submit = |change: &dyn Fn(&mut v1::SubmitRequest)| {
            let mut request = hello(&yard, "k");
            change(&mut request);
            let mut client = client.clone();
            async move { client.submit(request).await.err() }
        };
        check("document", submit(&|r| r.document.clone_from(&text)).await);
        check("source_name", submit(&|r| (r.source_name, r.document) = (text.clone(), "[".into())).await);
        check("idempotency_key", submit(&|r| r.idempotency_key.clone_from(&text)).await);
        let in_document = |r: &mut v1::SubmitRequest, at: &str| {
            let quoted = serde_json::to_string(&text).unwrap();
            r.document = HELLO.replace(at, &quoted);
        };
        check("document.name", submit(&|r| in_document(r, "hello")).await);
        check("document.image", submit(&|r| in_document(r, "host")).await);
        check("document.step", submit(&|r| in_document(r, "work")).await);
        check("table_root", submit(&|r| r.table_root.clone_from(&text)).await);
        let in_root = |r: &mut v1::SubmitRequest| r.table_root = format!("/tmp/{text}");
        // A crab is a fine name of a directory.
        if text != "\u{1f980}" {
            check("table_root/", submit(&in_root).await);
        }
        let file = |path: &str, sha256: &str| v1::ClientFile {
            path: path.to_owned(),
            sha256: sha256.to_owned(),
            size: 1,
        };
        let twice = |r: &mut v1::SubmitRequest| r.files = vec![file(&text, ""), file(&text, "")];
        check("files.path", submit(&twice).await);
        let named = |r: &mut v1::SubmitRequest| {
            r.document = HELLO
                .replace(r#"{inline: [{n: "6", want: "42"}, {n: "7", want: "49"}]}"#, "{jsonl: rows.jsonl}");
            r.files = vec![file("rows.jsonl", &text)];
        };
        check("files.sha256", submit(&named).await);
    }
    running.stop().await;
}

#[tokio::test]
async fn a_message_that_is_too_large_or_no_message_is_refused_by_a_code() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut client = yard.client().await.max_encoding_message_size(usize::MAX);
    let large = "x".repeat(2 * MESSAGE_BYTES_MAX);
    let submit = v1::SubmitRequest { document: large.clone(), ..hello(&yard, "k") };
    let get = v1::GetRequest { job: large };
    let blob = v1::BlobChunk { data: vec![0; 8 << 20], ..v1::BlobChunk::default() };
    for (what, status) in [
        ("submit", client.submit(submit).await.unwrap_err()),
        ("get", client.get(get.clone()).await.unwrap_err()),
        ("watch", client.watch(get).await.unwrap_err()),
    ] {
        refused(what, &status);
        assert_eq!(code(&status), "message_too_large", "{what}: {status:?}");
    }
    refused("put_blob", &client.put_blob(tokio_stream::once(blob)).await.unwrap_err());
    let key = v1::SubmitRequest { idempotency_key: "k".repeat(1 << 20), ..hello(&yard, "k") };
    assert_eq!(code(&client.submit(key).await.unwrap_err()), "bad_request");

    // The same field of another type: bytes that are no text, and a call nobody knows.
    let raw = |path: &'static str, sha256: Vec<u8>| {
        let yard = &yard;
        async move {
            let mut grpc = tonic::client::Grpc::new(crate::yard::channel(&yard.socket()).await);
            grpc.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<v1::LogsChunk, v1::Job>::default();
            // `data` is field 2, bytes; `stream` field 1, a string.
            let message = v1::LogsChunk { data: sha256, ..v1::LogsChunk::default() };
            let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
            grpc.unary::<_, v1::Job, _>(Request::new(message), path, codec).await.unwrap_err()
        }
    };
    // Field 2 of a cancellation is its reason.
    let status = raw("/rollyard.v1.Jobs/Cancel", vec![0xff, 0xfe]).await;
    refused("not utf-8", &status);
    assert_eq!(code(&status), "bad_message");
    for path in ["/rollyard.v1.Jobs/Destroy", "/rollyard.v1.Nobody/Get", "/"] {
        let status = raw(path, Vec::new()).await;
        assert_eq!((status.code(), code(&status)), (Code::Unimplemented, "unknown_call"), "{path}");
    }
    running.stop().await;
}

#[tokio::test]
async fn ten_thousand_metadata_keys_are_refused_and_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut client = yard.client().await;
    let mut request = Request::new(v1::ListNodesRequest {});
    for index in 0..10_000 {
        let key = tonic::metadata::MetadataKey::from_bytes(format!("k{index}").as_bytes()).unwrap();
        request.metadata_mut().insert(key, "v".parse().unwrap());
    }
    client.list_nodes(request).await.unwrap_err();
    yard.client().await.list_nodes(v1::ListNodesRequest {}).await.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn pages_take_only_their_own_tokens_and_sizes_within_the_bound() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let _executor = Executor::attach(&yard, Behaviour::default());
    let mut client = yard.client().await;
    let mut jobs = Vec::new();
    for key in ["a", "b"] {
        let submitted = client.submit(hello(&yard, key)).await.unwrap().into_inner();
        jobs.push(finished(&yard, &submitted.job.unwrap().id).await.id);
    }
    let list = |page_size, page_token: &str| v1::ListRequest {
        page_size,
        page_token: page_token.to_owned(),
        ..v1::ListRequest::default()
    };
    let rollouts = |job: &str, page_size, page_token: &str| v1::ListRolloutsRequest {
        job: job.to_owned(),
        page_size,
        page_token: page_token.to_owned(),
    };
    let of_jobs = client.list(list(1, "")).await.unwrap().into_inner().next_page_token;
    let of_rollouts = client.list_rollouts(rollouts(&jobs[0], 1, "")).await.unwrap().into_inner();
    let of_rollouts = of_rollouts.next_page_token;
    assert!(!of_jobs.is_empty() && !of_rollouts.is_empty());
    let negative = u32::MAX;
    for (size, token) in
        [(0, ""), (1001, ""), (1 << 31, ""), (negative, ""), (1, of_rollouts.as_str()), (1, "-1/x"), (1, "/")]
    {
        let status = client.list(list(size, token)).await.unwrap_err();
        assert_eq!(code(&status), "bad_request", "{size} {token}");
    }
    for (size, token) in [(0, ""), (1 << 31, ""), (negative, ""), (1, of_jobs.as_str()), (1, "x")] {
        let status = client.list_rollouts(rollouts(&jobs[0], size, token)).await.unwrap_err();
        assert_eq!(code(&status), "bad_request", "{size} {token}");
    }
    let status = client.list_rollouts(rollouts(&jobs[1], 1, &of_rollouts)).await.unwrap_err();
    assert_eq!(code(&status), "bad_request", "a token of another job");
    running.stop().await;
}

#[tokio::test]
async fn twenty_submits_with_one_key_are_one_job_and_another_document_is_a_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut submits = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (mut client, request) = (yard.client().await, hello(&yard, "one"));
        submits.spawn(async move { client.submit(request).await.unwrap().into_inner().job.unwrap().id });
    }
    let mut ids = submits.join_all().await;
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let mut client = yard.client().await;
    let all = v1::ListRequest { page_size: 100, ..v1::ListRequest::default() };
    assert_eq!(client.list(all).await.unwrap().into_inner().jobs.len(), 1);
    let mut other = hello(&yard, "one");
    other.document.push('\n');
    let status = client.submit(other).await.unwrap_err();
    assert_eq!((status.code(), code(&status)), (Code::AlreadyExists, "idempotency_request_mismatch"));
    running.stop().await;
}

#[tokio::test]
async fn a_spec_with_a_thousand_errors_is_refused_in_an_answer_that_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut request = hello(&yard, "k");
    for index in 0..1_000 {
        request.document.push_str(&format!("unknown\u{1b}{index}: {}\n", "`#<>".repeat(50)));
    }
    let mut plain = hello(&yard, "k");
    for index in 0..1_000 {
        plain.document.push_str(&format!("unknown{index}: \"{}\"\n", "<>#`".repeat(50)));
    }
    for request in [request, plain] {
        let status = yard.client().await.submit(request).await.unwrap_err();
        assert_eq!(code(&status), "spec_invalid", "{status:?}");
        refused("spec", &status);
        let details: serde_json::Value = serde_json::from_slice(status.details()).unwrap();
        assert!(!details.as_array().unwrap().is_empty());
    }
    running.stop().await;
}

#[tokio::test]
async fn a_spec_that_takes_long_to_check_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let yard = Yard::new(dir.path());
    let running = yard.start().await;
    let mut large = hello(&yard, "large");
    let rows: String = (0..990).map(|n| format!("{{n: \"{n}\", want: \"{}\"}}, ", "w".repeat(900))).collect();
    large.document = HELLO.replace(r#"{n: "6", want: "42"}"#, rows.trim_end_matches(", "));
    assert!(large.document.len() < 1 << 20);
    let mut submits = tokio::task::JoinSet::new();
    for index in 0..8 {
        let mut client = yard.client().await;
        let mut request = large.clone();
        request.idempotency_key = format!("large-{index}");
        submits.spawn(async move { client.submit(request).await.map(drop) });
    }
    let mut client = yard.client().await;
    let mut slowest = std::time::Duration::ZERO;
    while !submits.is_empty() {
        let asked_at = std::time::Instant::now();
        client.list_nodes(v1::ListNodesRequest {}).await.unwrap();
        slowest = slowest.max(asked_at.elapsed());
        while let Some(done) = submits.try_join_next() {
            done.unwrap().unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(slowest < std::time::Duration::from_secs(2), "{slowest:?}");
    running.stop().await;
}
