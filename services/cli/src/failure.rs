//! How a command fails: one message, one hint, one exit code; rendered by `main` and nowhere else.

use laneway_platform::ExitCode;
use laneway_platform::config::ConfigErrors;
use laneway_platform::service::Chain;

/// What a command gives.
pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The process's exit code.
    pub(crate) code: ExitCode,
    /// What went wrong, causes included; empty if everything has been said.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// Everything has been said already.
    pub(crate) fn silent(code: ExitCode) -> Self {
        Self::new(code, "")
    }

    /// An error with its causes.
    pub(crate) fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(ExitCode::Failure, Chain(error).to_string())
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub(crate) fn code(mut self, code: ExitCode) -> Self {
        self.code = code;
        self
    }
}

impl From<laneway_store::Error> for Failure {
    fn from(error: laneway_store::Error) -> Self {
        let failure = Self::of(&error);
        if error.is_connection_lost() {
            failure.code(ExitCode::Unavailable).hint("is PostgreSQL running, and is the URL right?")
        } else if error.is_transient() {
            failure.code(ExitCode::Unavailable).hint("try again")
        } else if error.is_schema_missing() {
            failure.code(ExitCode::Conflict).hint(
                "`laneway migrate` makes the control schema, `laneway source install` a source's",
            )
        } else {
            failure
        }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::new(ExitCode::Config, errors.to_string())
    }
}

impl From<std::io::Error> for Failure {
    /// An error of standard output. A reader that went away (`| head`) is no failure worth a word.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::silent(ExitCode::Ok)
        } else {
            Self::of(&error)
        }
    }
}
