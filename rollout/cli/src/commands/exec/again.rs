//! `exec` without a terminal and without input: a call that breaks off is made again, and the output goes on with
//! its next byte. The command is begun once, whatever becomes of the yard.

use std::time::Duration;

use rollout_wire::v1::{ExecEnded, ExecOutput, ExecReceived, ExecStart, exec_input, exec_output};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{INPUTS_MAX, input, said, status, write};
use crate::client::Client;
use crate::commands::Context;
use crate::commands::logs::Printer;
use crate::commands::patience::Patience;
use crate::commands::specs::fresh_key;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::interrupt::Signals;

/// Of output that came, before the node is told: it keeps 1 MiB that it does not know to be here.
const TOLD_EVERY_BYTES: u64 = 128 << 10;
/// For the node to hear that nobody comes back.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// A command under a name, from its beginning to its end.
pub(super) async fn run(
    context: &Context,
    client: &Client,
    start: ExecStart,
    raw: bool,
) -> Result<ExitStatus, Error> {
    let mut command = Command {
        client,
        start: ExecStart { exec_id: fresh_key(), ..start },
        begun: false,
        may_have_begun: false,
        received: ExecReceived::default(),
        printer: Printer::new(context.format, raw),
    };
    let mut signals = Signals::listen()?;
    let mut patience = Patience::with_nodes(&context.talk);
    loop {
        let error = match command.call(&mut signals, &mut patience).await {
            Ok(ended) => {
                said(context, &ended)?;
                return Ok(status(ended.exit_code, ended.signal));
            }
            Err(error) => error,
        };
        let error = command.after(error)?;
        // A node that was away before anything can have begun is told as it is.
        command.may_have_begun |= command.begun || error.is_silence();
        if !command.may_have_begun {
            return Err(error);
        }
        let pause = patience.pause(error).map_err(|error| command.unknown(&error))?;
        tokio::select! {
            () = sleep(pause) => {}
            () = signals.any() => return Err(Error::Interrupted),
        }
        command.start.resume = Some(command.received);
    }
}

struct Command<'a> {
    client: &'a Client,
    start: ExecStart,
    /// It is known to have begun.
    begun: bool,
    /// A call broke off that may have reached the node.
    may_have_begun: bool,
    received: ExecReceived,
    printer: Printer,
}

impl Command<'_> {
    /// One call, as far as it goes. Unless it broke off, nobody comes back for the process.
    async fn call(&mut self, signals: &mut Signals, patience: &mut Patience<'_>) -> Result<ExecEnded, Error> {
        let (inputs, waiting) = mpsc::channel(INPUTS_MAX);
        let first = tokio_stream::once(input(exec_input::Input::Start(self.start.clone())));
        let mut sandboxes = self.client.sandboxes();
        let answer = tokio::select! {
            answer = sandboxes.exec(first.chain(ReceiverStream::new(waiting))) => answer,
            () = signals.any() => return Err(Error::Interrupted),
        };
        let mut outputs = self.client.done(answer)?;
        let done = self.follow(&inputs, &mut outputs, signals, patience).await;
        if !done.as_ref().is_err_and(Error::may_pass) {
            let hang_up = async {
                _ = inputs.send(input(exec_input::Input::HangUp(true))).await;
                while let Ok(Some(_)) = outputs.message().await {}
            };
            if timeout(HANG_UP_TIMEOUT, hang_up).await.is_err() {
                tracing::debug!("the node does not say that it heard of the end");
            }
        }
        done
    }

    async fn follow(
        &mut self,
        inputs: &mpsc::Sender<rollout_wire::v1::ExecInput>,
        outputs: &mut Streaming<ExecOutput>,
        signals: &mut Signals,
        patience: &mut Patience<'_>,
    ) -> Result<ExecEnded, Error> {
        let mut untold = 0;
        loop {
            let output = tokio::select! {
                output = outputs.message() => output.map_err(|status| self.client.failed(status))?,
                () = signals.any() => return Err(Error::Interrupted),
            };
            match output.and_then(|output| output.output) {
                Some(exec_output::Output::Started(_)) => {
                    self.begun = true;
                    patience.answered();
                }
                Some(exec_output::Output::Stdout(data)) => {
                    write(&mut self.printer, "stdout", &data)?;
                    self.received.stdout_bytes += data.len() as u64;
                    untold += data.len() as u64;
                }
                Some(exec_output::Output::Stderr(data)) => {
                    write(&mut self.printer, "stderr", &data)?;
                    self.received.stderr_bytes += data.len() as u64;
                    untold += data.len() as u64;
                }
                Some(exec_output::Output::Ended(ended)) => return Ok(ended),
                None => return Err(self.client.cut_off("the streams ended before the process did")),
            }
            if untold >= TOLD_EVERY_BYTES {
                untold = 0;
                // A call that has ended says so with the next output.
                _ = inputs.send(input(exec_input::Input::Received(self.received))).await;
            }
        }
    }

    /// What an error of a call means. Given back: it may pass.
    fn after(&self, error: Error) -> Result<Error, Error> {
        if error.may_pass() {
            return Ok(error);
        }
        // Whatever a call that was made again is refused for: an earlier one may have begun it.
        let is_ours = matches!(error, Error::Interrupted | Error::OutcomeUnknown { .. });
        if self.may_have_begun && !is_ours { Err(self.unknown(&error)) } else { Err(error) }
    }

    fn unknown(&self, why: &Error) -> Error {
        Error::OutcomeUnknown { begun: self.begun, why: why.to_string() }
    }
}
