//! The same commands by `runc`, as a script would: a bundle for the agent, one for the grader that sees
//! what the agent handed in and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{AGENT, GRADE};

#[derive(Debug)]
pub struct Runc {
    dir: PathBuf,
    config: Value,
}

impl Runc {
    /// None if runc is not installed.
    pub fn new(dir: &Path, rootfs: &Path) -> Result<Option<Self>> {
        if Command::new("runc").arg("--version").output().is_err() {
            return Ok(None);
        }
        fs::create_dir_all(dir)?;
        let spec = Command::new("runc").arg("spec").current_dir(dir).status()?;
        ensure!(spec.success(), "runc spec: {spec}");
        let mut config: Value = serde_json::from_slice(&fs::read(dir.join("config.json"))?)?;
        config["process"]["terminal"] = json!(false);
        config["process"]["cwd"] = json!("/workspace");
        config["root"] = json!({"path": rootfs, "readonly": true});
        Ok(Some(Self { dir: dir.to_owned(), config }))
    }

    /// One rollout: agent, then grader.
    pub fn rollout(&self, n: usize) -> Result<()> {
        let dir = self.dir.join(format!("r{n}"));
        let (workspace, verifier) = (dir.join("workspace"), dir.join("logs/verifier"));
        fs::create_dir_all(&workspace)?;
        fs::create_dir_all(&verifier)?;
        self.run(&dir, &format!("a{n}"), AGENT, &[(&workspace, "/workspace")])?;
        let handed_in = dir.join("in");
        fs::create_dir_all(&handed_in)?;
        fs::copy(workspace.join("answer"), handed_in.join("answer"))?;
        let (fresh, logs) = (dir.join("fresh"), dir.join("logs"));
        fs::create_dir_all(&fresh)?;
        let mounts = [(&fresh, "/workspace"), (&handed_in, "/in"), (&logs, "/logs")];
        self.run(&dir, &format!("g{n}"), GRADE, &mounts)?;
        let reward = fs::read_to_string(verifier.join("reward.txt")).context("the reward")?;
        ensure!(reward.trim() == "1", "the reward is {reward:?}");
        fs::remove_dir_all(&dir)?;
        Ok(())
    }

    fn run(&self, dir: &Path, name: &str, shell: &str, mounts: &[(&PathBuf, &str)]) -> Result<()> {
        let bundle = dir.join(name);
        fs::create_dir_all(&bundle)?;
        let mut config = self.config.clone();
        config["process"]["args"] = json!(["/bin/sh", "-e", "-c", shell]);
        let list = config["mounts"].as_array_mut().context("mounts of the spec")?;
        for (source, destination) in mounts {
            let options = ["rbind", "rw"];
            list.push(
                json!({"destination": destination, "type": "bind", "source": source, "options": options}),
            );
        }
        fs::write(bundle.join("config.json"), serde_json::to_vec(&config)?)?;
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.dir.join("state")).arg("run").arg("--bundle").arg(&bundle);
        let output = command.arg(format!("rollyard-bench-{}-{name}", std::process::id())).output()?;
        ensure!(output.status.success(), "runc: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}
