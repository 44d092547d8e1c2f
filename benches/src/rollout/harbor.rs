//! The same task by Harbor on this machine: its oracle agent, its verifier, a local container engine.
//!
//! `harbor` is what is on PATH, else `ROLLYARD_BENCH_HARBOR`; it needs Python 3.12 and podman or docker.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

use super::AGENT;

const IMAGE: &str = "localhost/rollyard-bench:1";
const TASK: &str = r#"schema_version = "1.4"
[task]
name = "bench/answer"
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 60
[environment]
docker_image = "localhost/rollyard-bench:1"
workdir = "/workspace"
"#;

#[derive(Debug)]
pub struct Harbor {
    program: PathBuf,
    engine: &'static str,
    dir: PathBuf,
    image: PathBuf,
}

impl Harbor {
    /// Err with the reason if it cannot run here.
    pub fn new(dir: &Path, rootfs: &Path) -> Result<Result<Self, String>> {
        let program =
            std::env::var_os("ROLLYARD_BENCH_HARBOR").map_or_else(|| PathBuf::from("harbor"), PathBuf::from);
        if Command::new(&program).arg("--version").output().is_err() {
            return Ok(Err("not installed".to_owned()));
        }
        let engine = ["podman", "docker"]
            .into_iter()
            .find(|name| Command::new(name).arg("info").output().is_ok_and(|o| o.status.success()));
        let Some(engine) = engine else { return Ok(Err("no podman or docker".to_owned())) };
        let image = dir.join("image.tar");
        let packed = Command::new("tar").arg("-C").arg(rootfs).arg("-cf").arg(&image).arg(".").status()?;
        ensure!(packed.success(), "tar: {packed}");
        let task = dir.join("task");
        for folder in ["environment", "solution", "tests"] {
            fs::create_dir_all(task.join(folder))?;
        }
        fs::write(task.join("task.toml"), TASK)?;
        fs::write(task.join("instruction.md"), "Write 42 into /workspace/answer.\n")?;
        script(&task.join("solution/solve.sh"), AGENT)?;
        let grade = super::GRADE.replace("/in/answer", "/workspace/answer");
        script(&task.join("tests/test.sh"), &format!("mkdir -p /logs/verifier\n{grade}"))?;
        let harbor = Self { program, engine, dir: dir.to_owned(), image };
        harbor.import()?;
        let tried =
            Command::new(engine).args(["run", "--rm", "--network", "none", IMAGE, "/bin/true"]).output()?;
        if !tried.status.success() {
            return Ok(Err(format!("{engine} cannot run a container here: {}", last_line(&tried))));
        }
        Ok(Ok(harbor))
    }

    /// Harbor removes the image of a task when a job ends.
    fn import(&self) -> Result<()> {
        let output = Command::new(self.engine).arg("import").arg(&self.image).arg(IMAGE).output()?;
        ensure!(output.status.success(), "{} import: {}", self.engine, last_line(&output));
        Ok(())
    }

    /// `n` trials, `parallel` at a time.
    pub fn job(&self, n: usize, parallel: usize) -> Result<()> {
        self.import()?;
        let jobs = self.dir.join("jobs");
        let mut command = Command::new(&self.program);
        command.arg("run").arg("-p").arg(self.dir.join("task")).args(["-a", "oracle", "-e", self.engine]);
        command.args(["-k", &n.to_string(), "-n", &parallel.to_string()]).arg("-o").arg(&jobs);
        // Else the first trial that ends removes the image of those that run beside it: podman-compose takes
        // every image for one that compose built.
        command.arg("--no-delete");
        let output = command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").output()?;
        ensure!(output.status.success(), "harbor: {}", last_line(&output));
        let rewards = find_rewards(&jobs)?;
        ensure!(rewards == n, "{rewards} of {n} trials have reward 1");
        fs::remove_dir_all(&jobs).context("the results of harbor")
    }
}

fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{text}\n"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn find_rewards(dir: &Path) -> Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found += find_rewards(&path)?;
        } else if path.ends_with("verifier/reward.txt") && fs::read_to_string(&path)?.trim() == "1" {
            found += 1;
        }
    }
    Ok(found)
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().last().unwrap_or_default().to_owned()
}
