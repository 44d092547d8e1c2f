//! Lookups that lack their quotes inside `{}` or `[]`. YAML ends a text before `{` and stumbles:
//! the fault is noted, and the document is read on as if the lookup had been quoted, so that one
//! missing pair of quotes hides nothing else.

use std::ops::Range;

use super::diagnostic::Diagnostic;
use super::tree::{self, Node};

/// The most lookups without quotes that are read over; the next one ends the check. Each costs
/// another reading of the document.
pub const UNQUOTED_MAX: usize = 20;

/// What came of a document.
#[derive(Debug)]
pub(crate) struct Reading {
    /// None if some fault could not be read over.
    pub root: Option<Node>,
    /// In the order of the document.
    pub faults: Vec<Diagnostic>,
}

pub(crate) fn read(source: &str) -> Reading {
    let (mut faults, mut lookups) = (Vec::new(), Vec::<Range<usize>>::new());
    let mut stand_in = source.to_owned();
    loop {
        let stop = match tree::parse_stand_in(source, &stand_in, &lookups) {
            Ok(root) => return Reading { root: Some(root), faults },
            Err(stop) => stop,
        };
        faults.push(*stop.fault);
        let after = lookups.last().map_or(0, |last| last.end);
        let next = stop.unquoted.filter(|lookup| lookups.len() < UNQUOTED_MAX && lookup.start >= after);
        let Some((lookup, text)) = next.and_then(|lookup| Some((lookup.clone(), plain(&stand_in[lookup])?)))
        else {
            return Reading { root: None, faults };
        };
        stand_in.replace_range(lookup.clone(), &text);
        lookups.push(lookup);
    }
}

/// Text of the same length that YAML takes anywhere, in place of `${name}`; none for anything but
/// a plain lookup.
fn plain(lookup: &str) -> Option<String> {
    let name = lookup.strip_prefix("${")?.strip_suffix('}')?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_-. ".contains(&b);
    name.bytes().all(allowed).then(|| format!("$_{name}_"))
}

/// Whether `found` says again what one of `faults` says: the same lookup, seen as the value of its
/// field.
pub(crate) fn repeats(found: &Diagnostic, faults: &[Diagnostic]) -> bool {
    faults.iter().any(|fault| {
        found.code == fault.code
            && found.line == fault.line
            && found.message != fault.message
            && (found.col..found.col + found.width.max(1)).contains(&fault.col)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DiagnosticCode;

    fn codes(text: &str) -> Vec<DiagnosticCode> {
        read(text).faults.iter().map(|fault| fault.code).collect()
    }

    #[test]
    fn a_lookup_without_quotes_is_read_as_if_it_had_them() {
        let text = "a: {b: ${row.n}, c: [/x/${n}-${m}/y, ${ k }]}\nd: 1";
        let reading = read(text);
        assert_eq!(reading.faults.len(), 4, "{:?}", reading.faults);
        let root = reading.root.expect("read on");
        let a = root.get("a").expect("there");
        assert_eq!(a.get("b").and_then(Node::text), Some("${row.n}"));
        let items: Vec<_> = a.get("c").expect("there").items().iter().filter_map(Node::text).collect();
        assert_eq!(items, ["/x/${n}-${m}/y", "${ k }"]);
        assert_eq!(root.get("d").and_then(Node::text), Some("1"));
    }

    #[test]
    fn what_is_no_lookup_and_what_is_past_the_bound_ends_the_reading() {
        assert!(read("a: {b: ${x[1]}}").root.is_none());
        let many = format!("a: [{}]", vec!["${n}"; UNQUOTED_MAX + 1].join(", "));
        let reading = read(&many);
        assert!(reading.root.is_none());
        assert_eq!(reading.faults.len(), UNQUOTED_MAX + 1);
        assert_eq!(
            codes("a: {b: ${n}}\nc: 1\nc: 2"),
            [DiagnosticCode::ExpressionHere, DiagnosticCode::DuplicateKey]
        );
    }
}
