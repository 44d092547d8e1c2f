//! Sandboxes come whole or not at all, and go without a trace.

use std::time::Duration;

use executor::sandbox::{CreateError, SandboxSpec, SpawnError};

use crate::processes::{said, start};
use crate::rule::SOON;
use crate::subject::Yard;

crate::rules![
    a_destroyed_sandbox_leaves_nothing,
    a_dropped_sandbox_leaves_nothing,
    a_dropped_creation_leaves_nothing,
    a_dead_sandbox_says_so_and_can_be_destroyed,
    a_bad_spec_is_refused_by_name,
    an_image_that_is_not_there_is_refused,
    an_id_is_one_sandbox_at_a_time,
    an_image_has_one_digest,
];

async fn a_destroyed_sandbox_leaves_nothing(yard: &Yard) {
    for _ in 0..5 {
        let sandbox = yard.sandbox().await;
        said(&*sandbox, "echo mine > f; (setsid sleep 1000 >/dev/null 2>&1 &)").await;
        sandbox.destroy().await.unwrap();
        // Nothing goes on in the background: `destroy` waited.
        assert_eq!(yard.left_in_the_end().await, None, "left by a destroyed sandbox");
    }
}

async fn a_dropped_sandbox_leaves_nothing(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    said(&*sandbox, "(setsid sleep 1000 >/dev/null 2>&1 &)").await;
    drop(sandbox);
    assert_eq!(yard.left_in_the_end().await, None, "left by a dropped sandbox");
    yard.sandbox().await.destroy().await.unwrap();
}

async fn a_dropped_creation_leaves_nothing(yard: &Yard) {
    for micros in [0, 50, 300, 1_000, 3_000, 10_000] {
        let creation = yard.backend.create(yard.spec());
        if let Ok(made) = tokio::time::timeout(Duration::from_micros(micros), creation).await {
            made.expect("created").destroy().await.unwrap();
        }
    }
    // What was dropped may begin only now: others come behind it, and some time goes by.
    for _ in 0..3 {
        yard.sandbox().await.destroy().await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(yard.left_in_the_end().await, None, "left by a dropped creation");
}

async fn a_dead_sandbox_says_so_and_can_be_destroyed(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let (running, _pipes) = start(&*sandbox, "rollout", "/", &["sleep", "1000"], &[]).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(100), sandbox.died()).await;
    assert!(early.is_err(), "it is alive, and died of {early:?}");
    (yard.crash)();
    let died = tokio::time::timeout(SOON, sandbox.died()).await;
    assert!(!died.expect("its death is not told").is_empty());
    let waited = tokio::time::timeout(SOON, running.wait()).await.expect("what ran in it has ended");
    assert!(!matches!(waited, Ok(executor::sandbox::Exit::Code(_))), "{waited:?}");
    let late = start(&*sandbox, "rollout", "/", &["true"], &[]).await.map(|_| ());
    assert!(matches!(late, Err(SpawnError::Dead { .. })), "{late:?}");
    sandbox.destroy().await.unwrap();
    assert_eq!(yard.left_in_the_end().await, None, "left by a dead sandbox");
    yard.sandbox().await.destroy().await.unwrap();
}

async fn refused(yard: &Yard, spec: SandboxSpec) -> CreateError {
    yard.backend.create(spec).await.expect_err("a bad spec was taken")
}

async fn a_bad_spec_is_refused_by_name(yard: &Yard) {
    for id in ["", "UPPER", "a/b", "..", "a.b", "a_b"] {
        let error = refused(yard, SandboxSpec { id: id.to_owned(), ..yard.spec() }).await;
        assert!(matches!(error, CreateError::Failed { .. }), "{id}: {error:?}");
    }
    let error = refused(yard, SandboxSpec { user: "nobody-here".to_owned(), ..yard.spec() }).await;
    assert!(matches!(error, CreateError::UnknownUser { .. }), "{error:?}");
    for workdir in ["relative", "/a/../b", "/proc/x", "/dev/x"] {
        let error = refused(yard, SandboxSpec { workdir: workdir.to_owned(), ..yard.spec() }).await;
        assert!(matches!(error, CreateError::BadRootfs { .. }), "{workdir}: {error:?}");
    }
    assert_eq!(yard.left_in_the_end().await, None, "left by a refused sandbox");
}

async fn an_image_that_is_not_there_is_refused(yard: &Yard) {
    let absent = format!("dir:{}/absent", yard.dir.display());
    for (image, is_missing) in [(absent.as_str(), true), ("dir:/proc", false), ("no-such-kind", false)] {
        let made = yard.backend.create(SandboxSpec { image: image.to_owned(), ..yard.spec() }).await;
        let as_expected = match &made {
            Err(CreateError::ImageMissing { .. }) => is_missing,
            Err(CreateError::BadRootfs { .. }) => !is_missing,
            _ => false,
        };
        assert!(as_expected, "image {image}: {made:?}");
        assert!(yard.backend.image_digest(image).await.is_err(), "{image} has a digest");
    }
}

async fn an_id_is_one_sandbox_at_a_time(yard: &Yard) {
    let spec = yard.spec();
    let first = yard.backend.create(spec.clone()).await.unwrap();
    let twice = yard.backend.create(spec).await;
    assert!(matches!(twice, Err(CreateError::Failed { .. })), "an id in use: {twice:?}");
    said(&*first, "true").await;
    first.destroy().await.unwrap();
}

async fn an_image_has_one_digest(yard: &Yard) {
    let digest = yard.backend.image_digest("host").await.unwrap();
    assert!(digest.starts_with("host:"), "{digest}");
    let expected = SandboxSpec { image_digest: Some(digest.clone()), ..yard.spec() };
    for spec in [yard.spec(), expected] {
        let sandbox = yard.backend.create(spec).await.unwrap();
        assert_eq!(sandbox.image_digest(), digest, "the digest of a sandbox's image");
        sandbox.destroy().await.unwrap();
    }
    let another = SandboxSpec { image_digest: Some("host:another".to_owned()), ..yard.spec() };
    match yard.backend.create(another).await {
        Err(CreateError::ImageMissing { problem, .. }) => assert!(problem.contains("host:another")),
        other => panic!("an image of another digest: {other:?}"),
    }
}
