//! The document against the tables: keys, kinds of values, ranges, lookups. Goes on after each
//! problem, so that all are reported at once.

use super::diagnostic::{Diagnostic, DiagnosticCode as Code, QUOTE_CHARS_MAX, Sink, listed, quoted};
use super::fields::{Expands, Grammar, Known, Object, Shape};
use super::grammar;
use super::tree::{Entry, Node, Span, Value, child_path, item_path, place};
use crate::expression;
use crate::text::shown;

/// What lookups may name, gathered from the document before it is checked; each list is sorted.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    /// None: the source's columns are not known here.
    pub columns: Option<Vec<String>>,
    pub labels: Vec<String>,
    pub matrix: Vec<String>,
}

impl Scope {
    pub fn of(root: &Node) -> Self {
        let keys = |node: Option<&Node>| -> Vec<String> {
            let entries = node.map(Node::entries).unwrap_or_default();
            let mut keys: Vec<String> = entries.iter().map(|entry| entry.key.clone()).collect();
            keys.sort_unstable();
            keys
        };
        let from = root.get("tasks").and_then(|tasks| tasks.get("from"));
        let mut columns: Option<Vec<String>> = None;
        if let Some(rows) = from.and_then(|from| from.get("inline")) {
            let all = columns.get_or_insert_default();
            for row in rows.items() {
                all.extend(row.entries().iter().map(|entry| entry.key.clone()));
            }
            all.sort_unstable();
            all.dedup();
        } else if let Some(feed) = from.and_then(|from| from.get("feed")) {
            columns = Some(keys(feed.get("columns")));
        } else if let Some(listed) =
            from.filter(|from| from.get("parquet").is_some()).and_then(|from| from.get("columns"))
        {
            let all = columns.get_or_insert_default();
            all.extend(listed.items().iter().filter_map(|item| item.text().map(str::to_owned)));
            all.sort_unstable();
            all.dedup();
        }
        Self {
            columns,
            labels: keys(root.get("labels")),
            matrix: keys(root.get("matrix").and_then(|matrix| matrix.get("values"))),
        }
    }
}

pub(crate) struct Walk<'a> {
    pub source: &'a str,
    pub scope: &'a Scope,
    pub sink: &'a mut Sink,
}

