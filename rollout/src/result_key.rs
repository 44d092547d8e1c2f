//! The key of a step's result, which groups and jobs of a project share.
//!
//! `${image.digest}` in a key is known on a node and nowhere else, so a key stays open there until
//! a digest is at hand.

use std::fmt;

use crate::checkpoint::Checkpoint;

/// A key with every lookup done but `${image.digest}`.
///
/// ```
/// use rollout::result_key::ResultKey;
/// let parts = vec!["base/".to_owned(), "/1".to_owned()];
/// let key = ResultKey { project: String::new(), image: "host".to_owned(), parts };
/// assert_eq!(key.to_string(), "base/${image.digest}/1");
/// assert_eq!(key.over("host:77d0").key, "base/host:77d0/1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResultKey {
    pub project: String,
    /// The image of the step as its spec writes it, lookups done.
    pub image: String,
    /// The text around the digests: one part more than there are digests.
    pub parts: Vec<String>,
}

/// What a stored result goes by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResultName {
    pub project: String,
    pub key: String,
}

impl ResultKey {
    /// Does it take the digest of the image?
    pub fn needs_digest(&self) -> bool {
        self.parts.len() > 1
    }

    /// The name of a result over an image with this digest.
    pub fn over(&self, digest: &str) -> ResultName {
        ResultName { project: self.project.clone(), key: self.parts.join(digest) }
    }

    /// The name of a result that is this workspace.
    pub fn of(&self, checkpoint: &Checkpoint) -> ResultName {
        self.over(&checkpoint.image)
    }
}

/// As it is written in the spec, as far as it is still open.
impl fmt::Display for ResultKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts.join("${image.digest}"))
    }
}

impl fmt::Display for ResultName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}
