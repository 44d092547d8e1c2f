//! A command line that cannot be understood: for people as clap puts it, and one JSON object like
//! any other error where JSON was asked for.

use std::ffi::OsString;

use clap::error::ErrorKind;

use crate::error::Error;

/// Whether the arguments, understood or not, ask for JSON: the last `--output` counts.
pub fn wants_json(args: impl Iterator<Item = OsString>) -> bool {
    let mut format = None;
    let mut args = args.take_while(|arg| arg != "--");
    while let Some(arg) = args.next() {
        if arg == "--output" {
            format = args.next();
        } else if let Some(value) = arg.to_str().and_then(|arg| arg.strip_prefix("--output=")) {
            format = Some(value.into());
        }
    }
    format.is_some_and(|format| format == "json")
}

/// No command is given. clap tells this by help of its own unless the environment sets an option.
pub fn no_command(error: &clap::Error) -> bool {
    use ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand, MissingSubcommand};
    matches!(error.kind(), DisplayHelpOnMissingArgumentOrSubcommand | MissingSubcommand)
}

/// The error of clap in the form of ours; none for help and version, which are no errors.
pub fn error(error: &clap::Error) -> Option<Error> {
    if !error.use_stderr() {
        return None;
    }
    if no_command(error) {
        let hint = "`rollyard --help` lists the commands".to_owned();
        return Some(Error::Usage { message: "no command is given".to_owned(), hint });
    }
    let text = error.render().to_string();
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    let message = joined(message.strip_prefix("error: ").unwrap_or(message));
    Some(Error::Usage { message, hint: joined(rest) })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn json_is_asked_for_by_the_last_output_before_two_dashes() {
        for (line, expected) in [
            ("ps --output json --frob", true),
            ("--output=json", true),
            ("--output json --output table", false),
            ("--output", false),
            ("-- --output json", false),
            ("ps", false),
        ] {
            assert_eq!(wants_json(line.split(' ').map(OsString::from)), expected, "{line}");
        }
    }

    #[test]
    fn message_and_hint_are_taken_apart() {
        let clap = Cli::try_parse_from(["rollyard", "ps", "--limt", "3"]).expect_err("no such option");
        let told = error(&clap).expect("an error");
        assert_eq!(told.to_string(), "unexpected argument '--limt' found");
        let hint = told.hint().expect("a hint");
        assert!(hint.contains("--limit") && hint.contains("Usage: rollyard ps"), "{hint}");
        let help = Cli::try_parse_from(["rollyard", "--help"]).expect_err("help");
        assert!(error(&help).is_none());
    }
}
