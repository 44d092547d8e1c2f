//! `exec`: a process in a sandbox with the streams of this one.

mod again;

use std::io::{self, IsTerminal, Read};

use rollout_wire::v1::{Argv, ExecEnded, ExecInput, ExecStart, PtySize, exec_input, exec_output, exec_start};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::Context;
use super::logs::Printer;
use super::sandbox::{named, pairs};
use crate::args::OutputFormat;
use crate::args::sandboxes::Exec;
use crate::client::Client;
use crate::error::{COMMAND_NOT_STARTED, Error};
use crate::exit::ExitStatus;
use crate::interrupt::{Signals, no_signals};
use crate::output::json;
use crate::terminal::{self, Raw};

/// Inputs on their way to the yard; past it standard input is not read.
const INPUTS_MAX: usize = 16;
/// Of one piece of standard input, as the yard bounds it.
const STDIN_BYTES_MAX: usize = 64 << 10;

/// What of this process the other one gets.
#[derive(Debug, Clone, Copy)]
pub struct Streams {
    pub stdin: bool,
    pub tty: bool,
    pub raw: bool,
}

pub async fn exec(context: &Context, args: Exec) -> Result<ExitStatus, Error> {
    if args.tty && !io::stdin().is_terminal() {
        return Err(Error::NoTerminal);
    }
    let sandbox = named(&args.sandbox)?;
    let client = Client::connect(context.url()?).await?;
    let is_text = matches!(args.command.as_slice(), [only] if only.contains(char::is_whitespace));
    let start = ExecStart {
        sandbox,
        command: Some(exec_start::Command::Argv(Argv { items: args.command })),
        env: pairs(&args.env),
        cwd: args.workdir.unwrap_or_default(),
        user: args.user.unwrap_or_default(),
        timeout_ms: args.timeout.map(|timeout| timeout.0),
        detach: args.detach,
        ..ExecStart::default()
    };
    let streams = Streams { stdin: args.interactive, tty: args.tty, raw: args.raw };
    let done = match streams {
        Streams { stdin: false, tty: false, raw } => again::run(context, &client, start, raw).await,
        streams => converse(context, &client, start, streams).await,
    };
    done.map_err(|error| match error {
        Error::Refused { code, message, hint: None, exit } if is_text && code == COMMAND_NOT_STARTED => {
            let hint =
                "that is one word with spaces: `rollyard exec SANDBOX -- sh -c '...'` has a shell read it";
            Error::Refused { code, message, hint: Some(hint.to_owned()), exit }
        }
        other => other,
    })
}

/// Carries the streams until the process ends; its exit code is that of this one. What ends this one
/// first ends the process too, unless it is detached.
pub async fn converse(
    context: &Context,
    client: &Client,
    mut start: ExecStart,
    streams: Streams,
) -> Result<ExitStatus, Error> {
    if streams.tty {
        let (columns, rows) = terminal::size();
        start.pty = Some(PtySize { columns, rows });
        if let (false, Ok(kind)) = (start.env.contains_key("TERM"), std::env::var("TERM")) {
            start.env.insert("TERM".to_owned(), kind);
        }
    }
    let (inputs, waiting) = mpsc::channel(INPUTS_MAX);
    let (controls, more) = mpsc::channel(INPUTS_MAX);
    let first = tokio_stream::once(input(exec_input::Input::Start(start)));
    let all = first.chain(ReceiverStream::new(waiting).merge(ReceiverStream::new(more)));
    let mut signals = Signals::listen()?;
    let mut sandboxes = client.sandboxes();
    let answer = tokio::select! {
        answer = sandboxes.exec(all) => answer,
        () = signals.any() => return Err(Error::Interrupted),
    };
    // The terminal is switched after that, so that a refusal is told on one that is as it was.
    let mut outputs = client.done(answer)?;
    let raw = streams.tty.then(Raw::enter).transpose()?;
    if streams.tty {
        follow_size(controls)?;
    }
    match streams.stdin {
        // It lives as long as this process: a read that waits cannot be ended.
        true => _ = std::thread::spawn(move || feed(&inputs)),
        false => _ = inputs.try_send(input(exec_input::Input::CloseStdin(true))),
    }
    let mut printer = Printer::new(context.format, streams.raw || streams.tty);
    let ended = loop {
        let output = tokio::select! {
            output = outputs.message() => output.map_err(|status| client.failed(status))?,
            () = signals.any() => return Err(Error::Interrupted),
        };
        match output.and_then(|output| output.output) {
            Some(exec_output::Output::Started(_)) => {}
            Some(exec_output::Output::Stdout(data)) => write(&mut printer, "stdout", &data)?,
            Some(exec_output::Output::Stderr(data)) => write(&mut printer, "stderr", &data)?,
            Some(exec_output::Output::Ended(ended)) => break ended,
            None => {
                return Err(Error::BadAnswer { problem: "the streams ended before the process did".into() });
            }
        }
    };
    drop(raw);
    said(context, &ended)?;
    Ok(status(ended.exit_code, ended.signal))
}

