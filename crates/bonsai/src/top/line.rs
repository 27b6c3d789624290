//! A line that is typed.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Characters of a line; what is typed beyond that is not taken.
const LONGEST: usize = 200;

/// Text, and where in it the next character goes; all of it may be selected, so that what is typed
/// takes its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    text: Vec<char>,
    at: usize,
    selected: bool,
}

impl Line {
    /// That text, with the cursor behind it.
    pub(super) fn new(text: &str) -> Self {
        let text: Vec<char> = text.chars().take(LONGEST).collect();
        let at = text.len();
        Self {
            text,
            at,
            selected: false,
        }
    }

    /// The same, selected.
    pub(super) fn selected(text: &str) -> Self {
        let line = Self::new(text);
        Self {
            selected: !line.text.is_empty(),
            ..line
        }
    }

    /// Whether it is selected.
    pub(super) const fn is_selected(&self) -> bool {
        self.selected
    }

    /// What is typed.
    pub(super) fn text(&self) -> String {
        self.text.iter().collect()
    }

    /// As much of it as fits, with the cursor in it, and the cursor's place.
    pub(super) fn window(&self, width: usize) -> (String, usize) {
        // The cursor may stand behind the last character.
        let from = (self.at + 1).saturating_sub(width.max(1));
        let shown = self.text.iter().skip(from).take(width).collect();
        (shown, self.at - from)
    }

    /// Takes a key of a line; `false` for one that is none.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if std::mem::take(&mut self.selected) {
            match key.code {
                KeyCode::Char(_) if !control => *self = Self::default(),
                KeyCode::Backspace | KeyCode::Delete => {
                    *self = Self::default();
                    return true;
                }
                _ => {}
            }
        }
        match key.code {
            KeyCode::Char('u') if control => {
                self.text.drain(..self.at);
                self.at = 0;
            }
            KeyCode::Char('k') if control => self.text.truncate(self.at),
            KeyCode::Char('w') if control => {
                let before = &self.text[..self.at];
                let word = before.iter().rposition(|c| !c.is_whitespace()).unwrap_or(0);
                let space = before[..word].iter().rposition(|c| c.is_whitespace());
                let from = space.map_or(0, |space| space + 1);
                self.text.drain(from..self.at);
                self.at = from;
            }
            KeyCode::Char('a') if control => self.at = 0,
            KeyCode::Char('e') if control => self.at = self.text.len(),
            KeyCode::Char(c) if !control && !c.is_control() => {
                if self.text.len() < LONGEST {
                    self.text.insert(self.at, c);
                    self.at += 1;
                }
            }
            KeyCode::Backspace if self.at > 0 => {
                self.at -= 1;
                self.text.remove(self.at);
            }
            KeyCode::Delete if self.at < self.text.len() => drop(self.text.remove(self.at)),
            KeyCode::Left => self.at = self.at.saturating_sub(1),
            KeyCode::Right => self.at = (self.at + 1).min(self.text.len()),
            KeyCode::Home => self.at = 0,
            KeyCode::End => self.at = self.text.len(),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Key = (KeyCode, KeyModifiers);

    fn after(start: &str, keys: &[Key]) -> (String, usize) {
        let mut line = Line::new(start);
        for (code, modifiers) in keys {
            line.press(KeyEvent::new(*code, *modifiers));
        }
        (line.text(), line.at)
    }

    #[test]
    fn keys_of_a_line() {
        let plain = |code| (code, KeyModifiers::NONE);
        let control = |c| (KeyCode::Char(c), KeyModifiers::CONTROL);
        let cases: [(&[Key], &str, usize); 9] = [
            (&[plain(KeyCode::Char('é'))], "a béc dé", 8),
            (&[plain(KeyCode::Backspace)], "a béc ", 6),
            (&[plain(KeyCode::Left), plain(KeyCode::Delete)], "a béc ", 6),
            (&[plain(KeyCode::Home), plain(KeyCode::Delete)], " béc d", 0),
            (
                &[plain(KeyCode::Home), plain(KeyCode::Backspace)],
                "a béc d",
                0,
            ),
            (&[plain(KeyCode::Left), control('u')], "d", 0),
            (&[control('w'), control('w')], "a ", 2),
            (&[control('a'), plain(KeyCode::Right), control('k')], "a", 1),
            (
                &[control('a'), control('e'), plain(KeyCode::Right)],
                "a béc d",
                7,
            ),
        ];
        for (keys, text, at) in cases {
            assert_eq!(after("a béc d", keys), (text.to_owned(), at), "{keys:?}");
        }
        assert!(!Line::new("").press(KeyEvent::new(KeyCode::Up, KeyModifiers::NONE)));
    }

    #[test]
    fn what_is_typed_takes_the_place_of_what_is_selected() {
        let after = |code| {
            let mut line = Line::selected("read=5MB/s");
            line.press(KeyEvent::new(code, KeyModifiers::NONE));
            line.press(KeyEvent::new(KeyCode::Char('x'), KeyModifiers::NONE));
            line.text()
        };
        assert_eq!(after(KeyCode::Char('9')), "9x");
        assert_eq!(after(KeyCode::Backspace), "x");
        assert_eq!(after(KeyCode::End), "read=5MB/sx");
        assert_eq!(after(KeyCode::Left), "read=5MB/xs");
    }

    #[test]
    fn a_line_is_bounded_and_its_cursor_always_seen() {
        let mut line = Line::new(&"x".repeat(LONGEST + 7));
        line.press(KeyEvent::new(KeyCode::Char('y'), KeyModifiers::NONE));
        assert_eq!(line.text().len(), LONGEST);
        for width in [0, 1, 5, 80, 500] {
            for at in [0, 1, 7, 79, 80, LONGEST] {
                line.at = at;
                let (shown, cursor) = line.window(width);
                assert!(cursor < width.max(1), "{width} {at}: {cursor}");
                assert!(shown.len() <= width && cursor <= shown.len());
            }
        }
    }
}
