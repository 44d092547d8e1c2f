//! Dockerfiles, built by a program that can: the first of buildah, podman and docker.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::error::Error;

const BUILDERS: [&str; 3] = ["buildah", "podman", "docker"];

/// Builds `file` in the context `dir` and leaves an OCI archive at `archive`. What the builder says goes to
/// standard error.
pub async fn build(dir: &Path, file: &Path, archive: &Path) -> Result<(), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let (name, program) = find(&path).ok_or(Error::NoBuilder)?;
    let tag = format!("localhost/rollyard-build:{:016x}", rand::random::<u64>());
    let steps = steps(name, dir, file, &tag, archive);
    let built = async {
        for step in &steps {
            run(name, &program, step).await?;
        }
        Ok(())
    }
    .await;
    let removal: [OsString; 2] = ["rmi".into(), tag.into()];
    if built.is_ok() {
        run(name, &program, &removal).await?;
    }
    built
}

/// Whether a Dockerfile can be built here.
pub fn is_installed() -> bool {
    find(&std::env::var_os("PATH").unwrap_or_default()).is_some()
}

/// Name and path of the first builder in `path`.
fn find(path: &OsStr) -> Option<(&'static str, PathBuf)> {
    let dirs: Vec<PathBuf> = std::env::split_paths(path).collect();
    BUILDERS.into_iter().find_map(|name| {
        let at = dirs.iter().map(|dir| dir.join(name)).find(|program| program.is_file())?;
        Some((name, at))
    })
}

fn steps(name: &str, dir: &Path, file: &Path, tag: &str, archive: &Path) -> Vec<Vec<OsString>> {
    let words = |words: &[&OsStr]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let o = OsStr::new;
    let build = words(&[o("build"), o("--file"), file.as_os_str(), o("--tag"), o(tag), dir.as_os_str()]);
    let save = match name {
        "buildah" => {
            let mut target = OsString::from("oci-archive:");
            target.push(archive);
            words(&[o("push"), o(tag), &target])
        }
        "podman" => {
            words(&[o("save"), o("--format"), o("oci-archive"), o("--output"), archive.as_os_str(), o(tag)])
        }
        _ => words(&[o("save"), o("--output"), archive.as_os_str(), o(tag)]),
    };
    vec![build, save]
}

async fn run(name: &'static str, program: &Path, step: &[OsString]) -> Result<(), Error> {
    let stderr = std::io::stderr();
    let to_stderr = std::os::fd::AsFd::as_fd(&stderr).try_clone_to_owned();
    let to_stderr = to_stderr.map_err(|source| Error::Builder { name, problem: source.to_string() })?;
    let status = Command::new(program).args(step).stdin(Stdio::null()).stdout(to_stderr).status().await;
    let status = status.map_err(|source| Error::Builder { name, problem: source.to_string() })?;
    if status.success() {
        return Ok(());
    }
    let what = step.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    Err(Error::Builder { name, problem: format!("`{name} {what}` ended with {status}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_builder_that_is_installed_is_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().as_os_str();
        assert_eq!(find(path), None);
        for name in ["docker", "podman", "buildah"] {
            std::fs::write(dir.path().join(name), "").expect("written");
            assert_eq!(find(path), Some((name, dir.path().join(name))));
        }
    }

    #[test]
    fn each_builder_is_asked_in_its_own_words() {
        let line = |name| {
            let steps = steps(name, Path::new("/ctx"), Path::new("/ctx/Df"), "t:1", Path::new("/a.tar"));
            let words = |step: &Vec<OsString>| step.join(OsStr::new(" ")).to_string_lossy().into_owned();
            steps.iter().map(words).collect::<Vec<_>>().join("; ")
        };
        let build = "build --file /ctx/Df --tag t:1 /ctx; ";
        assert_eq!(line("buildah"), format!("{build}push t:1 oci-archive:/a.tar"));
        assert_eq!(line("podman"), format!("{build}save --format oci-archive --output /a.tar t:1"));
        assert_eq!(line("docker"), format!("{build}save --output /a.tar t:1"));
    }
}
