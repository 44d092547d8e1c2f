//! Workspaces of attempts: saved at the end and on the way, restored, refused.

use std::path::PathBuf;

use rollout_wire::v1::{self, attempt_refused::Class, command, report};

use crate::fake::{Fault, Point};
use crate::yard::{Yard, attempt, grader, order};

fn saved(sample: u32, kind: &str, script: &str) -> v1::StartAttempt {
    let mut order = order(kind, script);
    order.attempt = Some(attempt(sample, 0));
    order.step.as_mut().unwrap().checkpoint_after = true;
    order
}

fn over(sample: u32, base: &v1::Checkpoint) -> v1::StartAttempt {
    let mut order = order("run", "out restored");
    order.attempt = Some(attempt(sample, 1));
    order.base = Some(base.clone());
    order
}

fn kill(sample: u32) -> command::Kind {
    command::Kind::Kill(v1::KillAttempt {
        attempt: Some(attempt(sample, 0)),
        generation: 1,
        code: "cancelled".to_owned(),
        reason: "enough".to_owned(),
    })
}

fn code(outcome: &v1::Outcome) -> &str {
    outcome.failure.as_ref().map_or("", |failure| &failure.code)
}

async fn taken(yard: &mut Yard) -> v1::CheckpointTaken {
    let pick = |r: &report::Kind| if let report::Kind::Checkpoint(c) = r { Some(c.clone()) } else { None };
    yard.wait("checkpoint", pick).await
}

fn blob_path(yard: &Yard, sha256: &str) -> PathBuf {
    yard.blobs.local_path(sha256).unwrap().expect("a stored blob")
}

