//! `${a.b}`: plain lookups in text. There are no operators, calls, defaults or conditionals;
//! `$${` writes a literal `${`.

use crate::plan::{Piece, Template};

/// The most lookups in one text.
pub const LOOKUPS_MAX: usize = 256;
/// The most dotted parts of one lookup.
pub const LOOKUP_PARTS_MAX: usize = 8;

/// Text between `${` and `}` that is not a plain lookup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct BadExpression {
    /// The lookup as written, from `${` on; not escaped.
    pub raw: String,
    pub problem: &'static str,
    pub expected: &'static str,
}

/// One piece of a text, with the lookup as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Text(&'t str),
    /// From `$${`.
    Escaped,
    Lookup {
        raw: &'t str,
        inner: &'t str,
    },
    Unclosed(&'t str),
}

fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some(after) = rest.strip_prefix("$${") {
            rest = after;
            return Some(Token::Escaped);
        }
        if rest.starts_with("${") {
            let Some(end) = rest.find('}') else {
                return Some(Token::Unclosed(std::mem::take(&mut rest)));
            };
            let (raw, after) = rest.split_at(end + 1);
            rest = after;
            return Some(Token::Lookup { raw, inner: &raw[2..end] });
        }
        let next = |from: usize| rest[from..].find('$').map(|at| at + from);
        let mut end = next(usize::from(rest.starts_with('$')));
        while let Some(at) = end {
            if rest[at..].starts_with("${") || rest[at..].starts_with("$${") {
                break;
            }
            end = next(at + 1);
        }
        let (text, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        Some(Token::Text(text))
    })
}

/// Whether `text` holds a lookup or an escaped one, well formed or not.
pub fn has_expression(text: &str) -> bool {
    text.contains("${")
}

/// Roots of lookups that nobody writes in a shell for another reason.
const SHELL_ROOTS: [&str; 5] = ["row.", "task.", "matrix.", "group.", "rollout."];

/// The first lookup that was meant in shell text, as written: no shell has a parameter with a dot
/// in its name. `$${` is one that was escaped.
pub fn lookup_in_shell(text: &str) -> Option<&str> {
    text.match_indices("${").find_map(|(at, _)| {
        let inner = &text[at + 2..];
        let escaped = text[..at].ends_with('$');
        let end = inner.find(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)))?;
        let meant = SHELL_ROOTS.iter().any(|root| inner.starts_with(root)) && inner[end..].starts_with('}');
        (meant && !escaped).then(|| &text[at..at + 2 + end + 1])
    })
}

/// A part of a lookup: a column, a label, a field.
fn is_part(part: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    !part.is_empty() && !part.starts_with('-') && part.bytes().all(inner)
}

/// Reads `text`.
///
/// # Errors
/// The first lookup that is not `${a.b}`.
pub fn parse(text: &str) -> Result<Template, BadExpression> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut lookups = 0;
    let literal = |pieces: &mut Vec<Piece>, text: &str| match pieces.last_mut() {
        Some(Piece::Literal(last)) => last.push_str(text),
        _ => pieces.push(Piece::Literal(text.to_owned())),
    };
    for token in tokens(text) {
        match token {
            Token::Text(text) => literal(&mut pieces, text),
            Token::Escaped => literal(&mut pieces, "${"),
            Token::Lookup { raw, inner } => {
                lookups += 1;
                let bad = |problem, expected| BadExpression { raw: raw.to_owned(), problem, expected };
                if lookups > LOOKUPS_MAX {
                    return Err(bad("more than 256 lookups in one text", "at most 256 lookups"));
                }
                let parts: Vec<&str> = inner.split('.').collect();
                if !parts.iter().all(|part| is_part(part)) {
                    return Err(bad(
                        "not a plain lookup",
                        "names joined by dots, such as ${row.column}: no spaces, operators, calls or defaults",
                    ));
                }
                if parts.len() > LOOKUP_PARTS_MAX {
                    return Err(bad("a lookup of more than 8 parts", "at most 8 names joined by dots"));
                }
                if parts.len() < 2 {
                    return Err(bad(
                        "a lookup needs a root and a name",
                        "${row.column}, ${job.name}, ${task.id}, ...; `$${` writes a literal `${`",
                    ));
                }
                pieces.push(Piece::Lookup(parts.into_iter().map(str::to_owned).collect()));
            }
            Token::Unclosed(raw) => {
                return Err(BadExpression {
                    raw: raw.lines().next().unwrap_or("").to_owned(),
                    problem: "a lookup that is never closed",
                    expected: "a `}` at its end; `$${` writes a literal `${`",
                });
            }
        }
    }
    Ok(Template(pieces))
}

