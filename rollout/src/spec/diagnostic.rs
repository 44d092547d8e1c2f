//! What is wrong with a spec, where, and what to write instead.

use std::fmt;

use serde::{Serialize, Serializer};

use super::tree::Span;

/// The most diagnostics of one check; one more line says how many were left out.
pub const DIAGNOSTICS_MAX: usize = 100;

/// The longest piece of a document quoted in a message, in characters.
pub(crate) const QUOTE_CHARS_MAX: usize = 64;

/// The most known names compared with an unknown one.
const NEAREST_MAX: usize = 256;

macro_rules! codes {
    ($($variant:ident $text:literal $meaning:literal;)*) => {
        /// Stable codes; docs/errors.md explains each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DiagnosticCode { $(#[doc = $meaning] $variant),* }

        impl DiagnosticCode {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// One sentence for people who look the code up.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning),* }
            }
        }
    };
}

codes! {
    // The text is not a document: the check stops at the first of these.
    YamlSyntax "yaml_syntax" "The text is not YAML or JSON, or not exactly one document.";
    TabIndent "tab_indent" "A tab is used as indentation.";
    DuplicateKey "duplicate_key" "A key is written twice in one map.";
    MergeKey "merge_key" "A YAML merge key (`<<`) is used.";
    YamlTag "yaml_tag" "A YAML tag (`!something`) is used.";
    TooLarge "too_large" "The document, or a part of it, is over a named limit.";
    // The document does not have the shape of a job.
    UnknownField "unknown_field" "A map holds a key that this kind of map does not have.";
    MissingField "missing_field" "A required field is not there.";
    BadType "bad_type" "A value is of the wrong kind, such as text where a number belongs.";
    BadValue "bad_value" "A value is of the right kind and still not allowed: out of range, badly formed.";
    BadRelation "bad_relation" "Two fields contradict each other.";
    OverSampleBias "over_sample_bias" "Over-sampling cancels the slowest members, which biases the sample.";
    NotAvailableYet "not_available_yet" "The field is valid, and this build has no machinery for it.";
    // Lookups.
    ExpressionHere "expression_here" "A lookup is written where none is expanded, or is not quoted in a flow map.";
    BadExpression "bad_expression" "The text inside `${}` is not a plain lookup.";
    ShellNotExpanded "shell_not_expanded" "Shell text holds what looks like a lookup, and is never expanded (warning).";
    UnknownName "unknown_name" "A lookup names something that does not exist, or is not known at this place.";
    // Steps.
    DuplicateStep "duplicate_step" "Two steps have one name.";
    UnknownStep "unknown_step" "A step is named that does not exist.";
    DagCycle "dag_cycle" "Steps need each other in a circle.";
    NotAncestor "not_ancestor" "A step uses a step that need not have run before it.";
    FromAmbiguous "from_ambiguous" "A step needs several steps and does not say whose workspace it starts from.";
    DuplicateOutput "duplicate_output" "Two outputs of one step have one name.";
    UnknownOutput "unknown_output" "An input names an output that its step does not declare.";
    GroupNeedsRollout "group_needs_rollout" "A step that runs once a group needs one that runs once a rollout.";
    UnreachableStep "unreachable_step" "Nothing uses what the step does (warning).";
    GraderSeesNothing "grader_sees_nothing" "A grader has neither inputs nor a workspace to look at.";
    GraderSeesAgentWorkspace "grader_sees_agent_workspace" "A grader works in the sandbox of the step it grades (warning).";
    NoReward "no_reward" "No step gives a reward (warning).";
    NoTokenColumns "no_token_columns" "No trained model is recorded, so rows carry no token ids (warning).";
    TimeoutShort "timeout_short" "The job's timeout is shorter than one rollout may take (warning).";
    CheckpointKeyWeak "checkpoint_key_weak" "A checkpoint key could match a different image or step (warning).";
    // Names of other things.
    UnknownModel "unknown_model" "A model is named that the job does not declare.";
    UnknownSecret "unknown_secret" "A secret is named that the job does not declare.";
    BadCron "bad_cron" "The schedule's cron line or time zone is wrong.";
    // Task rows.
    RowMissingColumn "row_missing_column" "A task row lacks a column that the spec looks up.";
    RowBadValue "row_bad_value" "A line is no task row, or holds a value that does not fit where the spec uses it.";
    DuplicateTask "duplicate_task" "Two task rows have one id.";
    UnknownTask "unknown_task" "`tasks.filter.ids` names a task that no row has.";
    NoTaskLeft "no_task_left" "The filter leaves no row to run.";
    // Task directories.
    HarborBadTask "harbor_bad_task" "A task directory is not what Harbor says it is.";
    HarborMultiStep "harbor_multi_step" "A Harbor task has several steps.";
    HarborCompose "harbor_compose" "A Harbor task needs several containers.";
    HarborTpu "harbor_tpu" "A Harbor task needs a TPU.";
    HarborWindows "harbor_windows" "A Harbor task runs on another system than Linux.";
    HarborNeedsBuilder "harbor_needs_builder" "The image of a Harbor task must be built first.";
    HarborNoSolution "harbor_no_solution" "The agent is the oracle, and a task has no solution.";
    HarborOtherMode "harbor_other_mode" "A Harbor task is graded in another way than this job grades.";
    HarborHostEnv "harbor_host_env" "A Harbor task takes a variable from the environment of the caller.";
    NetworkPublic "network_public" "A Harbor task wants the public network.";
}

