//! Peers: `runc run` and `bwrap --unshare-all` of the same static binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

#[derive(Debug)]
pub struct Runc {
    bundle: PathBuf,
    state: PathBuf,
}

impl Runc {
    /// None if runc is not installed.
    pub fn new(dir: &Path, rootfs: &Path) -> Result<Option<Self>> {
        if !installed("runc") {
            return Ok(None);
        }
        let (bundle, state) = (dir.join("bundle"), dir.join("runc-state"));
        fs::create_dir_all(&bundle)?;
        let spec = Command::new("runc").arg("spec").current_dir(&bundle).status()?;
        ensure!(spec.success(), "runc spec: {spec}");
        let path = bundle.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path)?)?;
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!(["/true"]);
        config["root"]["path"] = json!(rootfs);
        fs::write(&path, serde_json::to_vec(&config)?)?;
        Ok(Some(Self { bundle, state }))
    }

    pub fn run(&self, n: usize) -> Result<()> {
        let mut command = Command::new("runc");
        command.arg("--root").arg(&self.state).arg("run").arg("--bundle").arg(&self.bundle);
        run(command.arg(format!("rollyard-bench-{}-{n}", std::process::id())))
    }
}

#[derive(Debug)]
pub struct Bwrap {
    rootfs: PathBuf,
}

impl Bwrap {
    pub fn new(rootfs: &Path) -> Option<Self> {
        installed("bwrap").then(|| Self { rootfs: rootfs.to_path_buf() })
    }

    pub fn run(&self) -> Result<()> {
        let mut command = Command::new("bwrap");
        command.arg("--unshare-all").arg("--ro-bind").arg(&self.rootfs).arg("/");
        run(command.args(["--proc", "/proc", "--dev", "/dev", "/true"]))
    }
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
