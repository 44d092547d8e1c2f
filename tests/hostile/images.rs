//! Case 3: roots that bend mounts and working directories, as in known escapes of other runtimes.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use executor::sandbox::{CreateError, Exit};
use tests::census::status;

use crate::lab::{Done, Held, Lab, said, shell_as, start_as, stays};
use crate::skips::Skip;

crate::cases![
    "03" an_image_that_bends_its_mounts_is_refused_or_harmless,
    "03" a_working_directory_never_leads_out,
    "03" set_id_bits_and_file_capabilities_of_an_image_give_nothing,
    "03" device_nodes_of_an_image_open_nothing,
];

/// A tree with a static shell and nothing else.
pub fn small_root(parent: &Path, name: &str) -> PathBuf {
    let root = parent.join(name);
    for dir in ["bin", "etc", "lib", "lib64"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    for program in ["sh", "cat", "ls", "touch", "rm", "cp", "mkdir", "chmod"] {
        let from = std::fs::canonicalize(format!("/usr/bin/{program}")).unwrap();
        let libraries = Command::new("ldd").arg(&from).output().unwrap();
        std::fs::copy(from, root.join("bin").join(program)).unwrap();
        let text = String::from_utf8_lossy(&libraries.stdout).into_owned();
        for library in text.split_whitespace().filter(|word| word.starts_with("/lib")) {
            let to = root.join(library.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(library, to).unwrap();
        }
    }
    root
}

/// Everything about a tree that a write could change.
fn picture(dir: &Path) -> Vec<String> {
    let mut seen = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(path) = pending.pop() {
        let found = std::fs::symlink_metadata(&path).unwrap();
        let text = if found.is_file() { std::fs::read_to_string(&path).unwrap() } else { String::new() };
        seen.push(format!(
            "{} {:o} {} {} {} {} {text}",
            path.display(),
            found.mode(),
            found.uid(),
            found.ino(),
            found.mtime(),
            found.mtime_nsec()
        ));
        if found.is_dir() {
            pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    seen.sort();
    seen
}

async fn an_image_that_bends_its_mounts_is_refused_or_harmless(lab: &Lab) -> Done {
    let victim = lab.dir.join("victim");
    std::fs::create_dir(&victim).unwrap();
    for file in ["file", "passwd", "null", "self", "stat"] {
        std::fs::write(victim.join(file), "of the host\n").unwrap();
    }
    let before = picture(&victim);
    let (mut refused, mut harmless) = (Vec::new(), Vec::new());
    let file = victim.join("file");
    let shapes: &[(&str, &Path)] = &[
        ("dev", &victim),
        ("dev/null", &file),
        ("dev/pts", &victim),
        ("dev/pts/0", &file),
        ("dev/shm", &victim),
        ("dev/ptmx", &file),
        ("dev/console", &file),
        ("dev/fd", &victim),
        ("proc", &victim),
        ("proc/self", &victim),
        ("proc/kcore", &file),
        ("proc/sys", &victim),
        ("sys", &victim),
        ("etc", &victim),
        ("etc/passwd", &file),
        ("etc/hosts", &file),
        ("workspace", &victim),
        ("tmp", &victim),
        ("logs", &victim),
        ("workspace", Path::new("/proc/1/root")),
        ("dev", Path::new("/proc/self/fd")),
        ("tmp", Path::new("../../../..")),
    ];
    for (index, (place, target)) in shapes.iter().enumerate() {
        let root = small_root(&lab.dir, &format!("bent-{index}"));
        let at = root.join(place);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        if at.is_dir() {
            std::fs::remove_dir_all(&at).unwrap();
        }
        symlink(target, &at).unwrap();
        let mut spec = lab.spec();
        spec.image = format!("dir:{}", root.display());
        match lab.make(spec).await {
            Err(CreateError::BadRootfs { .. }) => refused.push(*place),
            Err(other) => panic!("{place}: {other}"),
            Ok(sandbox) => {
                harmless.push(*place);
                let script = format!(
                    "echo x > /{place}; echo x > /{place}/new; rm -rf /{place}/*; cat /{place}/file; mkdir /{place}/d; echo x > /dev/null; echo x > /etc/passwd; echo y > /workspace/y; touch /tmp/z; echo end"
                );
                let output = shell_as(&sandbox, "0", &script).await;
                assert!(output.stdout.ends_with("end\n"), "{place}: {output:?}");
                assert!(!output.stdout.contains("of the host"), "{place}: {output:?}");
                // The executor's own hands: a file and the grader's directory at the bent place.
                for path in [format!("/{place}"), format!("/{place}/by-executor")] {
                    let content = executor::sandbox::FileSource::Bytes(b"x".to_vec());
                    let _ = sandbox.write_file(&path, content, 0o644, "0").await;
                    let _ = sandbox.reset_dir(&path, 0o755, "0").await;
                    if let Ok(Some((file, _))) = sandbox.open_file(&path).await {
                        assert_ne!(std::io::read_to_string(file).unwrap(), "of the host\n", "{path}");
                    }
                }
                sandbox.end().await;
            }
        }
        assert_eq!(picture(&victim), before, "{place}: the host's files");
        std::fs::remove_dir_all(root).unwrap();
    }
    for place in ["dev", "proc", "sys", "etc", "tmp", "workspace"] {
        assert!(refused.contains(&place), "{place}; refused {refused:?}");
    }
    assert!(harmless.contains(&"dev/null") && harmless.contains(&"etc/passwd"), "{harmless:?}");
    // The same tree, unbent.
    let root = small_root(&lab.dir, "straight");
    let sandbox = lab.sandbox_with(|spec| spec.image = format!("dir:{}", root.display())).await;
    let output = shell_as(&sandbox, "rollout", "echo x > /dev/null && echo y > y && cat y").await;
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "y\n"));
    sandbox.end().await;
    Ok(())
}

async fn a_working_directory_never_leads_out(lab: &Lab) -> Done {
    let outside = lab.dir.join("outside");
    std::fs::create_dir(&outside).unwrap();
    let root = small_root(&lab.dir, "0");
    symlink("/proc/self/fd", root.join("fd")).unwrap();
    symlink("/proc/self/root", root.join("root-link")).unwrap();
    symlink(&outside, root.join("outside")).unwrap();
    let image = format!("dir:{}", root.display());
    for workdir in [
        "/proc/self/fd/7",
        "/proc/self/cwd",
        "/fd/7",
        "/root-link/x",
        "/outside",
        "/a/../..",
        "relative",
        "/dev/x",
    ] {
        let mut spec = lab.spec();
        (spec.image, spec.workdir) = (image.clone(), workdir.to_owned());
        let refused = lab.make(spec).await;
        assert!(matches!(refused, Err(CreateError::BadRootfs { .. })), "{workdir}: {refused:?}");
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    let sandbox = lab.sandbox_with(|spec| spec.image.clone_from(&image)).await;
    for fd in 0..24 {
        for path in [format!("/proc/self/fd/{fd}"), format!("/fd/{fd}"), format!("/proc/1/fd/{fd}")] {
            for user in ["rollout", "0"] {
                assert!(start_as(&sandbox, user, &path, &["/bin/ls"]).await.is_err(), "{user} {path}");
            }
        }
    }
    // Not a way out, but the sandbox's own root by another name.
    let output = start_as(&sandbox, "rollout", "/proc/self/root", &["/bin/ls"]).await.unwrap().output().await;
    assert!(output.stdout.contains("workspace") && !output.stdout.contains("boot"), "{output:?}");
    assert_eq!(said(&sandbox, "echo ok").await, "ok");
    sandbox.end().await;
    Ok(())
}

const WHO: &str = r#"
#include <stdio.h>
#include <unistd.h>
int main(void) { setuid(0); setgid(0); printf("%d %d\n%d %d\nthere\n", getuid(), geteuid(), getgid(), getegid()); fflush(stdout); pause(); }
"#;

async fn set_id_bits_and_file_capabilities_of_an_image_give_nothing(lab: &Lab) -> Done {
    let root = small_root(&lab.dir, "set-id");
    let program = tests::programs::compile(&lab.dir, "who", WHO).unwrap();
    for (name, mode) in [("plain", 0o755), ("set-uid", 0o4755), ("set-gid", 0o2755), ("capable", 0o755)] {
        let path = root.join("bin").join(name);
        std::fs::copy(&program, &path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    match Command::new("setcap").arg("cap_sys_admin,cap_setuid=ep").arg(root.join("bin/capable")).status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(Skip(format!("no setcap on this filesystem: {status}"))),
        Err(error) => return Err(Skip(format!("no setcap: {error}"))),
    }
    let sandbox = lab.sandbox_with(|spec| spec.image = format!("dir:{}", root.display())).await;
    let ids = |sandbox: &Held| {
        let (init, others) = lab.processes(sandbox);
        let base = status(init, "Uid").unwrap();
        let [process] = others[..] else { panic!("{others:?}") };
        (
            base,
            status(process, "Uid").unwrap(),
            status(process, "Gid").unwrap(),
            status(process, "CapEff").unwrap(),
        )
    };
    let mut expected = None;
    for name in ["plain", "set-uid", "set-gid", "capable"] {
        let (started, said) = stays(&sandbox, "rollout", &[&format!("/bin/{name}")]).await;
        assert_eq!(said, ["1000 1000", "1000 1000"], "{name}");
        let seen = ids(&sandbox);
        assert_eq!(seen.3, "0000000000000000", "{name}");
        assert_ne!(seen.0, seen.1, "{name}: init's ids");
        assert_eq!(
            *expected.get_or_insert(seen.clone()),
            seen,
            "{name}: as the plain one, seen from the host"
        );
        started.process.signal(libc::SIGKILL).await.unwrap();
        started.process.wait().await.unwrap();
    }
    // Made by the agent itself.
    let made = shell_as(&sandbox, "0", "cp /bin/plain /bin/p && chmod 6777 /bin/p").await;
    assert_eq!(made.exit, Exit::Code(0), "{made:?}");
    let (_started, said) = stays(&sandbox, "rollout", &["/bin/p"]).await;
    assert_eq!(said[0], "1000 1000");
    sandbox.end().await;
    Ok(())
}

async fn device_nodes_of_an_image_open_nothing(lab: &Lab) -> Done {
    let root = small_root(&lab.dir, "devices");
    for (name, kind, major, minor) in
        [("mem", "c", "1", "1"), ("null", "c", "1", "3"), ("disk", "b", "7", "0")]
    {
        let made = Command::new("mknod")
            .arg("-m")
            .arg("0666")
            .arg(root.join(name))
            .args([kind, major, minor])
            .status();
        assert!(made.unwrap().success());
    }
    let sandbox = lab.sandbox_with(|spec| spec.image = format!("dir:{}", root.display())).await;
    for user in ["rollout", "0"] {
        for name in ["mem", "null", "disk"] {
            let read = shell_as(&sandbox, user, &format!("cat /{name} > /dev/null")).await;
            assert!(
                read.exit != Exit::Code(0) && read.stderr.contains("Permission denied"),
                "{user} {name}: {read:?}"
            );
        }
    }
    for name in ["/mem", "/null", "/disk"] {
        assert!(sandbox.open_file(name).await.is_err(), "{name} from the executor's side");
    }
    sandbox.end().await;
    Ok(())
}