fn input(input: exec_input::Input) -> ExecInput {
    ExecInput { input: Some(input) }
}

/// Standard input, until it ends or nobody takes it.
fn feed(inputs: &mpsc::Sender<ExecInput>) {
    let mut buffer = vec![0; STDIN_BYTES_MAX];
    loop {
        let next = match io::stdin().lock().read(&mut buffer) {
            Ok(0) | Err(_) => exec_input::Input::CloseStdin(true),
            Ok(size) => exec_input::Input::Stdin(buffer[..size].to_vec()),
        };
        let last = matches!(next, exec_input::Input::CloseStdin(_));
        if inputs.blocking_send(input(next)).is_err() || last {
            return;
        }
    }
}

/// Tells the process when the terminal changes its size.
fn follow_size(controls: mpsc::Sender<ExecInput>) -> Result<(), Error> {
    let mut changes = signal(SignalKind::window_change()).map_err(no_signals)?;
    // Ends with the conversation, which drops the other end.
    tokio::spawn(async move {
        while changes.recv().await.is_some() {
            let (columns, rows) = terminal::size();
            let size = exec_input::Input::Resize(PtySize { columns, rows });
            if controls.send(input(size)).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn write(printer: &mut Printer, stream: &str, data: &[u8]) -> Result<(), Error> {
    if printer.json {
        return Context::print(&json::line(&match std::str::from_utf8(data) {
            Ok(text) => json!({ "stream": stream, "text": text }),
            Err(_) => json!({ "stream": stream, "hex": hex::encode(data) }),
        }));
    }
    printer.bytes(usize::from(stream == "stderr"), data).map_err(Error::Stdout)
}

fn said(context: &Context, ended: &ExecEnded) -> Result<(), Error> {
    if context.format == OutputFormat::Json {
        let (code, signal, timed_out) = (ended.exit_code, ended.signal, ended.timed_out);
        return Context::print(&json::line(
            &json!({ "exit_code": code, "signal": signal, "timed_out": timed_out }),
        ));
    }
    if ended.timed_out {
        context.talk.say("killed at its deadline");
    }
    Ok(())
}

/// As a shell has it: 128 and the signal for one that a signal killed.
pub fn status(exit_code: Option<i32>, signal: Option<i32>) -> ExitStatus {
    let code = exit_code.or(signal.map(|signal| 128 + signal));
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(0) => ExitStatus::Success,
        Some(code) => ExitStatus::Passed(code),
        None => ExitStatus::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_command() {
        for (exit_code, signal, code) in [
            (Some(0), None, 0),
            (Some(7), None, 7),
            (None, Some(9), 137),
            (None, None, 1),
            (Some(-1), None, 1),
        ] {
            assert_eq!(status(exit_code, signal).code(), code, "{exit_code:?} {signal:?}");
        }
    }
}
