//! Ctrl-C and SIGTERM: the first asks, the second ends the process at once.

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
    let failed = |source| Error::Service {
        code: "signals",
        what: "cannot listen for signals".to_owned(),
        source: Box::new(source),
        hint: None,
        exit: ExitStatus::Failure,
    };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
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
