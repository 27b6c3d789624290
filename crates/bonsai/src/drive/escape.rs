//! Text that goes to a terminal or a log: names of files, exports and peers come from others, and may hold control sequences.
//!
//! A line is one event of the log, and what a name holds neither ends it nor moves the cursor. The escape sequences are
//! those of Rust's string literals.

use std::borrow::Cow;

/// The text with control characters, and those that change the direction or the line of what follows, escaped.
pub(super) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match is_unsafe(character) {
            true => safe.extend(character.escape_default()),
            false => safe.push(character),
        }
    }
    Cow::Owned(safe)
}

fn is_unsafe(character: char) -> bool {
    let is_direction = matches!(
        character,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || is_direction || matches!(character, '\u{2028}' | '\u{2029}')
}

/// As [`crate::output::say`], with all of the line escaped.
macro_rules! say {
    ($($text:tt)*) => {
        crate::output::say!("{}", $crate::drive::escape::escaped(&format!($($text)*)))
    };
}
pub(super) use say;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_terminal_is_escaped() {
        for (text, wanted) in [
            ("a b, \u{e9}\u{1f600}", "a b, \u{e9}\u{1f600}"),
            ("a\nb", "a\\nb"),
            ("\u{1b}[31mred\u{9b}0m", "\\u{1b}[31mred\\u{9b}0m"),
            ("a\r\tb\u{7f}", "a\\r\\tb\\u{7f}"),
            ("\u{202e}lmth", "\\u{202e}lmth"),
            ("x\u{2028}y", "x\\u{2028}y"),
        ] {
            assert_eq!(escaped(text), wanted);
        }
    }
}
