//! Which clip an address names, below the root of a server.

/// A clip below the root, and a track of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    parts: Vec<String>,
    track: Option<usize>,
}

/// Folders in folders.
const DEEPEST: usize = 16;

/// A name in a file system (limits.h: `NAME_MAX`).
const LONGEST: usize = 255;

impl Path {
    /// Reads the path of an address; `/folder/clip.mp4/track2` is the second track of that clip.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn read(text: &str) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        for part in text.split('/').filter(|part| !part.is_empty()) {
            let part = decoded(part).ok_or("it is no text")?;
            // An address that was put together rightly has none of these; nobody is led elsewhere.
            if part == "." || part == ".." || part.contains(['/', '\0']) {
                return Err("it leads elsewhere");
            }
            if part.starts_with('.') {
                return Err("what is hidden is not sent");
            }
            if part.len() > LONGEST {
                return Err("it has a name of more than 255 bytes");
            }
            parts.push(part);
        }
        let track = parts.last().and_then(|last| track(last));
        if track.is_some() {
            parts.pop();
        }
        match parts.len() {
            0 => Err("it names no clip"),
            depth if depth > DEEPEST => Err("it is too deep"),
            _ => Ok(Self { parts, track }),
        }
    }

    /// The names on the way to the clip, from the root on: none leads up or elsewhere.
    #[must_use]
    pub fn clip(&self) -> &[String] {
        &self.parts
    }

    /// Which track of it, counted from 0.
    #[must_use]
    pub const fn track(&self) -> Option<usize> {
        self.track
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.parts.join("/"))
    }
}

/// `track2`, as a description calls it.
fn track(name: &str) -> Option<usize> {
    let number = name.strip_prefix("track")?.parse::<usize>().ok()?;
    number
        .checked_sub(1)
        .filter(|track| name == crate::clip::Clip::control(*track))
}

/// `%20` and the like as what they stand for (RFC 3986, 2.1).
pub(crate) fn decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let code = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(code).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn clips_and_tracks_are_named() {
        for (text, clip, track) in [
            ("/clip.mp4", "clip.mp4", None),
            ("//a%20b/clip.mp4/", "a b/clip.mp4", None),
            ("/clip.mp4/track1", "clip.mp4", Some(0)),
            ("/clip.mp4/track12/", "clip.mp4", Some(11)),
            ("/clip.mp4/track0", "clip.mp4/track0", None),
            ("/clip.mp4/track01", "clip.mp4/track01", None),
            ("/clip.mp4/track%31", "clip.mp4", Some(0)),
            ("/%C3%A4.mp4", "ä.mp4", None),
        ] {
            let path = Path::read(text).expect(text);
            assert_eq!(
                (path.to_string(), path.track()),
                (clip.to_owned(), track),
                "{text}"
            );
        }
    }

    #[test]
    fn nobody_is_led_elsewhere() {
        for text in [
            "/../etc/passwd",
            "/a/%2e%2e/b",
            "/a/.%2E/b",
            "/a/./b",
            "/.hidden/clip.mp4",
            "/a/.incoming-1",
            "/a%2fb",
            "/a%00b",
            "/",
            "",
            "/track1",
            "/a%",
            "/a%zz",
            "/%ff",
            &"/a".repeat(20),
            &"a".repeat(300),
        ] {
            Path::read(text).expect_err(text);
        }
    }

    proptest! {
        #[test]
        fn any_text_stays_below_the_root(text in "(/|%2e|\\.|%2f|a|%00|[^%]){0,30}") {
            if let Ok(path) = Path::read(&text) {
                for part in path.clip() {
                    prop_assert!(!part.is_empty() && part != "." && part != "..");
                    prop_assert!(!part.contains(['/', '\0']));
                }
            }
        }
    }
}