impl fmt::Display for DiagnosticCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for DiagnosticCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Error,
    Warning,
}

impl Severity {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One problem. Every text in it is safe to print: what came from the document is escaped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub code: DiagnosticCode,
    pub severity: Severity,
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub col: u32,
    /// Of the field, such as `steps[1].network.allow[0]`; empty for the whole document.
    pub path: String,
    pub message: String,
    /// What would be right here.
    pub expected: Option<String>,
    /// The known name nearest to the unknown one.
    pub nearest: Option<String>,
    /// Characters to underline from `col` on.
    #[serde(skip)]
    pub width: u32,
}

impl Diagnostic {
    /// An error in another file than a spec, at the start of `line`.
    pub fn error_at(
        code: DiagnosticCode,
        file: &str,
        line: u32,
        path: &str,
        message: impl Into<String>,
    ) -> Self {
        let span = Span { line, col: 1, width: 1, ..Span::default() };
        Self { file: file.to_owned(), ..Self::error(code, span, path, message) }
    }

    pub(crate) fn error(code: DiagnosticCode, span: Span, path: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: Severity::Error,
            file: String::new(),
            line: span.line,
            col: span.col,
            path: path.to_owned(),
            message: message.into(),
            expected: None,
            nearest: None,
            width: span.width,
        }
    }

    pub(crate) fn warning(code: DiagnosticCode, span: Span, path: &str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, span, path, message) }
    }

    #[must_use]
    pub(crate) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    #[must_use]
    pub(crate) fn nearest<'k>(mut self, given: &str, known: impl IntoIterator<Item = &'k str>) -> Self {
        self.nearest = crate::text::nearest(given, known.into_iter().take(NEAREST_MAX))
            .map(|name| quoted(name).replace('`', ""));
        self
    }
}

/// `text` between back quotes, escaped and bounded.
pub(crate) fn quoted(text: &str) -> String {
    format!("`{}`", crate::text::shown(text, QUOTE_CHARS_MAX))
}

/// The names in back quotes, as in "`a`, `b` and 3 more".
pub(crate) fn listed<'k>(names: impl IntoIterator<Item = &'k str>) -> String {
    const LISTED_MAX: usize = 20;
    let names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    let text = names.iter().take(LISTED_MAX).map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED_MAX) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Collects diagnostics in any order; [`Sink::finish`] sorts them.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    found: Vec<Diagnostic>,
    /// Taken out again by [`Sink::compact`].
    dropped: usize,
    errors: bool,
}

/// Diagnostics kept while a check runs: bounds the memory that a document full of faults costs.
const KEPT_MAX: usize = 10 * DIAGNOSTICS_MAX;

impl Sink {
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.errors |= diagnostic.severity == Severity::Error;
        self.found.push(diagnostic);
        if self.found.len() >= KEPT_MAX {
            self.compact();
        }
    }

    /// Sorts, removes repetitions, and keeps the first [`DIAGNOSTICS_MAX`].
    fn compact(&mut self) {
        self.found.sort_by(|a, b| {
            (a.line, a.col, a.severity, a.code, &a.message)
                .cmp(&(b.line, b.col, b.severity, b.code, &b.message))
        });
        self.found
            .dedup_by(|a, b| (a.line, a.col, a.code) == (b.line, b.col, b.code) && a.message == b.message);
        self.dropped += self.found.len().saturating_sub(DIAGNOSTICS_MAX);
        self.found.truncate(DIAGNOSTICS_MAX);
    }

    /// So much is wrong already that what follows is counted rather than shown.
    pub fn is_crowded(&self) -> bool {
        self.dropped > 0 || self.found.len() > 2 * DIAGNOSTICS_MAX
    }

    pub fn has_errors(&self) -> bool {
        self.errors
    }

    /// Sorted by position, each once, at most [`DIAGNOSTICS_MAX`] and the line that says so.
    pub fn finish(mut self, file: &str) -> Vec<Diagnostic> {
        self.compact();
        if let Some(last) = self.found.last().filter(|_| self.dropped > 0) {
            let span = Span { line: last.line, col: last.col, width: 1, ..Span::default() };
            let message = format!(
                "{} more problems from here on are not listed; the limit is {DIAGNOSTICS_MAX} at once",
                self.dropped
            );
            let mut note = Diagnostic::error(DiagnosticCode::TooLarge, span, "", message);
            if !self.errors {
                note.severity = Severity::Warning;
            }
            self.found.push(note);
        }
        for diagnostic in &mut self.found {
            diagnostic.file = file.to_owned();
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_lower_case_words() {
        let mut texts: Vec<&str> = DiagnosticCode::ALL.iter().map(|code| code.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), DiagnosticCode::ALL.len());
        for code in DiagnosticCode::ALL {
            assert!(code.as_str().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{code}");
            assert!(code.meaning().ends_with('.') || code.meaning().ends_with(')'), "{code}");
        }
    }

    #[test]
    fn past_the_bound_the_rest_is_counted() {
        let mut sink = Sink::default();
        for line in 0..250 {
            let span = Span { line, col: 1, width: 1, ..Span::default() };
            sink.push(Diagnostic::error(DiagnosticCode::BadType, span, "", "x"));
        }
        let found = sink.finish("f");
        assert_eq!(found.len(), DIAGNOSTICS_MAX + 1);
        assert!(found[DIAGNOSTICS_MAX].message.starts_with("150 more problems"));
    }
}
