//! Files to and from a sandbox, while what runs in it works against it. Each refusal has its allow twin.

use std::collections::BTreeSet;
use std::path::Path;

use rollout_wire::v1::{self, write_file_chunk::Chunk};
use tonic::Status;

use crate::driver::{Driven, Lab, code};

crate::sessions![
    files_go_both_ways_whole,
    a_file_that_changes_while_it_is_read_is_told_so,
    no_path_leads_an_upload_out_of_the_sandbox,
    an_upload_that_is_not_whole_leaves_nothing,
    directories_are_listed_in_pages,
    a_checkpoint_of_a_session_is_another_sandboxes_beginning,
];

async fn write(driven: &Driven, path: &str, data: &[u8], size: u64) -> Result<v1::FileInfo, Status> {
    let start = v1::WriteFileStart {
        sandbox: driven.name.clone(),
        claim: driven.claim.clone(),
        path: path.to_owned(),
        size,
        ..v1::WriteFileStart::default()
    };
    let mut chunks = vec![v1::WriteFileChunk { chunk: Some(Chunk::Start(start)) }];
    chunks.extend(
        data.chunks(300_000).map(|part| v1::WriteFileChunk { chunk: Some(Chunk::Data(part.to_vec())) }),
    );
    driven.client.clone().write_file(tokio_stream::iter(chunks)).await.map(tonic::Response::into_inner)
}

async fn read(driven: &Driven, path: &str, version: &str) -> Result<(v1::FileInfo, Vec<u8>), Status> {
    let request = v1::ReadFileRequest {
        sandbox: driven.name.clone(),
        claim: driven.claim.clone(),
        path: path.to_owned(),
        version: version.to_owned(),
        ..v1::ReadFileRequest::default()
    };
    let mut chunks = driven.client.clone().read_file(request).await?.into_inner();
    let (mut info, mut data) = (None, Vec::new());
    while let Some(chunk) = chunks.message().await? {
        assert!(chunk.data.len() <= 64 << 10);
        info = info.or(chunk.info);
        data.extend(chunk.data);
    }
    Ok((info.expect("the first chunk has it"), data))
}

async fn files_go_both_ways_whole(lab: &mut Lab) {
    let session = lab.session_with(|_| {}).await;
    let data: Vec<u8> = (0..3_000_000u32).map(|n| n.to_le_bytes()[1]).collect();
    let written = write(&session, "deep/er/file", &data, 3_000_000).await.unwrap();
    assert_eq!(
        (written.size, written.mode, written.uid, written.kind.as_str()),
        (3_000_000, 0o644, 1000, "file")
    );
    let (info, back) = read(&session, "/workspace/deep/er/file", &written.version).await.unwrap();
    assert!(back == data && info.version == written.version);
    let part = v1::ReadFileRequest {
        sandbox: session.name.clone(),
        claim: session.claim.clone(),
        path: "deep/er/file".to_owned(),
        offset: 1_000_001,
        size: Some(10),
        ..v1::ReadFileRequest::default()
    };
    let mut chunks = session.client.clone().read_file(part).await.unwrap().into_inner();
    assert_eq!(chunks.message().await.unwrap().unwrap().data, data[1_000_001..1_000_011]);
    write(&session, "empty", b"", 0).await.unwrap();
    assert_eq!(read(&session, "empty", "").await.unwrap().1, b"");
    session.said("more", "echo more >> empty; ln -s /etc/passwd link; mkfifo fifo").await;
    assert_eq!(code(&read(&session, "empty", &written.version).await.unwrap_err()), "path_changed");
    for (path, expected) in [
        ("none", "no_such_file"),
        ("link", "wrong_kind_of_file"),
        ("fifo", "wrong_kind_of_file"),
        ("deep", "wrong_kind_of_file"),
    ] {
        assert_eq!(code(&read(&session, path, "").await.unwrap_err()), expected, "{path}");
    }
    let stat = session.stat("link").await.unwrap();
    assert_eq!((stat.kind.as_str(), stat.symlink_target.as_str()), ("symlink", "/etc/passwd"));
    lab.finish(&session).await;
}

