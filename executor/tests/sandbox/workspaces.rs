//! Workspaces saved, restored and forked: what a sandbox changed, and nothing else, comes back.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use executor::sandbox::{Backend, CreateError, Exit, FileSource, Mounted, Pack, PackError, Sandbox};
use images::layers::{Bounds, LayerStore, Packed, pack_directory, unpack};
use rollout::Bytes;

use crate::lab::{Lab, said, shell, shell_as, start};

crate::tests![
    twenty_checkpoints_later_a_workspace_is_as_if_it_had_never_been_saved,
    a_loop_disk_is_saved_as_a_tmpfs_is,
    two_forks_write_the_same_path_and_see_their_own,
    a_step_is_saved_between_two_of_its_writes_and_goes_on,
    a_checkpoint_that_is_given_up_leaves_the_step_running,
    deleted_files_stay_deleted_and_lookalikes_stay_what_they_are,
    a_layer_that_bends_a_mount_is_refused,
    a_workspace_is_restored_over_its_own_image_only,
];

/// Of everything but what is mounted: kind, mode, owner, size, content, target and attributes.
const DIGEST: &str = r#"
import hashlib, os, stat, sys
lines = []
def look(path):
    found = os.lstat(path)
    line = [path, oct(found.st_mode), found.st_uid, found.st_gid]
    lines.append(line)
    # What this user may not read, the other one may.
    if not stat.S_ISLNK(found.st_mode) and not os.access(path, os.R_OK):
        return
    if stat.S_ISLNK(found.st_mode):
        line.append(os.readlink(path))
    elif stat.S_ISREG(found.st_mode):
        with open(path, 'rb') as file:
            line += [found.st_size, hashlib.sha256(file.read()).hexdigest()]
        if os.path.basename(path).startswith('timed'):
            line.append(found.st_mtime_ns)
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        for name in sorted(os.listxattr(path)):
            line += [name, os.getxattr(path, name)]
    if stat.S_ISDIR(found.st_mode) and os.access(path, os.X_OK):
        for name in sorted(os.listdir(path)):
            child = os.path.join(path, name)
            if child not in ('/proc', '/dev', '/sys', '/usr'):
                look(child)
look('/')
print('\n'.join(map(repr, lines)))
"#;

/// Everything an agent may do to a tree, different each time.
fn changes(i: u32) -> String {
    let (one, two, three) = (i.wrapping_sub(1), i.wrapping_sub(2), i.wrapping_sub(3));
    format!(
        r#"set -e
cd /workspace
echo {i} > f{i}
mkdir -p d{i}/sub
echo x > d{i}/sub/a
[ ! -e f{one} ] || mv f{one} g{one}
rm -f g{three}
rm -rf same; mkdir same; echo {i} > same/only{i}
rm -rf swap; if [ $(({i} % 2)) = 0 ]; then mkdir -p swap/dir; else echo file > swap; fi
ln f{i} h{i}
chmod 1751 d{i}; chmod 600 f{i}
truncate -s 10M sparse{i}; printf data | dd of=sparse{i} bs=1 seek=5000000 conv=notrunc 2>/dev/null
rm -f sparse{three}
ln -s ../target{i} s{i}
mkfifo p{i}
[ ! -e d{two} ] || mv d{two} e{two}
[ ! -e e{three} ] || echo more >> e{three}/sub/a
echo odd > "a b{i}"; echo odd > "$(printf 'new\nline{i}')"; echo odd > .wh.f{i}
touch -d '2001-02-03 04:05:06.789' timed{i}
python3 -c 'import os; os.setxattr("f{i}", "user.k{i}", b"v\0{i}"); os.setxattr("d{i}", "user.d", b"{i}")'
"#
    )
}

/// The same of root, at what the image has.
fn changes_of_root(i: u32) -> String {
    format!(
        r#"set -e
if [ {i} = 5 ]; then rm /etc/hosts; rm -rf /var/cache; fi
if [ {i} = 8 ]; then echo new > /etc/hosts; mkdir /var/cache; echo {i} > /var/cache/x; fi
if [ {i} = 9 ]; then rm -rf /var/cache; mkdir /var/cache; fi
mkdir -p /opt; echo {i} > /opt/r{i}; chmod 640 /opt/r{i}
echo {i} >> /etc/passwd
"#
    )
}

pub async fn change(sandbox: &dyn Sandbox, i: u32) {
    for (user, script) in [("rollout", changes(i)), ("root", changes_of_root(i))] {
        let output = shell_as(sandbox, user, &script).await;
        assert_eq!(output.exit, Exit::Code(0), "cycle {i}: {output:?}");
    }
}

