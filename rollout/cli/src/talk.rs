//! Talk: everything that is not data goes to standard error through here, so that a progress bar,
//! a log line and a message never write over each other.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::ProgressBar;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::args::LogFormat;

/// A cheap handle to standard error.
#[derive(Debug, Clone, Default)]
pub struct Talk {
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

impl Talk {
    /// One line, or several.
    pub fn say(&self, text: &str) {
        self.write(format!("{text}\n").as_bytes());
    }

    /// A prompt: what is typed stands behind it.
    pub fn ask(&self, prompt: &str) {
        self.write(prompt.as_bytes());
    }

    /// Whether a person watches.
    pub fn terminal() -> bool {
        io::stderr().is_terminal()
    }

    /// From here on `bar` is at the bottom, until [`Talk::drop_bar`].
    pub fn show_bar(&self, bar: ProgressBar) {
        *self.bar.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
    }

    pub fn drop_bar(&self) {
        if let Some(bar) = self.bar.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
    }

    fn write(&self, bytes: &[u8]) {
        let bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        // Standard error may be closed; there is nowhere left to say so.
        let write = || _ = io::stderr().lock().write_all(bytes);
        match &*bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

/// One formatted event.
#[derive(Debug)]
pub struct Line(Talk);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Talk {
    type Writer = Line;
    fn make_writer(&self) -> Line {
        Line(self.clone())
    }
}

/// Logs to standard error. `RUST_LOG` overrules `verbose`; services talk at level info from the
/// start, since their logs are what they have to say.
pub fn init_logging(talk: &Talk, verbose: u8, service: bool, format: LogFormat) {
    let default = match verbose.saturating_add(u8::from(service)) {
        0 => "warn",
        1 => "warn,rollyard=info,scheduler=info,scheduler_core=info,executor=info,blobs=info,datasets=info",
        2 => "info,rollyard=debug,scheduler=debug,scheduler_core=debug,executor=debug,blobs=debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let layer = tracing_subscriber::fmt().with_env_filter(filter).with_writer(talk.clone());
    match format {
        LogFormat::Human => layer.with_ansi(Talk::terminal()).with_target(false).init(),
        LogFormat::Json => layer.json().flatten_event(true).init(),
    }
}
