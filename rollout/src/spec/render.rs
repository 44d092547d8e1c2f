//! Diagnostics as text for a terminal, in the manner of a compiler.

use std::fmt::Write as _;

use super::diagnostic::{Diagnostic, DiagnosticCode, Severity};
use crate::text::shown;

/// Characters of a line shown around the fault.
const WINDOW_CHARS: usize = 96;
/// Characters shown before the fault when a line is longer than the window.
const LEAD_CHARS: usize = 40;

/// All of `diagnostics` over `source`, and a last line that counts them; empty if there are none.
pub(crate) fn render(diagnostics: &[Diagnostic], source: &str) -> String {
    let mut out = String::new();
    for diagnostic in diagnostics {
        one(diagnostic, source, &mut out);
    }
    if let Some(first) = diagnostics.first() {
        let errors = diagnostics.iter().filter(|d| d.severity == Severity::Error).count();
        let warnings = diagnostics.len() - errors;
        let counted = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        let total = match (errors, warnings) {
            (errors, 0) => counted(errors, "error"),
            (0, warnings) => counted(warnings, "warning"),
            (errors, warnings) => format!("{}, {}", counted(errors, "error"), counted(warnings, "warning")),
        };
        let _ = writeln!(out, "{}: {total}", file_name(&first.file));
    }
    out
}

fn file_name(file: &str) -> String {
    shown(file, 256)
}

fn one(diagnostic: &Diagnostic, source: &str, out: &mut String) {
    let Diagnostic { code, severity, file, line, col, path, message, expected, nearest, .. } = diagnostic;
    let number = line.to_string();
    let gutter = " ".repeat(number.len());
    let _ = writeln!(out, "{}[{code}]: {message}", severity.as_str());
    let _ = writeln!(out, "{gutter}--> {}:{line}:{col}", file_name(file));
    if let Some((text, caret)) = snippet(diagnostic, source) {
        let _ = writeln!(out, "{gutter} |");
        let _ = writeln!(out, "{number} | {text}");
        let _ = writeln!(out, "{gutter} | {caret}");
    }
    if !path.is_empty() {
        let _ = writeln!(out, "{gutter} = path: {path}");
    }
    if let Some(nearest) = nearest {
        let _ = writeln!(out, "{gutter} = help: did you mean `{nearest}`?");
    }
    // A list of all fields is noise beside the one that was meant.
    let known = nearest.is_some() && *code == DiagnosticCode::UnknownField;
    if let Some(expected) = expected.as_ref().filter(|_| !known) {
        let _ = writeln!(out, "{gutter} = expected: {expected}");
    }
    out.push('\n');
}

/// The line, escaped, and the underline below it.
fn snippet(diagnostic: &Diagnostic, source: &str) -> Option<(String, String)> {
    let line = source.lines().nth(usize::try_from(diagnostic.line).ok()?.checked_sub(1)?)?;
    let at = usize::try_from(diagnostic.col).ok()?.saturating_sub(1);
    let width = usize::try_from(diagnostic.width).ok()?.max(1);
    let length = line.chars().count();
    let start = if length <= WINDOW_CHARS { 0 } else { at.saturating_sub(LEAD_CHARS) };
    let end = length.min(start + WINDOW_CHARS);
    let part = |from: usize, to: usize| -> String {
        let text: String = line.chars().skip(from).take(to.saturating_sub(from)).collect();
        shown(&text, WINDOW_CHARS)
    };
    let before = part(start, at.min(end));
    let marked = part(at, (at + width).min(end));
    let after = part((at + width).min(end), end);
    let (head, tail) = (if start > 0 { "..." } else { "" }, if end < length { "..." } else { "" });
    let text = format!("{head}{before}{marked}{after}{tail}");
    let caret = format!("{}{}", " ".repeat(head.len() + before.len()), "^".repeat(marked.len().max(1)));
    Some((text, caret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tree::Span;

    #[test]
    fn carets_stand_below_escaped_and_shortened_text() {
        let mut fault = Diagnostic::error(
            DiagnosticCode::BadType,
            Span { line: 2, col: 5, width: 3, ..Span::default() },
            "a.b",
            "no",
        );
        fault.file = "f\u{202e}.yaml".to_owned();
        let text = render(&[fault.clone()], "x\né\t\u{202e} bad\n");
        assert_eq!(
            text,
            "error[bad_type]: no\n --> f\\u{202e}.yaml:2:5\n  |\n2 | \\u{e9}\\u{9}\\u{202e} bad\n  | \
             \u{20}                   ^^^\n  = path: a.b\n\nf\\u{202e}.yaml: 1 error\n"
        );
        fault.col = 201;
        let long = format!("x\n{}bad{}\n", "a".repeat(200), "b".repeat(200));
        let text = render(&[fault], &long);
        let lines: Vec<&str> = text.lines().collect();
        let caret = lines[4].find('^').unwrap();
        assert_eq!(&lines[3][caret..caret + 3], "bad");
        assert!(lines[3].len() < 120);
    }
}