pub async fn digest(sandbox: &dyn Sandbox) -> String {
    let content = FileSource::Bytes(DIGEST.as_bytes().to_vec());
    sandbox.write_file("/tmp/digest.py", content, 0o644, "root").await.unwrap();
    let mut seen = String::new();
    for user in ["root", "rollout"] {
        let output = shell_as(sandbox, user, "python3 /tmp/digest.py").await;
        assert_eq!(output.exit, Exit::Code(0), "{output:?}");
        seen += &output.stdout;
    }
    assert!(seen.lines().count() > 200 && seen.contains("/workspace/f"), "{seen}");
    seen
}

pub fn assert_same(found: &str, expected: &str, what: &str) {
    let (found, expected): (Vec<_>, Vec<_>) = (found.lines().collect(), expected.lines().collect());
    let only = |a: &[&str], b: &[&str]| {
        a.iter().filter(|l| !b.contains(l)).map(|l| (*l).to_owned()).collect::<Vec<_>>()
    };
    let (more, less) = (only(&found, &expected), only(&expected, &found));
    assert!(more.is_empty() && less.is_empty(), "{what}: {more:#?} instead of {less:#?}");
}

pub struct Shelf {
    dir: PathBuf,
    store: LayerStore,
    next: AtomicU32,
}

impl Shelf {
    pub fn new(lab: &Lab) -> Self {
        let dir = lab.dir.path().canonicalize().unwrap();
        let store = LayerStore::open(&dir.join("layers"), 1 << 30).unwrap();
        Self { dir, store, next: AtomicU32::new(0) }
    }

    fn request(&self, below: &[Mounted], freeze: Option<Duration>) -> Pack {
        Pack {
            out: self.dir.join(format!("packed{}", self.next.fetch_add(1, Ordering::Relaxed))),
            below: below.iter().map(|mounted| mounted.at.path.clone()).collect(),
            bounds: Bounds::new(Bytes(1 << 30)),
            freeze,
        }
    }

    pub fn keep(&self, packed: &Packed) -> Mounted {
        let staged = self.store.stage().unwrap();
        let opened = File::open(&packed.file).unwrap();
        unpack(opened, &staged.tree(), &packed.layer, &Bounds::new(packed.layer.content)).unwrap();
        let at = self.store.commit(staged, &packed.layer).unwrap();
        Mounted { layer: packed.layer.clone(), at }
    }

    /// What a sandbox whose processes are dead changed.
    pub async fn save(&self, sandbox: &dyn Sandbox) -> Mounted {
        sandbox.kill_all().await.unwrap();
        let packed = sandbox.pack(self.request(&[], None)).await.unwrap();
        self.keep(&packed)
    }
}

pub async fn over(lab: &Lab, layers: Vec<Mounted>) -> Box<dyn Sandbox> {
    let spec = executor::sandbox::SandboxSpec { layers, ..lab.spec() };
    lab.backend.create(spec).await.expect("a sandbox over layers")
}

async fn twenty_checkpoints_later_a_workspace_is_as_if_it_had_never_been_saved(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let twin = lab.sandbox().await;
    let mut saved = lab.sandbox().await;
    let mut layers = Vec::new();
    for i in 0..20 {
        change(&*twin, i).await;
        change(&*saved, i).await;
        assert_eq!(said(&*saved, &format!("stat -c %h f{i}")).await, "2");
        layers.push(shelf.save(&*saved).await);
        saved.destroy().await.unwrap();
        saved = over(&lab, layers.clone()).await;
        assert_eq!(said(&*saved, &format!("stat -c %h f{i}")).await, "2", "links come back");
        if i % 5 == 4 {
            assert_same(&digest(&*saved).await, &digest(&*twin).await, &format!("after {} cycles", i + 1));
        }
    }
    // All of them in one layer.
    saved.kill_all().await.unwrap();
    let packed = saved.pack(shelf.request(&layers, None)).await.unwrap();
    saved.destroy().await.unwrap();
    let saved = over(&lab, vec![shelf.keep(&packed)]).await;
    assert_same(&digest(&*saved).await, &digest(&*twin).await, "collapsed");
    saved.destroy().await.unwrap();
    twin.destroy().await.unwrap();
}

async fn a_loop_disk_is_saved_as_a_tmpfs_is(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let mut spec = lab.spec();
    spec.limits.disk = Bytes(300 << 20);
    let first = lab.backend.create(spec.clone()).await.unwrap();
    let twin = lab.sandbox().await;
    for i in 0..4 {
        change(&*first, i).await;
        change(&*twin, i).await;
    }
    let layer = shelf.save(&*first).await;
    first.destroy().await.unwrap();
    spec.id = "again".to_owned();
    spec.layers = vec![layer];
    let second = lab.backend.create(spec).await.unwrap();
    assert_same(&digest(&*second).await, &digest(&*twin).await, "on another kind of disk");
    second.destroy().await.unwrap();
    twin.destroy().await.unwrap();
}

