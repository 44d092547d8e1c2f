//! Layers copied into live sandboxes: they show what a mount shows, whatever the work left there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use executor::sandbox::{Backend, Exit, LayError, Mounted, SandboxSpec};
use images::layers::{Bounds, pack_directory};
use rollout::Bytes;

use crate::lab::{Lab, said, shell_as};
use crate::workspaces::{Shelf, assert_same, change, digest, over};

crate::tests![
    a_layer_over_a_live_sandbox_shows_what_a_mount_of_it_shows,
    what_was_planted_where_a_layer_comes_is_gone_and_no_link_is_written_through,
    a_layer_that_does_not_fit_says_so,
    a_layer_bends_no_mount_of_a_live_sandbox,
];

async fn a_layer_over_a_live_sandbox_shows_what_a_mount_of_it_shows(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let first = lab.sandbox().await;
    for i in 0..8 {
        change(&*first, i).await;
    }
    let below = shelf.save(&*first).await;
    first.destroy().await.unwrap();
    // The other layer deletes, replaces and joins what the first one has, and was made of it.
    let second = over(&lab, vec![below.clone()]).await;
    for i in 8..14 {
        change(&*second, i).await;
    }
    let layer = shelf.save(&*second).await;
    second.destroy().await.unwrap();
    let mounted = over(&lab, vec![below.clone(), layer.clone()]).await;
    let live = over(&lab, vec![below]).await;
    let before = digest(&*live).await;
    live.kill_all().await.unwrap();
    live.lay_over(&layer).await.unwrap();
    let expected = digest(&*mounted).await;
    assert_same(&digest(&*live).await, &expected, "laid over");
    assert_ne!(before, expected);
    assert_eq!(said(&*live, "stat -c %h f13 h13; stat -c %b sparse13").await, "2\n2\n8");
    // Again: what is there is replaced by the same.
    live.kill_all().await.unwrap();
    live.lay_over(&layer).await.unwrap();
    assert_same(&digest(&*live).await, &expected, "laid over twice");
    for sandbox in [mounted, live] {
        sandbox.destroy().await.unwrap();
    }
}

/// As the tests of a task are packed.
fn tests_layer(lab: &Lab, shelf: &Shelf, fill: impl FnOnce(&Path)) -> Mounted {
    let tree = lab.dir.path().join("tests");
    fs::create_dir(&tree).unwrap();
    fill(&tree);
    let out = lab.dir.path().join("tests.packed");
    shelf.keep(&pack_directory(&tree, "tests", &out, &Bounds::new(Bytes(1 << 30))).unwrap())
}

