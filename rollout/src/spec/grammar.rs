//! The text of a scalar against its grammar.

use std::str::FromStr;

use super::diagnostic::{DiagnosticCode, quoted};
use super::fields::{Grammar, file_mode};
use super::tables::{
    MOUNTED_OVER, PATH_BYTES_MAX, SHELL_BYTES_MAX, WORKDIR_BYTES_MAX, WORKDIR_PART_BYTES_MAX,
};
use crate::checkpoint::{LAYER_PREFIX, Layer};
use crate::cron::CronLine;
use crate::image::ImageRef;
use crate::name::Name;
use crate::quantity::{Bytes, MilliCpu, whole};
use crate::time::{DURATION_MAX, Millis};

/// Why a text is not what the field takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub code: DiagnosticCode,
    pub message: String,
    pub expected: String,
}

fn value(message: impl Into<String>, expected: impl Into<String>) -> Mismatch {
    Mismatch { code: DiagnosticCode::BadValue, message: message.into(), expected: expected.into() }
}

fn kind(text: &str, expected: impl Into<String>) -> Mismatch {
    Mismatch {
        code: DiagnosticCode::BadType,
        message: format!("{} is of the wrong kind", quoted(text)),
        expected: expected.into(),
    }
}

/// Checks `text`; `plain` = written without quotes.
pub(crate) fn check(grammar: Grammar, text: &str, plain: bool) -> Result<(), Mismatch> {
    match grammar {
        Grammar::Text { bytes_max } => bounded(text, bytes_max),
        Grammar::Shell => {
            bounded(text, SHELL_BYTES_MAX)?;
            if text.trim().is_empty() { Err(value("the shell text is empty", "a command")) } else { Ok(()) }
        }
        Grammar::Name => name(text, false),
        Grammar::PlainName => name(text, true),
        Grammar::EnvName => env_name(text),
        Grammar::Column => {
            bounded(text, 256)?;
            if text.is_empty() {
                Err(value("the column name is empty", "a column of the task rows"))
            } else {
                Ok(())
            }
        }
        Grammar::Bool => match text {
            "true" | "false" if plain => Ok(()),
            _ => Err(kind(text, "`true` or `false`, without quotes")),
        },
        Grammar::Count { min, max } => count(text, plain, min, max),
        Grammar::Number { min, max } => number(text, plain, min, max),
        Grammar::Amount => amount(text),
        Grammar::Cpu => quantity::<MilliCpu>(text),
        Grammar::Bytes => quantity::<Bytes>(text),
        Grammar::Duration { min, max } => duration(text, min, max),
        Grammar::Trigger => trigger(text),
        Grammar::Cron => text.parse::<CronLine>().map(drop).map_err(|expected| Mismatch {
            code: DiagnosticCode::BadCron,
            message: format!("{} is not a cron line", quoted(text)),
            expected: expected.to_string(),
        }),
        Grammar::Timezone => text.parse::<chrono_tz::Tz>().map(drop).map_err(|_| Mismatch {
            code: DiagnosticCode::BadCron,
            message: format!("{} is not a time zone", quoted(text)),
            expected: "an IANA name such as Europe/Berlin or UTC".to_owned(),
        }),
        Grammar::SandboxPath => path(text, true),
        Grammar::Workdir => workdir(text),
        Grammar::OutputPath => path(text, false),
        Grammar::ClientPath => client_path(text),
        Grammar::User => user(text),
        Grammar::MediaType => media_type(text),
        Grammar::Image => image(text),
        Grammar::Layer => layer(text),
        Grammar::RowColumn => {
            Err(value(format!("{} is no lookup", quoted(text)), "one lookup, such as \"${row.env}\""))
        }
        Grammar::Artifact => artifact(text).map(drop),
        Grammar::Mode => file_mode(text).map(drop).ok_or_else(|| {
            value(format!("{} is not a file mode", quoted(text)), "octal permission bits such as 0644 or 755")
        }),
        Grammar::Url => url(text),
        Grammar::Table => table(text),
        Grammar::ExitCode => count(text, true, 0, 255),
    }
}