async fn two_forks_write_the_same_path_and_see_their_own(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let parent = lab.sandbox().await;
    said(&*parent, "mkdir d; echo parent > d/f; echo parent > gone").await;
    let layer = shelf.save(&*parent).await;
    let forks = [over(&lab, vec![layer.clone()]).await, over(&lab, vec![layer.clone()]).await];
    for (index, fork) in forks.iter().enumerate() {
        said(
            &**fork,
            &format!("echo fork{index} > d/f; echo fork{index} >> d/new; rm gone; chmod 70{index} d"),
        )
        .await;
    }
    for (index, fork) in forks.iter().enumerate() {
        let seen = said(&**fork, "cat d/f d/new; stat -c %a d; ls").await;
        assert_eq!(seen, format!("fork{index}\nfork{index}\n70{index}\nd"));
    }
    assert_eq!(said(&*parent, "cat d/f gone; stat -c %a d").await, "parent\nparent\n755");
    // What both lie over is byte for byte what it was.
    let root = File::open(&layer.at.path).unwrap();
    let out = shelf.dir.join("again");
    let never = std::sync::atomic::AtomicBool::new(false);
    let bounds = Bounds::new(Bytes(1 << 30));
    let again =
        images::layers::pack_upper(std::os::fd::AsFd::as_fd(&root), 0, &[], &out, &bounds, &never).unwrap();
    assert_eq!(again.layer, layer.layer);
    for fork in forks {
        fork.destroy().await.unwrap();
    }
    parent.destroy().await.unwrap();
}

/// Writes the same number to two files, for ever.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i > a; echo $i > b; done";

async fn count(sandbox: &dyn Sandbox) -> u64 {
    for _ in 0..1000 {
        if let Ok(count) = said(sandbox, "cat a").await.parse() {
            return count;
        }
    }
    panic!("never a number");
}

async fn counts_on(sandbox: &dyn Sandbox) {
    let before = count(sandbox).await;
    for _ in 0..1000 {
        if count(sandbox).await > before {
            return;
        }
    }
    panic!("it stands still at {before}");
}

async fn a_step_is_saved_between_two_of_its_writes_and_goes_on(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let sandbox = lab.sandbox().await;
    said(&*sandbox, "echo 0 > a; echo 0 > b").await;
    let (_counter, _pipes) =
        start(&*sandbox, "rollout", "/workspace", &["sh", "-c", COUNTER], &[]).await.unwrap();
    for _ in 0..5 {
        counts_on(&*sandbox).await;
        let packed = sandbox.pack(shelf.request(&[], Some(Duration::from_secs(60)))).await.unwrap();
        let fork = over(&lab, vec![shelf.keep(&packed)]).await;
        let (a, b) = (said(&*fork, "cat a").await, said(&*fork, "cat b").await);
        // A file is cut before it is written: an empty one is a moment too.
        if let (Ok(a), Ok(b)) = (a.parse::<u64>(), b.parse::<u64>()) {
            assert!(a == b || a == b + 1, "{a} and {b} are of two moments");
        }
        fork.destroy().await.unwrap();
        counts_on(&*sandbox).await;
    }
    sandbox.destroy().await.unwrap();
}

