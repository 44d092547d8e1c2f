//! What this node offers, and what it measures from moment to moment.

use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use rollout::quantity::Request;
use rollout::{Bytes, MilliCpu};

use crate::Error;
use crate::config::{CapacityOverrides, Reserves};
use crate::sandbox::{Ceilings, CreationCredit};

/// What a node offers to the packer. Fixed for an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    pub total: Request,
    pub sandboxes: u32,
    pub disk_limit_max: Bytes,
}

/// Measured a moment ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    pub memory_available: Bytes,
    pub disk_available: Bytes,
    /// 1-minute load average times 1000.
    pub load_milli: u64,
}

/// What a heartbeat says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Vitals {
    pub measured: Measured,
    pub sandboxes: u32,
    /// Attempts held.
    pub held: u32,
    pub credit: CreationCredit,
}

/// The capacity of this machine: all of its cpus, the memory this process may use and the disk
/// that is free now, less the reserves; overridden where the operator said so.
pub(crate) fn offered(
    data_dir: &Path,
    overrides: CapacityOverrides,
    reserves: Reserves,
    ceilings: Ceilings,
) -> Result<Capacity, Error> {
    let measure = |what| move |source| Error::Measure { what, source };
    let cpus = std::thread::available_parallelism().map_err(measure("the cpus"))?.get();
    let cpu = MilliCpu(u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(1000));
    let memory = memory_total().map_err(measure("the memory"))?;
    let disk = disk_available(data_dir).map_err(measure("the disk of the data directory"))?;
    let less = |bytes: Bytes, reserve: Bytes| Bytes(bytes.0.saturating_sub(reserve.0));
    let total = Request {
        cpu: overrides.cpu.unwrap_or(cpu),
        memory: overrides.memory.unwrap_or(less(memory, reserves.memory)),
        disk: overrides.disk.unwrap_or(less(disk, reserves.disk)),
    };
    let sandboxes = overrides.sandboxes.unwrap_or(u32::MAX).min(ceilings.sandboxes);
    Ok(Capacity { total, sandboxes, disk_limit_max: ceilings.disk_limit_max })
}

/// What is free on this machine now.
pub(crate) fn measured(data_dir: &Path) -> Result<Measured, Error> {
    let measure = |what| move |source| Error::Measure { what, source };
    let available = memory_available().map_err(measure("the free memory"))?;
    let load = std::fs::read_to_string("/proc/loadavg").map_err(measure("the load"))?;
    Ok(Measured {
        memory_available: available,
        disk_available: disk_available(data_dir).map_err(measure("the disk of the data directory"))?,
        load_milli: load_milli(&load).unwrap_or_default(),
    })
}

/// Memory this process could still use.
pub(crate) fn memory_available() -> io::Result<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let available = meminfo(&text, "MemAvailable:")
        .ok_or_else(|| io::Error::other("no MemAvailable in /proc/meminfo"))?;
    Ok(match cgroup_memory() {
        Some((limit, used)) => available.min(Bytes(limit.0.saturating_sub(used.0))),
        None => available,
    })
}

fn disk_available(path: &Path) -> io::Result<Bytes> {
    let found = statvfs(path)?;
    Ok(Bytes(found.blocks_available().saturating_mul(found.fragment_size())))
}

/// What this process may use of the machine's.
pub(crate) fn memory_total() -> io::Result<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let total =
        meminfo(&text, "MemTotal:").ok_or_else(|| io::Error::other("no MemTotal in /proc/meminfo"))?;
    Ok(cgroup_memory().map_or(total, |(limit, _)| total.min(limit)))
}

fn meminfo(text: &str, key: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes.checked_mul(1024)?))
}

/// `0.52 0.58 0.59 1/467 12345`, without floats.
fn load_milli(text: &str) -> Option<u64> {
    let (whole, places) = text.split_whitespace().next()?.split_once('.')?;
    let places: u64 = format!("{places:0<3}").get(..3)?.parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(places)
}

/// Limit and use of the memory cgroup this process sees as its root, if it has a limit: a
/// container's view of the machine shows more memory than it may use.
fn cgroup_memory() -> Option<(Bytes, Bytes)> {
    let read = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let v2 = || Some((read("/sys/fs/cgroup/memory.max")?, read("/sys/fs/cgroup/memory.current")?));
    let v1 = || {
        let at = "/sys/fs/cgroup/memory";
        let limit = read(&format!("{at}/memory.limit_in_bytes"))?;
        Some((limit, read(&format!("{at}/memory.usage_in_bytes"))?))
    };
    let (limit, used) = v2().or_else(v1)?;
    Some((Bytes(limit), Bytes(used)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_proc_are_read_as_the_kernel_writes_them() {
        let text = "MemTotal:       32855512 kB\nMemFree:         1000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(meminfo(text, "MemTotal:"), Some(Bytes(32_855_512 << 10)));
        assert_eq!(meminfo(text, "SwapTotal:"), None);
        assert_eq!(load_milli("0.52 0.58 0.59 1/467 12345\n"), Some(520));
        assert_eq!(load_milli("12.05 0 0"), Some(12_050));
        assert_eq!(load_milli("none"), None);
    }

    #[test]
    fn overrides_replace_and_ceilings_bound() {
        let ceilings = Ceilings { sandboxes: 10, disk_limit_max: Bytes(7) };
        let overrides = CapacityOverrides {
            cpu: Some(MilliCpu(1)),
            memory: Some(Bytes(2)),
            disk: Some(Bytes(3)),
            sandboxes: Some(99),
        };
        let found = offered(Path::new("/"), overrides, Reserves::default(), ceilings).unwrap();
        let total = Request { cpu: MilliCpu(1), memory: Bytes(2), disk: Bytes(3) };
        assert_eq!(found, Capacity { total, sandboxes: 10, disk_limit_max: Bytes(7) });
    }
}
