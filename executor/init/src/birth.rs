//! What the broker and a fresh init say to each other before init serves: what it mounts, which groups it joins, and
//! the order that makes it the sandbox that was asked for. One SEQPACKET datagram each, with descriptors.
//!
//! ```text
//! broker ──furniture──> /proc, /dev ──leaves──> its cgroups ──order──> its root and names ──ready──> broker
//! ```

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::packet;

/// User and group of init, as the sandbox numbers them: the last of its range, which nothing else in it can be. To
/// every other process, root of the sandbox included, init is somebody else's: it cannot be limited, signalled or
/// scheduled.
pub const INIT_ID: u32 = 65_535;

/// The largest plan, in bytes.
pub const PLAN_MAX: usize = 8 << 10;
/// A hostname, a number, their ends, and a byte before them.
pub const ORDER_MAX: usize = 128;
/// A datagram that nothing is to fail after.
const NO_STEP: u8 = u8::MAX;
/// What a blank says when it is furnished: not as long as a report of what failed.
const FURNISHED: &[u8] = b"f";

/// Places of a blank, of which the masks are the root.
pub const PROC: &CStr = c"proc";
pub const DEV: &CStr = c"dev";

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// The steps of provisioning. Up to `Terminals` they need nothing of what is asked for.
        /// `Credentials` to `Terminals` happen in init, beside the ones after them, as are `Attach` and all from `Root` on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[repr(u8)]
        pub enum Step { $($(#[$doc])* $name,)* }
        impl Step {
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

steps! {
    Range => "taking a uid range",
    Network => "making the network namespace",
    Clone => "clone3",
    IdMaps => "writing the id maps",
    Credentials => "becoming root of the sandbox",
    Proc => "mounting /proc",
    Dev => "mounting /dev",
    Release => "letting the tree of the host go",
    Masks => "masking /proc",
    /// The last that a blank has behind it.
    Terminals => "mounting /dev/pts",
    Disk => "making the writable layer",
    Cgroups => "making the cgroups",
    Attach => "joining the cgroups",
    Layers => "mapping the layers",
    Overlay => "mounting the overlay",
    MountPoints => "preparing mount points and the working directory",
    HandIn => "handing in the mounts",
    Root => "attaching the root",
    Shm => "mounting /dev/shm",
    Moves => "moving /proc and /dev beneath the root",
    Usr => "mounting /usr",
    Enter => "making its root the root",
    Names => "naming the host and the cgroup namespace",
    Stdio => "opening /dev/null",
    Privileges => "dropping capabilities",
    Landlock => "restricting by Landlock",
    Seccomp => "installing the system call filter",
    /// Init did not start or died at once.
    Exec => "starting init",
}

impl Step {
    /// Whether a blank has it behind it.
    pub fn is_ahead(self) -> bool {
        self as u8 <= Self::Terminals as u8
    }

    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|step| *step as u8 == byte)
    }
}

fn step_byte(fail_after: Option<Step>) -> u8 {
    fail_after.map_or(NO_STEP, |step| step as u8)
}

/// What lies over a file or directory of /proc. Both paths start at the masks, while those lie
/// beneath /proc or are the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    pub cover: CString,
    pub place: CString,
}

/// What is the same for every sandbox of a broker. It comes as a file, read from its start.
#[derive(Debug)]
pub struct Plan {
    pub landlock_abi: Option<u32>,
    pub masked: Vec<Mask>,
    pub filter: Vec<libc::sock_filter>,
}

impl Plan {
    /// None: it is larger than [`PLAN_MAX`].
    pub fn encode(&self) -> Option<Vec<u8>> {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        let mut out = self.landlock_abi.unwrap_or(0).to_le_bytes().to_vec();
        out.extend(count(self.masked.len()));
        for mask in &self.masked {
            out.extend_from_slice(mask.cover.to_bytes_with_nul());
            out.extend_from_slice(mask.place.to_bytes_with_nul());
        }
        out.extend(count(self.filter.len()));
        for step in &self.filter {
            out.extend(step.code.to_le_bytes());
            out.extend([step.jt, step.jf]);
            out.extend(step.k.to_le_bytes());
        }
        (out.len() <= PLAN_MAX).then_some(out)
    }

    /// None: these are not the bytes of a plan.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let landlock_abi = Some(number(&mut rest)?).filter(|abi| *abi > 0);
        let count = number(&mut rest)?;
        let mut masked = Vec::with_capacity(room(count));
        for _ in 0..count {
            masked.push(Mask { cover: text(&mut rest)?, place: text(&mut rest)? });
        }
        let count = number(&mut rest)?;
        let mut filter = Vec::with_capacity(room(count));
        for _ in 0..count {
            let [code_low, code_high, jt, jf] = take(&mut rest)?;
            let code = u16::from_le_bytes([code_low, code_high]);
            filter.push(libc::sock_filter { code, jt, jf, k: number(&mut rest)? });
        }
        rest.is_empty().then_some(Self { landlock_abi, masked, filter })
    }
}

/// For so many, if there can be so many in a plan.
fn room(count: u32) -> usize {
    usize::try_from(count).unwrap_or(PLAN_MAX).min(PLAN_MAX)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_le_bytes)
}

fn text(bytes: &mut &[u8]) -> Option<CString> {
    let text = CStr::from_bytes_until_nul(bytes).ok()?;
    *bytes = bytes.get(text.count_bytes() + 1..)?;
    Some(text.to_owned())
}