impl Walk<'_> {
    pub fn node(&mut self, node: &Node, shape: Shape, path: &str) {
        match shape {
            Shape::Either { of, expected } => self.either(node, of, expected, path),
            _ if node.is_null() => {
                let message = format!("{} has no value", field_words(path));
                self.push(Code::BadType, node.span, path, message, &words(shape));
            }
            Shape::Scalar(grammar, expands) => match &node.value {
                Value::Scalar { text, plain } => self.scalar(node, (text, *plain), grammar, expands, path),
                _ => self.wrong_kind(node, &words(shape), path),
            },
            Shape::Choice(choices) => {
                let Some(text) = node.text() else { return self.wrong_kind(node, &words(shape), path) };
                if expression::has_expression(text) {
                    return self.no_expression(node.span, path);
                }
                match choices.iter().find(|choice| choice.value == text) {
                    Some(choice) => {
                        if let Some(instead) = choice.later {
                            let message =
                                format!("{} of {} is not available yet", quoted(text), field_words(path));
                            self.push(Code::NotAvailableYet, node.span, path, message, instead);
                        }
                    }
                    None => {
                        let fault =
                            Diagnostic::error(Code::BadValue, node.span, path, not_a_value(text, path));
                        let known = choices.iter().map(|choice| choice.value);
                        self.sink.push(fault.expected(words(shape)).nearest(text, known));
                    }
                }
            }
            Shape::List { of, min, max } => {
                let Value::List(items) = &node.value else {
                    return self.wrong_kind(node, &words(shape), path);
                };
                if items.len() > max {
                    let message =
                        format!("{} items; the limit of {} is {max}", items.len(), field_words(path));
                    return self.push(
                        Code::TooLarge,
                        node.span,
                        path,
                        message,
                        &format!("at most {max} items"),
                    );
                }
                if items.len() < min {
                    let message = format!("{} has too few items: {}", field_words(path), items.len());
                    let expected =
                        if min == max { format!("{min} items") } else { format!("at least {min}") };
                    self.push(Code::BadValue, node.span, path, message, &expected);
                }
                for (index, item) in items.iter().enumerate() {
                    self.node(item, *of, &item_path(path, index));
                }
            }
            Shape::Map { keys, of, max } => {
                let Value::Map(entries) = &node.value else {
                    return self.wrong_kind(node, &words(shape), path);
                };
                if entries.len() > max {
                    let message =
                        format!("{} entries; the limit of {} is {max}", entries.len(), field_words(path));
                    return self.push(
                        Code::TooLarge,
                        node.span,
                        path,
                        message,
                        &format!("at most {max} entries"),
                    );
                }
                for entry in entries {
                    let path = child_path(path, &entry.key);
                    if let Err(bad) = grammar::check(keys, &entry.key, true) {
                        self.push(bad.code, entry.key_span, &path, bad.message, &bad.expected);
                    }
                    self.node(&entry.value, *of, &path);
                }
            }
            Shape::Object(object) => self.object(node, object, path),
            Shape::Row => self.row(node, path),
        }
    }

    pub fn object(&mut self, node: &Node, object: &'static Object, path: &str) {
        let Value::Map(entries) = &node.value else {
            let keys = listed(object.fields().map(|field| field.name));
            return self.wrong_kind(node, &format!("a map with the keys {keys}"), path);
        };
        for entry in entries {
            self.entry(entry, object, path);
        }
        for field in object.fields().filter(|field| field.required && node.entry(field.name).is_none()) {
            let missing = child_path(path, field.name);
            let message = format!("{} is missing", quoted(&missing));
            let expected = match field.shape {
                Shape::Choice(choices) => format!("`{}: {}`", field.name, choices[0].value),
                _ => format!("`{}`: {}", field.name, field.doc.trim_end_matches('.')),
            };
            self.push(Code::MissingField, node.span, &missing, message, &expected);
        }
    }

    fn entry(&mut self, entry: &Entry, object: &'static Object, path: &str) {
        let path = child_path(path, &entry.key);
        let Some(field) = object.field(&entry.key) else {
            if object.without.contains(&entry.key.as_str()) {
                let message = format!("{} {}", quoted(&entry.key), object.without_why);
                return self.push(
                    Code::UnknownField,
                    entry.key_span,
                    &path,
                    message,
                    "the field in each step that needs it",
                );
            }
            let why = format!("unknown field {}", quoted(&entry.key));
            let known = || object.fields().map(|field| field.name);
            let fault = Diagnostic::error(Code::UnknownField, entry.key_span, &path, why);
            let fault = fault.expected(format!("one of {}", listed_all(known())));
            return self.sink.push(fault.nearest(&entry.key, known()));
        };
        if let Some(instead) = field.later {
            let message = format!("{} is not available yet", quoted(&path));
            self.push(Code::NotAvailableYet, entry.key_span, &path, message, instead);
        }
        self.node(&entry.value, field.shape, &path);
    }

    fn either(&mut self, node: &Node, of: &'static [Shape], expected: &'static str, path: &str) {
        let fits = |shape: &&Shape| match (shape, &node.value) {
            (Shape::Scalar(..) | Shape::Choice(_), Value::Scalar { .. }) => !node.is_null(),
            (Shape::List { .. }, Value::List(_)) => true,
            (Shape::Object(_) | Shape::Map { .. } | Shape::Row, Value::Map(_)) => true,
            _ => false,
        };
        let fitting: Vec<Shape> = of.iter().filter(fits).copied().collect();
        match fitting.as_slice() {
            [] => self.wrong_kind(node, expected, path),
            [only] => self.node(node, *only, path),
            several => {
                let accepted = several.iter().any(|shape| {
                    let mut sink = Sink::default();
                    let mut trial = Walk { source: self.source, scope: self.scope, sink: &mut sink };
                    trial.node(node, *shape, path);
                    !sink.has_errors()
                });
                if !accepted {
                    let text = node.text().unwrap_or_default();
                    self.push(Code::BadValue, node.span, path, not_a_value(text, path), expected);
                }
            }
        }
    }

    fn scalar(
        &mut self,
        node: &Node,
        (text, plain): (&str, bool),
        grammar: Grammar,
        expands: Expands,
        path: &str,
    ) {
        let mut text = text;
        let literal;
        if expands == Expands::Verbatim {
            self.shell_text(node.span, text, path);
        }
        if expands != Expands::Verbatim && expression::has_expression(text) {
            let known = match expands {
                Expands::When(known) => known,
                Expands::Later => {
                    let message = format!("a lookup in {} is not available yet", field_words(path));
                    return self.push(Code::NotAvailableYet, node.span, path, message, "a fixed value");
                }
                Expands::Never | Expands::Verbatim => return self.no_expression(node.span, path),
            };
            let template = match expression::parse(text) {
                Ok(template) => template,
                Err(bad) => {
                    let span = self.locate(node.span, &bad.raw);
                    let message = format!("{}: {}", quoted(&bad.raw), bad.problem);
                    return self.push(Code::BadExpression, span, path, message, bad.expected);
                }
            };
            for lookup in template.lookups() {
                let raw = format!("${{{}}}", lookup.join("."));
                if let Some(fault) = lookup_fault(lookup, known, self.scope, path, self.sink.is_crowded()) {
                    let span = self.locate(node.span, &raw);
                    self.sink.push(Diagnostic { line: span.line, col: span.col, width: span.width, ..fault });
                }
            }
            let Some(fixed) = template.as_literal() else {
                if grammar == Grammar::Image {
                    self.image_prefix(node.span, text, path);
                }
                return;
            };
            literal = fixed.to_owned();
            text = &literal;
        }
        if let Err(bad) = grammar::check(grammar, text, plain) {
            let message = if bad.code == Code::BadType { not_a_value(text, path) } else { bad.message };
            self.push(bad.code, node.span, path, message, &bad.expected);
        }
    }

    /// The shell gets its text as it is: a lookup there is a mistake that shows once the step runs, if
    /// at all.
    fn shell_text(&mut self, span: Span, text: &str, path: &str) {
        let Some(lookup) = expression::lookup_in_shell(text) else { return };
        let name = lookup.trim_end_matches('}').rsplit('.').next().unwrap_or_default();
        let name = shown(&name.to_ascii_uppercase().replace('-', "_"), QUOTE_CHARS_MAX);
        let span = self.locate(span, lookup);
        let message = format!("{} is not expanded in shell text", quoted(lookup));
        let lookup = quoted(lookup).replace('`', "");
        let expected = format!("pass it by env: `env: {{{name}: \"{lookup}\"}}`, and `\"${name}\"` here");
        let fault = Diagnostic::warning(Code::ShellNotExpanded, span, path, message);
        self.sink.push(fault.expected(expected));
    }

    /// Of an image that is looked up, what is written before the lookup is known already.
    fn image_prefix(&mut self, span: Span, text: &str, path: &str) {
        let prefix = &text[..text.find("${").unwrap_or(0)];
        if !"dir:".starts_with(prefix)
            && !prefix.starts_with("dir:")
            && let Err(bad) = grammar::image(prefix)
        {
            self.push(bad.code, span, path, bad.message, &bad.expected);
        }
    }

    fn row(&mut self, node: &Node, path: &str) {
        if !matches!(node.value, Value::Map(_)) {
            return self.wrong_kind(node, "a map of column to value", path);
        }
        self.json(node, path);
    }

    fn json(&mut self, node: &Node, path: &str) {
        match &node.value {
            Value::Scalar { .. } => {
                if let Err(message) = json_scalar(node) {
                    let expected = "true, false, null, a JSON number, or text in quotes";
                    self.push(Code::BadType, node.span, path, message, expected);
                }
            }
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.json(item, &item_path(path, index));
                }
            }
            Value::Map(entries) => {
                for entry in entries {
                    self.json(&entry.value, &child_path(path, &entry.key));
                }
            }
        }
    }

    fn no_expression(&mut self, span: Span, path: &str) {
        let message = format!("{} takes no lookup", field_words(path));
        self.push(Code::ExpressionHere, span, path, message, "a fixed value, without `${`");
    }

    fn wrong_kind(&mut self, node: &Node, expected: &str, path: &str) {
        let message = match node.text().filter(|_| !node.is_null()) {
            Some(text) => not_a_value(text, path),
            None => format!("{} has {}", field_words(path), node.kind()),
        };
        let span = match node.value {
            Value::Scalar { .. } => node.span,
            _ => Span { width: 1, ..node.span },
        };
        self.push(Code::BadType, span, path, message, expected);
    }

    fn push(&mut self, code: Code, span: Span, path: &str, message: impl Into<String>, expected: &str) {
        self.sink.push(Diagnostic::error(code, span, path, message).expected(expected));
    }

    /// Where `raw` is written inside a scalar; the scalar itself if it was written with escapes.
    fn locate(&self, span: Span, raw: &str) -> Span {
        let range = span.start as usize..span.end as usize;
        let found = self.source.get(range).and_then(|written| written.find(raw));
        match found {
            None => span,
            Some(at) => {
                let width = u32::try_from(raw.chars().count()).unwrap_or(1).max(1);
                Span { width, ..place(self.source, span, at) }
            }
        }
    }
}

