//! YAML text -> a bounded tree in which every node knows its place.
//!
//! Typing is left to the reader of a field: a scalar is the text as written and whether it was
//! written plain, so `name: no` stays text. JSON is read by the same path.

use std::collections::BTreeMap;
use std::ops::Range;

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError};

use super::diagnostic::{Diagnostic, DiagnosticCode, quoted};

/// The largest document, in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// The most nodes (keys included), counted after aliases are expanded.
pub const NODES_MAX: usize = 20_000;
/// The deepest nesting of lists and maps.
pub const DEPTH_MAX: usize = 32;
/// The most text, in bytes, after aliases are expanded.
pub const EXPANDED_BYTES_MAX: usize = 4 << 20;
/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// A place in the document. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub line: u32,
    pub col: u32,
    /// Characters to underline; at least 1.
    pub width: u32,
    /// Byte range in the source.
    pub start: u32,
    pub end: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub span: Span,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Scalar { text: String, plain: bool },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub key: String,
    pub key_span: Span,
    pub value: Node,
}

impl Node {
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    pub fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// Nothing was written, or a plain `null` or `~`.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }

    /// What it is, in words.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            _ if self.is_null() => "no value",
            Value::Scalar { .. } => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// Nodes, text bytes and height of the tree below and with this node.
    fn weight(&self) -> Weight {
        let below = |weight: Weight, child: Weight| Weight {
            nodes: weight.nodes + child.nodes,
            bytes: weight.bytes + child.bytes,
            height: weight.height.max(child.height + 1),
        };
        match &self.value {
            Value::Scalar { text, .. } => Weight { nodes: 1, bytes: text.len(), height: 0 },
            Value::List(items) => {
                items.iter().map(Self::weight).fold(Weight { nodes: 1, bytes: 0, height: 1 }, below)
            }
            Value::Map(entries) => {
                entries.iter().fold(Weight { nodes: 1, bytes: 0, height: 1 }, |sum, entry| {
                    let key = Weight { nodes: 1, bytes: entry.key.len(), height: 0 };
                    below(below(sum, key), entry.value.weight())
                })
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Weight {
    nodes: usize,
    bytes: usize,
    height: usize,
}

/// `path` with one more key: `a.b`, or `a["strange key"]`.
pub(crate) fn child_path(path: &str, key: &str) -> String {
    let plain = !key.is_empty()
        && key.len() <= 64
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    match (plain, path.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{path}.{key}"),
        (false, _) => format!("{path}[\"{}\"]", crate::text::shown(key, 64)),
    }
}

pub(crate) fn item_path(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

enum Frame {
    List {
        span: Span,
        anchor: usize,
        items: Vec<Node>,
    },
    Map {
        span: Span,
        anchor: usize,
        entries: Vec<Entry>,
        lines: BTreeMap<String, u32>,
        key: Option<(String, Span)>,
    },
}

struct Builder<'s> {
    source: &'s str,
    /// Where the parser reads something else than `source`.
    stood_in: &'s [Range<usize>],
    stack: Vec<Frame>,
    anchors: BTreeMap<usize, Node>,
    root: Option<Node>,
    nodes: usize,
    bytes: usize,
}

/// Why a document could not be read to its end.
#[derive(Debug)]
pub(crate) struct Stop {
    pub fault: Box<Diagnostic>,
    /// If the fault is a lookup without quotes: where it is, in bytes.
    pub unquoted: Option<Range<usize>>,
}

impl From<Box<Diagnostic>> for Stop {
    fn from(fault: Box<Diagnostic>) -> Self {
        Self { fault, unquoted: None }
    }
}

/// The document, or the first thing that keeps it from being one. The parser reads `stand_in`,
/// which is `source` with text of equal length at `stood_in`; a scalar there has the text of
/// `source`, as if it were quoted.
pub(crate) fn parse_stand_in(source: &str, stand_in: &str, stood_in: &[Range<usize>]) -> Result<Node, Stop> {
    if source.len() > TEXT_BYTES_MAX {
        let message =
            format!("the document has {} bytes; the limit is {TEXT_BYTES_MAX} bytes of text", source.len());
        return Err(Box::new(Diagnostic::error(DiagnosticCode::TooLarge, START, "", message)).into());
    }
    if let Some(at) = source.find('\0') {
        let message = "the document holds a NUL character";
        let at = place(source, START, at);
        return Err(Box::new(Diagnostic::error(DiagnosticCode::YamlSyntax, at, "", message)).into());
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.disallow_directives = true;
    // Past our own depth, so that our bound speaks first wherever it can.
    options.flow_nesting_limit = DEPTH_MAX + 1;
    options.block_nesting_limit = DEPTH_MAX + 1;
    let mut builder = Builder {
        source,
        stood_in,
        stack: Vec::new(),
        anchors: BTreeMap::new(),
        root: None,
        nodes: 0,
        bytes: 0,
    };
    for event in Parser::new_from_str_with_options(stand_in, options) {
        match event {
            Ok((event, span)) => builder.take(event, span)?,
            Err(error) => {
                let fault = Box::new(builder.syntax(&error));
                let unquoted = builder.unquoted_lookup(builder.error_place(&error));
                let unquoted = unquoted.filter(|_| fault.code == DiagnosticCode::ExpressionHere);
                return Err(Stop { fault, unquoted });
            }
        }
    }
    builder.root.ok_or_else(|| {
        let message = "the document is empty";
        let diagnostic = Diagnostic::error(DiagnosticCode::YamlSyntax, START, "", message);
        Box::new(diagnostic.expected("a job, starting with `apiVersion: rollyard/v1`")).into()
    })
}

const START: Span = Span { line: 1, col: 1, width: 1, start: 0, end: 0 };

/// The place `at` bytes after `from`.
pub(crate) fn place(source: &str, from: Span, at: usize) -> Span {
    let start = from.start as usize;
    let between = source.get(start..start + at).unwrap_or_default();
    let lines = between.bytes().filter(|&b| b == b'\n').count();
    let col = match between.rfind('\n') {
        None => from.col + narrow(between.chars().count()),
        Some(newline) => narrow(between[newline + 1..].chars().count() + 1),
    };
    let byte = narrow(start + at);
    Span { line: from.line + narrow(lines), col, width: 1, start: byte, end: byte }
}

/// Positions fit: a document has at most [`TEXT_BYTES_MAX`] bytes.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

impl Builder<'_> {
    fn span(&self, span: granit_parser::Span) -> Span {
        let range = span.byte_range().unwrap_or(0..0);
        let raw = self.source.get(range.clone()).unwrap_or("");
        let first_line = raw.lines().next().unwrap_or("");
        Span {
            line: narrow(span.start.line()),
            col: narrow(span.start.col() + 1),
            width: narrow(first_line.trim_end().chars().count().max(1)),
            start: narrow(range.start),
            end: narrow(range.end),
        }
    }

    /// The path of what is being read.
    fn path(&self) -> String {
        self.stack.iter().fold(String::new(), |path, frame| match frame {
            Frame::List { items, .. } => item_path(&path, items.len()),
            Frame::Map { key: Some((key, _)), .. } => child_path(&path, key),
            Frame::Map { key: None, .. } => path,
        })
    }

    fn fault(&self, code: DiagnosticCode, span: Span, message: impl Into<String>) -> Box<Diagnostic> {
        Box::new(Diagnostic::error(code, span, &self.path(), message))
    }

    fn take(&mut self, event: Event<'_>, span: granit_parser::Span) -> Result<(), Box<Diagnostic>> {
        let at = self.span(span);
        if matches!(
            event,
            Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) | Event::Alias(_)
        ) {
            self.no_tab_before(at)?;
        }
        match event {
            Event::DocumentStart(..) if self.root.is_some() => Err(self.fault(
                DiagnosticCode::YamlSyntax,
                at,
                "a second document starts here; a file holds one job",
            )),
            Event::Scalar(text, style, anchor, tag) => {
                self.no_tag(tag.is_some(), &span, at)?;
                self.grow(Weight { nodes: 1, bytes: text.len(), height: 0 }, at)?;
                let written = self.stood_in_text(&span);
                let plain = style == ScalarStyle::Plain && written.is_none();
                let text = written.map_or(text, Into::into);
                if self.wants_key() {
                    return self.key(text.into_owned(), plain, at);
                }
                let node = Node { span: at, value: Value::Scalar { text: text.into_owned(), plain } };
                self.place_node(node, anchor);
                Ok(())
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.open(tag.is_some(), &span, at)?;
                self.stack.push(Frame::List { span: at, anchor, items: Vec::new() });
                Ok(())
            }
            Event::MappingStart(_, anchor, tag) => {
                self.open(tag.is_some(), &span, at)?;
                let (entries, lines) = (Vec::new(), BTreeMap::new());
                self.stack.push(Frame::Map { span: at, anchor, entries, lines, key: None });
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => {
                match self.stack.pop() {
                    Some(Frame::List { span, anchor, items }) => {
                        self.place_node(Node { span, value: Value::List(items) }, anchor);
                    }
                    Some(Frame::Map { span, anchor, entries, .. }) => {
                        self.place_node(Node { span, value: Value::Map(entries) }, anchor);
                    }
                    None => {
                        return Err(self.fault(
                            DiagnosticCode::YamlSyntax,
                            at,
                            "unexpected end of a list or map",
                        ));
                    }
                }
                Ok(())
            }
            Event::Alias(anchor) => {
                if self.wants_key() {
                    return Err(self.fault(DiagnosticCode::YamlSyntax, at, "an alias cannot be a key"));
                }
                let Some(target) = self.anchors.get(&anchor) else {
                    return Err(self.fault(DiagnosticCode::YamlSyntax, at, "an alias inside its own anchor"));
                };
                self.grow(target.weight(), at)?;
                // The aliased value is used here, so this is where its problems are shown.
                let node = Node { span: at, value: self.anchors[&anchor].value.clone() };
                self.place_node(node, 0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The scanner takes a tab after spaces as indentation; other readers count it differently.
    fn no_tab_before(&self, at: Span) -> Result<(), Box<Diagnostic>> {
        let before = self.source.as_bytes().get(..at.start as usize).unwrap_or_default();
        let blank = before.iter().rev().take_while(|&&b| b == b' ' || b == b'\t').count();
        let (rest, indent) = before.split_at(before.len() - blank);
        match indent.iter().position(|&b| b == b'\t') {
            Some(tab) if rest.last().is_none_or(|&b| b == b'\n') => {
                Err(Box::new(self.tab_fault(Span { col: narrow(tab + 1), width: 1, ..at })))
            }
            _ => Ok(()),
        }
    }

    fn tab_fault(&self, tab: Span) -> Diagnostic {
        let message = format!("line {} column {} is a tab used as indentation", tab.line, tab.col);
        self.fault(DiagnosticCode::TabIndent, tab, message).expected("spaces")
    }

    fn wants_key(&self) -> bool {
        matches!(self.stack.last(), Some(Frame::Map { key: None, .. }))
    }

    fn open(&mut self, tagged: bool, span: &granit_parser::Span, at: Span) -> Result<(), Box<Diagnostic>> {
        self.no_tag(tagged, span, at)?;
        if self.wants_key() {
            return Err(self.fault(DiagnosticCode::YamlSyntax, at, "a key must be text, not a list or map"));
        }
        self.grow(Weight { nodes: 1, bytes: 0, height: 1 }, at)
    }

    fn no_tag(&self, tagged: bool, span: &granit_parser::Span, at: Span) -> Result<(), Box<Diagnostic>> {
        if !tagged {
            return Ok(());
        }
        let tag = span.tag_span().map_or(at, |tag| self.span(tag));
        let raw = self.source.get(tag.start as usize..tag.end as usize).unwrap_or("!");
        let message = format!("the tag {} is not allowed", quoted(raw));
        let fault = self.fault(DiagnosticCode::YamlTag, tag, message);
        Err(Box::new(fault.expected("the value without a tag: its type follows from the field it is in")))
    }

    /// Counts what is about to be added, before it is.
    fn grow(&mut self, weight: Weight, at: Span) -> Result<(), Box<Diagnostic>> {
        self.nodes += weight.nodes;
        self.bytes += weight.bytes;
        let depth = self.stack.len() + weight.height;
        let over = if self.nodes > NODES_MAX {
            format!("{} nodes or more; the limit is {NODES_MAX} nodes after alias expansion", self.nodes)
        } else if self.bytes > EXPANDED_BYTES_MAX {
            format!(
                "{} bytes of text or more; the limit is {EXPANDED_BYTES_MAX} bytes after alias expansion",
                self.bytes
            )
        } else if depth > DEPTH_MAX {
            format!("nested {depth} deep or more; the limit is a depth of {DEPTH_MAX}")
        } else {
            return Ok(());
        };
        Err(self.fault(DiagnosticCode::TooLarge, at, over))
    }

    fn key(&mut self, text: String, plain: bool, at: Span) -> Result<(), Box<Diagnostic>> {
        if plain && text == "<<" {
            let fault = self.fault(DiagnosticCode::MergeKey, at, "the merge key `<<` is not allowed");
            return Err(Box::new(fault.expected(
                "the fields written out, or shared ones under the top-level `defaults`, which every step takes",
            )));
        }
        if text.len() > KEY_BYTES_MAX {
            let message = format!("a key of {} bytes; the limit is {KEY_BYTES_MAX} bytes", text.len());
            return Err(self.fault(DiagnosticCode::TooLarge, at, message));
        }
        let path = self.path();
        let Some(Frame::Map { lines, key, .. }) = self.stack.last_mut() else { return Ok(()) };
        if let Some(first) = lines.insert(text.clone(), at.line) {
            let message = format!("the key {} is written twice; the first is on line {first}", quoted(&text));
            let path = child_path(&path, &text);
            let fault = Diagnostic::error(DiagnosticCode::DuplicateKey, at, &path, message);
            return Err(Box::new(fault.expected("each key once")));
        }
        *key = Some((text, at));
        Ok(())
    }

    fn place_node(&mut self, node: Node, anchor: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Frame::List { items, .. }) => items.push(node),
            Some(Frame::Map { entries, key, .. }) => {
                if let Some((key, key_span)) = key.take() {
                    entries.push(Entry { key, key_span, value: node });
                }
            }
        }
    }

    /// A parser error as a diagnostic, with the cases people meet most put in plain words.
    fn syntax(&self, error: &ScanError) -> Diagnostic {
        let at = self.error_place(error);
        if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
            let message = format!("nested more than {DEPTH_MAX} deep; the limit is a depth of {DEPTH_MAX}");
            return *self.fault(DiagnosticCode::TooLarge, at, message);
        }
        if let Some(tab) = self.tab_at_fault(error) {
            return self.tab_fault(tab);
        }
        if let Some(expression) = self.unquoted_expression(at) {
            return expression;
        }
        let fault =
            self.fault(DiagnosticCode::YamlSyntax, at, format!("not valid YAML: {}", plain_words(error)));
        match error.kind() {
            ErrorKind::MappingValueNotAllowed => {
                fault.expected("one `key: value` a line; text that holds `: ` goes in quotes")
            }
            ErrorKind::DirectiveDisallowed => fault.expected("the document without the `%` line"),
            ErrorKind::UnexpectedCharacter { .. } => {
                fault.expected("text that starts with this character in quotes")
            }
            _ => *fault,
        }
    }

    fn error_place(&self, error: &ScanError) -> Span {
        let marker = error.marker();
        let byte = marker.byte_offset().map_or(0, narrow);
        Span {
            line: narrow(marker.line().max(1)),
            col: narrow(marker.col() + 1),
            width: 1,
            start: byte,
            end: byte,
        }
    }

    /// The scanner notices a tab late or early: look for it around the place it names.
    fn tab_at_fault(&self, error: &ScanError) -> Option<Span> {
        let tab = matches!(
            error.kind(),
            ErrorKind::TabNotAllowed
                | ErrorKind::TabInBlockIndentation
                | ErrorKind::TabInIndentation
                | ErrorKind::TabInPlainScalar
                | ErrorKind::TabAtBlockScalarStart
                | ErrorKind::InvalidBlockEntryWhitespace
                | ErrorKind::InvalidMappingValueWhitespace
        );
        let line = error.marker().line().max(1);
        let mut lines = self.source.lines().enumerate().skip(line - 1);
        lines.by_ref().take(if tab { usize::MAX } else { 0 }).find_map(|(index, text)| {
            let indent = text.find(|c| c != ' ' && c != '\t').unwrap_or(text.len());
            let column = text[..indent].find('\t')?;
            Some(Span { line: narrow(index + 1), col: narrow(column + 1), width: 1, start: 0, end: 0 })
        })
    }

    /// What `source` has at a scalar that the parser read from something else.
    fn stood_in_text(&self, span: &granit_parser::Span) -> Option<String> {
        let range = span.byte_range()?;
        let inside = |lookup: &Range<usize>| range.start <= lookup.start && lookup.end <= range.end;
        self.stood_in.iter().any(inside).then_some(())?;
        let lines = self.source.get(range)?.lines().map(str::trim);
        Some(lines.collect::<Vec<_>>().join(" "))
    }

    /// `{size: ${n}}`: YAML ends the text before `{`, and then stumbles at `at`.
    fn unquoted_lookup(&self, at: Span) -> Option<Range<usize>> {
        let start = (at.start as usize).checked_sub(1)?;
        let rest = self.source.get(start..)?;
        if !rest.starts_with("${") {
            return None;
        }
        let raw = rest.find(['}', '\n']).map_or(rest, |end| &rest[..=end]).trim_end();
        Some(start..start + raw.len())
    }

    fn unquoted_expression(&self, at: Span) -> Option<Diagnostic> {
        let raw = self.source.get(self.unquoted_lookup(at)?)?;
        let span = Span { col: at.col.saturating_sub(1), width: narrow(raw.chars().count()), ..at };
        // The scanner already took the `$` for the value, or the item, before it.
        let path = match self.stack.last() {
            Some(Frame::Map { entries, key: None, .. }) => {
                entries.last().map_or_else(String::new, |entry| child_path(&self.path(), &entry.key))
            }
            Some(Frame::List { items, .. }) if !items.is_empty() => {
                let path = self.path();
                path.rfind('[').map_or(path.clone(), |cut| item_path(&path[..cut], items.len() - 1))
            }
            _ => self.path(),
        };
        let message = format!("{} must be quoted inside `{{}}` or `[]`", quoted(raw));
        let fault = Diagnostic::error(DiagnosticCode::ExpressionHere, span, &path, message);
        Some(fault.expected(format!("quotes around the lookup: \"{}\"", crate::text::shown(raw, 64))))
    }
}

fn plain_words(error: &ScanError) -> String {
    match error.kind() {
        ErrorKind::MappingValueNotAllowed => "a `: ` where no key can be".to_owned(),
        ErrorKind::ExpectedFlowMappingSeparator => {
            "expected `,` or `}` here; is a `{` before this never closed?".to_owned()
        }
        ErrorKind::ExpectedFlowSequenceSeparator => {
            "expected `,` or `]` here; is a `[` before this never closed?".to_owned()
        }
        ErrorKind::UnclosedQuotedScalar => "the quote opened here is never closed".to_owned(),
        ErrorKind::UnclosedFlowCollection { open } => format!("the `{open}` opened here is never closed"),
        ErrorKind::UnknownAnchor => "this alias has no anchor before it".to_owned(),
        ErrorKind::DirectiveDisallowed => "a `%` directive".to_owned(),
        ErrorKind::UnexpectedCharacter { character } => {
            format!("text cannot start with {}", quoted(&character.to_string()))
        }
        _ => crate::text::shown(&error.info(), 200),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Node, Box<Diagnostic>> {
        parse_stand_in(text, text, &[]).map_err(|stop| stop.fault)
    }

    fn code(text: &str) -> DiagnosticCode {
        parse(text).unwrap_err().code
    }

    #[test]
    fn bombs_are_refused_by_the_limit_they_exceed() {
        let mut aliases = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let before = level - 1;
            aliases
                .push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 9].join(", ")));
        }
        let fault = parse(&aliases).unwrap_err();
        assert_eq!(fault.code, DiagnosticCode::TooLarge);
        assert!(fault.message.contains("20000 nodes after alias expansion"), "{}", fault.message);

        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), vec!["*a"; 1000].join(", "));
        assert!(parse(&long).unwrap_err().message.contains("bytes after alias expansion"));

        for deep in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
            let fault = parse(&deep).unwrap_err();
            assert_eq!(fault.code, DiagnosticCode::TooLarge, "{}", fault.message);
            assert!(fault.message.contains("a depth of 32"), "{}", fault.message);
        }
        let wide = format!("a: [{}]", vec!["x"; 400_000].join(","));
        assert!(parse(&wide).unwrap_err().message.contains("20001 nodes"));
        let big = "x".repeat(TEXT_BYTES_MAX + 1);
        assert!(parse(&big).unwrap_err().message.contains("1048577 bytes; the limit is 1048576"));
    }

    #[test]
    fn what_yaml_allows_and_a_spec_does_not_has_a_code() {
        assert_eq!(code("a: 1\na: 2"), DiagnosticCode::DuplicateKey);
        assert_eq!(code("b: &b {x: 1}\na: {<<: *b}"), DiagnosticCode::MergeKey);
        assert_eq!(code("a: !!str x"), DiagnosticCode::YamlTag);
        assert_eq!(code("a: !ruby/object {}"), DiagnosticCode::YamlTag);
        assert_eq!(code("a:\n\tb: 1"), DiagnosticCode::TabIndent);
        assert_eq!(code("a: 1\n---\nb: 1"), DiagnosticCode::YamlSyntax);
        assert_eq!(code("%YAML 1.2\n---\na: 1"), DiagnosticCode::YamlSyntax);
        assert_eq!(code("? [a]\n: b"), DiagnosticCode::YamlSyntax);
        assert_eq!(code("a: &a [*a]"), DiagnosticCode::YamlSyntax);
        assert_eq!(code("# only a comment\n"), DiagnosticCode::YamlSyntax);
        assert_eq!(code("a: \0"), DiagnosticCode::YamlSyntax);
        assert_eq!(code("group: {size: ${n}}"), DiagnosticCode::ExpressionHere);
    }

    #[test]
    fn a_tab_inside_a_block_of_text_is_text() {
        let node = parse("run: |\n  cat <<X\n  \tindented\n  X\n").unwrap();
        assert_eq!(node.get("run").unwrap().text(), Some("cat <<X\n\tindented\nX\n"));
    }

    #[test]
    fn an_unquoted_expression_names_its_field() {
        let fault = parse("group: {size: ${n}}").unwrap_err();
        assert_eq!((fault.path.as_str(), fault.line, fault.col), ("group.size", 1, 15));
        let fault = parse("agent: {command: [a, ${row.x}]}").unwrap_err();
        assert_eq!((fault.path.as_str(), fault.col), ("agent.command[1]", 22));
    }
}
