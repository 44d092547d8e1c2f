//! Requests and events, and their bytes: the version, a tag, then little-endian integers and
//! length-prefixed byte strings. Decoding refuses what is short, long, unknown, of another version or
//! past a bound.

/// First byte of every message. Both ends are of one build; a message of another is refused.
pub const VERSION: u8 = 3;
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
    /// With the descriptors its [`Streams`] say, then the report's if `has_report`, then the
    /// group's if `has_group`.
    Spawn { ticket: u32, spawn: Spawn },
    /// As `Spawn`, with one more descriptor, the last, that holds the encoded [`Spawn`].
    SpawnFromFile { ticket: u32 },
    /// Sends `signal` to the process group of the process started under `process`.
    Signal { ticket: u32, process: u32, signal: i32 },
    /// Kills every process but init, and answers when all are reaped.
    KillAll { ticket: u32 },
    /// From an executor that does not know what an earlier one was told: init tells again which of its
    /// processes run, and how the last ones ended.
    Replay { ticket: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spawn {
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value`; the whole environment.
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
    pub streams: Streams,
    /// A descriptor of its own at [`REPORT_FD`], for what a persistent shell tells.
    pub has_report: bool,
    /// A `cgroup.procs` that the process writes itself into before it becomes the user's.
    pub has_group: bool,
}

/// Where the declared descriptor of a process is.
pub const REPORT_FD: i32 = 3;

/// What standard input, output and error of a process are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Streams {
    /// /dev/null, and two descriptors: stdout, stderr.
    #[default]
    Output,
    /// Three descriptors: stdin, stdout, stderr.
    Given,
    /// One terminal of the sandbox's own, the controlling one of its session; no descriptor. The
    /// other end of it comes with [`Event::Started`].
    Terminal { columns: u16, rows: u16 },
}

impl Streams {
    /// How many descriptors come with the request for them.
    pub const fn descriptors(self) -> usize {
        match self {
            Self::Output => 2,
            Self::Given => 3,
            Self::Terminal { .. } => 0,
        }
    }
}

/// From init to the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Init serves. The first message on every channel.
    Ready,
    /// The program runs: execve succeeded. With one descriptor if its streams are a terminal.
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
    /// Everything was told again. `last` is the largest ticket init ever had of a process.
    Replayed {
        ticket: u32,
        last: u32,
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
    /// Joining the group it was given.
    Group,
    Terminal,
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
    pub const ALL: [Self; 14] = [
        Self::Request,
        Self::Pipe,
        Self::Fork,
        Self::Session,
        Self::Group,
        Self::Terminal,
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
            Self::Group => "joining its group",
            Self::Terminal => "opening a terminal",
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
        out.push(VERSION);
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
            Self::Replay { ticket } => {
                out.push(5);
                out.extend(ticket.to_le_bytes());
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::versioned(bytes)?;
        let request = match from.byte()? {
            1 => Self::Spawn { ticket: from.u32()?, spawn: Spawn::read(&mut from)? },
            2 => Self::SpawnFromFile { ticket: from.u32()? },
            3 => Self::Signal { ticket: from.u32()?, process: from.u32()?, signal: from.i32()? },
            4 => Self::KillAll { ticket: from.u32()? },
            5 => Self::Replay { ticket: from.u32()? },
            _ => return Err(Malformed("unknown request")),
        };
        from.end()?;
        Ok(request)
    }
}

impl Spawn {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.push(VERSION);
        self.encode_into(&mut out);
        out
    }

    fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend(self.uid.to_le_bytes());
        out.extend(self.gid.to_le_bytes());
        let (kind, columns, rows) = match self.streams {
            Streams::Output => (0u8, 0, 0),
            Streams::Given => (1, 0, 0),
            Streams::Terminal { columns, rows } => (2, columns, rows),
        };
        out.push(kind);
        out.extend(columns.to_le_bytes());
        out.extend(rows.to_le_bytes());
        out.extend([u8::from(self.has_report), u8::from(self.has_group)]);
        put_bytes(out, &self.cwd);
        for list in [&self.argv, &self.env] {
            put_len(out, list.len());
            for entry in list {
                put_bytes(out, entry);
            }
        }
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::versioned(bytes)?;
        let spawn = Self::read(&mut from)?;
        from.end()?;
        Ok(spawn)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (uid, gid) = (from.u32()?, from.u32()?);
        let streams = match (from.byte()?, from.u16()?, from.u16()?) {
            (0, 0, 0) => Streams::Output,
            (1, 0, 0) => Streams::Given,
            (2, columns, rows) => Streams::Terminal { columns, rows },
            _ => return Err(Malformed("unknown streams")),
        };
        let (has_report, has_group) = (from.flag()?, from.flag()?);
        let cwd = from.bytes()?.to_vec();
        let (argv, env) = (from.list()?, from.list()?);
        Ok(Self { uid, gid, cwd, argv, env, streams, has_report, has_group })
    }
}

/// Bytes of every event.
const EVENT_LEN: usize = 14;

impl Event {
    /// Every event has the same length: no allocation in init's loop.
    pub fn encode(self) -> [u8; EVENT_LEN] {
        let (tag, a, b, c): (u8, u32, i32, u32) = match self {
            Self::Ready => (1, 0, 0, 0),
            Self::Started { ticket, pid } => (2, ticket, pid, 0),
            Self::NotStarted { ticket, stage, errno } => (3, ticket, errno, u32::from(stage as u8)),
            Self::Exited { ticket, status } => (4, ticket, status, 0),
            Self::Signalled { ticket, errno } => (5, ticket, errno, 0),
            Self::KilledAll { ticket, reaped } => (6, ticket, 0, reaped),
            Self::Replayed { ticket, last } => (7, ticket, 0, last),
        };
        let mut out = [0; EVENT_LEN];
        out[0] = VERSION;
        out[1] = tag;
        out[2..6].copy_from_slice(&a.to_le_bytes());
        out[6..10].copy_from_slice(&b.to_le_bytes());
        out[10..14].copy_from_slice(&c.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::versioned(bytes)?;
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
            7 => Self::Replayed { ticket, last: more },
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
    fn versioned(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Self(bytes);
        if reader.byte()? == VERSION { Ok(reader) } else { Err(Malformed("of another version")) }
    }
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
    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag that is neither 0 nor 1")),
        }
    }
    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
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
            ..Spawn::default()
        };
        let terminal = Spawn {
            streams: Streams::Terminal { columns: 80, rows: u16::MAX },
            has_group: true,
            ..spawn.clone()
        };
        let shell = Spawn { streams: Streams::Given, has_report: true, ..spawn.clone() };
        vec![
            Request::Spawn { ticket: 7, spawn },
            Request::Spawn { ticket: 8, spawn: terminal },
            Request::Spawn { ticket: 9, spawn: shell },
            Request::Spawn { ticket: 0, spawn: Spawn::default() },
            Request::SpawnFromFile { ticket: u32::MAX },
            Request::Signal { ticket: 1, process: 2, signal: -9 },
            Request::KillAll { ticket: 3 },
            Request::Replay { ticket: 9 },
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
            Event::Replayed { ticket: u32::MAX, last: 3 },
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
        let event = Event::Started { ticket: 1, pid: 77 }.encode();
        for cut in 0..event.len() {
            assert!(Event::decode(&event[..cut]).is_err(), "cut at {cut}");
        }
        assert_eq!(Event::decode(&[&event[..], &[0]].concat()), Err(Malformed("too long")));
        assert_eq!(Event::decode(&[&[VERSION, 9], &event[2..]].concat()), Err(Malformed("unknown event")));
        assert_eq!(Request::decode(&[VERSION, 9]), Err(Malformed("unknown request")));
    }

    #[test]
    fn a_message_of_another_version_is_refused_whatever_it_says() {
        let other = Err(Malformed("of another version"));
        for request in requests() {
            let mut bytes = request.encode();
            bytes[0] = VERSION - 1;
            assert_eq!(Request::decode(&bytes), other, "{request:?}");
        }
        let mut event = Event::Ready.encode();
        event[0] = VERSION + 1;
        assert_eq!(Event::decode(&event), Err(Malformed("of another version")));
    }

    #[test]
    fn streams_and_flags_that_are_none_are_refused() {
        let bytes = Spawn::default().encode();
        // Behind the version and two ids: kind, columns, rows, and the two flags.
        for (at, value) in [(9, 3), (10, 1), (13, 1), (14, 2), (15, 255)] {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert!(Spawn::decode(&bad).is_err(), "byte {at} as {value}");
        }
    }

    #[test]
    fn a_list_that_claims_too_many_entries_is_refused_before_it_is_read() {
        let mut bytes = Spawn::default().encode();
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Spawn::decode(&bytes), Err(Malformed("too many entries")));
    }
}
