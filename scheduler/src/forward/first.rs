//! The name of the sandbox in the first message of a call, read as far as it takes.

use std::collections::VecDeque;
use std::pin::Pin;

use http_body::Body as _;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;

/// Bytes of a first message within which the name must be. Programs write fields in order, so it is at
/// the very start.
const LOOKED_AT_BYTES_MAX: usize = 128 << 10;
/// Before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Of a name: a rollout, a step and a node.
const NAME_BYTES_MAX: usize = 256;

/// Where a message has the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In its first field.
    Message,
    /// In the first field of its first field.
    Start,
}

/// What was read of a call.
#[derive(Debug)]
pub(super) struct First {
    pub sandbox: String,
    /// All that was read, to be sent on.
    pub frames: VecDeque<Bytes>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum FirstError {
    #[error("the call ended without a first message")]
    Ended,
    #[error("the first message is compressed; send it as it is")]
    Compressed,
    #[error("the first message names no sandbox; a call of streams begins with `start` or `open`")]
    Nameless,
    #[error(
        "the first message does not name its sandbox within {LOOKED_AT_BYTES_MAX} bytes (LOOKED_AT_BYTES_MAX)"
    )]
    TooFar,
    #[error("the first message is none of this call")]
    Malformed,
    #[error("the call broke off")]
    Broken(Status),
}

pub(super) async fn read(body: &mut Body, place: Place) -> Result<First, FirstError> {
    let (mut frames, mut read) = (VecDeque::new(), Vec::new());
    loop {
        if let Some(sandbox) = look(&read, place)? {
            return Ok(First { sandbox, frames });
        }
        if read.len() > LOOKED_AT_BYTES_MAX {
            return Err(FirstError::TooFar);
        }
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        let frame = frame.ok_or(FirstError::Ended)?.map_err(FirstError::Broken)?;
        if let Ok(data) = frame.into_data() {
            let room = LOOKED_AT_BYTES_MAX + 1 - read.len().min(LOOKED_AT_BYTES_MAX);
            read.extend_from_slice(&data[..data.len().min(room)]);
            frames.push_back(data);
        }
    }
}

/// None: there is not enough yet.
fn look(read: &[u8], place: Place) -> Result<Option<String>, FirstError> {
    let Some((prefix, message)) = read.split_at_checked(PREFIX_BYTES) else { return Ok(None) };
    if prefix[0] != 0 {
        return Err(FirstError::Compressed);
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    let message = Part { bytes: &message[..message.len().min(length)], length };
    let name = match place {
        Place::Message => message.first_field(NAME_BYTES_MAX)?,
        Place::Start => match message.first_field(usize::MAX)? {
            Found::Part(start) => start.first_field(NAME_BYTES_MAX)?,
            Found::NotYet => Found::NotYet,
        },
    };
    let name = match name {
        Found::Part(name) if name.is_whole() => name,
        Found::Part(_) | Found::NotYet => return Ok(None),
    };
    std::str::from_utf8(name.bytes).map(|name| Some(name.to_owned())).map_err(|_| FirstError::Malformed)
}

/// As much of a part of a message as was read.
#[derive(Clone, Copy)]
struct Part<'a> {
    bytes: &'a [u8],
    /// When all of it is there.
    length: usize,
}

enum Found<'a> {
    Part(Part<'a>),
    /// It may be in what was not read yet.
    NotYet,
}

/// A number, and what is behind it; none if it is cut off.
fn varint(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, FirstError> {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index).min(63);
        if byte & 0x80 == 0 {
            return Ok(Some((value, &bytes[index + 1..])));
        }
    }
    if bytes.len() >= 10 { Err(FirstError::Malformed) } else { Ok(None) }
}

impl<'a> Part<'a> {
    fn is_whole(&self) -> bool {
        self.bytes.len() == self.length
    }

