//! Ctrl-C and SIGTERM: the first asks, the second ends the process at once.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::exit::ExitStatus;
use crate::talk::Talk;

/// `timeout` and some supervisors signal the process and its group: one request, not two.
const SAME_REQUEST: Duration = Duration::from_millis(300);

/// A token that is cancelled at the first signal, after `first` was said.
pub fn watch(talk: Talk, first: String) -> Result<CancellationToken, Error> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    // Lives as long as the process; there is nothing to clean up in it.
    tokio::spawn(async move {
        any(&mut interrupt, &mut terminate).await;
        talk.say(&first);
        cancelled.cancel();
        let asked_at = Instant::now();
        while asked_at.elapsed() < SAME_REQUEST {
            any(&mut interrupt, &mut terminate).await;
        }
        talk.drop_bar();
        std::process::exit(ExitStatus::Interrupted.code().into());
    });
    Ok(token)
}

async fn any(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// What asks this process to end. The terminal is restored then.
#[derive(Debug)]
pub struct Signals([Signal; 3]);

impl Signals {
    pub fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(no_signals);
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
        ]))
    }

    pub async fn any(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

pub fn no_signals(source: io::Error) -> Error {
    Error::Service {
        code: "signals",
        what: "cannot listen for signals".to_owned(),
        source: Box::new(source),
        hint: None,
        exit: ExitStatus::Failure,
    }
}