fn bounded(text: &str, bytes_max: usize) -> Result<(), Mismatch> {
    if text.len() > bytes_max {
        return Err(Mismatch {
            code: DiagnosticCode::TooLarge,
            message: format!("{} bytes of text; the limit here is {bytes_max} bytes", text.len()),
            expected: "a shorter text".to_owned(),
        });
    }
    if text.contains('\0') {
        return Err(value("the text holds a NUL character", "text without NUL characters"));
    }
    Ok(())
}

fn name(text: &str, plain: bool) -> Result<(), Mismatch> {
    let expected = if plain {
        "1 to 63 of A-Z a-z 0-9 _ -, starting and ending with a letter or digit"
    } else {
        "1 to 63 of A-Z a-z 0-9 . _ -, starting and ending with a letter or digit"
    };
    match text.parse::<Name>() {
        Ok(name) if plain && name.has_dot() => {
            Err(value(format!("the name {} holds a dot", quoted(text)), expected))
        }
        Ok(_) => Ok(()),
        Err(_) => Err(value(format!("{} is not a name", quoted(text)), expected)),
    }
}

pub(crate) fn env_name(text: &str) -> Result<(), Mismatch> {
    let valid = text.len() <= 256
        && text.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    if valid {
        return Ok(());
    }
    let message = format!("{} is not a variable name", quoted(text));
    Err(value(message, "A-Z 0-9 _, not starting with a digit"))
}

fn count(text: &str, plain: bool, min: u64, max: u64) -> Result<(), Mismatch> {
    let range = match (min, max) {
        (_, u64::MAX) => format!("a whole number of at least {min}"),
        (_, max) if max >= u64::from(u32::MAX) => {
            let example = 8.max(min);
            format!("a whole number such as {example}, at least {min}")
        }
        _ => format!("a whole number such as {}, {min} to {max}", 8.clamp(min, max)),
    };
    match whole(text) {
        Some(n) if plain && (min..=max).contains(&n) => Ok(()),
        Some(_) if plain => Err(value(format!("{} is out of range", quoted(text)), range)),
        Some(_) => Err(kind(text, format!("{range}, without quotes"))),
        None if plain
            && text.len() > 1
            && text.bytes().all(|b| b.is_ascii_digit())
            && !text.starts_with('0') =>
        {
            Err(value(format!("{} is out of range", quoted(text)), range))
        }
        None => Err(kind(text, range)),
    }
}

/// JSON's number grammar: no `NaN`, `inf`, `0x10`, `+1`, `01`; finite.
pub(crate) fn json_number(text: &str) -> Option<serde_json::Number> {
    let looks_right =
        text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E'));
    if !looks_right {
        return None;
    }
    let number: serde_json::Number = serde_json::from_str(text).ok()?;
    number.as_f64().is_some_and(f64::is_finite).then_some(number)
}

fn number(text: &str, plain: bool, min: f64, max: f64) -> Result<(), Mismatch> {
    let expected = if min == f64::MIN {
        "a finite number such as 0.5, without quotes".to_owned()
    } else {
        format!("a number from {min} to {max}, without quotes")
    };
    match json_number(text).and_then(|n| n.as_f64()) {
        Some(n) if plain && (min..=max).contains(&n) => Ok(()),
        Some(_) if plain => Err(value(format!("{} is out of range", quoted(text)), expected)),
        _ => Err(kind(text, expected)),
    }
}

fn amount(text: &str) -> Result<(), Mismatch> {
    let (units, places) = text.split_once('.').unwrap_or((text, "0"));
    let digits = !places.is_empty() && places.len() <= 6 && places.bytes().all(|b| b.is_ascii_digit());
    if whole(units).is_some() && digits {
        return Ok(());
    }
    Err(value(
        format!("{} is not an amount", quoted(text)),
        "a plain decimal of at most 6 places, such as 12.50",
    ))
}