async fn a_checkpoint_that_is_given_up_leaves_the_step_running(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let sandbox = lab.sandbox().await;
    said(&*sandbox, "echo 0 > a; i=0; while [ $i -lt 1500 ]; do echo $i > f$i; i=$((i+1)); done").await;
    let (_counter, _pipes) =
        start(&*sandbox, "rollout", "/workspace", &["sh", "-c", COUNTER], &[]).await.unwrap();
    let mut given_up = 0;
    for micros in (0..60_000).step_by(2_000) {
        let request = shelf.request(&[], Some(Duration::from_secs(60)));
        let out = request.out.clone();
        let packing = tokio::time::timeout(Duration::from_micros(micros), sandbox.pack(request));
        if packing.await.is_err() {
            given_up += 1;
            counts_on(&*sandbox).await;
            // The walk ends by itself and takes its file along, or had written it whole.
            for _ in 0..1000 {
                if !out.exists() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    assert!(given_up > 5, "{given_up} were given up");
    // No time at all: skipped by its own bound.
    let request = shelf.request(&[], Some(Duration::ZERO));
    let skipped = sandbox.pack(request).await;
    assert!(matches!(skipped, Err(PackError::TooSlow { .. })), "{skipped:?}");
    counts_on(&*sandbox).await;
    // It can be killed and torn down like any other.
    sandbox.kill_all().await.unwrap();
    assert_eq!(shell(&*sandbox, "cat f7").await.stdout, "7\n");
    sandbox.destroy().await.unwrap();
}

async fn deleted_files_stay_deleted_and_lookalikes_stay_what_they_are(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let first = lab.sandbox().await;
    said(&*first, "mkdir d; touch d/old d/kept .wh.kept ..wh..opq; echo x > wh; mkdir w; touch w/in").await;
    let one = shelf.save(&*first).await;
    first.destroy().await.unwrap();
    let second = over(&lab, vec![one.clone()]).await;
    // A deletion, a directory made anew, and what looks like the marks of one.
    said(&*second, "rm -rf d; mkdir d; touch d/new; rm -rf w; rm wh; touch .wh.w d/.wh..wh..opq").await;
    let forged = r#"
import os, stat
for name, is_dir in (("x1", False), ("x2", True)):
    os.mkdir(name) if is_dir else open(name, "w").close()
    for key in ("user.overlay.opaque", "user.overlay.whiteout", "user.overlay.redirect", "user.kept"):
        os.setxattr(name, key, b"y")
os.mkdir("x2/in")
for call in (lambda: os.mknod("node", stat.S_IFCHR, 0), lambda: os.setxattr("x2", "trusted.overlay.opaque", b"y")):
    try:
        call()
        print("done")
    except OSError as error:
        print("refused")
"#;
    let script = format!("python3 - <<'END'\n{forged}\nEND");
    assert_eq!(said(&*second, &script).await, "refused\nrefused");
    sandbox_kill(&*second).await;
    let packed = second.pack(shelf.request(&[], None)).await.unwrap();
    assert_eq!(packed.dropped.overlay_attributes, 6);
    second.destroy().await.unwrap();
    let third = over(&lab, vec![one, shelf.keep(&packed)]).await;
    let seen = said(
        &*third,
        "ls -A . d x2; python3 -c 'import os; print(os.listxattr(\"x1\"), os.listxattr(\"x2\"))'",
    )
    .await;
    let expected = ".:\n..wh..opq\n.wh.kept\n.wh.w\nd\nx1\nx2\n\nd:\n.wh..wh..opq\nnew\n\nx2:\nin\n['user.kept'] ['user.kept']";
    assert_eq!(seen, expected);
    third.destroy().await.unwrap();
}

async fn sandbox_kill(sandbox: &dyn Sandbox) {
    sandbox.kill_all().await.unwrap();
}

async fn a_layer_that_bends_a_mount_is_refused(lab: Lab) {
    let shelf = Shelf::new(&lab);
    for place in ["dev", "proc", "usr", "workspace"] {
        for is_link in [true, false] {
            let tree = shelf.dir.join(format!("tree-{place}-{is_link}"));
            fs::create_dir(&tree).unwrap();
            if is_link {
                std::os::unix::fs::symlink("/tmp", tree.join(place)).unwrap();
            } else {
                fs::create_dir(tree.join(place)).unwrap();
                fs::write(tree.join(place).join("file"), "").unwrap();
            }
            let packed =
                pack_directory(&tree, "", &tree.with_extension("packed"), &Bounds::new(Bytes(1))).unwrap();
            let layers = vec![shelf.keep(&packed)];
            let made = lab.backend.create(executor::sandbox::SandboxSpec { layers, ..lab.spec() }).await;
            match made {
                Err(CreateError::BadRootfs { problem, .. }) if is_link => {
                    assert!(problem.contains(place), "{problem}")
                }
                Ok(sandbox) if !is_link => {
                    assert_eq!(
                        said(&*sandbox, "test -c /dev/null && test -d /proc/self && echo ok").await,
                        "ok"
                    );
                    sandbox.destroy().await.unwrap();
                }
                other => panic!("{place}, a link: {is_link}: {other:?}"),
            }
        }
    }
}

async fn a_workspace_is_restored_over_its_own_image_only(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let sandbox = lab.sandbox().await;
    said(&*sandbox, "echo mine > f").await;
    let layers = vec![shelf.save(&*sandbox).await];
    let digest = sandbox.image_digest().to_owned();
    sandbox.destroy().await.unwrap();
    let spec =
        |image_digest| executor::sandbox::SandboxSpec { layers: layers.clone(), image_digest, ..lab.spec() };
    let refused = lab.backend.create(spec(Some("host:another".to_owned()))).await;
    assert!(
        matches!(&refused, Err(CreateError::ImageMissing { problem, .. }) if problem.contains("host:another")),
        "{refused:?}"
    );
    let again = lab.backend.create(spec(Some(digest))).await.unwrap();
    assert_eq!(said(&*again, "cat f").await, "mine");
    again.destroy().await.unwrap();
}
