//! Names that others chose, as they may be shown.

/// The longest name that is shown, in characters. Names of containers, machines and units are
/// shorter; only a hostile one is cut.
const LONGEST: usize = 120;

/// `text` in one line, safe for a terminal: control characters (also those of escape sequences),
/// and characters that are invisible or change the direction of what follows, become U+FFFD; what
/// is longer than 120 characters is cut.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST).map(visible).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

fn visible(c: char) -> char {
    if bonsai_units::text::is_plain(c) {
        c
    } else {
        char::REPLACEMENT_CHARACTER
    }
}

/// The last component of a path, as text.
pub(super) fn file_name(path: &[u8]) -> String {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_but_letters() {
        assert_eq!(plain("web-1.ä"), "web-1.ä");
        assert_eq!(plain("a\n\x1b[31mb\u{9b}c"), "a��[31mb�c");
        assert_eq!(plain("a\u{202e}b\u{200b}"), "a�b�");
        assert_eq!(plain(&"x".repeat(120)).chars().count(), 120);
        assert_eq!(plain(&"x".repeat(4000)).chars().count(), 121);
    }

    #[test]
    fn the_program_of_a_deleted_file_is_the_same() {
        assert_eq!(file_name(b"/usr/bin/qemu (deleted)"), "qemu");
        assert_eq!(file_name(b"nginx"), "nginx");
        assert_eq!(file_name(b""), "");
    }
}
