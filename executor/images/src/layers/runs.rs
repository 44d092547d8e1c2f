//! Where the data of a file is: what is a hole, or a block of zeros, is neither read twice nor
//! stored nor hashed. The runs follow from the content alone, not from how a filesystem laid it
//! out.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// The smallest block, in bytes: what filesystems make holes of.
const BLOCK_MIN: u64 = 4096;
/// The most blocks a file is cut into, so that no list of runs is long. A file with more is cut
/// into larger ones.
const BLOCKS_MAX: u64 = 32_768;
const BUFFER_BYTES: usize = 256 << 10;
static ZEROS: [u8; BUFFER_BYTES] = [0; BUFFER_BYTES];

/// A part of a file that is not all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub offset: u64,
    pub length: u64,
}

/// The size of the blocks a file of `size` bytes is cut into: a power of two.
pub(super) fn block_size(size: u64) -> u64 {
    size.div_ceil(BLOCKS_MAX).max(BLOCK_MIN).checked_next_power_of_two().unwrap_or(1 << 63)
}

/// Finds the runs of a file. Reads its data once; holes are stepped over. `go_on` is asked between
/// reads.
pub(super) fn find(
    file: &File,
    size: u64,
    go_on: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<Vec<Run>> {
    let block = block_size(size);
    let mut runs: Vec<Run> = Vec::new();
    let mut buffer = vec![0; BUFFER_BYTES.min(usize::try_from(size).unwrap_or(BUFFER_BYTES))];
    let mut at = 0;
    while at < size {
        let Some((start, end)) = segment(file, at, size)? else { break };
        at = start;
        while at < end {
            // Up to the end of the block, of the segment and of the buffer.
            let block_end = (at / block).saturating_add(1).saturating_mul(block).min(size);
            let until = block_end.min(end).min(at + buffer.len() as u64);
            let part = &mut buffer[..usize::try_from(until - at).unwrap_or(0)];
            go_on()?;
            file.read_exact_at(part, at)?;
            if *part == ZEROS[..part.len()] {
                at = until;
                continue;
            }
            let offset = at / block * block;
            match runs.last_mut() {
                Some(last) if last.offset + last.length >= offset => last.length = block_end - last.offset,
                _ => runs.push(Run { offset, length: block_end - offset }),
            }
            at = block_end;
        }
    }
    Ok(runs)
}

/// The next part that is no hole, at or after `at`.
fn segment(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    let from = i64::try_from(at).map_err(io::Error::other)?;
    let start = match lseek(file, from, Whence::SeekData) {
        Ok(start) => u64::try_from(start).map_err(io::Error::other)?,
        Err(Errno::ENXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if start >= size {
        return Ok(None);
    }
    let from = i64::try_from(start).map_err(io::Error::other)?;
    let end = lseek(file, from, Whence::SeekHole)?;
    Ok(Some((start, u64::try_from(end).map_err(io::Error::other)?.clamp(start, size))))
}

/// Reads the runs of a file, one after the other. A file that became shorter is an error.
pub(super) struct RunsReader<'a> {
    file: &'a File,
    runs: &'a [Run],
    /// Into the first of `runs`.
    done: u64,
    buffer: Vec<u8>,
    filled: usize,
    taken: usize,
    go_on: &'a mut dyn FnMut() -> io::Result<()>,
}

impl<'a> RunsReader<'a> {
    pub fn new(file: &'a File, runs: &'a [Run], go_on: &'a mut dyn FnMut() -> io::Result<()>) -> Self {
        let most = runs.iter().map(|run| run.length).max().unwrap_or(0);
        let buffer = vec![0; BUFFER_BYTES.min(usize::try_from(most).unwrap_or(BUFFER_BYTES))];
        Self { file, runs, done: 0, buffer, filled: 0, taken: 0, go_on }
    }

    fn fill(&mut self) -> io::Result<()> {
        (self.taken, self.filled) = (0, 0);
        let Some(run) = self.runs.first() else { return Ok(()) };
        (self.go_on)()?;
        let left = run.length - self.done;
        let want = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.file.read_exact_at(&mut self.buffer[..want], run.offset + self.done)?;
        self.filled = want;
        self.done += want as u64;
        if self.done == run.length {
            self.runs = &self.runs[1..];
            self.done = 0;
        }
        Ok(())
    }
}

impl Read for RunsReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.filled {
            self.fill()?;
        }
        let count = into.len().min(self.filled - self.taken);
        into[..count].copy_from_slice(&self.buffer[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    fn found(file: &File) -> Vec<(u64, u64)> {
        let size = file.metadata().unwrap().len();
        let runs = find(file, size, &mut || Ok(())).unwrap();
        runs.iter().map(|run| (run.offset, run.length)).collect()
    }

    #[test]
    fn runs_follow_from_the_content_and_not_from_the_layout() {
        let mut sparse = tempfile::tempfile().unwrap();
        let mut dense = tempfile::tempfile().unwrap();
        for (at, text) in
            [(0u64, "start"), (3 * 4096 + 17, "middle"), (4 * 4096, "next"), (9 * 4096 + 1, "end")]
        {
            sparse.seek(SeekFrom::Start(at)).unwrap();
            sparse.write_all(text.as_bytes()).unwrap();
        }
        let mut bytes = Vec::new();
        sparse.rewind().unwrap();
        sparse.read_to_end(&mut bytes).unwrap();
        dense.write_all(&bytes).unwrap();
        let expected = [(0, 4096), (3 * 4096, 2 * 4096), (9 * 4096, 4)];
        assert_eq!(found(&sparse), expected);
        assert_eq!(found(&dense), expected);
        let runs: Vec<Run> = expected.iter().map(|&(offset, length)| Run { offset, length }).collect();
        let mut read = Vec::new();
        RunsReader::new(&dense, &runs, &mut || Ok(())).read_to_end(&mut read).unwrap();
        let whole: Vec<u8> = expected
            .iter()
            .flat_map(|&(at, len)| {
                bytes[usize::try_from(at).unwrap()..][..usize::try_from(len).unwrap()].to_vec()
            })
            .collect();
        assert_eq!(read, whole);
    }

    #[test]
    fn holes_of_a_tebibyte_are_stepped_over() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(found(&file), []);
        file.seek(SeekFrom::Start((1 << 39) + 5)).unwrap();
        file.write_all(b"x").unwrap();
        let block = block_size(1 << 40);
        assert_eq!((found(&file), block), (vec![(1 << 39, block)], 32 << 20));
        assert_eq!(found(&tempfile::tempfile().unwrap()), []);
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"12345").unwrap();
        let runs = [Run { offset: 0, length: 6 }];
        let read = RunsReader::new(&file, &runs, &mut || Ok(())).read_to_end(&mut Vec::new());
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
