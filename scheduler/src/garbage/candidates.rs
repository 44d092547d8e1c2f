//! Blobs that may go, until somebody is found who names them.

use std::collections::HashMap;
use std::time::SystemTime;

use blobs::{Digest, Listed};
use serde_json::Value;

use super::Sum;

/// Before the digest of an image in the blob store.
const STORED_PREFIX: &str = "stored:sha256:";
/// Hexadecimal digits of a digest.
const DIGITS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub size: u64,
    pub put_at: SystemTime,
    /// A checkpoint had it once.
    pub was_layer: bool,
}

#[derive(Debug, Default)]
pub(super) struct Candidates(HashMap<String, Candidate>);

impl Candidates {
    pub fn add(&mut self, listed: Listed) {
        let Listed { digest, size, put_at } = listed;
        self.0.insert(digest.to_string(), Candidate { size, put_at, was_layer: false });
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn was_layer(&mut self, blob: &str) {
        if let Some(candidate) = self.0.get_mut(blob) {
            candidate.was_layer = true;
        }
    }

    /// Its bytes, if it was one.
    pub fn keep(&mut self, blob: &str) -> Option<u64> {
        self.0.remove(blob).map(|candidate| candidate.size)
    }

    /// Keeps every blob whose digest stands in a text of `value`, however deep.
    pub fn keep_named_in(&mut self, value: &Value, kept: &mut Sum) {
        match value {
            Value::String(text) => {
                for blob in digests_in(text) {
                    kept.add_some(self.keep(blob));
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.keep_named_in(item, kept)),
            Value::Object(fields) => fields.values().for_each(|value| self.keep_named_in(value, kept)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    pub fn into_iter(self) -> impl Iterator<Item = (Digest, Candidate)> {
        self.0.into_iter().filter_map(|(blob, candidate)| Some((blob.parse().ok()?, candidate)))
    }
}

/// What looks like a digest in a text: 64 hexadecimal digits that nothing like them stands beside.
/// Too many are no harm: each keeps a blob that might have gone.
pub(super) fn digests_in(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit() && !('a'..='f').contains(&c)).filter(|run| run.len() == DIGITS)
}

/// Of the manifests or indexes that a text names as images in the blob store.
pub(super) fn images_in(text: &str) -> impl Iterator<Item = String> {
    text.split(STORED_PREFIX)
        .skip(1)
        .filter_map(|rest| digests_in(rest.get(..DIGITS)?).next().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_found_wherever_they_stand() {
        let (id, blob) = ("ab".repeat(32), "0".repeat(64));
        let text = format!("layer:{id}:{blob}:1:2:3");
        assert_eq!(digests_in(&text).collect::<Vec<_>>(), [id.as_str(), blob.as_str()]);
        assert_eq!(digests_in(&format!("{id}0")).count(), 0, "too long to be one");
        assert_eq!(digests_in(&format!("x{id}x")).count(), 1);

        let mut candidates = Candidates::default();
        let digest: Digest = blob.parse().unwrap();
        candidates.add(Listed { digest, size: 7, put_at: SystemTime::UNIX_EPOCH });
        let mut kept = Sum::default();
        candidates.keep_named_in(&serde_json::json!({"a": [1, {"b": text}]}), &mut kept);
        assert_eq!((candidates.len(), kept), (0, Sum { blobs: 1, bytes: 7 }));
    }
}
