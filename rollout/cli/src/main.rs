//! The program `rollyard`: reads arguments, calls a yard or serves one, prints.
//!
//! It owns words, exit codes and the process; it never decides what runs where. Standard output is
//! data and standard error is talk.

mod args;
mod builder;
mod client;
mod commands;
mod error;
mod exit;
mod harbor;
mod interrupt;
mod local_images;
mod output;
mod progress;
mod rows;
mod spec;
mod summary;
mod talk;
mod terminal;
mod tree_diff;
mod upload;
mod usage;
mod view;
mod yard;

use std::process::ExitCode;

use args::{Cli, Command, Flags, OutputFormat};
use commands::Context;
use error::Error;
use exit::ExitStatus;
use talk::Talk;

fn main() -> ExitCode {
    // The sandbox broker is this same program, started again by the executor. It must be asked
    // before there is a second thread.
    executor::broker::run_if_asked();
    let talk = Talk::default();
    let (cli, flags) = match args::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => match usage::error(&error).filter(|_| usage::wants_json(std::env::args_os().skip(1))) {
            Some(error) => {
                talk.say(error.json().trim_end());
                return error.exit().into();
            }
            None if usage::no_command(&error) => {
                talk.say(args::help(std::env::args_os().skip(1)).trim_end());
                return ExitStatus::BadInput.into();
            }
            None => error.exit(),
        },
    };
    let service = matches!(cli.command, Command::Dev(_) | Command::Scheduler(_) | Command::Executor(_));
    talk::init_logging(&talk, cli.global.verbose, service, cli.global.log_format);
    let format = cli.global.output;
    let status = run(cli, flags, &talk).unwrap_or_else(|error| {
        if error.reader_gone() {
            return ExitStatus::Success;
        }
        let text = if format == OutputFormat::Json { error.json() } else { error.text() };
        talk.say(text.trim_end());
        error.exit()
    });
    status.into()
}

fn run(cli: Cli, flags: Flags, talk: &Talk) -> Result<ExitStatus, Error> {
    let context = Context::new(&cli, flags, talk.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|source| {
        Error::Service {
            code: "runtime",
            what: "cannot start the threads of the program".to_owned(),
            source: Box::new(source),
            hint: None,
            exit: ExitStatus::HostCannot,
        }
    })?;
    runtime.block_on(commands::dispatch(cli, &context))
}
