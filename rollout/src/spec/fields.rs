//! What a field may hold: the vocabulary in which the tables of `tables.rs` are written.
//!
//! One table entry decides everything about a field: whether the key is known, what its value
//! must look like, whether lookups are expanded in it, whether this build can serve it, and how
//! it appears in the JSON Schema. Checker, reader and schema all read the same entry.

use crate::time::Millis;

/// A map with known keys.
#[derive(Debug)]
pub(crate) struct Object {
    /// Names the schema definition; unique.
    pub name: &'static str,
    pub fields: &'static [Field],
    /// Keys of `fields` that this use of them leaves out, and why.
    pub without: &'static [&'static str],
    pub without_why: &'static str,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub name: &'static str,
    pub shape: Shape,
    pub required: bool,
    /// Valid, but refused in this build: what to do instead.
    pub later: Option<&'static str>,
    /// One sentence for the schema.
    pub doc: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Scalar(Grammar, Expands),
    Choice(&'static [Choice]),
    List {
        of: &'static Shape,
        min: usize,
        max: usize,
    },
    /// Free keys of one grammar.
    Map {
        keys: Grammar,
        of: &'static Shape,
        max: usize,
    },
    Object(&'static Object),
    /// The first that accepts this kind of node; `expected` names them all.
    Either {
        of: &'static [Shape],
        expected: &'static str,
    },
    /// A task row: a JSON object.
    Row,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    pub value: &'static str,
    pub later: Option<&'static str>,
}

/// Whether, and when, lookups are expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expands {
    /// A lookup here is an error.
    Never,
    /// `${` is for someone else (the shell) and stays as it is.
    Verbatim,
    /// The design allows it; this build has no machinery.
    Later,
    /// With the names known then.
    When(Known),
}

/// When a lookup is done: which roots have values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// `job`, `matrix`.
    Submit,
    /// And `row`.
    TaskId,
    /// And `task`, `group`.
    Group,
    /// And `image`, `step`: only the key of a checkpoint.
    Plan,
    /// And `rollout`, `models`, `step`.
    Run,
}

/// The text form of a scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Grammar {
    Text {
        bytes_max: usize,
    },
    /// Not empty.
    Shell,
    Name,
    /// A name without a dot.
    PlainName,
    EnvName,
    Bool,
    Count {
        min: u64,
        max: u64,
    },
    Number {
        min: f64,
        max: f64,
    },
    Amount,
    Cpu,
    Bytes,
    Duration {
        min: Millis,
        max: Millis,
    },
    Trigger,
    Cron,
    Timezone,
    /// Absolute, inside the sandbox.
    SandboxPath,
    /// A folder inside the sandbox that a step can start in.
    Workdir,
    /// Absolute, or relative to `workdir`.
    OutputPath,
    /// On the machine of the client.
    ClientPath,
    User,
    MediaType,
    Image,
    /// A read-only tree.
    Layer,
    /// Exactly one lookup, of a column that holds an object or a list.
    RowColumn,
    /// `step.output`.
    Artifact,
    /// Octal permission bits.
    Mode,
    Url,
    /// Path, or URL with a scheme.
    Table,
    ExitCode,
    Column,
}

impl Object {
    pub const fn new(name: &'static str, fields: &'static [Field]) -> Self {
        Self { name, fields, without: &[], without_why: "" }
    }

    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().filter(|field| !self.without.contains(&field.name))
    }

    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields().find(|field| field.name == name)
    }
}

pub(crate) const fn field(name: &'static str, shape: Shape, doc: &'static str) -> Field {
    Field { name, shape, required: false, later: None, doc }
}

impl Field {
    pub const fn required(self) -> Self {
        Self { required: true, ..self }
    }
    pub const fn later(self, instead: &'static str) -> Self {
        Self { later: Some(instead), ..self }
    }
}

pub(crate) const fn choice(value: &'static str) -> Choice {
    Choice { value, later: None }
}
pub(crate) const fn choice_later(value: &'static str, instead: &'static str) -> Choice {
    Choice { value, later: Some(instead) }
}

pub(crate) const fn fixed(grammar: Grammar) -> Shape {
    Shape::Scalar(grammar, Expands::Never)
}
pub(crate) const fn looked_up(grammar: Grammar, known: Known) -> Shape {
    Shape::Scalar(grammar, Expands::When(known))
}
pub(crate) const fn text(bytes_max: usize) -> Shape {
    fixed(Grammar::Text { bytes_max })
}
pub(crate) const fn count(min: u64, max: u64) -> Shape {
    fixed(Grammar::Count { min, max })
}
/// A duration in which the design expands lookups and this build does not yet.
pub(crate) const fn duration(min: Millis, max: Millis) -> Shape {
    Shape::Scalar(Grammar::Duration { min, max }, Expands::Later)
}
pub(crate) const fn list(of: &'static Shape, max: usize) -> Shape {
    Shape::List { of, min: 0, max }
}

impl Known {
    /// Roots with values, in the order they become known.
    pub fn roots(self) -> &'static [&'static str] {
        match self {
            Self::Submit => &["job", "matrix"],
            Self::TaskId => &["job", "matrix", "row"],
            Self::Group => &["job", "matrix", "row", "task", "group"],
            Self::Plan => &["job", "matrix", "row", "task", "group", "image", "step"],
            Self::Run => &["job", "matrix", "row", "task", "group", "step", "rollout", "models"],
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::Submit => "at submit",
            Self::TaskId => "where task ids are made",
            Self::Group => "when a row becomes a group",
            Self::Plan => "when a row is planned",
            Self::Run => "when a rollout runs",
        }
    }
}

/// The file mode written as `0644` or `644`.
pub(crate) fn file_mode(text: &str) -> Option<u32> {
    let octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
    let bits = u32::from_str_radix(text, 8).ok()?;
    (octal && bits <= 0o777).then_some(bits)
}