/// The first word: what stands in every sandbox. With descriptors: the plan, /dev and the masks, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Furniture {
    /// It says when it is furnished, and waits for its order.
    pub is_blank: bool,
    /// Of the steps until it is furnished.
    pub fail_after: Option<Step>,
}

impl Furniture {
    /// Of a datagram.
    pub const LEN: usize = 2;

    pub fn encode(self) -> [u8; Self::LEN] {
        [u8::from(self.is_blank), step_byte(self.fail_after)]
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let &[is_blank @ (0 | 1), fail_after] = bytes else { return None };
        Some(Self { is_blank: is_blank == 1, fail_after: Step::from_byte(fail_after) })
    }
}

/// The second word, with, of each v1 hierarchy, the file that takes a "0" from a process which moves itself.
pub fn leaves(fail_after: Option<Step>) -> [u8; 1] {
    [step_byte(fail_after)]
}

/// What makes it the sandbox that was asked for. With descriptors: its root, and what goes over /usr if anything
/// does.
#[derive(Debug)]
pub struct Order<'a> {
    pub hostname: &'a CStr,
    /// `size=` of /dev/shm.
    pub shm_size: &'a CStr,
    /// Of the steps after it was furnished.
    pub fail_after: Option<Step>,
}

impl<'a> Order<'a> {
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![step_byte(self.fail_after)];
        bytes.extend_from_slice(self.hostname.to_bytes_with_nul());
        bytes.extend_from_slice(self.shm_size.to_bytes_with_nul());
        if bytes.len() > ORDER_MAX {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        Ok(bytes)
    }

    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&fail_after, bytes) = bytes.split_first()?;
        let hostname = CStr::from_bytes_until_nul(bytes).ok()?;
        let shm_size = CStr::from_bytes_until_nul(bytes.get(hostname.count_bytes() + 1..)?).ok()?;
        Some(Self { hostname, shm_size, fail_after: Step::from_byte(fail_after) })
    }
}

/// Says that a blank is furnished.
pub fn say_furnished(channel: BorrowedFd<'_>) -> io::Result<()> {
    packet::send(channel, FURNISHED, &[], 0)
}

/// Whether a blank said that it is furnished.
pub fn is_furnished(bytes: &[u8]) -> bool {
    bytes == FURNISHED
}

/// Says what failed, as far as anybody listens.
pub fn say_failed(channel: BorrowedFd<'_>, step: Step, error: &io::Error) {
    let mut bytes = [0; 5];
    bytes[0] = step as u8;
    bytes[1..].copy_from_slice(&error.raw_os_error().unwrap_or(libc::EIO).to_le_bytes());
    let _ = packet::send(channel, &bytes, &[], 0);
}

/// What a fresh init reported. None = no report, which no event of init resembles.
pub fn failure(bytes: &[u8]) -> Option<(Step, i32)> {
    let (step, errno) = bytes.split_first()?;
    Some((Step::from_byte(*step)?, i32::from_le_bytes(errno.try_into().ok()?)))
}

/// Sends what a fresh init is told, with descriptors.
pub fn tell(channel: BorrowedFd<'_>, word: &[u8], handed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut fds = [-1; packet::FDS_MAX];
    for (place, fd) in fds.iter_mut().zip(handed) {
        *place = fd.as_raw_fd();
    }
    packet::send(channel, word, fds.get(..handed.len()).ok_or(io::ErrorKind::InvalidInput)?, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(cover: &CStr, place: &CStr) -> Mask {
        Mask { cover: cover.to_owned(), place: place.to_owned() }
    }

    #[test]
    fn a_plan_survives_its_bytes_and_nothing_cut_or_lengthened_is_one() {
        let step = |code, k| libc::sock_filter { code, jt: 1, jf: 255, k };
        let plan = Plan {
            landlock_abi: Some(6),
            masked: vec![mask(c"file", c"../proc/keys"), mask(c"dir", c"../proc/acpi")],
            filter: vec![step(0x20, 4), step(0x15, u32::MAX)],
        };
        let bytes = plan.encode().unwrap();
        let back = Plan::decode(&bytes).unwrap();
        assert_eq!((back.landlock_abi, &back.masked), (plan.landlock_abi, &plan.masked));
        let flat = |plan: &Plan| plan.filter.iter().map(|s| (s.code, s.jt, s.jf, s.k)).collect::<Vec<_>>();
        assert_eq!(flat(&back), flat(&plan));
        for len in 0..bytes.len() {
            assert!(Plan::decode(&bytes[..len]).is_none(), "{len} bytes");
        }
        assert!(Plan::decode(&[bytes, vec![0]].concat()).is_none());
    }

    #[test]
    fn a_plan_past_its_bound_is_none() {
        let plan = Plan { landlock_abi: None, masked: vec![mask(c"file", c"x"); 8 << 10], filter: vec![] };
        assert!(plan.encode().is_none());
    }

    #[test]
    fn words_survive_their_bytes() {
        for is_blank in [false, true] {
            for fail_after in Step::ALL.iter().copied().map(Some).chain([None]) {
                let furniture = Furniture { is_blank, fail_after };
                assert_eq!(Furniture::decode(&furniture.encode()), Some(furniture));
            }
        }
        assert_eq!(Furniture::decode(&[2, 0]), None);
        let order = Order { hostname: c"a-1", shm_size: c"512", fail_after: Some(Step::Usr) };
        let bytes = order.encode().unwrap();
        let back = Order::decode(&bytes).unwrap();
        assert_eq!((back.hostname, back.shm_size, back.fail_after), (c"a-1", c"512", Some(Step::Usr)));
    }
}
