//! The terminal of this process: raw while a process in a sandbox has it.

use std::io;

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use crate::error::Error;

/// Keys go to the sandbox as they are typed, until this is dropped.
#[derive(Debug)]
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// # Errors
    /// Standard input is no terminal.
    pub fn enter() -> Result<Self, Error> {
        let failed = |errno: nix::errno::Errno| Error::Terminal(errno.into());
        let before = tcgetattr(io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may be gone; then there is nothing to restore.
        _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// Columns and rows; of no terminal: 80 and 24.
pub fn size() -> (u32, u32) {
    let size = terminal_size::terminal_size();
    size.map_or((80, 24), |(columns, rows)| (columns.0.into(), rows.0.into()))
}
