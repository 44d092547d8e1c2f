//! The reference of the command line, made from the arguments themselves. docs/cli.md is its
//! output; a test compares them.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};

use super::Context;
use crate::args::Cli;
use crate::error::Error;
use crate::exit::ExitStatus;

pub fn reference() -> Result<ExitStatus, Error> {
    Context::print(&markdown())?;
    Ok(ExitStatus::Success)
}

pub fn markdown() -> String {
    let mut root = Cli::command();
    root.build();
    let mut out = String::from(
        "# Command line\n\n\
         Made by `rollyard reference`; a test compares. Data goes to standard output, talk to standard\n\
         error. With `--output json` a command prints one JSON document, and an error is one JSON object on\n\
         the last line of standard error, also where the command line itself is wrong:\n\
         `{\"error\": {\"code\", \"message\", \"causes\", \"hint\", \"exit_code\"}}`. `logs` prints one object a\n\
         line as the output comes: `{\"stream\", \"text\", \"dropped_bytes\"}`, with `hex` in place of `text`\n\
         where the bytes are not UTF-8; `artifact` does so with `{\"text\"}` or `{\"hex\"}`. `exec` prints\n\
         `{\"stream\", \"text\"}` so, and last `{\"exit_code\", \"signal\", \"timed_out\"}`; `attach --shell`\n\
         one object a command.\n\n\
         | exit code | meaning |\n|---|---|\n",
    );
    for status in ExitStatus::ALL {
        _ = writeln!(out, "| {} | {} |", status.code(), status.meaning());
    }
    out.push_str(
        "\n`exec` and `attach` end with the exit code of the command, with 128 and the signal if one killed\n\
         it. A command that is not there ends with 127, one that cannot be run with 126 (`command_not_started`);\n\
         one of which nobody knows how it ended, with 125 (`outcome_unknown`). `exec` without `-i` and `-t`\n\
         goes on, output and all, when the yard is back within 60 s; `attach --shell` too;\n\
         an error of their own is told on standard error, as ever.\n",
    );
    out.push_str("\n## Global options\n\n");
    options(&mut out, root.get_arguments().filter(|arg| arg.is_global_set()));
    let is_shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for command in root.get_subcommands().filter(is_shown) {
        section(&mut out, "rollyard", command);
    }
    out
}

fn section(out: &mut String, above: &str, command: &Command) {
    let name = format!("{above} {}", command.get_name());
    _ = write!(out, "\n## {name}\n\n");
    if let Some(about) = command.get_about() {
        _ = writeln!(out, "{about}.\n");
    }
    if command.has_subcommands() {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            section(out, &name, below);
        }
        return;
    }
    let mut usage = name;
    let own: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| {
            !arg.is_global_set() && !arg.is_hide_set() && arg.get_id() != "help" && arg.get_id() != "version"
        })
        .collect();
    if own.iter().any(|arg| !arg.is_positional()) {
        usage.push_str(" [OPTIONS]");
    }
    for arg in own.iter().filter(|arg| arg.is_positional()) {
        let name = value_name(arg);
        usage += &if arg.is_required_set() { format!(" {name}") } else { format!(" [{name}]") };
    }
    if command.has_subcommands() {
        usage.push_str(" COMMAND");
    }
    _ = writeln!(out, "```\n{usage}\n```");
    if !own.is_empty() {
        out.push('\n');
        options(out, own.into_iter());
    }
}

fn options<'a>(out: &mut String, args: impl Iterator<Item = &'a Arg>) {
    for arg in args {
        _ = writeln!(out, "- {}: {}", signature(arg), description(arg));
    }
}

fn value_name(arg: &Arg) -> String {
    arg.get_value_names()
        .and_then(|names| names.first())
        .map_or_else(|| arg.get_id().as_str().to_uppercase(), ToString::to_string)
}

fn signature(arg: &Arg) -> String {
    if arg.is_positional() {
        return format!("`{}`", value_name(arg));
    }
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let mut text = [short, long].into_iter().flatten().collect::<Vec<_>>().join(", ");
    if arg.get_action().takes_values() {
        text += &format!(" {}", value_name(arg));
    }
    format!("`{text}`")
}

fn description(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let paragraphs = help.split("\n\n").map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut text = paragraphs.collect::<Vec<_>>().join(". ");
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if arg.get_action().takes_values() && !values.is_empty() {
        text += &format!("; {}", values.join(", "));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        text += &format!(" [default: {}]", defaults.join(" "));
    }
    if let Some(name) = arg.get_env() {
        text += &format!(" [env: {}]", name.to_string_lossy());
    }
    if arg.is_required_set() && !arg.is_positional() {
        text += " (required)";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_in_docs_is_what_the_arguments_say() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let written = std::fs::read_to_string(path).expect("docs/cli.md");
        assert!(written == markdown(), "docs/cli.md is out of date: cargo run -- reference > docs/cli.md");
    }
}
