//! Files reached from outside, while what runs inside works against it; and images.

use std::io::Read;
use std::os::unix::fs::symlink;

use executor::sandbox::{Backend, CreateError, FileError, FileSource, Sandbox};

use crate::lab::{Lab, said, start};

crate::tests![
    files_written_from_outside_have_their_owner_and_are_read_back,
    no_file_of_the_host_is_ever_read_while_a_path_is_being_swapped,
    a_directory_can_be_reset_over_what_an_agent_left,
    a_directory_of_the_host_serves_as_a_root_and_is_never_changed,
    a_root_that_bends_its_mounts_is_refused,
    a_root_that_is_reached_through_a_link_since_it_was_looked_at_is_refused,
];

async fn read(sandbox: &dyn Sandbox, path: &str) -> Option<String> {
    let (mut file, _) = sandbox.open_file(path).await.unwrap()?;
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    Some(text)
}

async fn files_written_from_outside_have_their_owner_and_are_read_back(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let bytes = |text: &str| FileSource::Bytes(text.as_bytes().to_vec());
    sandbox.write_file("/in/deep/a", bytes("one"), 0o640, "rollout").await.unwrap();
    sandbox.write_file("b", bytes("two"), 0o755, "root").await.unwrap();
    assert_eq!(
        said(&*sandbox, "stat -c '%a %u %g' /in/deep/a /in/deep /workspace/b; cat /in/deep/a").await,
        "640 1000 1000\n755 0 0\n755 0 0\none"
    );
    said(&*sandbox, "echo out > result").await;
    assert_eq!(read(&*sandbox, "result").await.as_deref(), Some("out\n"));
    sandbox.kill_all().await.unwrap();
    assert_eq!(read(&*sandbox, "/workspace/result").await.as_deref(), Some("out\n"));
    assert_eq!(read(&*sandbox, "absent").await, None);
    // What is mounted inside is not there from outside: neither /proc nor the host's /usr.
    for path in ["/proc/self/status", "/dev/null", "/usr/bin/env", "//usr/x", "/./proc/x"] {
        let refused = sandbox.open_file(path).await;
        assert!(matches!(refused, Err(FileError::BadPath { .. })), "{path}: {refused:?}");
        let written = sandbox.write_file(path, FileSource::Bytes(b"x".to_vec()), 0o644, "root").await;
        assert!(matches!(written, Err(FileError::BadPath { .. })), "{path}: {written:?}");
    }
    for (path, write) in [("/workspace/../etc/x", "`..`"), ("/bin/x", "symlink")] {
        let refused = sandbox.write_file(path, bytes("x"), 0o644, "root").await.unwrap_err();
        assert!(refused.to_string().contains(write), "{refused}");
    }
    sandbox.destroy().await.unwrap();
}

async fn no_file_of_the_host_is_ever_read_while_a_path_is_being_swapped(lab: Lab) {
    let sandbox = lab.sandbox().await;
    let swap = "cd /workspace; echo own > own; while :; do ln -sfn /etc/shadow p; rm -f p; mkfifo p; rm -f p; mkdir p; rmdir p; cp own p; rm -f p; done";
    let (_swapper, _pipes) = start(&*sandbox, "rollout", "/", &["sh", "-c", swap], &[]).await.unwrap();
    let mut seen = [0u32; 3];
    // Until each answer was seen; the hang guard of every test bounds it.
    while seen.iter().sum::<u32>() < 3000 || seen.contains(&0) {
        match sandbox.open_file("p").await {
            Ok(None) => seen[0] += 1,
            Ok(Some((mut file, _))) => {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                assert!(text.is_empty() || text == "own\n", "{text:?}");
                seen[1] += 1;
            }
            Err(FileError::NotAFile { .. } | FileError::Escapes { .. }) => seen[2] += 1,
            Err(other) => panic!("{other}"),
        }
    }
    sandbox.destroy().await.unwrap();
}

async fn a_directory_can_be_reset_over_what_an_agent_left(lab: Lab) {
    let sandbox = lab.sandbox().await;
    for left in [
        "ln -s /etc /logs/verifier",
        "mkfifo /logs/verifier",
        "mkdir -p /logs/verifier/a/b; touch /logs/verifier/a/c; chmod 0 /logs/verifier",
        "true",
    ] {
        said(&*sandbox, left).await;
        sandbox.reset_dir("/logs/verifier", 0o755, "root").await.unwrap();
        assert_eq!(
            said(&*sandbox, "ls -A /logs/verifier | wc -l; stat -c %U /logs/verifier").await,
            "0\nroot",
            "{left}"
        );
        said(&*sandbox, "rmdir /logs/verifier").await;
    }
    // A directory of the image, below the writable layer.
    sandbox.reset_dir("/etc/ld.so.conf.d", 0o700, "rollout").await.unwrap();
    assert_eq!(said(&*sandbox, "ls -A /etc/ld.so.conf.d | wc -l; test -d /etc && echo ok").await, "0\nok");
    sandbox.destroy().await.unwrap();
}

