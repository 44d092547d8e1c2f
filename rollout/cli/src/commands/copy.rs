//! `cp`: files and directories into a sandbox and out of one. What a sandbox says of its files may be
//! hostile: no name leads out of the copy, and no link is followed on either side.

mod down;
mod up;

use std::path::{Path, PathBuf};

use rollout_wire::v1::{FileInfo, StatFileRequest};

use super::Context;
use super::sandbox::named;
use crate::args::sandboxes::{Cp, Place};
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::view::{Copied, LeftOut};

/// Files, directories and links of one copy.
const COPY_ENTRIES_MAX: u64 = 1_000_000;
/// Directories in each other.
const COPY_DEPTH_MAX: usize = 256;
/// What the yard says of a path where nothing is.
const NO_SUCH_FILE: &str = "no_such_file";

pub async fn copy(context: &Context, args: &Cp) -> Result<ExitStatus, Error> {
    let ends = (Place::parse(&args.from), Place::parse(&args.to));
    let mut sum = Sum::new(args.max_bytes.0, Copied { from: args.from.clone(), ..Copied::default() });
    match ends {
        (Place::In { sandbox, path }, Place::Here(to)) => {
            let remote = Remote::open(context, &sandbox).await?;
            sum.copied.to = down::copy(&remote, &path, &to, &mut sum).await?.display().to_string();
        }
        (Place::Here(from), Place::In { sandbox, path }) => {
            let remote = Remote::open(context, &sandbox).await?;
            let to = up::copy(&remote, &from, &path, &mut sum).await?;
            sum.copied.to = format!("{}:{to}", remote.sandbox);
        }
        (Place::In { .. }, Place::In { .. }) => {
            return Err(Error::BadCopy { problem: "both are in sandboxes" });
        }
        (Place::Here(_), Place::Here(_)) => {
            return Err(Error::BadCopy { problem: "neither is in a sandbox" });
        }
    }
    Context::print(&context.output.copied(&sum.copied))?;
    match sum.copied.left_out.len() {
        0 => Ok(ExitStatus::Success),
        left_out => Err(Error::CopyIncomplete { left_out }),
    }
}

/// The sandbox at one end.
struct Remote {
    client: Client,
    sandbox: String,
}

impl Remote {
    async fn open(context: &Context, sandbox: &str) -> Result<Self, Error> {
        let sandbox = named(sandbox)?;
        Ok(Self { client: Client::connect(context.url()?).await?, sandbox })
    }

    async fn stat(&self, path: &str) -> Result<FileInfo, Error> {
        let request =
            StatFileRequest { sandbox: self.sandbox.clone(), claim: String::new(), path: path.to_owned() };
        self.client.done(self.client.sandboxes().stat_file(request).await)
    }

    /// None: nothing is there.
    async fn stat_if_there(&self, path: &str) -> Result<Option<FileInfo>, Error> {
        match self.stat(path).await {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.code() == NO_SUCH_FILE => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What is copied so far, within bounds.
struct Sum {
    copied: Copied,
    bytes_max: u64,
    entries: u64,
}

impl Sum {
    const fn new(bytes_max: u64, copied: Copied) -> Self {
        Self { copied, bytes_max, entries: 0 }
    }

    /// Before anything of it is written.
    fn entry(&mut self) -> Result<(), Error> {
        self.entries += 1;
        if self.entries > COPY_ENTRIES_MAX {
            return Err(Error::CopyTooLarge { what: "entries (COPY_ENTRIES_MAX)", limit: COPY_ENTRIES_MAX });
        }
        Ok(())
    }

    fn file(&mut self, bytes: u64) -> Result<(), Error> {
        self.entry()?;
        let sum = self.copied.bytes.saturating_add(bytes);
        if sum > self.bytes_max {
            return Err(Error::CopyTooLarge { what: "bytes", limit: self.bytes_max });
        }
        self.copied.bytes = sum;
        self.copied.files += 1;
        Ok(())
    }

    fn leave_out(&mut self, path: String, why: &str) {
        self.copied.left_out.push(LeftOut { path, why: why.to_owned() });
    }
}

fn deeper(depth: usize) -> Result<usize, Error> {
    if depth == COPY_DEPTH_MAX {
        return Err(Error::CopyTooLarge {
            what: "directories in each other (COPY_DEPTH_MAX)",
            limit: COPY_DEPTH_MAX as u64,
        });
    }
    Ok(depth + 1)
}

/// The last part of a path; none of `/`, `.` and what ends in `..`.
fn last_name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    is_name(name).then_some(name)
}

/// Whether it names an entry of a directory, and nothing else.
fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

fn join(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// Where a copy goes: below `to` if that is a directory, else `to` itself.
fn destination(to: &Path, name: Option<&str>) -> Result<PathBuf, Error> {
    match (to.is_dir(), name) {
        (false, _) => Ok(to.to_owned()),
        (true, Some(name)) => Ok(to.join(name)),
        (true, None) => Err(Error::CopyExists { path: to.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        for (path, name) in [
            ("/a/b", Some("b")),
            ("a/", Some("a")),
            ("a", Some("a")),
            ("/", None),
            (".", None),
            ("a/..", None),
        ] {
            assert_eq!(last_name(path), name, "{path}");
        }
        for name in ["", ".", "..", "a/b", "/a", "a\0b"] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(is_name("a b") && is_name("...") && is_name("-rf"));
        assert_eq!((join("/", "a"), join("b/", "a")), ("/a".to_owned(), "b/a".to_owned()));
    }

    #[test]
    fn a_copy_is_bounded_before_it_is_written() {
        let mut sum = Sum::new(10, Copied::default());
        sum.file(6).expect("room");
        sum.file(4).expect("room");
        assert_eq!(sum.file(1).expect_err("full").code(), "copy_too_large");
        assert_eq!((sum.copied.bytes, sum.copied.files), (10, 2));
        assert_eq!(sum.file(u64::MAX).expect_err("full").code(), "copy_too_large");
        assert!(deeper(COPY_DEPTH_MAX).is_err() && deeper(0).is_ok());
    }
}
