//! Errors that have an exit code of their own.

/// Something the user has to put right, in one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    code: u8,
    text: String,
}

/// The exit code for bad input.
pub const BAD_INPUT: u8 = 2;

impl Refusal {
    /// Bad input: exit code 2.
    pub fn input(text: impl Into<String>) -> anyhow::Error {
        Self::code(BAD_INPUT, text)
    }

    /// With an exit code of its own.
    pub fn code(code: u8, text: impl Into<String>) -> anyhow::Error {
        Self {
            code,
            text: text.into(),
        }
        .into()
    }
}

/// Gives an error that has no exit code of its own the one for bad input: for what
/// keeps a program from being started at all.
pub fn before_start(error: anyhow::Error) -> anyhow::Error {
    if error.is::<Refusal>() {
        error
    } else {
        Refusal::input(bonsai_host::sentence(error.as_ref()))
    }
}

/// The exit code that an error ends the program with.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    error
        .downcast_ref::<Refusal>()
        .map_or(1, |refusal| refusal.code)
}
