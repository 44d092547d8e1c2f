//! Why a session of an executor ends, by a code the executor and both logs are told.

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident $text:literal;)*) => {
        /// Every way a session ends; docs/errors.md has a paragraph for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum CloseCode { $($(#[$doc])* $variant),* }

        impl CloseCode {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

codes! {
    /// No hello in time, or one that cannot be.
    BadHello "bad_hello";
    /// A report that cannot be.
    BadReport "bad_report";
    /// As many executors as there may be are connected.
    TooManyNodes "too_many_nodes";
    /// Another executor is connected under that name.
    NodeNameTaken "node_name_taken";
    /// The executor does not take what is sent to it.
    NodeTooSlow "node_too_slow";
    /// More of its reports wait than may.
    TooManyReports "too_many_reports";
    /// A newer connection of the same executor took over.
    Replaced "replaced";
    /// The lease of the node is over.
    LeaseLost "lease_lost";
    /// The executor closed the stream, or the connection broke.
    Gone "gone";
    /// The scheduler is stopping.
    Stopping "stopping";
}

impl std::fmt::Display for CloseCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The end of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Close {
    pub code: CloseCode,
    pub message: String,
}

impl Close {
    pub(super) fn new(code: CloseCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
