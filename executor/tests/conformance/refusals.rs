//! What a backend cannot do it refuses by name, and it does what it does not refuse.

use std::sync::Arc;

use executor::sandbox::{CreateError, LayError, Mounted, OciBase, Pack, PackError, SandboxSpec};
use images::layers::{Bounds, LayerStore, pack_directory, unpack};
use rollout::Bytes;

use crate::subject::{Ability, Yard};

crate::rules![what_is_refused_is_refused_by_name_and_nothing_else_is];

/// A layer that no sandbox made.
fn layer(yard: &Yard) -> Mounted {
    let (tree, out) = (yard.dir.join("tree"), yard.dir.join("tree.packed"));
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "of a layer").unwrap();
    let packed = pack_directory(&tree, "workspace/laid", &out, &Bounds::new(Bytes(1 << 20))).unwrap();
    let store = LayerStore::open(&yard.dir.join("layers"), 1 << 20).unwrap();
    let staged = store.stage().unwrap();
    let bounds = Bounds::new(packed.layer.content);
    unpack(std::fs::File::open(&packed.file).unwrap(), &staged.tree(), &packed.layer, &bounds).unwrap();
    Mounted { at: store.commit(staged, &packed.layer).unwrap(), layer: packed.layer }
}

/// What became of a try: done, or refused by a name.
fn of_creation(made: Result<Box<dyn executor::sandbox::Sandbox>, CreateError>) -> Result<(), String> {
    match made {
        Ok(_) => Ok(()),
        Err(CreateError::NotEnforceable { guarantee, problem }) => Err(format!("{guarantee}: {problem}")),
        Err(other) => panic!("no refusal by name: {other:?}"),
    }
}

async fn tried(yard: &Yard, ability: Ability, layer: &Mounted) -> Result<(), String> {
    match ability {
        Ability::Layers => {
            let spec = SandboxSpec { layers: vec![layer.clone()], ..yard.spec() };
            of_creation(yard.backend.create(spec).await)
        }
        Ability::OciImage => {
            let base = OciBase {
                digest: format!("oci:sha256:{}", "0".repeat(64)),
                layers: vec![layer.at.clone()],
                env: Vec::new(),
                hold: None,
            };
            let image = base.digest.clone();
            let spec = SandboxSpec { image, base: Some(Arc::new(base)), ..yard.spec() };
            match yard.backend.create(spec).await {
                // Taken for an image, in which nothing can run.
                Err(CreateError::BadRootfs { .. }) => Ok(()),
                made => of_creation(made),
            }
        }
        Ability::AnyDisk => {
            let mut spec = yard.spec();
            spec.limits.disk = Bytes(yard.subject.disk.0 / 2);
            of_creation(yard.backend.create(spec).await)
        }
        Ability::Pack => {
            let sandbox = yard.sandbox().await;
            sandbox.kill_all().await.unwrap();
            let (out, bounds) = (yard.dir.join("packed"), Bounds::new(Bytes(1 << 20)));
            let packed = sandbox.pack(Pack { out, below: Vec::new(), bounds, freeze: None }).await;
            match packed {
                Ok(_) => Ok(()),
                Err(refused @ PackError::NotOffered { .. }) => Err(refused.to_string()),
                Err(other) => panic!("no refusal by name: {other:?}"),
            }
        }
        Ability::LayOver => {
            let sandbox = yard.sandbox().await;
            sandbox.kill_all().await.unwrap();
            match sandbox.lay_over(layer).await {
                Ok(()) => Ok(()),
                Err(refused @ LayError::NotOffered { .. }) => Err(refused.to_string()),
                Err(other) => panic!("no refusal by name: {other:?}"),
            }
        }
        Ability::Driven => yard.sandbox().await.driven().map(|_| ()).ok_or_else(|| "driven".to_owned()),
    }
}

async fn what_is_refused_is_refused_by_name_and_nothing_else_is(yard: &Yard) {
    let layer = Arc::new(layer(yard));
    for ability in [
        Ability::Layers,
        Ability::Pack,
        Ability::LayOver,
        Ability::Driven,
        Ability::AnyDisk,
        Ability::OciImage,
    ] {
        let refusal = yard.subject.refuses.iter().find(|(refused, _)| *refused == ability);
        match (refusal, tried(yard, ability, &layer).await) {
            (None, Ok(())) => {}
            (Some((_, name)), Err(said)) => assert!(said.contains(name), "{name} is not in `{said}`"),
            (None, Err(said)) => panic!("{ability:?} is offered, and was refused: {said}"),
            (Some(_), Ok(())) => panic!("{ability:?} is refused, and was done"),
        }
    }
    assert_eq!(yard.left_in_the_end().await, None, "left by what was refused");
}
