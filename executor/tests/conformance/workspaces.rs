//! What a sandbox changed is saved and comes back, and nothing else.

use std::fs::File;
use std::time::Duration;

use executor::sandbox::{Mounted, Pack, PackError, Sandbox, SandboxSpec};
use images::layers::{Bounds, LayerStore, Packed, unpack};
use rollout::Bytes;

use crate::processes::{said, start};
use crate::subject::Yard;

crate::rules![
    what_was_packed_comes_back [Pack, Layers],
    packing_stops_what_runs_for_a_bounded_time [Pack],
    a_layer_is_laid_over_a_live_sandbox [Pack, LayOver],
];

fn request(yard: &Yard, name: &str, freeze: Option<Duration>) -> Pack {
    Pack { out: yard.dir.join(name), below: Vec::new(), bounds: Bounds::new(Bytes(1 << 30)), freeze }
}

/// Packs what a sandbox whose processes are dead changed, and makes a layer of it.
async fn save(yard: &Yard, name: &str, sandbox: &dyn Sandbox) -> Mounted {
    sandbox.kill_all().await.unwrap();
    let packed = sandbox.pack(request(yard, name, None)).await.unwrap();
    keep(yard, &packed)
}

fn keep(yard: &Yard, packed: &Packed) -> Mounted {
    let store = LayerStore::open(&yard.dir.join("layers"), 1 << 30).unwrap();
    let staged = store.stage().unwrap();
    let opened = File::open(&packed.file).unwrap();
    unpack(opened, &staged.tree(), &packed.layer, &Bounds::new(packed.layer.content)).unwrap();
    let at = store.commit(staged, &packed.layer).unwrap();
    Mounted { layer: packed.layer.clone(), at }
}

async fn what_was_packed_comes_back(yard: &Yard) {
    let first = yard.sandbox().await;
    said(&*first, "echo one > f; mkdir -p d/e; echo x > d/e/x; ln f hard; ln -s f soft; chmod 640 f").await;
    let one = save(yard, "one", &*first).await;
    first.destroy().await.unwrap();
    let second = yard.backend.create(SandboxSpec { layers: vec![one.clone()], ..yard.spec() }).await.unwrap();
    assert_eq!(second.layers(), std::slice::from_ref(&one));
    let seen = "cat f; stat -c '%a %h %u' f; readlink soft; find d | sort | tr '\\n' ' '";
    assert_eq!(said(&*second, seen).await, "one\n640 2 1000\nf\nd d/e d/e/x", "what was saved");
    said(&*second, "rm -r d; echo two > f2").await;
    let two = save(yard, "two", &*second).await;
    second.destroy().await.unwrap();
    let third = yard.backend.create(SandboxSpec { layers: vec![one, two], ..yard.spec() }).await.unwrap();
    assert_eq!(said(&*third, "ls; cat f2").await, "f\nf2\nhard\nsoft\ntwo", "deleted stays deleted");
    third.destroy().await.unwrap();
}

/// Writes one number to two files, for ever.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i > a; echo $i > b; done";

async fn packing_stops_what_runs_for_a_bounded_time(yard: &Yard) {
    let sandbox = yard.sandbox().await;
    let argv = ["sh", "-c", COUNTER];
    let (_counter, _pipes) = start(&*sandbox, "rollout", "/workspace", &argv, &[]).await.unwrap();
    let in_no_time = sandbox.pack(request(yard, "none", Some(Duration::ZERO))).await;
    assert!(matches!(in_no_time, Err(PackError::TooSlow { .. })), "packed in no time: {in_no_time:?}");
    let packed = sandbox.pack(request(yard, "some", Some(Duration::from_secs(60)))).await.unwrap();
    let layer = keep(yard, &packed);
    let number = |name: &str| std::fs::read_to_string(layer.at.path.join("workspace").join(name)).ok();
    // A file is cut before it is written: an empty one is a moment too.
    if let (Some(Ok(a)), Some(Ok(b))) = (
        number("a").map(|text| text.trim().parse::<u64>()),
        number("b").map(|text| text.trim().parse::<u64>()),
    ) {
        assert!(a == b || a == b + 1, "{a} and {b} are of two moments");
    }
    let before = said(&*sandbox, "cat a").await;
    for _ in 0..1000 {
        if said(&*sandbox, "cat a").await != before {
            return sandbox.destroy().await.unwrap();
        }
    }
    panic!("it stands still");
}

async fn a_layer_is_laid_over_a_live_sandbox(yard: &Yard) {
    let first = yard.sandbox().await;
    said(&*first, "mkdir tests; echo hidden > tests/want").await;
    let layer = save(yard, "tests", &*first).await;
    first.destroy().await.unwrap();
    let second = yard.sandbox().await;
    said(&*second, "echo mine > f; mkdir tests; ln -s /workspace/f tests/want").await;
    second.kill_all().await.unwrap();
    second.lay_over(&layer).await.unwrap();
    assert_eq!(said(&*second, "cat tests/want f").await, "hidden\nmine", "what was laid over it");
    second.destroy().await.unwrap();
}
