//! Case 3 as a job meets it: what a spec or an earlier step got wrong about its image, its user or
//! its working directory is the task's, is told once, and costs the node nothing.

use std::time::{Duration, Instant};

use rollout_wire::v1;

use crate::images::small_root;
use crate::lab::{Done, HANG_GUARD};
use crate::yard::Yard;

crate::yard_cases![
    "03" what_an_image_lacks_fails_the_task_at_the_first_try,
    "03" a_working_directory_lost_on_the_way_fails_the_task_at_the_first_try,
    "03" an_image_that_is_on_no_node_holds_the_job_and_says_so,
];

fn job(steps: &str) -> String {
    format!(
        r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: mistaken
tasks: {{from: {{inline: [{{n: "1"}}]}}}}
group: {{size: 1}}
defaults: {{timeout: 60s, retry: {{limit: 3, backoff: 1s}}, resources: {{memory: 128Mi, disk: 16Mi, pids: 64}}}}
steps:
{steps}"#
    )
}

/// One attempt of the last step, and it is the task that failed.
async fn fails_once(yard: &Yard, what: &str, document: &str, step: &str, words: &str) {
    let rows = yard.run(document).await;
    assert_eq!(rows.verdict(), (None, Some("not_found"), Some("task")), "{what}: {rows:?}");
    let attempts = rows.steps.iter().filter(|row| row["step_name"] == step).count();
    assert_eq!(attempts, 1, "{what}: {:?}", rows.steps);
    let message = &rows.trajectories[0]["failure_message"];
    assert!(message.contains(words), "{what}: {message}");
}

async fn ends_well(yard: &Yard, what: &str, document: &str) {
    let rows = yard.run(document).await;
    assert_eq!(rows.verdict(), (None, None, None), "{what}: {rows:?}");
}

async fn what_an_image_lacks_fails_the_task_at_the_first_try(yard: &Yard) -> Done {
    let root = small_root(&yard.dir, "root");
    std::fs::write(root.join("file"), "").unwrap();
    std::os::unix::fs::symlink("/workspace", root.join("link")).unwrap();
    let bare = yard.dir.join("bare");
    std::fs::create_dir(&bare).unwrap();
    let (root, bare) = (root.display(), bare.display());
    let step = |image: &dyn std::fmt::Display, user: &str, workdir: &str| {
        job(&format!(
            "  - {{name: work, image: 'dir:{image}', user: {user}, workdir: {workdir}, run: 'echo x > made'}}\n"
        ))
    };
    for (what, document, words) in [
        ("no shell", step(&bare, "rollout", "/workspace"), "no shell at /bin/sh"),
        ("on a file", step(&root, "rollout", "/file"), "`file` is not a directory"),
        ("below a file", step(&root, "rollout", "/file/deeper"), "`file` is not a directory"),
        ("through a link", step(&root, "rollout", "/link/deeper"), "`link` is not a directory"),
        ("no such user", step(&root, "nobody-here", "/workspace"), "unknown_user: user `nobody-here`"),
    ] {
        fails_once(yard, what, &document, "work", words).await;
    }
    for (what, document) in [
        ("the honest twin", step(&root, "rollout", "/workspace")),
        ("a folder to make, another user", step(&root, "'4242'", "/a/b/c")),
    ] {
        ends_well(yard, what, &document).await;
    }
    Ok(())
}

async fn a_working_directory_lost_on_the_way_fails_the_task_at_the_first_try(yard: &Yard) -> Done {
    let chain = |before: &str, more: &str| {
        let before = serde_json::to_string(before).unwrap();
        job(&format!(
            "  - {{name: first, image: host, workdir: /workspace/w, run: {before}}}\n  - {{name: second, needs: [first], workdir: /workspace/w, run: 'pwd', {more}}}\n"
        ))
    };
    for (what, before, more, words) in [
        ("shut", "chmod 000 .", "", "cannot start in `/workspace/w`: Permission denied"),
        ("gone", "rm -rf /workspace/w", "", "cannot start in `/workspace/w`: No such file"),
        ("a file", "rm -rf /workspace/w; echo x > /workspace/w", "", "`/workspace/w`: Not a directory"),
        ("a loop", "rm -rf /workspace/w; ln -s w /workspace/w", "", "cannot start in `/workspace/w`"),
        ("another user", "true", "user: nobody-here", "`nobody-here` is not in /etc/passwd"),
        (
            "a file for another user",
            "true",
            "user: nobody-here, files: [{path: /tmp/x, content: x}]",
            "unknown_user: `/tmp/x` cannot belong to `nobody-here`",
        ),
    ] {
        fails_once(yard, what, &chain(before, more), "second", words).await;
    }
    ends_well(yard, "the honest twin", &chain("chmod 700 .; echo x > made", "user: rollout")).await;
    Ok(())
}

async fn an_image_that_is_on_no_node_holds_the_job_and_says_so(yard: &Yard) -> Done {
    let place = yard.dir.join("late");
    std::fs::write(yard.dir.join("file"), "").unwrap();
    let file = yard.dir.join("file");
    for (image, why) in [(&place, "No such file or directory"), (&file, "Not a directory")] {
        let image = image.display();
        let document = job(&format!("  - {{name: work, image: 'dir:{image}', run: 'true'}}\n"));
        let mut client = yard.client().await;
        let id = yard.submit(&document).await;
        let deadline = Instant::now() + HANG_GUARD;
        let held = loop {
            let job = client.get(v1::GetRequest { job: id.clone() }).await.unwrap().into_inner();
            if job.state == "held" {
                break job;
            }
            assert!(job.finished_at_us.is_none() && Instant::now() < deadline, "never held: {job:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let explained = client.explain(v1::ExplainRequest { target: id.clone() }).await.unwrap().into_inner();
        for text in [&held.reason, &explained.lines[0]] {
            let words = [
                "refused_by_every_node: step `work`",
                "node node-1 refused it: image_missing",
                &format!("image `dir:{image}` is not on this node: {why}"),
            ];
            assert!(words.iter().all(|words| text.contains(words)), "{text}");
        }
        let request = v1::CancelRequest { job: id.clone(), reason: "seen".to_owned() };
        client.cancel(request).await.unwrap();
        yard.finished(&id).await;
    }
    // The honest twin: the tree is there when it is asked for.
    small_root(&yard.dir, "late");
    let image = place.display();
    ends_well(yard, "there", &job(&format!("  - {{name: work, image: 'dir:{image}', run: 'true'}}\n"))).await;
    Ok(())
}