async fn what_was_planted_where_a_layer_comes_is_gone_and_no_link_is_written_through(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let layer = tests_layer(&lab, &shelf, |tree| {
        fs::write(tree.join("test.sh"), "hidden").unwrap();
        fs::set_permissions(tree.join("test.sh"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(tree.join("data")).unwrap();
        fs::write(tree.join("data/want"), "42").unwrap();
        symlink("../../workspace/target", tree.join("data/link")).unwrap();
        fs::hard_link(tree.join("data/want"), tree.join("data/same")).unwrap();
    });
    let seen = "cd /tests; stat -c '%n %a %U %F' . test.sh data data/want data/link; cat test.sh data/want; \
                ls -A . data; readlink data/link; [ data/want -ef data/same ] && echo linked; \
                python3 -c 'import os; print(os.listxattr(\"/tests\"), os.listxattr(\"data/want\"))'; \
                cat /workspace/target; ls -A /workspace";
    let expected = ". 755 root directory\ntest.sh 700 root regular file\ndata 755 root directory\n\
                    data/want 644 root regular file\ndata/link 777 root symbolic link\nhidden42.:\ndata\ntest.sh\n\n\
                    data:\nlink\nsame\nwant\n../../workspace/target\nlinked\n[] []\nmine\n";
    for (plant, beside) in [
        ("true", ""),
        ("mkdir /tests; echo planted > /tests/test.sh; touch /tests/conftest.py; chmod 777 /tests", ""),
        ("ln -s /workspace/inner /tests; mkdir inner; echo planted > inner/test.sh", "inner\n"),
        ("ln -s /tests /tests", ""),
        ("echo planted > /tests", ""),
        ("mkfifo /tests", ""),
        ("mkdir /tests; ln -s /workspace/target /tests/test.sh; ln -s /workspace /tests/data", ""),
        ("mkdir /tests; ln /workspace/target /tests/test.sh", ""),
        ("mkdir /tests; cd /tests; for i in $(seq 200); do mkdir d; cd d; done; touch x", ""),
        // What is made in such a directory takes over its access list, and its bit.
        (
            "python3 -c 'import os, struct; e = lambda t, p, i: struct.pack(\"<HHI\", t, p, i); \
             os.setxattr(\"/\", \"system.posix_acl_default\", struct.pack(\"<I\", 2) + e(1, 7, 0xffffffff) + \
             e(2, 7, 1000) + e(4, 7, 0xffffffff) + e(16, 7, 0xffffffff) + e(32, 7, 0xffffffff))'; \
             chmod g+s /",
            "",
        ),
    ] {
        let spec = SandboxSpec { user: "root".to_owned(), ..lab.spec() };
        let sandbox = lab.backend.create(spec).await.unwrap();
        let script = format!("set -e; echo mine > target; {plant}");
        let planted = shell_as(&*sandbox, "root", &script).await;
        assert_eq!(planted.exit, Exit::Code(0), "{plant}: {planted:?}");
        sandbox.kill_all().await.unwrap();
        sandbox.lay_over(&layer).await.unwrap();
        let found = shell_as(&*sandbox, "root", seen).await;
        assert_eq!(found.stdout, format!("{expected}{beside}target\n"), "{plant}: {found:?}");
        let open = shell_as(&*sandbox, "rollout", "cat /tests/test.sh || touch /tests/x || echo shut").await;
        assert_eq!(open.stdout, "shut\n", "{plant}: {open:?}");
        sandbox.destroy().await.unwrap();
    }
}

async fn a_layer_that_does_not_fit_says_so(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let layer = tests_layer(&lab, &shelf, |tree| {
        fs::write(tree.join("big"), vec![7; 10 << 20]).unwrap();
        fs::write(tree.join("test.sh"), "hidden").unwrap();
    });
    let sandbox = lab.sandbox().await;
    said(&*sandbox, "head -c 10M /dev/zero > mine").await;
    sandbox.kill_all().await.unwrap();
    match sandbox.lay_over(&layer).await {
        Err(LayError::Tree(error)) => {
            assert!(error.is_full(), "{error:?}");
            assert_eq!(error.to_string(), "cannot write `/tests/big`");
        }
        laid => panic!("{laid:?}"),
    }
    // With room it fits, over the part that is there.
    said(&*sandbox, "rm mine").await;
    sandbox.kill_all().await.unwrap();
    sandbox.lay_over(&layer).await.unwrap();
    assert_eq!(said(&*sandbox, "stat -c %s /tests/big; cat /tests/test.sh").await, "10485760\nhidden");
    sandbox.destroy().await.unwrap();
}

async fn a_layer_bends_no_mount_of_a_live_sandbox(lab: Lab) {
    let shelf = Shelf::new(&lab);
    let alive = "test -c /dev/null && test -d /proc/self && test -x /usr/bin/env && echo ok";
    for place in ["dev", "proc", "usr"] {
        for kind in ["link", "file", "directory"] {
            let tree = lab.dir.path().join(format!("tree-{place}-{kind}"));
            fs::create_dir(&tree).unwrap();
            match kind {
                "link" => symlink("/tmp", tree.join(place)).unwrap(),
                "file" => fs::write(tree.join(place), "x").unwrap(),
                _ => {
                    fs::create_dir(tree.join(place)).unwrap();
                    fs::write(tree.join(place).join("file"), "x").unwrap();
                }
            }
            let (bounds, out) = (Bounds::new(Bytes(9)), tree.with_extension("packed"));
            // One way hides what is there, the other joins it.
            let packed = match kind {
                "directory" => pack_directory(&tree.join(place), place, &out, &bounds),
                _ => pack_directory(&tree, "", &out, &bounds),
            };
            let layer = shelf.keep(&packed.unwrap());
            let sandbox = lab.sandbox().await;
            sandbox.kill_all().await.unwrap();
            match sandbox.lay_over(&layer).await {
                Ok(()) => assert_eq!(kind, "directory", "{place}"),
                Err(LayError::Tree(error)) => {
                    assert!(error.of_the_packed() && kind != "directory", "{place}, {kind}: {error}");
                    assert!(error.to_string().contains("a mount of the sandbox"), "{error}");
                }
                Err(error) => panic!("{error:?}"),
            }
            assert_eq!(said(&*sandbox, alive).await, "ok", "{place}, {kind}");
            sandbox.destroy().await.unwrap();
        }
    }
}
