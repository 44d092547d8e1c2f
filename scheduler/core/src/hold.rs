//! Why a job is held for want of a node, by a code that its reason begins with.

/// Every such reason; docs/errors.md has a paragraph for each. Another node lifts the hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldCode {
    /// No attached node is large enough for a step.
    TooBigForYard,
    /// No attached node has the backend of a step.
    NoBackend,
    /// Every node large enough has refused a step for good.
    RefusedByEveryNode,
}

impl HoldCode {
    pub const ALL: &'static [Self] = &[Self::TooBigForYard, Self::NoBackend, Self::RefusedByEveryNode];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooBigForYard => "too_big_for_yard",
            Self::NoBackend => "no_backend",
            Self::RefusedByEveryNode => "refused_by_every_node",
        }
    }
}
