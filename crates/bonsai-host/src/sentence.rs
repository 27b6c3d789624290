use std::error::Error;

/// An error and its causes in one sentence, for whoever prints no chain.
#[must_use]
pub fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
