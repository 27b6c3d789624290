//! Patterns of paths: the part of a limit behind its `@`, where that begins with `/`.
//!
//! | in a pattern | matches |
//! |---|---|
//! | `*` | any letters but `/`, also none |
//! | `?` | one letter but `/`, of UTF-8 where the path is |
//! | `**` | anything, also none and also `/` |
//! | `/**/` | any folders in between, also none: `/srv/**/a` matches `/srv/a` |
//! | `\*` | the letter itself, here a star |
//! | anything else | itself |

/// What the next letters of a pattern stand for.
enum Next {
    /// The end.
    End,
    /// This byte.
    Byte(u8),
    /// One letter.
    Letter,
    /// Any letters of a name.
    Name,
    /// Anything.
    Anything,
    /// Any folders, from the start of a name on.
    Folders,
}

/// What stands in a pattern from `at` on, and how long that is.
fn next(pattern: &[u8], at: usize) -> (Next, usize) {
    let rest = pattern.get(at..).unwrap_or_default();
    let starts_name = at > 0 && pattern.get(at - 1) == Some(&b'/');
    match rest {
        [] => (Next::End, 0),
        [b'\\', byte, ..] => (Next::Byte(*byte), 2),
        [b'*', b'*', b'/', ..] if starts_name => (Next::Folders, 3),
        [b'*', b'*', ..] => (Next::Anything, 2),
        [b'*', ..] => (Next::Name, 1),
        [b'?', ..] => (Next::Letter, 1),
        [byte, ..] => (Next::Byte(*byte), 1),
    }
}

/// The length of the letter of a path at `at`, which is there.
fn letter(path: &[u8], at: usize) -> usize {
    let rest = path.get(at + 1..).unwrap_or_default();
    1 + rest.iter().take_while(|byte| **byte & 0xc0 == 0x80).count()
}

/// Where to go on when what follows a star does not match: in the pattern behind it, in
/// the path one further than the last time.
type Resume = Option<(usize, usize)>;

/// Whether a path matches a pattern, all of it.
///
/// Of several stars, only the last of each kind is ever gone back to: what stands
/// before it has matched as early as it can, which leaves the most to what follows.
#[must_use]
pub fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let (mut p, mut i) = (0, 0);
    let mut name: Resume = None;
    let mut anything: Resume = None;
    let mut folders = false;
    loop {
        let (next, len) = next(pattern, p);
        let here = path.get(i).copied();
        let fits = match next {
            Next::End if here.is_none() => return true,
            Next::End => None,
            Next::Byte(byte) => (here == Some(byte)).then_some(1),
            Next::Letter => here.filter(|c| *c != b'/').map(|_| letter(path, i)),
            Next::Name => {
                name = Some((p + len, i));
                Some(0)
            }
            Next::Anything | Next::Folders => {
                folders = matches!(next, Next::Folders);
                (name, anything) = (None, Some((p + len, i)));
                Some(0)
            }
        };
        if let Some(taken) = fits {
            (p, i) = (p + len, i + taken);
            continue;
        }
        if let Some((after, from)) = name
            && path.get(from).is_some_and(|c| *c != b'/')
        {
            (p, i) = (after, from + letter(path, from));
            name = Some((p, i));
        } else if let Some((after, from)) = anything
            && let Some(rest) = path.get(from..)
            && let Some(step) = step(rest, folders)
        {
            (p, i) = (after, from + step);
            (name, anything) = (None, Some((p, i)));
        } else {
            return false;
        }
    }
}

/// How far to go on in a path: by one, or to behind the next `/`.
fn step(rest: &[u8], folders: bool) -> Option<usize> {
    if folders {
        rest.iter().position(|c| *c == b'/').map(|at| at + 1)
    } else {
        (!rest.is_empty()).then_some(1)
    }
}

