//! Text from elsewhere.

/// Text from elsewhere, such as the name of a program, without characters that
/// would steer the terminal.
pub fn harmless(text: &str) -> String {
    bonsai_units::text::escaped(text).into_owned()
}
