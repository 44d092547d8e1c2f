//! The image of every subject: a shell, a few programs and the libraries they load.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What the commands of a rollout use, and what Harbor uses inside its containers.
const PROGRAMS: &[&str] = &[
    "bash", "sh", "cat", "echo", "ls", "mkdir", "rm", "cp", "mv", "chmod", "chown", "tar", "sleep", "test",
    "env", "true", "id", "mktemp", "tee", "head", "tail", "grep", "sed", "touch", "stat", "find", "dirname",
    "basename", "tr", "wc",
];
const FOLDERS: &[&str] =
    &["bin", "usr/bin", "tmp", "proc", "sys", "dev", "etc", "root", "logs", "workspace", "in"];

/// Makes the tree at `root`, from the programs of this machine.
pub fn build(root: &Path) -> Result<()> {
    for folder in FOLDERS {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    for program in PROGRAMS {
        let found =
            ["/usr/bin", "/bin"].iter().map(|dir| Path::new(dir).join(program)).find(|path| path.exists());
        let path = fs::canonicalize(found.with_context(|| format!("`{program}` is not installed"))?)?;
        fs::copy(&path, root.join("bin").join(program))?;
        for library in libraries(&path)? {
            let to = root.join(library.strip_prefix("/")?);
            fs::create_dir_all(to.parent().context("a library in the root")?)?;
            fs::copy(&library, &to)?;
        }
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    Ok(())
}

fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    ensure!(output.status.success(), "ldd {}: {}", program.display(), output.status);
    let text = String::from_utf8(output.stdout)?;
    let paths = text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(paths.collect())
}