fn not_a_value(text: &str, path: &str) -> String {
    format!("{} is not a value of {}", quoted(text), field_words(path))
}

/// The field a path ends in, for a message.
fn field_words(path: &str) -> String {
    if path.is_empty() { "the document".to_owned() } else { format!("`{path}`") }
}

/// What a shape takes, in words.
fn words(shape: Shape) -> String {
    match shape {
        Shape::Scalar(Grammar::Text { .. } | Grammar::Shell | Grammar::Column, _) => "text".to_owned(),
        Shape::Scalar(grammar, _) => {
            grammar::check(grammar, "\0", false).err().map_or_else(|| "text".to_owned(), |bad| bad.expected)
        }
        Shape::Choice(choices) => {
            let now = choices.iter().filter(|choice| choice.later.is_none()).map(|choice| choice.value);
            listed(now).replace(", ", " or ")
        }
        Shape::List { .. } => "a list".to_owned(),
        Shape::Map { .. } => "a map".to_owned(),
        Shape::Object(object) if object.fields().any(|field| field.required) => {
            let required: Vec<&str> = object.fields().filter(|f| f.required).map(|f| f.name).collect();
            format!("a map with {}", listed(required))
        }
        Shape::Object(_) => "a map; `{}` for all defaults".to_owned(),
        Shape::Either { expected, .. } => expected.to_owned(),
        Shape::Row => "a map of column to value".to_owned(),
    }
}