/// Takes `.`, `..` and double slashes out of an absolute path, without a look at what is
/// there: its new length.
pub fn normalize(path: &mut [u8]) -> usize {
    let (mut from, mut to) = (0, 0);
    while from < path.len() {
        let rest = path.get(from..).unwrap_or_default();
        let name = rest.iter().take_while(|byte| **byte != b'/').count();
        match rest.get(..name) {
            None | Some([] | [b'.']) => {}
            Some([b'.', b'.']) => {
                let before = path.get(..to).unwrap_or_default();
                to = before.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            }
            Some(_) => {
                // There is room: a slash stood before each name.
                if let Some(slash) = path.get_mut(to) {
                    *slash = b'/';
                }
                let end = (from + name).min(path.len());
                if to < from && end <= path.len() {
                    path.copy_within(from..end, to + 1);
                }
                to += 1 + name;
            }
        }
        from += name + 1;
    }
    if to == 0
        && let Some(slash) = path.first_mut()
    {
        *slash = b'/';
        return 1;
    }
    to
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn detours_are_taken_out_of_paths() {
        for (path, wanted) in [
            ("/", "/"),
            ("/a", "/a"),
            ("//a///b/", "/a/b"),
            ("/a/./b/.", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/b/../../..", "/"),
            ("/../a", "/a"),
            ("/a/...", "/a/..."),
            ("", ""),
        ] {
            let mut bytes = path.as_bytes().to_vec();
            let len = normalize(&mut bytes);
            assert_eq!(&bytes[..len], wanted.as_bytes(), "{path}");
        }
        for path in texts(b"a/.", 7) {
            let mut once = path.clone();
            let len = normalize(&mut once);
            once.truncate(len);
            let mut twice = once.clone();
            assert_eq!(normalize(&mut twice), len, "{}", path.escape_ascii());
            assert_eq!(once, twice);
        }
    }

    #[test]
    fn patterns_and_paths() {
        for (pattern, yes, no) in [
            (
                "/srv/a",
                &["/srv/a"][..],
                &["/srv/ab", "/srv", "/srv/a/"][..],
            ),
            ("/srv/*", &["/srv/a", "/srv/"], &["/srv/a/b", "/srv"]),
            (
                "/srv/*.mp4",
                &["/srv/a.mp4", "/srv/.mp4"],
                &["/srv/a.mp", "/srv/x/a.mp4"],
            ),
            (
                "/srv/**",
                &["/srv/a", "/srv/a/b", "/srv/"],
                &["/srv", "/srvx/a"],
            ),
            (
                "/srv/**/a",
                &["/srv/a", "/srv/b/a", "/srv/b/c/a"],
                &["/srv/ba", "/srv/a/b"],
            ),
            (
                "/**/x/*",
                &["/x/y", "/a/x/y", "/a/b/x/y"],
                &["/x", "/x/y/z"],
            ),
            ("/a**b", &["/ab", "/a/x/b"], &["/a/bc"]),
            ("/?", &["/a", "/\u{e9}", "/\u{20ac}"], &["/", "/ab", "//"]),
            ("/*?", &["/a", "/ab"], &["/"]),
            ("/a\\*", &["/a*"], &["/ab", "/a\\*"]),
            ("/**/*.log", &["/a.log", "/v/a.log"], &["/v/a.log/x"]),
            ("/**/**/a", &["/a", "/b/a"], &["/b"]),
            ("/*a*b*c", &["/abc", "/xaabbcc"], &["/acb", "/a/bc"]),
        ] {
            for path in yes {
                assert!(
                    matches(pattern.as_bytes(), path.as_bytes()),
                    "{pattern} {path}"
                );
            }
            for path in no {
                assert!(
                    !matches(pattern.as_bytes(), path.as_bytes()),
                    "{pattern} {path}"
                );
            }
        }
    }

    /// The table above, word by word, with every way tried.
    fn reference(pattern: &[u8], at: usize, path: &[u8]) -> bool {
        let (what, len) = next(pattern, at);
        let go = |n: usize| reference(pattern, at + len, &path[n..]);
        match what {
            Next::End => path.is_empty(),
            Next::Byte(byte) => path.first() == Some(&byte) && go(1),
            Next::Letter => path.first().is_some_and(|c| *c != b'/') && go(letter(path, 0)),
            Next::Name => {
                let most = path.iter().take_while(|c| **c != b'/').count();
                (0..=most).any(go)
            }
            Next::Anything => (0..=path.len()).any(go),
            Next::Folders => go(0) || (1..=path.len()).any(|n| path[n - 1] == b'/' && go(n)),
        }
    }

    /// Every text of up to `most` of the letters.
    fn texts(letters: &[u8], most: usize) -> Vec<Vec<u8>> {
        let mut all = std::vec![std::vec![b'/']];
        let mut last = all.clone();
        for _ in 0..most {
            let longer = |text: &Vec<u8>| -> Vec<Vec<u8>> {
                letters
                    .iter()
                    .map(|c| [&text[..], &[*c]].concat())
                    .collect()
            };
            last = last.iter().flat_map(longer).collect();
            all.extend(last.iter().cloned());
        }
        all
    }

    #[test]
    fn every_short_pattern_agrees_with_trying_every_way() {
        let paths = texts(b"a/b", 5);
        for pattern in texts(b"a*?/", 5) {
            for path in &paths {
                assert_eq!(
                    matches(&pattern, path),
                    reference(&pattern, 0, path),
                    "{} {}",
                    pattern.escape_ascii(),
                    path.escape_ascii()
                );
            }
        }
    }
}
