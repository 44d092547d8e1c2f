//! OCI images from the command line: jobs that run on them, and the images of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::geteuid;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{Ran, rollyard};

const SPEC: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: image
tasks: {from: {inline: [{image: "oci-layout:layout:one"}]}}
group: {size: 2}
defaults: {image: "${row.image}", timeout: 60s}
steps:
  - name: grade
    from: image
    run: '[ "$OF_IMAGE" = yes ] && [ "$PATH" = /bin ] && [ ! -e /gone ] && cat /version && ls -i /bin/sh'
    env: {OF_STEP: yes}
    grader: {exit: {0: 1}, regrades: 0}
"#;

/// A tree with a shell that runs on the libraries beside it.
fn tree(at: &Path) {
    for program in ["sh", "cat", "ls", "sleep"] {
        let from = fs::canonicalize(format!("/usr/bin/{program}")).expect("there");
        fs::create_dir_all(at.join("bin")).expect("made");
        fs::copy(&from, at.join("bin").join(program)).expect("copied");
        let libraries = Command::new("ldd").arg(&from).output().expect("ldd").stdout;
        let text = String::from_utf8(libraries).expect("text");
        for library in text.split_whitespace().filter(|word| word.starts_with("/lib")) {
            let to = at.join(library.trim_start_matches('/'));
            fs::create_dir_all(to.parent().expect("a parent")).expect("made");
            fs::copy(library, to).expect("copied");
        }
    }
    fs::write(at.join("gone"), "of the first layer").expect("written");
    fs::write(at.join("version"), "below").expect("written");
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).expect("shut");
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn put(layout: &Path, bytes: &[u8]) -> Value {
    let digest = digest(bytes);
    fs::create_dir_all(layout.join("blobs/sha256")).expect("made");
    fs::write(layout.join("blobs/sha256").join(&digest[7..]), bytes).expect("written");
    json!({"digest": digest, "size": bytes.len()})
}

