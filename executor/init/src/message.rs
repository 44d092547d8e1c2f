//! Requests and events, and their bytes: a tag, then little-endian integers and length-prefixed
//! byte strings. Decoding refuses what is short, long, unknown or past a bound.

/// The largest message on a channel, in bytes.
pub const MESSAGE_MAX: usize = 64 * 1024;
/// The largest spawn body (argv, environment, cwd), in bytes. Past [`MESSAGE_MAX`] it travels in
/// a memory file. The kernel's own bound on argv and environment is below this one.
pub const BODY_MAX: usize = 8 * 1024 * 1024;
/// Entries of argv, and of the environment.
pub const ENTRIES_MAX: usize = 65_536;

/// From the executor to init. A ticket is chosen by the executor and names the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// With two descriptors: stdout, stderr.
    Spawn { ticket: u32, spawn: Spawn },
    /// As `Spawn`, with a third descriptor that holds the encoded [`Spawn`].
    SpawnFromFile { ticket: u32 },
    /// Sends `signal` to the process group of the process started under `process`.
    Signal { ticket: u32, process: u32, signal: i32 },
    /// Kills every process but init, and answers when all are reaped.
    KillAll { ticket: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spawn {
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value`; the whole environment.
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
}

/// From init to the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Init serves. The first message on every channel.
    Ready,
    /// The program runs: execve succeeded.
    Started {
        ticket: u32,
        pid: i32,
    },
    NotStarted {
        ticket: u32,
        stage: Stage,
        errno: i32,
    },
    /// The kernel's wait status of the process started under `ticket`.
    Exited {
        ticket: u32,
        status: i32,
    },
    /// `errno` 0: sent.
    Signalled {
        ticket: u32,
        errno: i32,
    },
    /// `reaped` counts every process that ended, those init did not start included.
    KilledAll {
        ticket: u32,
        reaped: u32,
    },
}

/// Where a spawn failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The request itself: malformed, or too many processes.
    Request = 1,
    Pipe,
    Fork,
    Session,
    Stdio,
    Limits,
    Capabilities,
    Groups,
    Gid,
    Uid,
    Cwd,
    Exec,
}

impl Stage {
    pub const ALL: [Self; 12] = [
        Self::Request,
        Self::Pipe,
        Self::Fork,
        Self::Session,
        Self::Stdio,
        Self::Limits,
        Self::Capabilities,
        Self::Groups,
        Self::Gid,
        Self::Uid,
        Self::Cwd,
        Self::Exec,
    ];

    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| *stage as u8 == byte)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Pipe => "pipe",
            Self::Fork => "fork",
            Self::Session => "setsid",
            Self::Stdio => "stdin, stdout, stderr",
            Self::Limits => "resource limits",
            Self::Capabilities => "dropping capabilities",
            Self::Groups => "setgroups",
            Self::Gid => "setgid",
            Self::Uid => "setuid",
            Self::Cwd => "working directory",
            Self::Exec => "exec",
        }
    }
}

/// Bytes that are no message of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        match self {
            Self::Spawn { ticket, spawn } => {
                out.push(1);
                out.extend(ticket.to_le_bytes());
                spawn.encode_into(&mut out);
            }
            Self::SpawnFromFile { ticket } => {
                out.push(2);
                out.extend(ticket.to_le_bytes());
            }
            Self::Signal { ticket, process, signal } => {
                out.push(3);
                out.extend(ticket.to_le_bytes());
                out.extend(process.to_le_bytes());
                out.extend(signal.to_le_bytes());
            }
            Self::KillAll { ticket } => {
                out.push(4);
                out.extend(ticket.to_le_bytes());
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(bytes);
        let request = match from.byte()? {
            1 => Self::Spawn { ticket: from.u32()?, spawn: Spawn::read(&mut from)? },
            2 => Self::SpawnFromFile { ticket: from.u32()? },
            3 => Self::Signal { ticket: from.u32()?, process: from.u32()?, signal: from.i32()? },
            4 => Self::KillAll { ticket: from.u32()? },
            _ => return Err(Malformed("unknown request")),
        };
        from.end()?;
        Ok(request)
    }
}

impl Spawn {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        self.encode_into(&mut out);
        out
    }

    fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend(self.uid.to_le_bytes());
        out.extend(self.gid.to_le_bytes());
        put_bytes(out, &self.cwd);
        for list in [&self.argv, &self.env] {
            put_len(out, list.len());
            for entry in list {
                put_bytes(out, entry);
            }
        }
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(bytes);
        let spawn = Self::read(&mut from)?;
        from.end()?;
        Ok(spawn)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (uid, gid) = (from.u32()?, from.u32()?);
        let cwd = from.bytes()?.to_vec();
        Ok(Self { uid, gid, cwd, argv: from.list()?, env: from.list()? })
    }
}

impl Event {
    /// Every event has the same length: no allocation in init's loop.
    pub fn encode(self) -> [u8; 13] {
        let (tag, a, b, c): (u8, u32, i32, u32) = match self {
            Self::Ready => (1, 0, 0, 0),
            Self::Started { ticket, pid } => (2, ticket, pid, 0),
            Self::NotStarted { ticket, stage, errno } => (3, ticket, errno, u32::from(stage as u8)),
            Self::Exited { ticket, status } => (4, ticket, status, 0),
            Self::Signalled { ticket, errno } => (5, ticket, errno, 0),
            Self::KilledAll { ticket, reaped } => (6, ticket, 0, reaped),
        };
        let mut out = [0; 13];
        out[0] = tag;
        out[1..5].copy_from_slice(&a.to_le_bytes());
        out[5..9].copy_from_slice(&b.to_le_bytes());
        out[9..13].copy_from_slice(&c.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(bytes);
        let (tag, ticket, number, more) = (from.byte()?, from.u32()?, from.i32()?, from.u32()?);
        from.end()?;
        Ok(match tag {
            1 => Self::Ready,
            2 => Self::Started { ticket, pid: number },
            3 => {
                let stage = u8::try_from(more).ok().and_then(Stage::from_byte);
                Self::NotStarted { ticket, stage: stage.ok_or(Malformed("unknown stage"))?, errno: number }
            }
            4 => Self::Exited { ticket, status: number },
            5 => Self::Signalled { ticket, errno: number },
            6 => Self::KilledAll { ticket, reaped: more },
            _ => return Err(Malformed("unknown event")),
        })
    }
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    // A length past u32 is past BODY_MAX as well: the receiver refuses it.
    out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend(bytes);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed("too short"))?;
        self.0 = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed("too short"))?;
        self.0 = rest;
        Ok(*head)
    }
    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }
    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_le_bytes(self.array()?))
    }
    fn len(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.u32()?).map_err(|_| Malformed("too long"))
    }
    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.len()?;
        self.take(len)
    }
    fn list(&mut self) -> Result<Vec<Vec<u8>>, Malformed> {
        let len = self.len()?;
        if len > ENTRIES_MAX {
            return Err(Malformed("too many entries"));
        }
        (0..len).map(|_| Ok(self.bytes()?.to_vec())).collect()
    }
    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("too long")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request> {
        let spawn = Spawn {
            argv: vec![b"/bin/sh".to_vec(), b"-c".to_vec(), Vec::new()],
            env: vec![b"A=\xff=b".to_vec()],
            cwd: b"/workspace".to_vec(),
            uid: 1000,
            gid: 0,
        };
        vec![
            Request::Spawn { ticket: 7, spawn },
            Request::Spawn { ticket: 0, spawn: Spawn::default() },
            Request::SpawnFromFile { ticket: u32::MAX },
            Request::Signal { ticket: 1, process: 2, signal: -9 },
            Request::KillAll { ticket: 3 },
        ]
    }

    #[test]
    fn every_message_survives_its_bytes() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let mut events = vec![
            Event::Ready,
            Event::Started { ticket: 1, pid: 77 },
            Event::Exited { ticket: 2, status: 137 << 8 },
            Event::Signalled { ticket: 3, errno: 3 },
            Event::KilledAll { ticket: 4, reaped: 9 },
        ];
        events.extend(Stage::ALL.map(|stage| Event::NotStarted { ticket: 5, stage, errno: 2 }));
        for event in events {
            assert_eq!(Event::decode(&event.encode()), Ok(event));
        }
    }

    #[test]
    fn a_cut_or_lengthened_message_is_refused() {
        for request in requests() {
            let bytes = request.encode();
            for cut in 0..bytes.len() {
                assert!(Request::decode(&bytes[..cut]).is_err(), "{request:?} cut at {cut}");
            }
            assert_eq!(Request::decode(&[bytes, vec![0]].concat()), Err(Malformed("too long")));
        }
        assert!(Event::decode(&[1; 12]).is_err());
        assert!(Event::decode(&[9; 13]).is_err());
        assert_eq!(Request::decode(&[9]), Err(Malformed("unknown request")));
    }

    #[test]
    fn a_list_that_claims_too_many_entries_is_refused_before_it_is_read() {
        let mut bytes = Spawn::default().encode();
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Spawn::decode(&bytes), Err(Malformed("too many entries")));
    }
}
