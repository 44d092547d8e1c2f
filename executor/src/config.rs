use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rollout::{Bytes, MilliCpu, Name};

use crate::Error;
pub use crate::sessions::pressure::bounds::{
    BadShare, PARKS_MAX, PressureBounds, PressureOverrides, StallShare,
};

/// Heartbeats to the scheduler.
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// Lists of everything held, to the scheduler. Two of them without an attempt show it as lost, so a
/// loss is found within twice this time.
pub const HELD_EVERY: Duration = Duration::from_secs(10);
/// Captured output kept per stream and step; what is past it is dropped and counted.
pub const CAPTURE_BYTES_MAX: Bytes = Bytes(8 << 20);
/// A node with less memory available takes no new sandbox.
pub const MEMORY_RESERVE: Bytes = Bytes(512 << 20);
/// A node with less disk available takes no new sandbox.
pub const DISK_RESERVE: Bytes = Bytes(2 << 30);

/// Layers of workspaces kept on the node; the least recently used go when a new one needs room.
pub const LAYER_BYTES_MAX: Bytes = Bytes(16 << 30);

#[derive(Debug, Clone)]
pub struct Config {
    pub node: Name,
    /// Made if missing. One executor at a time.
    pub data_dir: PathBuf,
    pub scheduler: Endpoint,
    pub capacity: CapacityOverrides,
    pub reserves: Reserves,
    /// Per stream and step.
    pub capture_bytes_max: Bytes,
    /// Of all layers on this node together.
    pub layer_bytes_max: Bytes,
    /// Images that are on this machine already, as `rollyard image pull` leaves them.
    pub images_dir: Option<PathBuf>,
    pub heartbeat_every: Duration,
    pub held_every: Duration,
    /// When idle sandboxes go down the ladder before their time.
    pub pressure: PressureBounds,
    /// Attempts for which files are made ahead, once, as the executor starts; at most 1,024 count.
    pub spares: usize,
}

impl Config {
    /// A node with every default.
    pub fn new(node: Name, data_dir: impl Into<PathBuf>, scheduler: Endpoint) -> Self {
        Self {
            node,
            data_dir: data_dir.into(),
            scheduler,
            capacity: CapacityOverrides::default(),
            reserves: Reserves::default(),
            capture_bytes_max: CAPTURE_BYTES_MAX,
            layer_bytes_max: LAYER_BYTES_MAX,
            images_dir: None,
            heartbeat_every: HEARTBEAT_EVERY,
            held_every: HELD_EVERY,
            pressure: PressureBounds::default(),
            spares: 0,
        }
    }
}

/// What to offer instead of what was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CapacityOverrides {
    pub cpu: Option<MilliCpu>,
    pub memory: Option<Bytes>,
    pub disk: Option<Bytes>,
    /// At most what the backend can hold.
    pub sandboxes: Option<u32>,
}

/// What stays free for the machine itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserves {
    pub memory: Bytes,
    pub disk: Bytes,
}

impl Default for Reserves {
    fn default() -> Self {
        Self { memory: MEMORY_RESERVE, disk: DISK_RESERVE }
    }
}

/// Where the scheduler listens. Until there is TLS, a Unix socket or loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    Unix(PathBuf),
    /// A loopback address.
    Http(SocketAddr),
}

impl FromStr for Endpoint {
    type Err = Error;
    /// `unix:/absolute/path` or `http://127.0.0.1:port`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |problem| Error::BadEndpoint { shown: rollout::text::shown(text, 120), problem };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path.strip_prefix("//").unwrap_or(path));
            let usable = path.is_absolute() && !text.contains('\0');
            return usable
                .then(|| Self::Unix(path.to_owned()))
                .ok_or_else(|| refused("not an absolute path"));
        }
        let Some(address) = text.strip_prefix("http://") else {
            return Err(refused("expected unix:PATH or http://ADDRESS:PORT"));
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        let address: SocketAddr =
            address.parse().map_err(|_| refused("expected a numeric address and a port"))?;
        if address.ip().is_loopback() {
            Ok(Self::Http(address))
        } else {
            Err(refused("not a loopback address"))
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Http(address) => write!(f, "http://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unix_sockets_and_loopback_are_endpoints() {
        for text in ["unix:/run/yard.sock", "http://127.0.0.1:7000", "http://[::1]:7000"] {
            assert_eq!(text.parse::<Endpoint>().map(|e| e.to_string()).unwrap(), text);
        }
        for text in [
            "",
            "unix:",
            "unix:relative",
            "http://10.0.0.1:80",
            "http://0.0.0.0:80",
            "http://localhost:80",
            "https://127.0.0.1:80",
            "127.0.0.1:80",
            "http://127.0.0.1",
        ] {
            let refused = text.parse::<Endpoint>();
            assert!(matches!(refused, Err(Error::BadEndpoint { .. })), "{text}");
        }
    }
}
