use std::fmt;
use std::str::FromStr;

use crate::Error;

const HEX_LEN: usize = 64;

/// A sha256 as 64 lower-case hex digits: safe as a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(hex::encode(sha2::Sha256::digest(bytes)))
    }

    pub(crate) fn finished(hasher: sha2::Sha256) -> Self {
        use sha2::Digest as _;
        Self(hex::encode(hasher.finalize()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `sha256/ab/cdef...`: 256 directories, so that none holds every blob.
    pub(crate) fn location(&self) -> String {
        let (first, rest) = self.0.split_at(2);
        format!("sha256/{first}/{rest}")
    }
}

impl FromStr for Digest {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() == HEX_LEN && text.bytes().all(lower_hex) {
            Ok(Self(text.to_owned()))
        } else {
            let shown = text.chars().take(80).collect::<String>().escape_default().to_string();
            Err(Error::BadDigest { shown })
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_64_lower_hex_digits_are_a_digest() {
        let good = "0123456789abcdef".repeat(4);
        assert_eq!(
            good.parse::<Digest>().unwrap().location(),
            format!("sha256/01/23456789abcdef{}", "0123456789abcdef".repeat(3))
        );
        let traversal = format!("../../{}", "a".repeat(58));
        for text in ["", &good[1..], &good.to_uppercase(), &traversal, &"g".repeat(64), &"é".repeat(32)] {
            assert!(matches!(text.parse::<Digest>(), Err(Error::BadDigest { .. })), "{text}");
        }
    }
}
