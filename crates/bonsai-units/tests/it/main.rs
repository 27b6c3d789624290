//! What is read, what is refused and with which words, and what is printed.

mod amounts;
mod dates;
mod limits;
mod rates;
mod terms;

use std::fmt::Display;
use std::str::FromStr;

/// The text of the refusal of `text`, which must be one line.
fn refusal<T: FromStr<Err: Display> + std::fmt::Debug>(text: &str) -> String {
    match text.parse::<T>() {
        Ok(read) => panic!("{text:?} was read as {read:?}"),
        Err(error) => {
            let sentence = error.to_string();
            assert!(!sentence.contains('\n'), "{sentence}");
            sentence
        }
    }
}

/// Asserts that a text is refused with a sentence that names the text and every
/// hint.
fn refused<T: FromStr<Err: Display> + std::fmt::Debug>(text: &str, hints: &[&str]) {
    let sentence = refusal::<T>(text);
    let quoted = format!("{:?}", text.trim());
    assert!(
        sentence.contains(&quoted) || text.trim().is_empty(),
        "{sentence}"
    );
    for hint in hints {
        assert!(
            sentence.contains(hint),
            "{hint:?} is missing in: {sentence}"
        );
    }
}
