//! Memory, cpu and pids cgroups of the floor, on v1 or v2, under Rollyard's parent.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

#[derive(Debug)]
pub struct Cgroups {
    parents: Vec<PathBuf>,
    v2: bool,
}

#[derive(Debug)]
pub struct Set {
    dirs: Vec<PathBuf>,
}

impl Cgroups {
    pub fn probe() -> Result<Self> {
        let v1: Vec<PathBuf> = ["memory", "cpu", "pids"].map(|c| Path::new("/sys/fs/cgroup").join(c)).into();
        let (mounts, v2) = if v1.iter().all(|p| p.join("cgroup.procs").exists()) {
            (v1, false)
        } else if fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").is_ok_and(|c| c.contains("memory"))
        {
            (vec![PathBuf::from("/sys/fs/cgroup")], true)
        } else {
            bail!("neither v1 nor v2 memory, cpu and pids controllers");
        };
        let parents: Vec<PathBuf> = mounts.iter().map(|m| m.join("rollyard/bench")).collect();
        for (mount, parent) in mounts.iter().zip(&parents) {
            if v2 {
                fs::create_dir_all(mount.join("rollyard"))?;
                fs::write(mount.join("rollyard/cgroup.subtree_control"), "+memory +cpu +pids")?;
            }
            fs::create_dir_all(parent)?;
            if v2 {
                fs::write(parent.join("cgroup.subtree_control"), "+memory +cpu +pids")?;
            }
        }
        Ok(Self { parents, v2 })
    }

    pub fn create(&self, name: &str) -> Result<Set> {
        let dirs: Vec<PathBuf> = self.parents.iter().map(|p| p.join(name)).collect();
        for dir in &dirs {
            fs::create_dir(dir).with_context(|| dir.display().to_string())?;
        }
        let limits: &[(usize, &str, &str)] = if self.v2 {
            &[(0, "memory.max", "536870912"), (0, "cpu.max", "100000 100000"), (0, "pids.max", "256")]
        } else {
            &[
                (0, "memory.limit_in_bytes", "536870912"),
                (1, "cpu.cfs_quota_us", "100000"),
                (2, "pids.max", "256"),
            ]
        };
        for (dir, file, value) in limits {
            fs::write(dirs[*dir].join(file), value).with_context(|| (*file).to_owned())?;
        }
        Ok(Set { dirs })
    }
}

impl Set {
    pub fn join(&self, pid: i64) -> Result<()> {
        for dir in &self.dirs {
            fs::write(dir.join("cgroup.procs"), pid.to_string()).context("cgroup.procs")?;
        }
        Ok(())
    }

    pub fn remove(self) -> Result<()> {
        for dir in &self.dirs {
            let mut tries = 0;
            while let Err(error) = fs::remove_dir(dir) {
                tries += 1;
                if tries > 2_000 {
                    return Err(error).with_context(|| dir.display().to_string());
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for parent in &self.parents {
            let _ = fs::remove_dir(parent);
            let _ = parent.parent().map(fs::remove_dir);
        }
    }
}
