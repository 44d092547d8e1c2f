//! Exit codes. They are part of the interface: scripts branch on them.

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It did what was asked.
    Success,
    /// The job failed or is held, or something failed that no other code names.
    Failure,
    /// The command line, the spec or a file it names is wrong. Nothing was started.
    BadInput,
    /// No yard answers.
    Unreachable,
    /// This host cannot do what was asked: privileges, kernel, cgroups.
    HostCannot,
    /// Ended by Ctrl-C or SIGTERM.
    Interrupted,
    /// Of a command in a sandbox nobody knows how it ended, or whether it ran.
    Unknown,
    /// Of a command in a sandbox, passed on.
    Passed(u8),
}

impl ExitStatus {
    /// Those that are this program's own.
    pub const ALL: [Self; 7] = [
        Self::Success,
        Self::Failure,
        Self::BadInput,
        Self::Unreachable,
        Self::HostCannot,
        Self::Unknown,
        Self::Interrupted,
    ];

    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::BadInput => 2,
            Self::Unreachable => 3,
            Self::HostCannot => 4,
            Self::Unknown => 125,
            Self::Interrupted => 130,
            Self::Passed(code) => code,
        }
    }

    /// One line for the reference and `--help`.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Success => "it did what was asked",
            Self::Failure => "the job failed, was cancelled or is held; or any other failure",
            Self::BadInput => "the command line, the spec or a file it names is wrong; nothing was started",
            Self::Unreachable => "no yard answers",
            Self::HostCannot => "this host cannot do it: privileges, kernel or cgroups are missing",
            Self::Unknown => {
                "nobody knows how a command in a sandbox ended: the yard or its node was lost under it"
            }
            Self::Interrupted => {
                "Ctrl-C or SIGTERM came first; `dev`, `scheduler` and `executor` end with 0 then"
            }
            Self::Passed(_) => "the command in the sandbox ended so",
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}
