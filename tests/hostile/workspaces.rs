//! Workspaces: what comes out of a hostile sandbox, and what claims to be one. Cases 14, 15, 17 and
//! 49 with real sandboxes; 16 and 47 as jobs meet them are in `executor/tests/agent/workspaces.rs`.

use std::fs::{self, File};
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use executor::sandbox::{Mounted, Pack, PackError};
use images::layers::{Bounds, Error, LayerStore, Packed, unpack};
use rollout::Bytes;
use rollout::checkpoint::{Layer, LayerId};

use crate::lab::{Done, Held, LOOP_DISK, Lab, MIB, said, shell, stays};

crate::cases![
    "14" a_forged_workspace_is_refused_and_an_honest_one_restored,
    "15" a_workspace_that_unpacks_to_more_than_it_claims_is_refused,
    "17" trees_without_end_are_refused_whole,
    "47" a_checkpoint_given_up_at_any_moment_leaves_nothing,
    "49" deleted_files_stay_deleted_from_checkpoint_to_checkpoint,
];

struct Shelf<'a> {
    lab: &'a Lab,
    store: LayerStore,
    next: AtomicU32,
}

impl<'a> Shelf<'a> {
    fn new(lab: &'a Lab) -> Self {
        let store = LayerStore::open(&lab.dir.join("layers"), 1 << 30).expect("a store");
        Self { lab, store, next: AtomicU32::new(0) }
    }

    async fn pack(&self, sandbox: &Held, freeze: Option<Duration>) -> Result<Packed, PackError> {
        let out = self.lab.dir.join(format!("packed{}", self.next.fetch_add(1, Ordering::Relaxed)));
        let packed = sandbox
            .pack(Pack { out: out.clone(), below: vec![], bounds: Bounds::new(LOOP_DISK), freeze })
            .await;
        assert_eq!(packed.is_ok(), out.exists(), "a refused workspace leaves no file");
        packed
    }

    fn keep(&self, packed: &Packed) -> Mounted {
        let staged = self.store.stage().expect("a place");
        let opened = File::open(&packed.file).expect("packed");
        unpack(opened, &staged.tree(), &packed.layer, &Bounds::new(packed.layer.content)).expect("unpacked");
        let at = self.store.commit(staged, &packed.layer).expect("kept");
        Mounted { layer: packed.layer.clone(), at }
    }

    async fn saved(&self, sandbox: &Held) -> Mounted {
        sandbox.kill_all().await.expect("dead");
        self.keep(&self.pack(sandbox, None).await.expect("packed"))
    }

    /// Nothing of it is in the store, not even half.
    fn refuses(&self, packed: &[u8], claim: &Layer, words: &str) {
        let staged = self.store.stage().expect("a place");
        let bounds = Bounds::new(Bytes(1 << 30));
        let error = unpack(packed, &staged.tree(), claim, &bounds).expect_err("it is hostile");
        assert!(error.of_the_packed() && error.to_string().contains(words), "{words}: {error:?}");
        assert!(!staged.tree().exists(), "{error}");
    }
}

async fn over(lab: &Lab, layers: Vec<Mounted>) -> Held {
    lab.sandbox_with(|spec| spec.layers = layers).await
}