fn listed_all<'k>(names: impl Iterator<Item = &'k str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// A scalar of a task row as JSON. Text that YAML 1.1, YAML 1.2 and JSON read differently is
/// refused rather than guessed.
pub(crate) fn json_scalar(node: &Node) -> Result<serde_json::Value, String> {
    let Value::Scalar { text, plain } = &node.value else {
        return Err("not a scalar".to_owned());
    };
    if !plain {
        return Ok(serde_json::Value::String(text.clone()));
    }
    match text.as_str() {
        "" | "~" | "null" => return Ok(serde_json::Value::Null),
        "true" => return Ok(serde_json::Value::Bool(true)),
        "false" => return Ok(serde_json::Value::Bool(false)),
        _ => {}
    }
    if let Some(number) = grammar::json_number(text) {
        let whole_text = text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        if whole_text && !(number.is_i64() || number.is_u64()) {
            return Err(format!("the whole number {} needs more than 64 bits", quoted(text)));
        }
        return Ok(serde_json::Value::Number(number));
    }
    let lower = text.to_ascii_lowercase();
    let word = matches!(lower.as_str(), "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n");
    let special = matches!(lower.trim_start_matches(['+', '-', '.']), "nan" | "inf");
    let numeric = lower.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'))
        && lower.contains(|c: char| c.is_ascii_digit())
        && lower.trim_start_matches("0x").bytes().all(|b| b.is_ascii_hexdigit() || b"+-._o".contains(&b))
        && (lower.starts_with("0x") || lower.bytes().all(|b| b.is_ascii_digit() || b"+-._oe".contains(&b)));
    if word || special || numeric {
        return Err(format!("{} means different things to different YAML readers", quoted(text)));
    }
    Ok(serde_json::Value::String(text.clone()))
}

