//! The bytes of an action log: a head, then records. A record is its length, a check, and an encoded
//! `v1::Action`. What a crash left half written fails its check, and nothing behind it is read.

use prost::Message as _;
use rollout_wire::v1;
use sha2::{Digest as _, Sha256};

/// First bytes of a log; the number is the version of everything behind it.
pub(super) const HEAD: &[u8; 16] = b"rollyard-acts-1\n";
/// Before each record: its length, and the first bytes of its SHA-256.
pub(super) const FRAME: usize = 4 + CHECK;
const CHECK: usize = 8;
/// A record with the largest streams, file and words there can be, and room.
pub(super) const RECORD_MAX: usize = 8 << 20;

fn check(body: &[u8]) -> [u8; CHECK] {
    let digest = Sha256::digest(body);
    std::array::from_fn(|at| digest[at])
}

/// The bytes of one record.
pub(super) fn encode(action: &v1::Action) -> Vec<u8> {
    let body = action.encode_to_vec();
    let mut out = Vec::with_capacity(FRAME + body.len());
    out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(check(&body));
    out.extend(body);
    out
}

/// The record that `bytes` begin with, and its length with the frame. None: there is no whole one.
pub(super) fn decode(bytes: &[u8]) -> Option<(v1::Action, usize)> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (expected, rest) = rest.split_first_chunk::<CHECK>()?;
    let len = usize::try_from(u32::from_le_bytes(*len)).ok().filter(|len| *len <= RECORD_MAX)?;
    let body = rest.get(..len)?;
    if check(body) != *expected {
        return None;
    }
    Some((v1::Action::decode(body).ok()?, FRAME + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action() -> v1::Action {
        v1::Action {
            ordinal: 3,
            action_id: "a.3".into(),
            payload_sha256: "ab".into(),
            state: "done".into(),
            result: Some(v1::ActResult {
                exit_code: Some(2),
                stdout: b"\xff\0".to_vec(),
                ..Default::default()
            }),
        }
    }

    #[test]
    fn a_record_keeps_its_form() {
        // What logs of version 1 look like: a change here needs another head.
        let golden = "190000009eee5701e1929d6508031203612e331a0261622204646f6e652a0608022202ff00";
        let bytes = encode(&action());
        assert_eq!(hex::encode(&bytes), golden);
        assert_eq!(decode(&bytes), Some((action(), bytes.len())));
        assert_eq!(decode(&[bytes.clone(), vec![1, 2]].concat()), Some((action(), bytes.len())));
    }

    #[test]
    fn a_record_that_is_cut_or_changed_is_none() {
        let bytes = encode(&action());
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(decode(&bad), None, "changed at {at}");
        }
        let huge = [&u32::MAX.to_le_bytes()[..], &[0; 64]].concat();
        assert_eq!(decode(&huge), None);
    }
}