/// A tar of one entry, as it may come from anywhere.
fn forged(kind: u8, name: &str, target: &str, data: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0004755");
    header[108..115].copy_from_slice(b"0000000");
    header[116..123].copy_from_slice(b"0000000");
    header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
    header[136..147].copy_from_slice(b"00000000000");
    header[148..156].copy_from_slice(b"        ");
    header[156] = kind;
    header[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut bytes = header.to_vec();
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn packed(entries: &[Vec<u8>]) -> Vec<u8> {
    let tar = [entries.concat(), vec![0; 1024]].concat();
    zstd::encode_all(tar.as_slice(), 1).expect("encoded")
}

fn claim(packed: &[u8], entries: u64, content: u64) -> Layer {
    let id = LayerId::from_bytes([0; 32]);
    Layer { id, blob: "00".repeat(32), packed: Bytes(packed.len() as u64), content: Bytes(content), entries }
}

async fn a_forged_workspace_is_refused_and_an_honest_one_restored(lab: &Lab) -> Done {
    let shelf = Shelf::new(lab);
    let outside = lab.dir.join("outside");
    for (words, entries) in [
        ("`..`", vec![forged(b'0', "../../outside", "", b"x")]),
        ("absolute", vec![forged(b'0', &outside.display().to_string(), "", b"x")]),
        ("lies in no directory", vec![forged(b'2', "a", "..", b""), forged(b'0', "a/outside", "", b"x")]),
        ("hard link out of the layer", vec![forged(b'1', "a", "/etc/shadow", b"")]),
        ("a character device", vec![forged(b'3', "a", "", b"")]),
        ("a block device", vec![forged(b'4', "a", "", b"")]),
        ("there twice", vec![forged(b'0', "a", "", b"1"), forged(b'0', "a", "", b"2")]),
        ("`/\\x1b]0;a` ", vec![forged(b'0', "\u{1b}]0;a", "", b"1"), forged(b'0', "\u{1b}]0;a", "", b"2")]),
        ("1000000 entries", vec![]),
    ] {
        let bytes = packed(&entries);
        let count = if entries.is_empty() { 1_000_001 } else { 2 };
        shelf.refuses(&bytes, &claim(&bytes, count, 2), words);
        assert!(!outside.exists(), "{words}");
    }
    // Set-id bits do not come in, a FIFO does; both work in a sandbox.
    let bytes = packed(&[forged(b'0', "set", "", b"#!/bin/sh\nid -u\n"), forged(b'6', "tube", "", b"")]);
    let staged = shelf.store.stage().expect("a place");
    let bounds = Bounds::new(Bytes(MIB));
    let other =
        unpack(bytes.as_slice(), &staged.tree(), &claim(&bytes, 2, 16), &bounds).expect_err("another id");
    let Error::OtherTree { found, .. } = other else { panic!("{other}") };
    let layer = Layer { id: found, ..claim(&bytes, 2, 16) };
    unpack(bytes.as_slice(), &staged.tree(), &layer, &bounds).expect("it is what it claims");
    let at = shelf.store.commit(staged, &layer).expect("kept");
    let sandbox = over(lab, vec![Mounted { layer, at }]).await;
    assert_eq!(said(&sandbox, "stat -c %a /set; /set; test -p /tube && echo tube").await, "755\n1000\ntube");
    let saved = shelf.saved(&sandbox).await;
    sandbox.end().await;
    assert_eq!(saved.layer.entries, 0, "looking changes nothing");
    Ok(())
}

async fn a_workspace_that_unpacks_to_more_than_it_claims_is_refused(lab: &Lab) -> Done {
    let shelf = Shelf::new(lab);
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
    let head = forged(b'0', "a", "", &[0; 512]);
    encoder.write_all(&head[..512]).expect("written");
    let zeros = vec![0; 1 << 20];
    for _ in 0..2048 {
        encoder.write_all(&zeros).expect("written");
    }
    let bomb = encoder.finish().expect("finished");
    let resident = || tests::census::status(std::process::id().cast_signed(), "VmRSS");
    let kibibytes = |text: Option<String>| -> u64 {
        text.and_then(|text| text.trim().trim_end_matches("kB").trim().parse().ok()).expect("a size")
    };
    let before = kibibytes(resident());
    // A header that lies, honest claims past the bound, and past what zstd can do.
    shelf.refuses(&bomb, &claim(&bomb, 1, 511), "511 bytes of content it claims");
    shelf.refuses(&bomb, &claim(&bomb, 1, 512), "not a packed layer");
    shelf.refuses(&bomb, &claim(&bomb, 1, 2 << 30), "1073741824 bytes of content");
    shelf.refuses(&bomb[..100], &claim(&bomb[..100], 1, 900 * MIB), "times its packed bytes");
    assert!(kibibytes(resident()) < before + 64 * 1024, "memory is bounded");
    // One bomb within a workspace is a file like any other.
    let sandbox = lab.sandbox().await;
    let content = executor::sandbox::FileSource::Bytes(bomb.clone());
    sandbox.write_file("/workspace/bomb.zst", content, 0o644, "rollout").await.expect("written");
    let saved = shelf.saved(&sandbox).await;
    sandbox.end().await;
    assert_eq!(
        fs::metadata(saved.at.path.join("workspace/bomb.zst")).expect("there").len(),
        bomb.len() as u64
    );
    Ok(())
}

const DEEP: &str = "import os\nfor i in range(5000):\n  os.mkdir('d'); os.chdir('d')\n";
const MANY: &str =
    "import os\nos.mkdir('many'); os.chdir('many')\nfor i in range(1000001):\n  os.symlink('x', str(i))\n";

async fn trees_without_end_are_refused_whole(lab: &Lab) -> Done {
    let shelf = Shelf::new(lab);
    // A loop of symlinks is just symlinks.
    let looped = lab.sandbox().await;
    said(&looped, "ln -s b a; ln -s a b; ln -s . self; mkdir d; ln -s .. d/up").await;
    let saved = shelf.saved(&looped).await;
    looped.end().await;
    let again = over(lab, vec![saved]).await;
    assert_eq!(said(&again, "readlink a b self d/up").await, "b\na\n.\n..");
    again.end().await;
    // A tmpfs ends both before they are a million entries; the bound of entries is a unit test.
    let sandbox = lab.sandbox_with(|spec| spec.limits.disk = Bytes(64 * MIB)).await;
    // What a tmpfs holds and the disk of a node does not is refused here, as the doing of the work.
    let sparse = "open('x', 'w').truncate(20 << 40)";
    let marked = "import os; open('m', 'w'); os.setxattr('m', 'user.a', b'a' * 5000)";
    for (name, script, words) in [
        ("deep", DEEP, "4095 bytes of one path"),
        ("many", MANY, ""),
        ("sparse", sparse, "bytes of one file"),
        ("marked", marked, "bytes of attributes"),
    ] {
        let ran = shell(&sandbox, &format!("mkdir {name}; cd {name}; python3 -c \"{script}\"")).await;
        sandbox.kill_all().await.expect("dead");
        match shelf.pack(&sandbox, None).await {
            Err(PackError::Tree(error)) if !words.is_empty() => {
                assert!(error.of_the_tree() && error.to_string().contains(words), "{error}");
            }
            Ok(packed) if words.is_empty() => {
                let made: u64 = said(&sandbox, "ls many/many | wc -l").await.parse().expect("a count");
                assert_eq!(packed.layer.entries, made + 3, "not shortened: {ran:?}");
                assert!(made > 10_000, "{ran:?}");
            }
            other => panic!("{name}: {other:?}"),
        }
        said(&sandbox, &format!("rm -rf {name}")).await;
    }
    sandbox.end().await;
    Ok(())
}

async fn a_checkpoint_given_up_at_any_moment_leaves_nothing(lab: &Lab) -> Done {
    let shelf = Shelf::new(lab);
    for disk in [Bytes(16 * MIB), LOOP_DISK] {
        for micros in [0, 200, 1_000, 3_000, 10_000, 30_000] {
            let sandbox = lab.sandbox_with(|spec| spec.limits.disk = disk).await;
            let fill =
                "for i in $(seq 300); do echo $i > f$i; done; echo there; while :; do echo x > y; done";
            let (_busy, _) = stays(&sandbox, "rollout", &["/bin/sh", "-c", fill]).await;
            let packing = tokio::time::timeout(
                Duration::from_micros(micros),
                sandbox.pack(Pack {
                    out: lab.dir.join(format!("given-up-{}-{micros}", disk.0)),
                    below: vec![],
                    bounds: Bounds::new(LOOP_DISK),
                    freeze: Some(Duration::from_secs(60)),
                }),
            );
            let _given_up = packing.await.is_err();
            // The one teardown, at once; the census around this case finds what it leaves.
            sandbox.end().await;
        }
    }
    // Its twin.
    let sandbox = lab.sandbox().await;
    said(&sandbox, "echo whole > f").await;
    let saved = shelf.keep(&shelf.pack(&sandbox, Some(Duration::from_secs(60))).await.expect("packed"));
    sandbox.end().await;
    let fork = over(lab, vec![saved]).await;
    assert_eq!(said(&fork, "cat f").await, "whole");
    fork.end().await;
    Ok(())
}

async fn deleted_files_stay_deleted_from_checkpoint_to_checkpoint(lab: &Lab) -> Done {
    let shelf = Shelf::new(lab);
    let mut layers = Vec::new();
    for round in 0..4 {
        let sandbox = over(lab, layers.clone()).await;
        let seen = said(&sandbox, "cat d/* 2>/dev/null; ls -A d .wh.d 2>/dev/null | tr '\\n' ' '").await;
        if round > 0 {
            let last = round - 1;
            assert_eq!(seen, format!("{last}\n.wh.d  d: .wh.{last} only{last}"), "round {round}");
        }
        // What is deleted and made anew hides everything it had; names that look like marks are names.
        said(
            &sandbox,
            &format!("rm -rf d; mkdir d; echo {round} > d/only{round}; touch .wh.d d/.wh.{round}"),
        )
        .await;
        let forged = "import os\nos.setxattr('d', 'user.overlay.opaque', b'y'); os.setxattr('d', 'user.overlay.redirect', b'/etc')";
        said(&sandbox, &format!("python3 -c \"{forged}\"")).await;
        for (user, script) in [("0", "mknod /tmp/w c 0 0"), ("rollout", "mknod w c 0 0")] {
            let made = crate::lab::shell_as(&sandbox, user, script).await;
            assert_ne!(made.exit, executor::sandbox::Exit::Code(0), "{user} made a mark");
        }
        layers.push(shelf.saved(&sandbox).await);
        sandbox.end().await;
    }
    Ok(())
}