/// A tree with the few programs a shell needs, out of this machine's own.
fn small_root(lab: &Lab, name: &str) -> std::path::PathBuf {
    let root = lab.dir.path().canonicalize().unwrap().join(name);
    for dir in ["bin", "etc", "lib", "lib64"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    for program in ["sh", "cat", "ls", "id", "stat", "touch"] {
        let from = format!("/usr/bin/{program}");
        std::fs::copy(std::fs::canonicalize(&from).unwrap(), root.join("bin").join(program)).unwrap();
        let libraries = std::process::Command::new("ldd").arg(&from).output().unwrap();
        for word in
            String::from_utf8_lossy(&libraries.stdout).split_whitespace().filter(|w| w.starts_with("/lib"))
        {
            let to = root.join(word.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(word, to).unwrap();
        }
    }
    root
}

async fn a_directory_of_the_host_serves_as_a_root_and_is_never_changed(lab: Lab) {
    let root = small_root(&lab, "root");
    std::fs::write(root.join("etc/passwd"), "build:x:77:78::/:/bin/sh\n").unwrap();
    let mut spec = lab.spec();
    spec.image = format!("dir:{}", root.display());
    spec.user = "build".into();
    spec.workdir = "/made/for/me".into();
    let sandbox = lab.backend.create(spec).await.unwrap();
    assert!(sandbox.image_digest().starts_with("dir:"));
    let output = shell_in(
        &*sandbox,
        "id -u; id -g; stat -c %u . /bin/cat; touch /bin/new /made/for/me/x; ls /made/for/me",
    )
    .await;
    assert_eq!(output, "77\n78\n77\n0\nx\n");
    // A tree that was replaced is the new one for the next sandbox.
    let digest = sandbox.image_digest().to_owned();
    sandbox.destroy().await.unwrap();
    std::fs::rename(&root, lab.dir.path().join("old")).unwrap();
    let root = small_root(&lab, "root");
    std::fs::write(root.join("etc/passwd"), "build:x:88:78::/:/bin/sh\n").unwrap();
    let mut spec = lab.spec();
    (spec.image, spec.user) = (format!("dir:{}", root.display()), "build".into());
    spec.workdir = "/made/for/me".into();
    let sandbox = lab.backend.create(spec).await.unwrap();
    assert_eq!(shell_in(&*sandbox, "id -u; cat /etc/passwd").await, "88\nbuild:x:88:78::/:/bin/sh\n");
    assert_ne!(sandbox.image_digest(), digest);
    sandbox.destroy().await.unwrap();
    assert!(!root.join("bin/new").exists() && !root.join("made").exists() && !root.join("proc").exists());
}

async fn shell_in(sandbox: &dyn Sandbox, script: &str) -> String {
    let (process, [out, _err]) =
        start(sandbox, "build", "/made/for/me", &["/bin/sh", "-c", script], &[]).await.unwrap();
    process.wait().await.unwrap();
    std::io::read_to_string(out).unwrap()
}

async fn a_root_that_bends_its_mounts_is_refused(lab: Lab) {
    let victim = lab.dir.path().canonicalize().unwrap().join("victim");
    std::fs::create_dir(&victim).unwrap();
    for place in ["proc", "dev", "sys", "etc", "tmp", "workspace"] {
        let root = small_root(&lab, &format!("bent-{place}"));
        if place == "etc" {
            std::fs::remove_dir_all(root.join("etc")).unwrap();
        }
        symlink(&victim, root.join(place)).unwrap();
        let mut spec = lab.spec();
        spec.image = format!("dir:{}", root.display());
        let refused = lab.backend.create(spec).await;
        assert!(matches!(refused, Err(CreateError::BadRootfs { .. })), "{place}: {refused:?}");
    }
    assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 0);
    // Links where devices should be are covered by a /dev of the sandbox's own.
    let root = small_root(&lab, "devices");
    std::fs::create_dir(root.join("dev")).unwrap();
    symlink(&victim, root.join("dev/null")).unwrap();
    symlink(&victim, root.join("dev/pts")).unwrap();
    let mut spec = lab.spec();
    spec.image = format!("dir:{}", root.display());
    lab.backend.create(spec).await.unwrap().destroy().await.unwrap();
}

async fn a_root_that_is_reached_through_a_link_since_it_was_looked_at_is_refused(lab: Lab) {
    let top = lab.dir.path().canonicalize().unwrap();
    std::fs::create_dir(top.join("images")).unwrap();
    let root = small_root(&lab, "images/root");
    let mut spec = lab.spec();
    spec.image = format!("dir:{}", root.display());
    lab.backend.create(spec).await.unwrap().destroy().await.unwrap();
    std::fs::rename(top.join("images"), top.join("moved")).unwrap();
    symlink(top.join("moved"), top.join("images")).unwrap();
    let mut spec = lab.spec();
    spec.image = format!("dir:{}", root.display());
    let refused = lab.backend.create(spec).await;
    assert!(matches!(refused, Err(CreateError::BadRootfs { .. })), "{refused:?}");
}
