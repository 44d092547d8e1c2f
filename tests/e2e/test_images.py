"""A job on an image that only a registry has: resolved at submit, pulled by digest, one layer for all."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tarfile
import urllib.request

import lab
import pytest

PROGRAMS = ["sh", "cat", "echo", "test", "mkdir", "rm", "sleep"]
SPEC = """
apiVersion: rollyard/v1
kind: RolloutJob
name: pulled
tasks: {from: {inline: [{tag: "IMAGE:one", want: one}, {tag: "IMAGE:two", want: two}]}}
group: {size: 2}
defaults:
  image: ${row.tag}
  timeout: 60s
  resources: {request: {cpu: 100m, memory: 64Mi}, limit: {cpu: 1, memory: 128Mi, disk: 32Mi, pids: 64}}
steps:
  - {name: work, run: 'echo "$(cat /etc/which) $OF_BASE" > answer', outputs: [{name: answer, path: answer}]}
  - {name: grade, needs: [work], env: {WANT: "${row.want}"}, inputs: [{artifact: work.answer, path: /in/answer}], grader: {},
     run: 'if test "$(cat /in/answer)" = "$WANT of the image"; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'}
"""


@pytest.fixture
def registry(tmp_path):
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("SKIPPED: docker-registry is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    process = subprocess.Popen([program, "serve", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers():
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5).status == 200
        except OSError:
            return False

    try:
        lab.wait_until(answers, "the registry answers")
        yield f"127.0.0.1:{port}"
    finally:
        lab.end(process)


def call(method, url, data=None, kind="application/octet-stream"):
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": kind})
    return urllib.request.urlopen(request, timeout=30)


def push_blob(registry, data: bytes) -> dict:
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    upload = call("POST", f"http://{registry}/v2/tools/sh/blobs/uploads/", b"").headers["Location"]
    call("PUT", f"{upload}{'&' if '?' in upload else '?'}digest={digest}", data)
    return {"digest": digest, "size": len(data)}


def push(registry, tag: str, layers: list[bytes]) -> str:
    """The digest of the manifest."""
    packed = [push_blob(registry, gzip.compress(layer, mtime=0)) for layer in layers]
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Env": ["OF_BASE=of the image"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]},
    }
    oci = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": {"mediaType": f"{oci}.config.v1+json", **push_blob(registry, json.dumps(config).encode())},
        "layers": [{"mediaType": f"{oci}.layer.v1.tar+gzip", **blob} for blob in packed],
    }
    data = json.dumps(manifest).encode()
    call("PUT", f"http://{registry}/v2/tools/sh/manifests/{tag}", data, manifest["mediaType"])
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tree() -> bytes:
    """A shell and a few programs of this machine, with the libraries they load."""
    files = {}
    for program in PROGRAMS:
        path = pathlib.Path(shutil.which(program) or f"/bin/{program}").resolve()
        files[f"bin/{program}"] = path
        told = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        for word in told.split():
            if word.startswith("/"):
                files[word.lstrip("/")] = pathlib.Path(word).resolve()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ["bin", "etc", "tmp", "proc", "sys", "dev", "root", "workspace", "in", "logs"]:
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        for name, path in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = path.stat().st_size, 0o755
            with open(path, "rb") as file:
                tar.addfile(info, file)
        for name, text in [("etc/passwd", "root:x:0:0::/root:/bin/sh\nrollout:x:1000:1000::/workspace:/bin/sh\n"), ("etc/group", "root:x:0:\nrollout:x:1000:\n")]:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def named(word: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("etc/which")
        info.size, info.mode = len(word) + 1, 0o644
        tar.addfile(info, io.BytesIO(word.encode() + b"\n"))
    return out.getvalue()


def test_a_job_on_images_of_a_registry(yard, registry):
    base = tree()
    digests = {word: push(registry, word, [base, named(word)]) for word in ("one", "two")}
    yard.call("run", yard.spec(SPEC.replace("IMAGE", f"{registry}/tools/sh")), "--table", yard.table)
    rows = yard.rows()
    assert [row["reward"] for row in rows] == [1.0] * 4, [row["inline"] for row in yard.rows("artifacts")]
    assert {row["image_digest"] for row in rows} == {f"oci:{digest}" for digest in digests.values()}
    layers = [path for path in (yard.data / "node" / "layers").iterdir() if len(path.name) == 64]
    assert len(layers) == 3, "the layer that both images have lies on the node once"
    # A tag that is not there stops the submit, with what the registry answered.
    moved = SPEC.replace("IMAGE:one", "IMAGE:three").replace("IMAGE", f"{registry}/tools/sh")
    refused = yard.call("run", yard.spec(moved), "--table", yard.table, ok=False)
    assert refused.returncode != 0 and "image_unresolved" in refused.stderr and "manifest unknown" in refused.stderr, refused.stderr


def test_a_sandbox_begins_with_an_image_of_this_machine(yard, registry):
    push(registry, "one", [tree(), named("one")])
    yard.call("image", "pull", f"{registry}/tools/sh:one")
    assert yard.data.stat().st_mode & 0o777 == 0o700, "the yard that is started there later acts as root"
    (image,) = yard.json("image", "ls")
    dev = yard.start("dev")
    try:
        lab.wait_until(lambda: yard.call("nodes", "--output", "quiet", ok=False).stdout, "a node")
        small = ["--cpu", "10m", "--memory", "64Mi", "--limit-disk", "32Mi"]
        made = yard.call("sandbox", "create", *small, "--image", image["reference"]).stdout.strip()
        assert yard.call("exec", made, "cat", "/etc/which").stdout == "one\n"
        yard.call("kill", made)
    finally:
        lab.end(dev)