    /// The field with number 1, of bytes, wherever it stands; of at most `bytes_max`.
    fn first_field(self, bytes_max: usize) -> Result<Found<'a>, FirstError> {
        let cut_off = if self.is_whole() { Err(FirstError::Malformed) } else { Ok(Found::NotYet) };
        let (mut rest, end) = (self.bytes, self.bytes.len());
        while !rest.is_empty() {
            let Some((key, behind)) = varint(rest)? else { return cut_off };
            // Of the wire format: 0 a number, 1 and 5 fixed widths, 2 bytes behind their length.
            let skipped = match key & 7 {
                0 => match varint(behind)? {
                    Some((_, behind)) => Some(behind),
                    None => return cut_off,
                },
                1 => behind.get(8..),
                5 => behind.get(4..),
                2 => {
                    let Some((length, behind)) = varint(behind)? else { return cut_off };
                    let length = usize::try_from(length).map_err(|_| FirstError::Malformed)?;
                    // What is left of the whole, read or not.
                    let left = self.length - (end - behind.len());
                    if length > left {
                        return Err(FirstError::Malformed);
                    }
                    if key >> 3 == 1 {
                        if length > bytes_max {
                            return Err(FirstError::Malformed);
                        }
                        let bytes = &behind[..behind.len().min(length)];
                        return Ok(Found::Part(Part { bytes, length }));
                    }
                    behind.get(length..)
                }
                _ => return Err(FirstError::Malformed),
            };
            match skipped {
                Some(behind) => rest = behind,
                None => return cut_off,
            }
        }
        if self.is_whole() { Err(FirstError::Nameless) } else { Ok(Found::NotYet) }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use rollout_wire::v1;
    use rollout_wire::v1::exec_input::Input;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap();
        [&[0][..], &length.to_be_bytes(), message].concat()
    }

    fn act() -> Vec<u8> {
        let payload = v1::PutFile { data: vec![7; 100_000], ..v1::PutFile::default() };
        let act = v1::ActRequest {
            sandbox: "j0000000000007-g0-s0@a".to_owned(),
            payload: Some(v1::act_request::Payload::Put(payload)),
            ..v1::ActRequest::default()
        };
        framed(&act.encode_to_vec())
    }

    fn exec(input: Input) -> Vec<u8> {
        framed(&v1::ExecInput { input: Some(input) }.encode_to_vec())
    }

    fn start() -> Vec<u8> {
        exec(Input::Start(v1::ExecStart {
            sandbox: "j0000000000007-g0-s0".to_owned(),
            user: "root".to_owned(),
            ..v1::ExecStart::default()
        }))
    }

    #[test]
    fn a_name_is_found_as_soon_as_it_is_there() {
        for (message, place, name) in [
            (act(), Place::Message, "j0000000000007-g0-s0@a"),
            (start(), Place::Start, "j0000000000007-g0-s0"),
        ] {
            let at = message.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
            for cut in 0..message.len().min(200) {
                let found = look(&message[..cut], place).unwrap();
                let there = cut >= at + name.len();
                assert_eq!(found.as_deref(), there.then_some(name), "cut at {cut}");
            }
            assert_eq!(look(&message, place).unwrap().as_deref(), Some(name));
        }
    }

    #[test]
    fn a_name_behind_other_fields_is_found_too() {
        let mut message = Vec::new();
        // Field 9 as a number, 10 as bytes, 11 and 12 of fixed widths, then field 1.
        message.extend([9 << 3, 0x96, 0x01, 10 << 3 | 2, 3, b'a', b'b', b'c']);
        message.extend([11 << 3 | 1, 1, 2, 3, 4, 5, 6, 7, 8, 12 << 3 | 5, 1, 2, 3, 4]);
        message.extend([1 << 3 | 2, 2, b'h', b'i']);
        assert_eq!(look(&framed(&message), Place::Message).unwrap().as_deref(), Some("hi"));
    }

    #[test]
    fn what_names_no_sandbox_is_refused() {
        let nameless = v1::StatFileRequest { path: "/x".to_owned(), ..v1::StatFileRequest::default() };
        let stdin = exec(Input::Stdin(b"ls".to_vec()));
        let long = v1::StatFileRequest { sandbox: "a".repeat(257), ..v1::StatFileRequest::default() };
        let refused = |message: &[u8], place| look(message, place).unwrap_err().to_string();
        let nothing = FirstError::Nameless.to_string();
        assert_eq!(refused(&framed(&nameless.encode_to_vec()), Place::Message), nothing);
        assert_eq!(refused(&framed(&[]), Place::Message), nothing);
        assert_eq!(refused(&stdin, Place::Start), nothing);
        let malformed = FirstError::Malformed.to_string();
        assert_eq!(refused(&framed(&long.encode_to_vec()), Place::Message), malformed);
        // A length beyond the message, a group, a number without end, and no text.
        for bytes in [&[0x0a, 200, 1][..], &[0x0b], &[0xff; 11], &[0x0a, 1, 0xff], &[0x0a]] {
            assert_eq!(refused(&framed(bytes), Place::Message), malformed, "{bytes:?}");
        }
        let mut compressed = act();
        compressed[0] = 1;
        assert_eq!(refused(&compressed, Place::Message), FirstError::Compressed.to_string());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64), start: bool) {
            let place = if start { Place::Start } else { Place::Message };
            let _ = look(&framed(&bytes), place);
            let _ = look(&bytes, place);
        }
    }
}