fn quantity<T: FromStr<Err = crate::quantity::BadQuantity>>(text: &str) -> Result<(), Mismatch> {
    text.parse::<T>()
        .map(drop)
        .map_err(|bad| value(format!("`{}` is not a {}", bad.shown, bad.kind), bad.expected))
}

fn duration(text: &str, min: Millis, max: Millis) -> Result<(), Mismatch> {
    let range = format!("{min} to {max}");
    match text.parse::<Millis>() {
        Ok(time) if (min..=max).contains(&time) => Ok(()),
        Ok(time) => Err(value(format!("the duration {time} is out of range"), range)),
        Err(_) if whole(text).is_some() => Err(value(
            format!("the duration {} has no unit", quoted(text)),
            format!("a unit of d h m s ms, such as {}s", crate::text::shown(text, 20)),
        )),
        Err(_) => Err(value(
            format!("{} is not a duration", quoted(text)),
            format!("whole numbers with d h m s ms, large to small, such as 30s or 1h30m; {range}"),
        )),
    }
}

fn trigger(text: &str) -> Result<(), Mismatch> {
    let counted = ["turns", "actions"].iter().any(|unit| {
        text.strip_suffix(unit).and_then(|n| n.strip_suffix(' ')).and_then(whole).is_some_and(|n| n > 0)
    });
    if counted || duration(text, Millis(1), DURATION_MAX).is_ok() {
        return Ok(());
    }
    Err(value(
        format!("{} is not a trigger", quoted(text)),
        "`10 turns`, `10 actions` or a duration such as 5m",
    ))
}

/// A file inside a sandbox.
pub(crate) fn path(text: &str, absolute: bool) -> Result<(), Mismatch> {
    let expected = if absolute { "an absolute path without `..`" } else { "a path without `..`" };
    let problem = if text.len() > PATH_BYTES_MAX {
        return Err(bounded(text, PATH_BYTES_MAX).err().unwrap_or_else(|| value("", "")));
    } else if text.is_empty() {
        "is empty"
    } else if text.chars().any(char::is_control) {
        "holds a control character"
    } else if absolute && !text.starts_with('/') {
        "is not absolute"
    } else if text.split('/').any(|part| part == "..") {
        "holds `..`"
    } else {
        return Ok(());
    };
    Err(value(format!("the path {} {problem}", quoted(text)), expected))
}

/// A folder that is made in a sandbox, or is there, before the step starts in it.
fn workdir(text: &str) -> Result<(), Mismatch> {
    bounded(text, WORKDIR_BYTES_MAX)?;
    path(text, true)?;
    let mut parts = text.split('/').filter(|part| !part.is_empty());
    if parts.clone().any(|part| part == ".") {
        return Err(value(format!("the path {} holds `.`", quoted(text)), "the path without `.`"));
    }
    if let Some(part) = parts.clone().find(|part| part.len() > WORKDIR_PART_BYTES_MAX) {
        return Err(Mismatch {
            code: DiagnosticCode::TooLarge,
            message: format!(
                "a folder name of {} bytes; the limit is {WORKDIR_PART_BYTES_MAX} bytes",
                part.len()
            ),
            expected: "a shorter name".to_owned(),
        });
    }
    match parts.next().and_then(|first| MOUNTED_OVER.iter().find(|over| **over == first)) {
        Some(over) => Err(value(
            format!("the path {} lies under /{over}, where nothing can be made", quoted(text)),
            "a folder such as /workspace, outside of /proc, /dev, /sys and /usr",
        )),
        None => Ok(()),
    }
}