const ROOTS: [&str; 9] = ["job", "matrix", "row", "task", "group", "image", "step", "rollout", "models"];

/// What is wrong if a lookup names nothing that exists where it is written. The position is filled
/// in by the caller. `brief` leaves out what to write instead.
fn lookup_fault(
    lookup: &[String],
    known: Known,
    scope: &Scope,
    path: &str,
    brief: bool,
) -> Option<Diagnostic> {
    let raw = quoted(&format!("${{{}}}", lookup.join(".")));
    let fault = |code, message: String| Diagnostic::error(code, Span::default(), path, message);
    let [root, name, rest @ ..] = lookup else {
        return Some(fault(Code::BadExpression, format!("{raw} has no name")));
    };
    let roots = known.roots();
    if !roots.contains(&root.as_str()) {
        let expected = format!("a lookup in one of {}", listed(roots.iter().copied()));
        if ROOTS.contains(&root.as_str()) {
            let message = match root.as_str() {
                "image" => format!("{raw}: `image` is only known in `checkpoint.key`"),
                _ => format!("{raw}: `{root}` is not known {}", known.words()),
            };
            return Some(fault(Code::UnknownName, message).expected(expected));
        }
        let message = format!("{raw}: there is nothing called {}", quoted(root));
        return Some(
            fault(Code::UnknownName, message).expected(expected).nearest(root, roots.iter().copied()),
        );
    }
    let unknown = |known: &[&str], what: &str, name: &str| {
        let expected = match known {
            [] => format!("another lookup: the job has no {what}s"),
            _ => format!("one of the {what}s {}", listed(known.iter().copied())),
        };
        let fault = fault(Code::UnknownName, format!("{raw}: no such {what} here"));
        fault.expected(expected).nearest(name, known.iter().copied())
    };
    let fixed = |known: &[&str]| {
        if known.contains(&name.as_str()) && rest.is_empty() {
            None
        } else {
            Some(unknown(known, "name", name))
        }
    };
    let owned = |names: &[String], what: &str, name: &str| {
        if names.binary_search_by(|known| known.as_str().cmp(name)).is_ok() {
            return None;
        }
        if brief {
            return Some(fault(Code::UnknownName, format!("{raw}: no such {what} here")));
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Some(unknown(&names, what, name))
    };
    match root.as_str() {
        "job" if name == "labels" && !rest.is_empty() => owned(&scope.labels, "label", &rest.join(".")),
        "job" if name == "labels" => {
            Some(fault(Code::UnknownName, format!("{raw} is a map")).expected("${job.labels.KEY}"))
        }
        // Task ids are the same in every job over the same rows.
        "job" if known == Known::TaskId => fixed(&["name", "labels"]),
        "job" => fixed(&["id", "name", "hash", "labels"]),
        "matrix" if rest.is_empty() => owned(&scope.matrix, "matrix key", name),
        "matrix" => Some(unknown(&[], "matrix key", name)),
        "row" => scope.columns.as_ref().and_then(|columns| owned(columns, "column", name)),
        "task" => fixed(&["id"]),
        "group" => fixed(&["id", "size", "epoch"]),
        "image" => fixed(&["digest"]),
        "step" => fixed(&["name", "hash"]),
        "rollout" => fixed(&["id", "sample_index"]),
        _ => Some(
            fault(Code::NotAvailableYet, format!("{raw}: models are not available yet"))
                .expected("no lookup of a model"),
        ),
    }
}
