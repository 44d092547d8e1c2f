//! Names people choose: jobs, steps, outputs, nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// `[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?`: safe as a path component, a flag value and a
/// log field, in every shell.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{shown}` is not a name; expected 1 to 63 of A-Z a-z 0-9 . _ - that start and end with a letter or digit"
)]
pub struct BadName {
    /// The text with everything unprintable escaped.
    pub shown: String,
}

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Step, output and model names hold no dot: `step.output` is the path of an artifact.
    pub fn has_dot(&self) -> bool {
        self.0.contains('.')
    }
}

impl FromStr for Name {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        let bytes = text.as_bytes();
        let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let ends = [bytes.first(), bytes.last()];
        let valid = bytes.len() <= NAME_BYTES_MAX
            && ends.iter().all(|b| b.is_some_and(|b| b.is_ascii_alphanumeric()))
            && bytes.iter().all(inner);
        if valid { Ok(Self(text.to_owned())) } else { Err(BadName { shown: crate::text::shown(text, 80) }) }
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;
    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}
impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}
impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused_and_shown_escaped() {
        for text in ["", "-a", "a-", "../x", "a/b", "a b", "a\u{202e}b", "а", "a\0b", &"x".repeat(64)] {
            let err = text.parse::<Name>().unwrap_err();
            assert!(err.shown.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{err}");
        }
        for text in ["a", "A1", "swe-grpo_qwen3.v2", &"x".repeat(63)] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
    }
}
