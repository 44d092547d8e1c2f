//! What a process wrote and its client may not have yet: kept until the client says so, so that a client whose
//! call broke off goes on with the next byte.

use std::collections::VecDeque;

use rollout_wire::v1::{self, exec_output::Output};

use super::error::Refusal;

/// Output of one process that its client has not taken for sure; past it the process waits.
pub(super) const UNREAD_BYTES_MAX: usize = 1 << 20;

/// Of what is joined; what comes larger stays as it came.
const PIECE_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Unread {
    /// In the order they were read.
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// So many of `pieces` were sent to the client that is there.
    sent: usize,
    /// Of each stream, before `pieces`.
    taken: [u64; 2],
}

#[derive(Debug)]
struct Piece {
    is_stdout: bool,
    bytes: Vec<u8>,
}

impl Piece {
    fn stream(&self) -> usize {
        usize::from(!self.is_stdout)
    }
}

impl Unread {
    pub fn has_room(&self) -> bool {
        self.bytes < UNREAD_BYTES_MAX
    }

    /// Joined to the last piece while nobody was sent that: a process that writes byte by byte costs what it writes.
    pub fn push(&mut self, is_stdout: bool, bytes: Vec<u8>) {
        self.bytes += bytes.len();
        let has_unsent = self.has_more();
        match self.pieces.back_mut() {
            Some(last)
                if has_unsent
                    && last.is_stdout == is_stdout
                    && last.bytes.len() + bytes.len() <= PIECE_BYTES_MAX =>
            {
                last.bytes.extend_from_slice(&bytes);
            }
            _ => self.pieces.push_back(Piece { is_stdout, bytes }),
        }
    }

    /// Of what this client was not sent.
    pub fn has_more(&self) -> bool {
        self.sent < self.pieces.len()
    }

    /// The next that this client was not sent; from here on it was.
    pub fn next(&mut self) -> Option<v1::ExecOutput> {
        let Piece { is_stdout, bytes } = self.pieces.get(self.sent)?;
        self.sent += 1;
        let output = if *is_stdout { Output::Stdout(bytes.clone()) } else { Output::Stderr(bytes.clone()) };
        Some(v1::ExecOutput { output: Some(output) })
    }

    /// So much has come, from the beginning.
    pub fn received(&mut self, received: v1::ExecReceived) -> Result<(), Refusal> {
        let count = self.count_of(received, self.sent)?;
        self.sent -= count;
        self.let_go(count);
        Ok(())
    }

    /// Another client goes on behind `received`.
    pub fn again(&mut self, received: v1::ExecReceived) -> Result<(), Refusal> {
        let count = self.count_of(received, self.pieces.len())?;
        self.sent = 0;
        self.let_go(count);
        Ok(())
    }

    /// How many pieces these bytes are, of the first `most`.
    fn count_of(&self, received: v1::ExecReceived, most: usize) -> Result<usize, Refusal> {
        let received = [received.stdout_bytes, received.stderr_bytes];
        let (mut taken, mut count) = (self.taken, 0);
        for piece in self.pieces.iter().take(most) {
            if taken == received {
                break;
            }
            taken[piece.stream()] += piece.bytes.len() as u64;
            count += 1;
        }
        if taken == received {
            return Ok(count);
        }
        let words = format!("{received:?} bytes of its output cannot have come, and {:?} had", self.taken);
        Err(Refusal::bad("received", words))
    }

    fn let_go(&mut self, count: usize) {
        for piece in self.pieces.drain(..count) {
            self.taken[piece.stream()] += piece.bytes.len() as u64;
            self.bytes -= piece.bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(stdout_bytes: u64, stderr_bytes: u64) -> v1::ExecReceived {
        v1::ExecReceived { stdout_bytes, stderr_bytes }
    }

    fn sent(unread: &mut Unread) -> String {
        let mut text = String::new();
        while let Some(message) = unread.next() {
            match message.output {
                Some(Output::Stdout(bytes)) => text += &format!("o{} ", String::from_utf8(bytes).unwrap()),
                Some(Output::Stderr(bytes)) => text += &format!("e{} ", String::from_utf8(bytes).unwrap()),
                other => panic!("{other:?}"),
            }
        }
        text
    }

    #[test]
    fn a_client_goes_on_behind_what_came() {
        let mut unread = Unread::default();
        for (is_stdout, text) in [(true, "one"), (false, "two"), (true, "three")] {
            unread.push(is_stdout, text.into());
        }
        assert_eq!(sent(&mut unread), "oone etwo othree ");
        assert_eq!(sent(&mut unread), "", "once a client");
        unread.received(received(3, 0)).unwrap();
        unread.again(received(3, 3)).unwrap();
        assert_eq!(sent(&mut unread), "othree ");
        unread.push(false, b"four".into());
        assert_eq!(sent(&mut unread), "efour ");
        unread.again(received(3, 3)).unwrap();
        assert_eq!(sent(&mut unread), "othree efour ");
        unread.received(received(8, 7)).unwrap();
        unread.again(received(8, 7)).unwrap();
        assert_eq!(sent(&mut unread), "");
        assert_eq!(unread.bytes, 0);
    }

    #[test]
    fn what_cannot_have_come_is_refused() {
        let mut unread = Unread::default();
        unread.push(true, b"one".into());
        assert!(unread.received(received(3, 0)).is_err(), "it was not sent");
        assert!(unread.again(received(2, 0)).is_err(), "half of a message");
        assert!(unread.again(received(4, 0)).is_err());
        assert!(unread.again(received(0, 0)).is_ok());
    }

    #[test]
    fn bytes_that_come_one_by_one_are_joined_while_nobody_was_sent_them() {
        let mut unread = Unread::default();
        unread.push(true, b"sent".into());
        assert_eq!(sent(&mut unread), "osent ");
        (0..1_000).for_each(|_| unread.push(true, b"x".into()));
        unread.push(false, b"y".into());
        (0..2).for_each(|_| unread.push(true, vec![b'z'; PIECE_BYTES_MAX]));
        assert_eq!(unread.pieces.len(), 5, "what was sent is left as it was");
        unread.received(received(4, 0)).unwrap();
        unread.again(received(4, 0)).unwrap();
        assert!(sent(&mut unread).starts_with(&format!("o{} ey ozz", "x".repeat(1_000))));
        unread.received(received(1_004, 1)).unwrap();
    }

    #[test]
    fn it_is_full_until_the_client_has_it() {
        let mut unread = Unread::default();
        while unread.has_room() {
            unread.push(true, vec![0; 64 << 10]);
        }
        let all = UNREAD_BYTES_MAX as u64;
        while unread.next().is_some() {}
        unread.received(received(64 << 10, 0)).unwrap();
        assert!(unread.has_room());
        unread.received(received(all, 0)).unwrap();
        assert_eq!(unread.bytes, 0);
    }
}