fn client_path(text: &str) -> Result<(), Mismatch> {
    if text.contains("://") {
        let message = format!("{} is a URL", quoted(text));
        return Err(Mismatch {
            code: DiagnosticCode::NotAvailableYet,
            message: format!("{message}; URLs are not available yet"),
            expected: "a file, relative to the spec".to_owned(),
        });
    }
    path(text, false).map_err(|bad| Mismatch {
        expected: "a file path without `..`, relative to the spec".to_owned(),
        ..bad
    })
}

fn user(text: &str) -> Result<(), Mismatch> {
    let valid = (1..=32).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if valid {
        return Ok(());
    }
    Err(value(
        format!("{} is not a user name", quoted(text)),
        "1 to 32 of A-Z a-z 0-9 _ -, such as rollout or root",
    ))
}

fn media_type(text: &str) -> Result<(), Mismatch> {
    let valid = text.len() <= 127
        && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
        && text.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    if valid {
        Ok(())
    } else {
        Err(value(format!("{} is not a media type", quoted(text)), "a type such as text/x-diff"))
    }
}

/// What a sandbox can start from.
pub(crate) fn image(text: &str) -> Result<(), Mismatch> {
    if text == "host" {
        return Ok(());
    }
    if let Some(folder) = text.strip_prefix("dir:") {
        return path(folder, true).map_err(|bad| Mismatch {
            expected: "dir: and an absolute path; the folder is read on the node".to_owned(),
            ..bad
        });
    }
    bounded(text, PATH_BYTES_MAX)?;
    let expected = "`host`, `dir:/path/on/the/node`, `oci-layout:PATH`, `oci-archive:PATH` or a reference \
                    such as debian:12";
    let refused = |problem: &str| value(format!("{} is not an image: {problem}", quoted(text)), expected);
    match text.parse::<ImageRef>() {
        Ok(ImageRef::Layout { path: place, .. } | ImageRef::Archive { path: place })
            if place.chars().any(char::is_control) =>
        {
            Err(refused("its path holds a control character"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(refused(error.problem)),
    }
}

pub(crate) fn layer(text: &str) -> Result<(), Mismatch> {
    bounded(text, PATH_BYTES_MAX)?;
    if text.starts_with(LAYER_PREFIX) {
        return text
            .parse::<Layer>()
            .map(drop)
            .map_err(|bad| value(format!("{} is not a layer", quoted(text)), bad.form));
    }
    let expected = "a lookup of a column with a tree, such as \"${row.tests}\", or an OCI image";
    match text.parse::<ImageRef>() {
        Ok(ImageRef::Host | ImageRef::Directory(_)) => {
            Err(value(format!("{} has no layers of its own", quoted(text)), expected))
        }
        Ok(_) => image(text),
        Err(error) => Err(value(format!("{} is not a layer: {}", quoted(text), error.problem), expected)),
    }
}

/// `step.output`.
pub(crate) fn artifact(text: &str) -> Result<(&str, &str), Mismatch> {
    text.split_once('.')
        .filter(|(step, output)| name(step, true).is_ok() && name(output, true).is_ok())
        .ok_or_else(|| {
            value(format!("{} is not an artifact", quoted(text)), "`step.output`, such as work.answer")
        })
}

fn url(text: &str) -> Result<(), Mismatch> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let valid = text.len() <= PATH_BYTES_MAX
        && text.bytes().all(|b| b.is_ascii_graphic())
        && rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    if valid {
        Ok(())
    } else {
        Err(value(format!("{} is not a URL", quoted(text)), "a URL such as https://host/v1"))
    }
}

pub(crate) fn table(text: &str) -> Result<(), Mismatch> {
    if text.contains("://") {
        return Err(Mismatch {
            code: DiagnosticCode::NotAvailableYet,
            message: format!("{} is a URL; URLs are not available yet", quoted(text)),
            expected: "a folder, such as ./out".to_owned(),
        });
    }
    let problem = if text.len() > PATH_BYTES_MAX {
        return bounded(text, PATH_BYTES_MAX);
    } else if text.is_empty() {
        "is empty"
    } else if text.chars().any(char::is_control) {
        "holds a control character"
    } else {
        return Ok(());
    };
    Err(value(format!("the path {} {problem}", quoted(text)), "a folder, such as ./out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(grammar: Grammar, text: &str) -> bool {
        check(grammar, text, true).is_ok()
    }

    #[test]
    fn hostile_numbers_are_refused_everywhere() {
        let time = Grammar::Duration { min: Millis(1000), max: DURATION_MAX };
        let grammars = [
            Grammar::Count { min: 1, max: 1024 },
            Grammar::Cpu,
            Grammar::Bytes,
            time,
            Grammar::Amount,
            Grammar::Number { min: f64::MIN, max: f64::MAX },
            Grammar::Trigger,
            Grammar::Mode,
        ];
        for text in
            ["NaN", "nan", ".nan", "inf", ".inf", "-inf", "1e400", "0x10", "1_000", "+1", "", " 1", "١"]
        {
            for grammar in grammars {
                assert!(!accepts(grammar, text), "{text} as {grammar:?}");
            }
        }
        for grammar in grammars {
            let number = matches!(grammar, Grammar::Number { .. });
            assert_eq!(accepts(grammar, "-1"), number, "-1 as {grammar:?}");
            assert_eq!(accepts(grammar, "18446744073709551616"), number, "2^64 as {grammar:?}");
        }
        assert!(!accepts(Grammar::Cpu, "0"));
        assert!(!accepts(Grammar::Count { min: 0, max: 10 }, "010"));
        assert!(check(Grammar::Count { min: 1, max: 8 }, "8", false).is_err());
    }

    #[test]
    fn hostile_names_and_paths_are_refused() {
        for text in [
            "",
            "-x",
            "a\u{202e}b",
            "\u{430}",
            "a\u{200b}",
            "../x",
            "é",
            "a b",
            "\u{1f600}",
            &"x".repeat(300),
        ] {
            assert!(!accepts(Grammar::PlainName, text), "{text:?}");
            assert!(!accepts(Grammar::EnvName, text), "{text:?}");
        }
        for text in ["A=B", "a", "1A", "A-B"] {
            assert!(!accepts(Grammar::EnvName, text), "{text:?}");
        }
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        for text in ["", "x", "/a/../b", "/..", "/a\nb", "/a\u{1b}[0m", &long] {
            assert!(!accepts(Grammar::SandboxPath, text), "{text:?}");
        }
        assert!(accepts(Grammar::SandboxPath, "/a..b/..c"));
        for text in ["/proc", "//proc/x", "/dev/shm", "/sys/", "/usr/src", "/a/./b", "/a/../b", "a", "/x\n"] {
            assert!(!accepts(Grammar::Workdir, text), "{text:?}");
        }
        for text in ["/", "/workspace", "/procs", "/home/dev", "/a..b/..c", &format!("/{}", "x".repeat(255))]
        {
            assert!(accepts(Grammar::Workdir, text), "{text:?}");
        }
        assert!(!accepts(Grammar::Workdir, &format!("/{}", "x".repeat(256))));
        assert!(!accepts(Grammar::Workdir, &"/x".repeat(2048)));
        assert!(accepts(Grammar::OutputPath, "out/x.txt"));
    }

    #[test]
    fn triggers_and_amounts_follow_their_grammar() {
        for text in ["10 turns", "1 actions", "5m"] {
            assert!(accepts(Grammar::Trigger, text), "{text}");
        }
        for text in ["0 turns", "10turns", "0s", "10", "10 steps"] {
            assert!(!accepts(Grammar::Trigger, text), "{text}");
        }
        for text in ["12.50", "0.003", "7"] {
            assert!(accepts(Grammar::Amount, text), "{text}");
        }
        for text in ["$5", "1.", "1.0000001", "1e3"] {
            assert!(!accepts(Grammar::Amount, text), "{text}");
        }
    }
}