impl Template {
    /// The lookups, each as its path.
    pub fn lookups(&self) -> impl Iterator<Item = &[String]> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Lookup(path) => Some(path.as_slice()),
            Piece::Literal(_) => None,
        })
    }

    /// The text with each lookup replaced by what `value` gives for its path.
    ///
    /// # Errors
    /// The first error of `value`.
    pub fn expand<E>(&self, mut value: impl FnMut(&[String]) -> Result<String, E>) -> Result<String, E> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Lookup(path) => text.push_str(&value(path)?),
            }
        }
        Ok(text)
    }
}

/// As it would be written in a spec.
impl std::fmt::Display for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Literal(text) => f.write_str(&text.replace("${", "$${")),
            Piece::Lookup(path) => write!(f, "${{{}}}", path.join(".")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_in_shell_text_is_told_from_what_a_shell_expands() {
        for (text, found) in [
            ("echo ${row.n}", Some("${row.n}")),
            ("x=${1:-${task.id}} ${row.n}", Some("${task.id}")),
            ("echo $${row.n} ${#x} ${x%.c} ${rows} ${row} ${HOME}", None),
            ("echo ${matrix.a:-0} ${row.", None),
            ("echo '${group.id}'", Some("${group.id}")),
        ] {
            assert_eq!(lookup_in_shell(text), found, "{text}");
        }
    }

    fn lookup(path: &[&str]) -> Piece {
        Piece::Lookup(path.iter().map(|&part| part.to_owned()).collect())
    }

    fn text(literal: &str) -> Piece {
        Piece::Literal(literal.to_owned())
    }

    #[test]
    fn lookups_and_escapes_are_told_apart() {
        let cases = [
            ("", vec![]),
            ("plain", vec![text("plain")]),
            ("${row.n}", vec![lookup(&["row", "n"])]),
            ("a${row.a.b}c", vec![text("a"), lookup(&["row", "a", "b"]), text("c")]),
            ("$${HOME}", vec![text("${HOME}")]),
            ("cost: $5 $", vec![text("cost: $5 $")]),
            ("$$${row.n}", vec![text("$${row.n}")]),
            ("$HOME ${row.n}", vec![text("$HOME "), lookup(&["row", "n"])]),
            ("é$${é", vec![text("é${é")]),
        ];
        for (written, pieces) in cases {
            assert_eq!(parse(written), Ok(Template(pieces)), "{written}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let malformed =
            ["${}", "${row}", "${row.}", "${.n}", "${row.n | upper}", "${row.n:-x}", "${ row.n }"];
        let more = ["${row[0]}", "${f(row.n)}", "${row.n", "${a.b.c.d.e.f.g.h.i}", "${row.-n}", "${row.é}"];
        for written in malformed.into_iter().chain(more) {
            assert!(parse(written).is_err(), "{written}");
        }
        assert!(parse(&"${a.b}".repeat(LOOKUPS_MAX)).is_ok());
        assert!(parse(&"${a.b}".repeat(LOOKUPS_MAX + 1)).is_err());
    }

    proptest::proptest! {
        /// Escaping `${` keeps any text as it is, and a template is what it prints.
        #[test]
        fn escaped_text_comes_back(parts in proptest::collection::vec("[${}ab. \u{e9}]{0,6}", 0..8)) {
            let original = parts.concat();
            let Ok(template) = parse(&original.replace("${", "$${")) else {
                return Ok(());
            };
            let back = template.expand(|_| Err::<String, ()>(()));
            // `$` before an escape joins it: `$` + `$${` is read left to right, as documented.
            if !original.contains("$${") {
                proptest::prop_assert_eq!(back, Ok(original));
            }
        }
    }
}
