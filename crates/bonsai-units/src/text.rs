//! Text that others wrote (names, reasons, paths), and which characters of it are safe to print.
//!
//! A terminal obeys control characters, and a reader is misled by characters that are invisible or change the direction of
//! what follows them. Both are refused where text comes in, and escaped where it is printed all the same.

use std::borrow::Cow;

/// Tells whether a character is printed as itself: neither control character (C0, DEL, C1), nor invisible, nor one that moves others.
#[must_use]
pub const fn is_plain(c: char) -> bool {
    !matches!(
        c,
        // Unicode 16, general category Cc; and of Cf, Zl and Zp what is of use to a forger.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}'
    )
}

/// Text in one line: characters that are not plain are written as Rust writes them, `\n` or `\u{1b}`.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_plain(c) {
            true => safe.push(c),
            false => safe.extend(c.escape_default()),
        }
    }
    Cow::Owned(safe)
}

/// Accepts text of plain characters alone.
///
/// # Errors
/// A sentence that names the first character that is not plain.
pub fn check_plain(text: &str) -> Result<(), String> {
    match text.chars().find(|c| !is_plain(*c)) {
        None => Ok(()),
        Some(c) => Err(format!(
            "\"{}\" has the character U+{:04X} in it, which controls a terminal or is invisible: write it without",
            escaped(text),
            u32::from(c)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_steers_what_prints_it() {
        assert_eq!(escaped("web-1.ä 日本"), "web-1.ä 日本");
        assert_eq!(
            escaped("a\n\x1b[31mb\u{9b}c\u{7f}\0"),
            "a\\n\\u{1b}[31mb\\u{9b}c\\u{7f}\\u{0}"
        );
        for c in '\0'..=char::MAX {
            let text = format!("a{c}b");
            let safe = escaped(&text);
            assert!(safe.chars().all(is_plain), "{safe:?}");
            assert_eq!(safe == text, check_plain(&text).is_ok());
            // Escaping twice is escaping once: a sink may do it again.
            assert_eq!(escaped(&safe), safe);
        }
    }

    #[test]
    fn what_is_refused_is_named() {
        let why = check_plain("a\u{202e}b").expect_err("it turns text round");
        assert!(
            why.contains("U+202E") && why.contains("a\\u{202e}b"),
            "{why}"
        );
    }
}
