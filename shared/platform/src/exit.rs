//! The exit codes of the one binary, so that scripts can tell a wrong setting from a database that is away.

/// How a process ends (cli.md; 64 is `EX_USAGE`'s neighbour for a configuration that cannot be used).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCode {
    /// 0: done.
    Ok,
    /// 1: failed, or some of many items failed.
    Failure,
    /// 2: the command line was not understood.
    Usage,
    /// 3: the named thing does not exist.
    NotFound,
    /// 4: refused, or not confirmed.
    Refused,
    /// 5: conflict, or a precondition does not hold.
    Conflict,
    /// 6: not authenticated or not allowed.
    Auth,
    /// 7: a needed server is unavailable, or did not answer in time.
    Unavailable,
    /// 8: a check found something wrong.
    CheckFailed,
    /// 64: the configuration is wrong; every problem has been reported.
    Config,
    /// 130: interrupted by the user.
    Interrupted,
}

impl ExitCode {
    /// The number that the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Refused => 4,
            Self::Conflict => 5,
            Self::Auth => 6,
            Self::Unavailable => 7,
            Self::CheckFailed => 8,
            Self::Config => 64,
            Self::Interrupted => 130,
        }
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.code())
    }
}
