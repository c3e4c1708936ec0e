//! How a command ends: the exit codes, and the one type that carries what was wrong, where, and what to do.
//!
//! Owns the code of every ending and how a failure is printed on standard error. Leaves to each command what
//! it says. Invariant: each variant has one number, and scripts may rely on it.

use std::fmt;

use umbel_wire::Code;

/// The process's exit code. The numbers are a promise to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done = 0,
    /// It failed for a reason that has no code of its own.
    Failed = 1,
    /// The command line, or a file that it names, is wrong.
    Usage = 2,
    /// A condition that was asked for does not hold.
    Condition = 3,
    /// The server, or the site behind it, cannot be reached.
    Unreachable = 4,
    /// Not authenticated, or not allowed.
    NotAllowed = 5,
    /// Nothing has that name or id, or several have.
    NotFound = 6,
    /// It does not fit the present state.
    Conflict = 7,
    /// A daemon's configuration is wrong: a restart cannot help.
    BadConfig = 78,
    /// It took too long.
    TimedOut = 124,
    /// Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// The code for an error of the wire or of the operator API.
    pub(crate) fn of(code: Code) -> Self {
        match code {
            Code::Unauthenticated | Code::PermissionDenied => Exit::NotAllowed,
            Code::InvalidArgument => Exit::Usage,
            Code::NotFound | Code::Gone => Exit::NotFound,
            Code::Conflict => Exit::Conflict,
            Code::Unavailable => Exit::Unreachable,
            Code::DeadlineExceeded => Exit::TimedOut,
            _ => Exit::Failed,
        }
    }
}

/// Why a command did not do what was asked. Printed once, by `main`.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    what: String,
    remedies: Vec<String>,
    candidates: Vec<String>,
    correlation: Option<String>,
}

impl Failure {
    /// A failure that says what was wrong and where.
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Failure { exit, what: what.into(), remedies: Vec::new(), candidates: Vec::new(), correlation: None }
    }

    /// A plain failure, exit code 1.
    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Failure::new(Exit::Failed, what)
    }

    /// A wrong command line, exit code 2.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, what)
    }

    /// Adds what to do: a command to type or a sentence.
    #[must_use]
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedies.push(remedy.into());
        self
    }

    /// Adds what an ambiguous name could mean.
    #[must_use]
    pub(crate) fn candidates(mut self, candidates: Vec<String>) -> Self {
        self.candidates = candidates;
        self
    }

    /// Adds the id that finds this error in the servers' logs.
    #[must_use]
    pub(crate) fn correlation(mut self, id: Option<String>) -> Self {
        self.correlation = id.filter(|id| !id.is_empty());
        self
    }

    /// Whether a name fitted several things.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.exit == Exit::NotFound && !self.candidates.is_empty()
    }

    /// Whether nothing is to be said: Ctrl-C is what the user typed.
    pub(crate) fn is_silent(&self) -> bool {
        self.what.is_empty()
    }

    /// The code to exit with.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// What was wrong.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Says something of what was being done in front of what was wrong.
    #[must_use]
    pub(crate) fn during(mut self, doing: &str) -> Self {
        self.what = format!("{doing}: {}", self.what);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", crate::output::printable_lines(&self.what))?;
        for candidate in &self.candidates {
            write!(f, "\n         {}", crate::output::printable(candidate))?;
        }
        for remedy in &self.remedies {
            write!(f, "\n  try:   {}", crate::output::printable(remedy))?;
        }
        if let Some(id) = &self.correlation {
            write!(f, "\n  id:    {}", crate::output::printable(id))?;
        }
        Ok(())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::failed(error.to_string())
    }
}

/// What each command returns.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;