/// Hostile case 12.
async fn a_file_that_changes_while_it_is_read_is_told_so(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    let swap = "head -c 400000 /dev/zero | tr '\\0' a > fa; head -c 400000 /dev/zero | tr '\\0' b > fb; (while :; do ln -sfn /etc/shadow p; rm -f p; mkfifo p; rm -f p; mkdir p; rmdir p; cp fa p; cat fb > p; rm -f p; done) > /dev/null 2>&1 & echo up";
    sandbox.said("swap", swap).await;
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    let enough = |seen: &std::collections::BTreeMap<String, u32>| {
        seen.contains_key("path_changed") && seen.contains_key("whole") && seen.values().sum::<u32>() > 1500
    };
    while !enough(&seen) {
        let outcome = match read(&sandbox, "p", "").await {
            Ok((info, data)) => {
                assert_eq!(info.size, data.len() as u64);
                let is_one = data.windows(2).all(|pair| pair[0] == pair[1]);
                assert!(
                    is_one && data.iter().all(|byte| matches!(byte, b'a' | b'b')),
                    "a mix, or the host's"
                );
                "whole".to_owned()
            }
            Err(status) => code(&status).to_owned(),
        };
        *seen.entry(outcome).or_default() += 1;
    }
    for outcome in seen.keys() {
        let known = ["whole", "path_changed", "no_such_file", "wrong_kind_of_file", "bad_path"];
        assert!(known.contains(&outcome.as_str()), "{seen:?}");
    }
    lab.finish(&sandbox).await;
}

/// Hostile case 13.
async fn no_path_leads_an_upload_out_of_the_sandbox(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    sandbox.said("links", "ln -s / root; ln -s .. up; ln -s /tmp/new file; mkdir real").await;
    let long = format!("/{}", "a/".repeat(2048));
    for path in ["a/../../x", "../x", "/workspace/root/tmp/x", "up/x", "", "/", "nul\0x", &long] {
        let refused = write(&sandbox, path, b"x", 1).await.unwrap_err();
        assert_eq!(code(&refused), "bad_path", "{path:?}: {refused:?}");
        // The root can be looked at, and is no file.
        let expected = if path == "/" { "wrong_kind_of_file" } else { "bad_path" };
        assert_eq!(code(&read(&sandbox, path, "").await.unwrap_err()), expected, "{path:?}");
    }
    // The twins: an absolute path, a line break, two spellings of one word, and a link that is replaced.
    for path in ["/tmp/deep/x", "line\nbreak", "caf\u{e9}", "cafe\u{301}", "file", "real/./x"] {
        write(&sandbox, path, path.as_bytes(), path.len() as u64).await.unwrap();
        assert_eq!(read(&sandbox, path, "").await.unwrap().1, path.as_bytes());
    }
    let listed = sandbox
        .said("ls", "ls /tmp; test -e /tmp/new || echo kept; ls | wc -l; ls -A / | grep -c '^x$'; true")
        .await;
    // up, root, real, file, two of caf, and one whose name has two lines.
    assert_eq!(listed, "deep\nkept\n8\n0");
    lab.finish(&sandbox).await;
}

async fn an_upload_that_is_not_whole_leaves_nothing(lab: &mut Lab) {
    let sandbox = lab.sandbox().await;
    write(&sandbox, "f", b"old", 3).await.unwrap();
    for (data, size, expected) in [
        (&b"too little"[..], 11, "bad_request"),
        (b"too much", 7, "bad_request"),
        (b"", 1 << 40, "workspace_full"),
    ] {
        assert_eq!(code(&write(&sandbox, "f", data, size).await.unwrap_err()), expected);
    }
    // It is more than the workspace has room for, and less than it has in all.
    let full = vec![1; 12 << 20];
    sandbox.said("fill", "head -c 8M /dev/zero > filler").await;
    let refused = write(&sandbox, "f", &full, full.len() as u64).await.unwrap_err();
    assert_eq!(code(&refused), "workspace_full");
    assert_eq!(read(&sandbox, "f", "").await.unwrap().1, b"old");
    assert_eq!(sandbox.said("ls", "rm filler; ls -A").await, "f", "nothing half written");
    write(&sandbox, "f", &full, full.len() as u64).await.unwrap();
    lab.finish(&sandbox).await;
    nothing_gathered_stays(&lab.yard.config.data_dir.join("attempts"));
}