/// Nothing half made lies under the layers of the node.
fn staged(yard: &Yard) -> usize {
    std::fs::read_dir(yard.config.data_dir.join("layers/staged")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_step_left_is_stored_and_the_next_starts_over_it() {
    let mut yard = Yard::start().await;
    let outcome = yard.run(saved(0, "run", "write /workspace/a one")).await;
    let first = outcome.checkpoint.expect("a checkpoint");
    assert_eq!((first.image.as_str(), first.layers.len()), ("host:fake", 1));
    assert!(outcome.times.unwrap().checkpoint_ms.is_some());
    let layer = &first.layers[0];
    assert_eq!((layer.entries, layer.content_bytes), (2, 3));
    assert_eq!(yard.blobs.size(&layer.blob_sha256).await.unwrap(), Some(layer.packed_bytes));
    let mut second = over(0, &first);
    second.step.as_mut().unwrap().checkpoint_after = true;
    second.step.as_mut().unwrap().command =
        Some(v1::step::Command::Shell("write /workspace/b two".to_owned()));
    let both = yard.run(second).await.checkpoint.expect("a checkpoint");
    assert_eq!(both.layers[..1], first.layers[..]);
    assert_eq!(both.layers.len(), 2);
    {
        let state = yard.backend.state();
        let spec = state.created.last().unwrap();
        assert_eq!((spec.image_digest.as_deref(), spec.layers.len()), (Some("host:fake"), 1));
        assert_eq!(spec.layers[0].layer.blob, layer.blob_sha256);
        assert_eq!(std::fs::read_to_string(spec.layers[0].at.path.join("workspace/a")).unwrap(), "one");
    }
    // Nothing changed: no layer more, and not even one.
    let outcome = yard.run(saved(1, "agent", "exit 1")).await;
    assert_eq!((code(&outcome), outcome.checkpoint.as_ref().unwrap().layers.len()), ("agent_exit", 0));
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_the_step_names_lies_on_top_and_only_once() {
    let mut yard = Yard::start().await;
    let named =
        yard.run(saved(0, "run", "write /tests/run named")).await.checkpoint.unwrap().layers.remove(0);
    let base = yard.run(saved(1, "run", "write /workspace/a base")).await.checkpoint.unwrap();
    let text = text(&named);
    let stacked = |base: &v1::Checkpoint, sample| {
        let mut order = over(sample, base);
        let step = order.step.as_mut().unwrap();
        (step.layers, step.checkpoint_after) = (vec![text.clone()], true);
        order
    };
    let outcome = yard.run(stacked(&base, 2)).await;
    let both = outcome.checkpoint.unwrap();
    assert_eq!(both.layers, [base.layers[0].clone(), named.clone()]);
    // It is part of what the next one starts from: laid over that, it would undo changes.
    let again = yard.run(stacked(&both, 3)).await.checkpoint.unwrap();
    assert_eq!(again.layers, both.layers);
    for (text, words) in [
        ("docker.io/library/x", "a tag is never pulled"),
        ("oci-layout:x", "not handed in"),
        ("layer:zz", "layer"),
    ] {
        let mut order = order("run", "true");
        order.step.as_mut().unwrap().layers = vec![text.to_owned()];
        order.attempt = Some(attempt(9, u32::try_from(text.len()).unwrap()));
        let outcome = yard.run(order).await;
        assert_eq!(code(&outcome), "not_found");
        assert!(outcome.failure.unwrap().message.contains(words));
    }
    yard.stop().await;
}

fn text(layer: &v1::Layer) -> String {
    let v1::Layer { id, blob_sha256, packed_bytes, content_bytes, entries } = layer;
    format!(
        "layer:{}:{blob_sha256}:{packed_bytes}:{content_bytes}:{entries}",
        id.trim_start_matches("sha256:")
    )
}

/// The step after `sample`'s first, in its sandbox, with `layers`.
fn going_on(mut order: v1::StartAttempt, sample: u32, layers: Vec<String>) -> v1::StartAttempt {
    (order.attempt, order.continue_from) = (Some(attempt(sample, 1)), Some(attempt(sample, 0)));
    order.step.as_mut().unwrap().layers = layers;
    order
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_of_a_grader_are_copied_into_the_sandbox_it_goes_on_in() {
    let mut yard = Yard::start().await;
    let tests =
        yard.run(saved(0, "run", "write /tests/reward 0.5")).await.checkpoint.unwrap().layers.remove(0);
    let named = text(&tests);
    let first = |sample, layers| {
        let mut order = order("agent", "write /tests/reward 1");
        (order.attempt, order.keep) = (Some(attempt(sample, 0)), true);
        order.step.as_mut().unwrap().layers = layers;
        order
    };
    let grading = || grader("copy /tests/reward /logs/verifier/reward.txt");

    yard.run(first(1, Vec::new())).await;
    let outcome = yard.run(going_on(grading(), 1, vec![named.clone(), named.clone()])).await;
    assert_eq!((outcome.failure, outcome.reward.unwrap().value), (None, 0.5));
    assert_eq!(std::mem::take(&mut yard.backend.state().laid).len(), 1);

    // What the sandbox was made over is under it: laid over it, it would undo what was changed.
    yard.run(first(2, vec![named.clone()])).await;
    let outcome = yard.run(going_on(grading(), 2, vec![named.clone()])).await;
    assert_eq!((outcome.failure, outcome.reward.unwrap().value), (None, 1.0));
    assert_eq!(yard.backend.state().laid.len(), 0);

    // Of any other step the copies would be part of the workspace.
    yard.run(first(3, Vec::new())).await;
    let outcome = yard.run(going_on(order("agent", "true"), 3, vec![named.clone()])).await;
    assert_eq!(code(&outcome), "not_found");
    assert!(outcome.failure.unwrap().message.contains("cannot be laid over the sandbox"));

    yard.run(first(4, Vec::new())).await;
    let mut large = tests.clone();
    large.content_bytes = 1 << 40;
    let outcome = yard.run(going_on(grading(), 4, vec![text(&large)])).await;
    assert_eq!(code(&outcome), "not_found");
    let message = outcome.failure.unwrap().message;
    assert!(message.contains("1Ti") && message.contains("a larger disk limit is needed"), "{message}");

    yard.run(first(5, Vec::new())).await;
    yard.backend.inject(Point::LayOver, Fault::Fail);
    let outcome = yard.run(going_on(grading(), 5, vec![named.clone()])).await;
    assert_eq!(code(&outcome), "start_failed", "the machine's own trouble is tried again");
    yard.backend.release();

    yard.run(first(6, Vec::new())).await;
    yard.backend.inject(Point::LayOver, Fault::Hang);
    yard.send(command::Kind::Start(going_on(grading(), 6, vec![named]))).await;
    yard.backend.until("a layer on its way", |state| state.hanging == 1).await;
    let command::Kind::Kill(mut stop) = kill(6) else { panic!("a kill") };
    stop.attempt = Some(attempt(6, 1));
    yard.send(command::Kind::Kill(stop)).await;
    assert_eq!(code(&yard.ended().await.outcome.unwrap()), "cancelled");
    yard.backend.release();
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_no_layer_can_hold_is_the_steps_own_doing() {
    let mut yard = Yard::start().await;
    for (sample, (kind, script, expected, has_checkpoint)) in (0..).zip([
        ("run", "node /workspace/d device", "step_exit", false),
        ("agent", "node /workspace/d device", "output_missing", true),
        ("agent", "node /workspace/d device;exit 3", "agent_exit", true),
        ("agent", "write /workspace/d file;exit 3", "agent_exit", true),
        ("run", "write /workspace/d file;exit 3", "step_exit", false),
        ("run", "write /workspace/d file", "", true),
    ]) {
        let outcome = yard.run(saved(sample, kind, script)).await;
        assert_eq!(code(&outcome), expected, "{kind}: {script}");
        assert_eq!(outcome.checkpoint.is_some(), has_checkpoint, "{kind}: {script}");
        // An agent is graded on what it began with: here the image as it is.
        let layers = outcome.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.layers.len());
        assert_eq!(layers, usize::from(script.starts_with("write") && has_checkpoint), "{kind}: {script}");
        let message = outcome.failure.map(|failure| failure.message).unwrap_or_default();
        let is_about_it = matches!(expected, "output_missing") || kind == "run" && script.starts_with("node");
        assert_eq!(message.contains("cannot be saved"), is_about_it, "{message}");
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_16_a_damaged_layer_is_refused_by_its_digest_and_nothing_is_made_of_it() {
    let mut yard = Yard::start().await;
    let good = yard.run(saved(0, "run", "write /workspace/a one")).await.checkpoint.unwrap();
    let other = yard.run(saved(1, "run", "write /workspace/a other")).await.checkpoint.unwrap();
    // Whatever the node made of them itself is gone.
    yard.end().await;
    for checkpoint in [&good, &other] {
        let id = checkpoint.layers[0].id.trim_start_matches("sha256:").to_owned();
        std::fs::remove_dir_all(yard.config.data_dir.join("layers").join(id)).unwrap();
    }
    yard.executor = Some(yard.serve().unwrap());
    yard.hello().await;
    let created = yard.backend.state().created.len();
    let path = blob_path(&yard, &good.layers[0].blob_sha256);
    let bytes = std::fs::read(&path).unwrap();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    let damages: [(&str, Option<Vec<u8>>); 5] = [
        ("flipped", Some(flipped)),
        ("truncated", Some(bytes[..bytes.len() - 1].to_vec())),
        ("longer", Some([bytes.as_slice(), b"x"].concat())),
        ("of another", Some(std::fs::read(blob_path(&yard, &other.layers[0].blob_sha256)).unwrap())),
        ("missing", None),
    ];
    let refusal = async |yard: &mut Yard, base: &v1::Checkpoint, sample: u32, what: &str| {
        yard.send(command::Kind::Start(over(sample, base))).await;
        let refused = yard.refused().await;
        assert_eq!(refused.class(), Class::CheckpointBad, "{what}: {}", refused.message);
        assert!(refused.message.contains("chunk_corrupt"), "{what}: {}", refused.message);
        assert!(refused.message.contains(&base.layers[0].blob_sha256), "{what}: {}", refused.message);
    };
    for (sample, (what, damage)) in (10..).zip(damages) {
        match damage {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        refusal(&mut yard, &good, sample, what).await;
        assert_eq!(staged(&yard), 0, "{what}");
    }
    std::fs::write(&path, bytes).unwrap();
    // Whole blobs under false claims: another tree's, another length, another count.
    let forged = |change: &dyn Fn(&mut v1::Layer)| {
        let mut base = good.clone();
        change(&mut base.layers[0]);
        base
    };
    let swap = other.layers[0].clone();
    for (sample, (what, base)) in (20..).zip([
        (
            "another tree",
            forged(&|l| (l.blob_sha256, l.packed_bytes) = (swap.blob_sha256.clone(), swap.packed_bytes)),
        ),
        ("another length", forged(&|l| l.packed_bytes += 1)),
        ("more entries", forged(&|l| l.entries += 1)),
        ("less content", forged(&|l| l.content_bytes -= 1)),
    ]) {
        refusal(&mut yard, &base, sample, what).await;
        assert_eq!(staged(&yard), 0, "{what}");
    }
    // What a step names beside it is no fault of the checkpoint, and no retry helps.
    let mut naming = over(29, &good);
    if let Some(step) = &mut naming.step {
        step.layers.push(format!("layer:{}:{}:10:10:1", "ab".repeat(32), "cd".repeat(32)));
    }
    yard.send(command::Kind::Start(naming)).await;
    let outcome = yard.ended().await.outcome.unwrap();
    assert_eq!(code(&outcome), "not_found");
    assert_eq!(yard.backend.state().created.len(), created, "no sandbox over a part of a workspace");
    // Its twin: the same checkpoint, undamaged, for several at once.
    let orders: Vec<_> = (30..36).map(|sample| command::Kind::Start(over(sample, &good))).collect();
    yard.send_all(orders).await;
    for _ in 0..6 {
        let outcome = yard.ended().await.outcome.unwrap();
        assert_eq!(yard.blob(outcome.stdout.as_ref().unwrap()).await, "restored");
    }
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_that_cannot_be_stored_is_storages_failure() {
    let mut yard = Yard::start().await;
    let good = yard.run(saved(0, "run", "write /workspace/a one")).await.checkpoint.unwrap();
    yard.backend.inject(Point::Pack, Fault::Fail);
    let outcome = yard.run(saved(1, "agent", "write /workspace/b two")).await;
    assert_eq!((code(&outcome), &outcome.checkpoint), ("storage_failed", &None));
    yard.backend.release();
    let blob = blob_path(&yard, &good.layers[0].blob_sha256);
    let store = blob.ancestors().find(|dir| dir.ends_with("sha256")).unwrap().to_owned();
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::write(&store, "in the way").unwrap();
    let outcome = yard.run(saved(2, "run", "write /workspace/c three")).await;
    assert_eq!((code(&outcome), &outcome.checkpoint), ("storage_failed", &None), "{:?}", outcome.failure);
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_47_a_kill_while_a_workspace_is_saved_leaves_no_checkpoint() {
    let mut yard = Yard::start().await;
    // At the end of the step.
    yard.backend.inject(Point::Pack, Fault::Hang);
    yard.send(command::Kind::Start(saved(0, "agent", "write /workspace/a one"))).await;
    yard.backend.until("packing", |state| state.hanging == 1).await;
    yard.send(kill(0)).await;
    let outcome = yard.ended().await.outcome.unwrap();
    assert_eq!((code(&outcome), &outcome.checkpoint), ("cancelled", &None));
    yard.backend.until_empty().await;
    // While the step runs, by a kill and by its own deadline.
    for (sample, timeout_ms, expected) in [(1, 600_000, "cancelled"), (2, 400, "agent_timeout")] {
        yard.backend.release();
        yard.backend.inject(Point::Pack, Fault::Hang);
        let hanging = yard.backend.state().hanging;
        let mut order = order("agent", "write /workspace/a one;sleep");
        order.attempt = Some(attempt(sample, 0));
        let step = order.step.as_mut().unwrap();
        (step.checkpoint_every_ms, step.timeout_ms) = (Some(5), timeout_ms);
        yard.send(command::Kind::Start(order)).await;
        yard.backend.until("packing", |state| state.hanging > hanging).await;
        if expected == "cancelled" {
            yard.send(kill(sample)).await;
        }
        let outcome = yard.ended().await.outcome.unwrap();
        assert_eq!((code(&outcome), &outcome.checkpoint), (expected, &None));
        assert!(!yard.has_unread(|report| matches!(report, report::Kind::Checkpoint(_))));
        yard.backend.until_empty().await;
    }
    yard.backend.release();
    assert_eq!(staged(&yard), 0);
    // Its twin.
    assert!(yard.run(saved(5, "agent", "write /workspace/a one")).await.checkpoint.is_some());
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_step_is_saved_again_and_again_and_told_when_something_changed() {
    let mut yard = Yard::start().await;
    let mut order = order("agent", "write /workspace/a one;sleep");
    order.step.as_mut().unwrap().checkpoint_every_ms = Some(5);
    yard.send(command::Kind::Start(order)).await;
    let first = taken(&mut yard).await;
    assert_eq!(first.attempt, Some(attempt(0, 0)));
    let base = first.checkpoint.unwrap();
    // The same again is not told again.
    let frozen = yard.backend.state().frozen;
    yard.backend.until("saved again", |state| state.frozen > frozen + 3).await;
    assert!(!yard.has_unread(|report| matches!(report, report::Kind::Checkpoint(_))));
    // To a scheduler that may have missed it, it is.
    yard.break_links(false);
    yard.hello().await;
    assert_eq!(taken(&mut yard).await.checkpoint.as_ref(), Some(&base));
    yard.send(kill(0)).await;
    let outcome = yard.ended().await.outcome.unwrap();
    assert!(outcome.checkpoint.is_none() && outcome.times.unwrap().checkpoint_ms.is_some());
    let outcome = yard.run(over(1, &base)).await;
    assert_eq!(code(&outcome), "");
    yard.stop().await;
}
