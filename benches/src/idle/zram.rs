//! Swap in compressed memory, for as long as a keeper lives: a process apart, which takes the device away
//! when this one is gone, by whatever signal.

use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{SigHandler, Signal, signal};

/// The argument that makes this program the keeper.
pub const KEEP: &str = "--keep-zram";
const CONTROL: &str = "/sys/class/zram-control";
/// Above any swap of the host.
const PRIORITY: i32 = 0x8000 | 100;

#[derive(Debug)]
pub struct Swap {
    keeper: Child,
    /// It lives until this is closed.
    held: Option<ChildStdin>,
    device: String,
}

impl Swap {
    /// # Errors
    /// Why there can be none here; then nothing was changed.
    pub fn add() -> Result<Self> {
        let mut keeper = Command::new(std::env::current_exe()?)
            .args(["idle", KEEP])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let held = keeper.stdin.take();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().context("its output")?).read_line(&mut line)?;
        let device = line.trim().to_owned();
        if device.is_empty() {
            let output = keeper.wait_with_output()?;
            bail!("{}", String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default());
        }
        Ok(Self { keeper, held, device })
    }

    /// What the pages in it take.
    pub fn used_bytes(&self) -> u64 {
        let text = fs::read_to_string(format!("/sys/block/{}/mm_stat", self.device)).unwrap_or_default();
        // Original size, compressed size, memory used.
        text.split_whitespace().nth(2).and_then(|field| field.parse().ok()).unwrap_or(0)
    }

    /// Takes it away, and sees that it is gone.
    pub fn remove(mut self) -> Result<()> {
        self.held.take();
        let status = self.keeper.wait()?;
        ensure!(status.success(), "the keeper of {} failed: {status}", self.device);
        ensure!(!swaps()?.contains(&self.device), "{} is still swapped to", self.device);
        Ok(())
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.held.take();
        // One that was waited for is not there any more.
        let _ = self.keeper.wait();
    }
}

fn swaps() -> Result<String> {
    Ok(fs::read_to_string("/proc/swaps")?)
}

pub fn swap_is_on() -> Result<bool> {
    Ok(swaps()?.lines().count() > 1)
}

/// The keeper: adds the device, says its name, and takes it away at the end of its input.
pub fn keep(bytes: u64) -> Result<()> {
    nix::unistd::setsid().context("a session of its own")?;
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGPIPE] {
        // SAFETY: to ignore a signal runs no code of ours.
        unsafe { signal(ignored, SigHandler::SigIgn) }?;
    }
    let number = fs::read_to_string(format!("{CONTROL}/hot_add")).context("adding a zram device")?;
    let number = number.trim().to_owned();
    let device = format!("zram{number}");
    let kept = swap_on(&device, bytes).and_then(|()| {
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{device}")?;
        stdout.flush()?;
        // Ends when nobody holds the other end, whatever became of them.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        Ok(())
    });
    let path = CString::new(format!("/dev/{device}"))?;
    // SAFETY: a C string that outlives the call. One that was never on is an error that changes nothing.
    let off = unsafe { libc::swapoff(path.as_ptr()) };
    let off = if off == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    fs::write(format!("{CONTROL}/hot_remove"), &number).context("removing the zram device")?;
    kept?;
    off.context("swapoff")
}

fn swap_on(device: &str, bytes: u64) -> Result<()> {
    let setting = |name: &str, value: &str| fs::write(format!("/sys/block/{device}/{name}"), value);
    // Another one does, too.
    let _ = setting("comp_algorithm", "lz4");
    setting("disksize", &bytes.to_string()).context("its size")?;
    let path = format!("/dev/{device}");
    let status =
        Command::new("mkswap").args(["-q", &path]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    ensure!(status.context("mkswap")?.success(), "mkswap {path} failed");
    let path = CString::new(path)?;
    // SAFETY: a C string that outlives the call.
    let on = unsafe { libc::swapon(path.as_ptr(), PRIORITY) };
    ensure!(on == 0, "swapon: {}", std::io::Error::last_os_error());
    Ok(())
}
