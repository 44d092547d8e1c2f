//! A workspace at rest: the image it started from and the layers of changes over it.
//!
//! A [`Layer`] is what one sandbox changed, packed from its writable tree. Its id is the sha256 of
//! a canonical manifest (path, kind, mode, owner, extended attributes, size, content hash), so two
//! trees that are the same have one id, however they are stored. A [`Checkpoint`] is a stack of
//! layers; its id follows from the ids of its parts, so nobody has to be asked for one.
//!
//! ```
//! use rollout::checkpoint::Checkpoint;
//! let empty = Checkpoint { image: "host:abc".to_owned(), layers: Vec::new() };
//! assert!(empty.id().to_string().starts_with("sha256:"));
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ids::ParseIdError;
use crate::quantity::Bytes;

/// The most layers of a checkpoint; a stack that would be higher is collapsed into fewer.
pub const LAYERS_MAX: usize = 32;

const PREFIX: &str = "sha256:";
/// What the text of a [`Layer`] begins with.
pub const LAYER_PREFIX: &str = "layer:";

macro_rules! digest_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name([u8; 32]);

        impl $name {
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }
            /// 64 hexadecimal digits, as in file names.
            pub fn hex(self) -> String {
                hex::encode(self.0)
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "sha256:{}", self.hex())
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
        impl std::str::FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let parse = || {
                    let digits = text.strip_prefix("sha256:")?;
                    let lower = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
                    let mut bytes = [0; 32];
                    (digits.len() == 64 && lower).then_some(())?;
                    hex::decode_to_slice(digits, &mut bytes).ok()?;
                    Some(Self(bytes))
                };
                parse().ok_or_else(|| ParseIdError {
                    text: text.chars().take(80).collect(),
                    kind: $kind,
                    form: "sha256: and 64 hexadecimal digits",
                })
            }
        }
        impl TryFrom<String> for $name {
            type Error = ParseIdError;
            fn try_from(text: String) -> Result<Self, ParseIdError> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

pub(crate) use digest_id;

digest_id!(
    /// A layer, by the digest of its canonical manifest.
    LayerId, "layer"
);
digest_id!(
    /// A checkpoint, by the digest of its image and its layers.
    CheckpointId, "checkpoint"
);

/// What one sandbox changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Layer {
    pub id: LayerId,
    /// Of the packed form in the blob store: sha256 of its bytes, hex, and their number.
    pub blob: String,
    pub packed: Bytes,
    /// Bytes of data in its files, holes not counted, and the number of its entries.
    pub content: Bytes,
    pub entries: u64,
}

/// `layer:<id hex>:<blob hex>:<packed bytes>:<content bytes>:<entries>`, as in the column of a row
/// that names a tree.
impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, blob, packed, content, entries } = self;
        write!(f, "{LAYER_PREFIX}{}:{blob}:{}:{}:{entries}", id.hex(), packed.0, content.0)
    }
}

impl FromStr for Layer {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let parse = || {
            let mut parts = text.strip_prefix(LAYER_PREFIX)?.split(':');
            let id = format!("{PREFIX}{}", parts.next()?).parse().ok()?;
            let blob: LayerId = format!("{PREFIX}{}", parts.next()?).parse().ok()?;
            let mut number = || crate::quantity::whole(parts.next()?);
            let (packed, content, entries) = (Bytes(number()?), Bytes(number()?), number()?);
            parts.next().is_none().then(|| Self { id, blob: blob.hex(), packed, content, entries })
        };
        parse().ok_or_else(|| ParseIdError {
            text: text.chars().take(160).collect(),
            kind: "layer",
            form: "layer:<id>:<blob>:<packed bytes>:<content bytes>:<entries>",
        })
    }
}

/// An immutable workspace: files only, never processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Digest of the image at the bottom: it can be restored over no other.
    pub image: String,
    /// Bottom first; at most [`LAYERS_MAX`].
    pub layers: Vec<Layer>,
}

impl Checkpoint {
    pub fn id(&self) -> CheckpointId {
        let mut hash = Sha256::new();
        hash.update("rollyard checkpoint 1\n");
        hash.update(&self.image);
        for layer in &self.layers {
            hash.update("\n");
            hash.update(layer.id.0);
        }
        CheckpointId(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(byte: u8, blob: &str) -> Layer {
        let id = LayerId::from_bytes([byte; 32]);
        Layer { id, blob: blob.to_owned(), packed: Bytes(1), content: Bytes(1), entries: 1 }
    }

    #[test]
    fn an_id_names_the_stack_and_not_how_it_is_stored() {
        let of = |layers| Checkpoint { image: "host:a".to_owned(), layers }.id();
        assert_eq!(of(vec![layer(1, "x")]), of(vec![layer(1, "y")]));
        assert_ne!(of(vec![layer(1, "x"), layer(2, "x")]), of(vec![layer(2, "x"), layer(1, "x")]));
        assert_ne!(of(vec![]), Checkpoint { image: "host:b".to_owned(), layers: vec![] }.id());
    }

    #[test]
    fn ids_survive_their_text_and_near_misses_are_refused() {
        let id = LayerId::from_bytes([0xab; 32]);
        assert_eq!(id.to_string().parse(), Ok(id));
        let layer = layer(7, &"0f".repeat(32));
        assert_eq!(layer.to_string().parse(), Ok(layer.clone()));
        for text in [format!("{layer}:"), layer.to_string().replace("layer:", ""), "layer:::::".to_owned()] {
            assert!(text.parse::<Layer>().is_err(), "{text}");
        }
        for text in [id.hex(), id.to_string().to_uppercase(), format!("{id}0"), "sha256:".to_owned()] {
            assert!(text.parse::<LayerId>().is_err(), "{text}");
        }
    }
}
