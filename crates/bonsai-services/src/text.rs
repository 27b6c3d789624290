//! Text from elsewhere.

/// Text from elsewhere, such as the name of a program, without characters that
/// would steer the terminal.
pub fn harmless(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