/// Only this attempt's directory is left, or its record, or neither, and no part of an upload in it.
fn nothing_gathered_stays(attempts: &Path) {
    let names = |dir: &Path| -> BTreeSet<String> {
        // It may be removed meanwhile.
        let entries = std::fs::read_dir(dir).into_iter().flatten();
        entries.flatten().map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    let left = names(attempts);
    let dirs: Vec<&str> = left.iter().map(|name| name.strip_suffix(".record").unwrap_or(name)).collect();
    assert!(dirs.iter().all(|dir| *dir == dirs[0] && !dir.contains('.')), "of one attempt: {left:?}");
    for dir in dirs {
        let parts = names(&attempts.join(dir));
        assert!(!parts.iter().any(|name| name.starts_with("upload-")), "half an upload in {dir}: {parts:?}");
    }
}

async fn directories_are_listed_in_pages(lab: &mut Lab) {
    let mut sandbox = lab.sandbox().await;
    sandbox.said("make", "mkdir d; cd d; for n in 1 2 3 4 5; do : > f$n; done").await;
    let request = |path: &str, after: &str, page_size| v1::ListFilesRequest {
        sandbox: sandbox.name.clone(),
        claim: String::new(),
        path: path.to_owned(),
        page_size,
        after: after.to_owned(),
    };
    let (mut names, mut after) = (Vec::new(), String::new());
    let mut client = sandbox.client.clone();
    loop {
        let page = client.list_files(request("d", &after, 2)).await.unwrap().into_inner();
        names.extend(page.files.into_iter().map(|file| file.path));
        after = names.last().cloned().unwrap_or_default();
        if !page.more {
            break;
        }
    }
    assert_eq!(names, ["f1", "f2", "f3", "f4", "f5"]);
    assert_eq!(code(&client.list_files(request("none", "", 2)).await.unwrap_err()), "no_such_file");
    assert_eq!(code(&client.list_files(request("d", "", 1001)).await.unwrap_err()), "bad_request");
    let (name, claim) = (sandbox.name.clone(), String::new());
    let make = v1::MakeDirRequest {
        sandbox: name.clone(),
        claim: claim.clone(),
        path: "new/dir".to_owned(),
        user: "root".to_owned(),
    };
    let made = sandbox.client.make_dir(make).await.unwrap().into_inner();
    assert_eq!((made.kind.as_str(), made.uid), ("directory", 0));
    for removed in [true, false] {
        let remove =
            v1::RemoveFileRequest { sandbox: name.clone(), claim: claim.clone(), path: "d".to_owned() };
        assert_eq!(sandbox.client.remove_file(remove).await.unwrap().into_inner().removed, removed);
    }
    lab.finish(&sandbox).await;
}

async fn a_checkpoint_of_a_session_is_another_sandboxes_beginning(lab: &mut Lab) {
    let mut sandbox = lab.sandbox().await;
    sandbox.said("make", "echo one > f; (while :; do date > busy; done) > /dev/null 2>&1 & echo up").await;
    let request = v1::TakeCheckpointRequest { sandbox: sandbox.name.clone(), claim: String::new() };
    let taken = sandbox.client.take_checkpoint(request).await.unwrap().into_inner();
    let checkpoint = taken.checkpoint.unwrap();
    assert_eq!(checkpoint.layers.len(), 1);
    sandbox.said("after", "echo two > f; test -e busy").await;
    let told = |r: &v1::report::Kind| match r {
        v1::report::Kind::Checkpoint(taken) => taken.checkpoint.clone(),
        _ => None,
    };
    assert_eq!(lab.yard.wait("checkpoint", told).await, checkpoint);
    for _ in 0..2 {
        let mut order = crate::driver::session(lab.sample());
        order.step.as_mut().unwrap().session.as_mut().unwrap().unclaimed = true;
        order.base = Some(checkpoint.clone());
        let fork = lab.started(order, "").await;
        assert_eq!(fork.said("f", "cat f; echo fork > f; pgrep -c date; true").await, "one\n0");
        lab.finish(&fork).await;
    }
    assert_eq!(sandbox.said("own", "cat f").await, "two", "forks share nothing that is written");
    lab.finish(&sandbox).await;
}
