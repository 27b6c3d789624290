//! Rust sources with everything blanked out that is not code.
//!
//! The rules look for words such as `unsafe`; a comment or a string that talks
//! about them must not count. A full parser would be more than is needed: it is
//! enough to know where comments and literals begin and end.

/// `source` with the content of comments, strings and character literals replaced
/// by blanks. Lines stay where they are.
pub(super) fn code(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end > at {
            out.extend(
                chars[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = |n: usize| chars.get(at + n).copied();
    match chars[at] {
        '/' if next(1) == Some('/') => line_end(chars, at),
        '/' if next(1) == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at),
        'r' if !in_word(chars, at) || is_prefix(chars, at) => {
            raw_string_end(chars, at).unwrap_or(at)
        }
        '\'' => char_end(chars, at).unwrap_or(at),
        _ => at,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn in_word(chars: &[char], at: usize) -> bool {
    at > 0 && is_word(chars[at - 1])
}

/// Whether the `r` at `at` follows a `b` or `c` that starts a literal (`br"..."`, `cr"..."`).
fn is_prefix(chars: &[char], at: usize) -> bool {
    at > 0 && matches!(chars[at - 1], 'b' | 'c') && !in_word(chars, at - 1)
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..]
        .iter()
        .position(|&c| c == '\n')
        .map_or(chars.len(), |n| at + n)
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start + 1..].iter().take_while(|&&c| c == '#').count();
    let open = start + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: usize| {
        chars[at] == '"'
            && chars
                .get(at + 1..at + 1 + hashes)
                .is_some_and(|tail| tail.iter().all(|&c| c == '#'))
    };
    let close = (open + 1..chars.len()).find(|&at| closes(at));
    Some(close.map_or(chars.len(), |at| at + 1 + hashes))
}

/// The end of a character literal; `None` for a lifetime or label.
fn char_end(chars: &[char], start: usize) -> Option<usize> {
    if chars.get(start + 1) == Some(&'\\') {
        let close = chars.get(start + 3..)?.iter().position(|&c| c == '\'')?;
        return Some(start + 4 + close);
    }
    (chars.get(start + 2) == Some(&'\'')).then_some(start + 3)
}

/// The offsets at which `word` stands in `text` as a word of its own.
pub(super) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = text[..at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// The line of an offset, counted from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// Code without what is compiled for tests only, and the names of the modules in
/// other files (`#[cfg(test)] mod name;`) that are.
pub(super) fn without_tests(code: &str) -> (String, Vec<String>) {
    let mut rest = code.to_owned();
    let mut modules = Vec::new();
    let mut from = 0;
    while let Some(start) = rest[from..].find("#[cfg(").map(|at| at + from) {
        let Some(length) = closing(&rest[start + 1..], '[', ']') else {
            break;
        };
        let attribute_end = start + 1 + length;
        let condition = &rest[start..attribute_end];
        from = attribute_end;
        if words(condition, "test").next().is_none() || condition.contains("not(test") {
            continue;
        }
        let end = attribute_end + item_length(&rest[attribute_end..]);
        let item = &rest[attribute_end..end];
        if let Some(name) = item.trim_end().strip_suffix(';').and_then(module_name) {
            modules.push(name.to_owned());
        }
        let blank: String = rest[start..end]
            .chars()
            .map(|c| if c == '\n' { '\n' } else { ' ' })
            .collect();
        rest.replace_range(start..end, &blank);
        from = start + blank.len();
    }
    (rest, modules)
}

/// The length in bytes of the item at the start of `code`: up to its `;` or its closing brace.
fn item_length(code: &str) -> usize {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '<' => depth += 1,
            '>' if matches!(before, '-' | '=') => {}
            ')' | ']' | '>' => depth = depth.saturating_sub(1),
            ';' | ',' if depth == 0 => return at + 1,
            '{' if depth == 0 => {
                return at + closing(&code[at..], '{', '}').unwrap_or(code.len() - at);
            }
            _ => {}
        }
        before = c;
    }
    code.len()
}

/// The length of `code` up to and with the bracket that closes the first one.
fn closing(code: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                return Some(at + c.len_utf8());
            }
        }
    }
    None
}

/// The name in `... mod name`.
fn module_name(item: &str) -> Option<&str> {
    let at = words(item, "mod").last()?;
    let name = item[at + 3..].trim();
    (!name.is_empty() && name.chars().all(is_word)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let cases = [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* unsafe */ y */ b", "a                        b"),
            (r#"f("un\"safe", x)"#, "f(          , x)"),
            ("r#\"a \" unsafe\"# + r", "                + r"),
            ("br\"\\\" + b", "b     + b"),
            ("'\"' + \"x\"", "    +    "),
            ("'\\'' + '\\u{1F600}'", "     +            "),
            ("&'a str, 'b: loop", "&'a str, 'b: loop"),
            ("for r in far\"\"", "for r in far  "),
            ("r#type", "r#type"),
            ("/* never closed\n unsafe", "               \n       "),
        ];
        for (source, wanted) in cases {
            assert_eq!(code(source), wanted, "{source}");
        }
    }

    #[test]
    fn a_word_stands_alone() {
        assert_eq!(
            words("unsafe_code unsafe(unsafe)", "unsafe").collect::<Vec<_>>(),
            [12, 19]
        );
    }

    #[test]
    fn items_for_tests_are_left_out() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { {} }\n}\nfn c() {}\n";
        let (rest, modules) = without_tests(source);
        assert_eq!(
            rest.split_whitespace().collect::<Vec<_>>(),
            ["fn", "a()", "{}", "fn", "c()", "{}"]
        );
        assert_eq!(rest.matches('\n').count(), source.matches('\n').count());
        assert!(modules.is_empty());
    }

    #[test]
    fn test_modules_in_other_files_are_named() {
        let (rest, modules) =
            without_tests("#[cfg(all(test, not(loom)))]\npub(crate) mod fixture;\nmod kept;\n");
        assert_eq!(modules, ["fixture"]);
        assert!(rest.contains("kept") && !rest.contains("fixture"));
    }

    #[test]
    fn commas_of_generics_do_not_end_an_item() {
        let (rest, _) =
            without_tests("#[cfg(test)]\nfn a<A, B>(x: A) -> Vec<B> { one(); }\nfn b() {}\n");
        assert_eq!(rest.trim(), "fn b() {}");
        let (rest, _) = without_tests("struct A {\n#[cfg(test)]\nx: u8,\ny: u8,\n}");
        assert_eq!(
            rest.split_whitespace().collect::<Vec<_>>(),
            ["struct", "A", "{", "y:", "u8,", "}"]
        );
    }

    #[test]
    fn code_that_tests_leave_out_stays() {
        let source = "#[cfg(not(test))]\nfn a() {}\n#[cfg(unix)] fn b() {}\n";
        assert_eq!(without_tests(source), (source.to_owned(), Vec::new()));
    }
}
