//! What no sandbox can be made of, said before anything is made; and what the broker said, in the words of a refusal.

use std::io;

use super::{CreateError, LOWERS_MAX, Problem, SandboxSpec, Step};
use crate::sandbox::image::Image;

/// A workspace is restored over the image it was saved over, and over no other.
pub(in crate::sandbox) fn check_layers(spec: &SandboxSpec, image: &Image) -> Result<(), CreateError> {
    if let Some(expected) = spec.image_digest.as_ref().filter(|expected| **expected != image.digest) {
        let problem = format!("it is {} here, and the workspace was saved over {expected}", image.digest);
        return Err(CreateError::ImageMissing { image: spec.image.clone(), problem });
    }
    let trees = image.lowers.len() + spec.layers.len();
    if trees > LOWERS_MAX {
        let problem = format!("{trees} trees under one sandbox, of {LOWERS_MAX}");
        return Err(CreateError::NotEnforceable { guarantee: "layers", problem });
    }
    Ok(())
}

/// What would be a bad name or path anywhere below.
pub(in crate::sandbox) fn check(spec: &SandboxSpec) -> Result<(), CreateError> {
    const ID_MAX: usize = 63;
    let invalid = |action: String| CreateError::Failed { action, source: io::ErrorKind::InvalidInput.into() };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if spec.id.is_empty() || spec.id.len() > ID_MAX || !spec.id.bytes().all(plain) {
        return Err(invalid(format!("naming the sandbox: an id is 1 to {ID_MAX} of [a-z0-9-]")));
    }
    let bad = |problem: &str| {
        Err(CreateError::BadRootfs {
            image: spec.image.clone(),
            problem: format!("working directory `{}` {problem}", spec.workdir),
        })
    };
    let mut parts = spec.workdir.split('/').filter(|part| !part.is_empty()).peekable();
    if !spec.workdir.starts_with('/') || spec.workdir.len() > 4095 || spec.workdir.contains('\0') {
        return bad("is not an absolute path");
    }
    if parts.clone().any(|part| part == ".." || part == ".") {
        return bad("holds `.` or `..`");
    }
    if matches!(parts.peek(), Some(&"proc" | &"dev" | &"sys" | &"usr")) {
        return bad("lies under what is mounted over");
    }
    Ok(())
}

pub(super) fn refusal(spec: &SandboxSpec, step: Step, problem: Problem) -> CreateError {
    match problem {
        Problem::BadRootfs(problem) => CreateError::BadRootfs { image: spec.image.clone(), problem },
        Problem::Full { ceiling, used, limit } => {
            let ceiling = if ceiling == "loop disks" { "loop disks" } else { "uid ranges" };
            CreateError::Busy { ceiling, used, limit }
        }
        Problem::Errno(errno) => CreateError::Failed {
            action: step.as_str().to_owned(),
            source: io::Error::from_raw_os_error(errno),
        },
    }
}