/// A layout with one image of two layers, under the tag `one`; the digest of its manifest.
fn layout(dir: &Path, version: &str) -> String {
    let layout = dir.join("layout");
    let root = dir.join("root");
    if !root.exists() {
        tree(&root);
    }
    let mut below = tar::Builder::new(Vec::new());
    below.append_dir_all(".", &root).expect("packed");
    let mut above = tar::Builder::new(Vec::new());
    for (name, data) in [("version", version), (".wh.gone", "")] {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        above.append_data(&mut header, name, data.as_bytes()).expect("packed");
    }
    let tars = [below, above].map(|builder| builder.into_inner().expect("packed"));
    let part = |bytes: &[u8], media_type: &str| {
        let mut part = put(&layout, bytes);
        part["mediaType"] = media_type.into();
        part
    };
    let config = json!({
        "config": {"Env": ["PATH=/bin", "OF_IMAGE=yes", "OF_STEP=no"], "User": "nobody", "Entrypoint": ["/no"]},
        "rootfs": {"type": "layers", "diff_ids": tars.each_ref().map(|tar| digest(tar))},
    });
    let manifest = json!({
        "schemaVersion": 2,
        "config": part(config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json"),
        "layers": tars.each_ref().map(|tar| part(tar, "application/vnd.oci.image.layer.v1.tar")),
    });
    let mut named = part(manifest.to_string().as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    named["annotations"] = json!({"org.opencontainers.image.ref.name": "one"});
    let found = named["digest"].as_str().expect("text").to_owned();
    fs::write(layout.join("index.json"), json!({"schemaVersion": 2, "manifests": [named]}).to_string())
        .expect("written");
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("written");
    found
}

/// What a command that went well printed.
fn data(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn archive(dir: &Path) -> PathBuf {
    let archive = dir.join("image.tar");
    let mut builder = tar::Builder::new(fs::File::create(&archive).expect("made"));
    builder.append_dir_all(".", dir.join("layout")).expect("packed");
    builder.finish().expect("packed");
    archive
}

#[test]
fn a_job_runs_on_a_layout_and_its_rollouts_share_the_layers() {
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let first = layout(dir.path(), "first");
    fs::write(dir.path().join("image.yaml"), SPEC).expect("written");
    let run = |more: &[&str]| {
        let args = [&["run", "image.yaml", "--output", "json"], more].concat();
        let job = data(&rollyard(dir.path(), &args))["job"]["id"].as_str().expect("an id").to_owned();
        let rollouts = data(&rollyard(dir.path(), &["ps", &job, "--output", "json"]));
        let rollouts = rollouts.as_array().expect("rollouts").clone();
        assert_eq!(rollouts.len(), 2);
        let seen = rollouts.iter().map(|rollout| {
            assert_eq!(rollout["reward"], 1.0, "{rollout}");
            let id = rollout["id"].as_str().expect("an id");
            let shown = data(&rollyard(dir.path(), &["show", id, "--output", "json"]));
            let digest = shown["steps"][0]["outcome"]["image_digest"].as_str().expect("a digest").to_owned();
            (digest, rollyard(dir.path(), &["logs", id, "--stream", "stdout"]).stdout)
        });
        seen.collect::<BTreeSet<_>>()
    };
    let seen = run(&[]);
    let inodes: Vec<u64> = fs::read_dir(dir.path().join("node/layers"))
        .expect("listed")
        .filter_map(|layer| fs::metadata(layer.expect("read").path().join("tree/bin/sh")).ok())
        .map(|shell| shell.ino())
        .collect();
    let [inode] = inodes[..] else { panic!("the shell lies on the node once: {inodes:?}") };
    assert_eq!(seen, BTreeSet::from([(format!("oci:{first}"), format!("first{inode} /bin/sh\n"))]));
    // The tag means another image now: a new job has that, and shares the layer they have in common.
    let second = layout(dir.path(), "second");
    assert_ne!(first, second);
    let seen = run(&["--new"]);
    assert_eq!(seen, BTreeSet::from([(format!("oci:{second}"), format!("second{inode} /bin/sh\n"))]));
}

/// `from` a step that lies over an image's layer: the checkpoint has it as a layer of its own.
const LAYERED: &str = r#"
apiVersion: rollyard/v1
kind: RolloutJob
name: layered
tasks: {from: {inline: [{n: "1"}]}}
defaults: {image: host, timeout: 60s}
steps:
  - {name: setup, run: 'cat /version > seen', layers: ["oci-layout:layout:one"], checkpoint: {after: true}}
  - {name: grade, needs: [setup], from: setup, isolate: fresh, run: '[ "$(cat seen)" = first ] && [ "$(cat /version)" = first ]',
     grader: {exit: {0: 1}, regrades: 0}}
"#;

#[test]
fn layers_of_an_image_lie_over_another_and_stay_in_its_checkpoints() {
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    layout(dir.path(), "first");
    fs::write(dir.path().join("layered.yaml"), LAYERED).expect("written");
    let ended = data(&rollyard(dir.path(), &["run", "layered.yaml", "--output", "json"]));
    let job = ended["job"]["id"].as_str().expect("an id");
    let rollouts = data(&rollyard(dir.path(), &["ps", job, "--output", "json"]));
    assert_eq!(rollouts[0]["reward"], 1.0, "{rollouts}");
}

#[test]
fn an_image_that_is_not_there_stops_the_job_before_it_begins() {
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    for (image, code) in [
        ("oci-layout:absent", "image_unusable"),
        // Nobody listens there.
        ("127.0.0.1:9/a/b:c", "image_unresolved"),
        (
            "stored:sha256:0000000000000000000000000000000000000000000000000000000000000000",
            "image_unresolved",
        ),
    ] {
        fs::write(dir.path().join("image.yaml"), SPEC.replace("oci-layout:layout:one", image))
            .expect("written");
        let ran = rollyard(dir.path(), &["run", "image.yaml"]);
        assert_ne!(ran.code, 0);
        assert!(
            ran.stderr.contains(&format!("error[{code}]")) && ran.stderr.contains(image),
            "{}",
            ran.stderr
        );
    }
    let jobs = data(&rollyard(dir.path(), &["ps", "--output", "json"]));
    assert_eq!(jobs, json!([]), "nothing was stored");
}

#[test]
fn images_of_this_machine_are_imported_listed_measured_and_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let digest = layout(dir.path(), "first");
    let archive = archive(dir.path());
    let ask = |args: &[&str]| rollyard(dir.path(), &[&["image"], args].concat());
    let imported = data(&ask(&["import", "layout", "--output", "json"]));
    assert_eq!(imported[0]["name"], "one");
    data(&ask(&["import", archive.to_str().expect("text"), "--name", "again", "--output", "json"]));
    let listed = data(&ask(&["ls", "--output", "json"]));
    let names: Vec<_> = listed.as_array().expect("rows").iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["again", "one"]);
    assert_eq!((&listed[1]["digest"], &listed[1]["layers"]), (&json!(digest), &json!(2)));
    let used = data(&ask(&["du", "--output", "json"]));
    assert_eq!((&used["images"], &used["blobs"]), (&json!(2), &json!(4)));
    let table = ask(&["ls"]).stdout;
    assert!(table.contains("IN A SPEC") && table.contains("oci-layout:"), "{table}");
    // The same blobs under another name: nothing goes but the name.
    assert_eq!(ask(&["rm", "again"]).code, 0);
    assert_eq!(data(&ask(&["du", "--output", "json"]))["blobs"], 4);
    // As an executor holds it while sandboxes run from it.
    let held = dir.path().join("images/held").join(&digest[7..]);
    let hold = fs::File::create(&held).expect("made");
    hold.try_lock_shared().expect("locked");
    let refused = ask(&["rm", "one"]);
    assert!(refused.stderr.contains("error[image_in_use]"), "{}", refused.stderr);
    drop(hold);
    assert_eq!(ask(&["rm", "one"]).code, 0);
    assert_eq!(data(&ask(&["du", "--output", "json"]))["blobs"], 0);
    assert!(ask(&["rm", "one"]).stderr.contains("error[image_unusable]"));
}

#[test]
fn a_build_is_handed_to_the_builder_that_is_there() {
    let dir = tempfile::tempdir().expect("a directory");
    layout(dir.path(), "built");
    archive(dir.path());
    let (context, bin) = (dir.path().join("context"), dir.path().join("bin"));
    fs::create_dir_all(&context).expect("made");
    fs::create_dir_all(&bin).expect("made");
    fs::write(context.join("Dockerfile"), "FROM scratch\n").expect("written");
    let build = |path: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollyard"));
        command.args(["image", "build", "context", "--output", "json"]).current_dir(dir.path());
        let output =
            command.env("ROLLYARD_DATA_DIR", dir.path()).env("PATH", path).output().expect("it starts");
        (output.status.code(), output.stdout, String::from_utf8(output.stderr).expect("text"))
    };
    let (code, _, stderr) = build(&bin);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("no_builder"), "{stderr}");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {0}/said\ncase $1 in save) while [ \"$1\" != --output ]; do shift; done; /bin/cp {0}/image.tar $2;; esac\n",
        dir.path().display()
    );
    let podman = bin.join("podman");
    fs::write(&podman, script).expect("written");
    fs::set_permissions(&podman, fs::Permissions::from_mode(0o755)).expect("shut");
    let (code, stdout, stderr) = build(&bin);
    assert_eq!(code, Some(0), "{stderr}");
    let rows: Value = serde_json::from_slice(&stdout).expect("JSON");
    assert_eq!(rows[0]["name"], "context");
    let said = fs::read_to_string(dir.path().join("said")).expect("said");
    let verbs: Vec<_> = said.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(verbs, ["build", "save", "rmi"]);
    fs::write(&podman, "#!/bin/sh\nexit 3\n").expect("written");
    let (code, _, stderr) = build(&bin);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("build_failed") && stderr.contains("`podman build`"), "{stderr}");
}
