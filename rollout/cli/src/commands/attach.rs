//! `attach`: a shell in a sandbox, on a terminal or fed line by line.

use std::io::{self, BufRead, IsTerminal};

use rollout_wire::v1::{
    ActReply, ActRequest, ActResult, ExecStart, RunCommand, act_request, exec_start, run_command,
};
use serde_json::json;
use tokio::sync::mpsc;

use super::Context;
use super::exec::{Streams, converse, status};
use super::logs::Printer;
use super::patience::Patience;
use super::sandbox::named;
use super::specs::fresh_key;
use crate::args::sandboxes::Attach;
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::output::json;

/// The best shell there is.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi";

pub async fn attach(context: &Context, args: &Attach) -> Result<ExitStatus, Error> {
    if let Some(name) = &args.shell {
        return feed(context, args, name).await;
    }
    if !io::stdin().is_terminal() {
        return Err(Error::NoTerminal);
    }
    let sandbox = named(&args.sandbox)?;
    let client = Client::connect(context.url()?).await?;
    let start = ExecStart {
        sandbox,
        command: Some(exec_start::Command::Shell(SHELL.to_owned())),
        cwd: args.workdir.clone().unwrap_or_default(),
        user: args.user.clone().unwrap_or_default(),
        ..ExecStart::default()
    };
    converse(context, &client, start, Streams { stdin: true, tty: true, raw: true }).await
}

/// Each line is an action of its own. Ends as the last one did.
async fn feed(context: &Context, args: &Attach, shell: &str) -> Result<ExitStatus, Error> {
    let sandbox = named(&args.sandbox)?;
    let client = Client::connect(context.url()?).await?;
    let prompt = io::stdin().is_terminal().then(|| format!("{}$ ", rollout::text::shown(shell, 64)));
    let (sender, mut lines) = mpsc::channel(1);
    let (asked, asking) = std::sync::mpsc::sync_channel::<()>(1);
    // It lives as long as this process: a read that waits cannot be ended.
    std::thread::spawn(move || {
        while asking.recv().is_ok() {
            let mut line = String::new();
            let read = io::stdin().lock().read_line(&mut line).map(|size| (size > 0).then_some(line));
            let last = !matches!(read, Ok(Some(_)));
            if sender.blocking_send(read).is_err() || last {
                return;
            }
        }
    });
    let mut printer = Printer::new(context.format, false);
    let (prefix, mut ordinal, mut ended) = (fresh_key(), 0_u64, ExitStatus::Success);
    loop {
        if let Some(prompt) = &prompt {
            context.talk.ask(prompt);
        }
        _ = asked.try_send(());
        let line = match lines.recv().await {
            Some(Ok(Some(line))) => line,
            Some(Ok(None)) | None => return Ok(ended),
            Some(Err(source)) => return Err(Error::ReadFile { path: "/dev/stdin".into(), source }),
        };
        let command = line.trim_end_matches(['\n', '\r']);
        if command.trim().is_empty() {
            continue;
        }
        let run = RunCommand {
            command: Some(run_command::Command::Shell(command.to_owned())),
            timeout_ms: args.timeout.map(|timeout| timeout.0),
            in_shell: shell.to_owned(),
            ..RunCommand::default()
        };
        let request = ActRequest {
            sandbox: sandbox.clone(),
            claim: String::new(),
            action_id: format!("{prefix}-{ordinal}"),
            payload: Some(act_request::Payload::Run(run)),
        };
        ordinal += 1;
        // The same action is done once, however often it is sent.
        let act = async || client.done(client.sandboxes().act(request.clone()).await);
        let reply = Patience::with_nodes(&context.talk).through(act).await?;
        let result = result(reply)?;
        print(context, &mut printer, command, &result)?;
        ended = status(result.exit_code, result.signal);
    }
}

fn result(reply: ActReply) -> Result<ActResult, Error> {
    let refused = |code: String, message: String| Error::Refused {
        code,
        message,
        hint: None,
        exit: ExitStatus::Failure,
    };
    if reply.state == "unknown" {
        return Err(Error::OutcomeUnknown { begun: false, why: "its node lost it under way".to_owned() });
    }
    let result =
        reply.result.ok_or_else(|| Error::BadAnswer { problem: "a command without its result".into() })?;
    match result.code.as_str() {
        "" => Ok(result),
        code => Err(refused(code.to_owned(), result.message)),
    }
}

fn print(context: &Context, printer: &mut Printer, command: &str, result: &ActResult) -> Result<(), Error> {
    if printer.json {
        let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
        return Context::print(&json::line(&json!({
            "command": command,
            "exit_code": result.exit_code,
            "signal": result.signal,
            "timed_out": result.timed_out,
            "stdout": text(&result.stdout),
            "stderr": text(&result.stderr),
            "capture_truncated": result.capture_truncated,
        })));
    }
    printer.bytes(0, &result.stdout).map_err(Error::Stdout)?;
    printer.bytes(1, &result.stderr).map_err(Error::Stdout)?;
    if result.capture_truncated {
        context.talk.say("more was written and not kept (capture_truncated)");
    }
    if result.timed_out {
        context.talk.say("killed at its deadline; the shell begins anew");
    }
    Ok(())
}
