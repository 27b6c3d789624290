//! Which part of a file is asked for (RFC 9110, 14.1 and 14.2), in the form that the sender of files reads.

use axum::http::{HeaderMap, HeaderValue, Method, header};

/// Writes the range of a request as one that begins in the file or behind its end, or takes it away where the whole
/// file is the answer: several parts, other units, another method than GET, and what is no range.
pub(crate) fn settle(headers: &mut HeaderMap, method: &Method, bytes: u64) {
    let Some(asked) = headers.remove(header::RANGE) else {
        return;
    };
    if method != Method::GET {
        return;
    }
    let part = asked.to_str().ok().and_then(|text| part(text, bytes));
    if let Some(value) = part.and_then(|text| HeaderValue::try_from(text).ok()) {
        headers.insert(header::RANGE, value);
    }
}

fn part(text: &str, bytes: u64) -> Option<String> {
    let (unit, set) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    // Empty elements of a list count for nothing (RFC 9110, 5.6.1).
    let mut parts = set
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let (only, None) = (parts.next()?, parts.next()) else {
        return None;
    };
    let (first, last) = only.split_once('-')?;
    if first.is_empty() {
        let length = number(last)?;
        return match (length, bytes) {
            (0, _) => Some(format!("bytes={bytes}-")),
            (_, 0) => None,
            _ => Some(format!("bytes={}-", bytes.saturating_sub(length))),
        };
    }
    let first = number(first)?;
    if last.is_empty() {
        return Some(format!("bytes={first}-"));
    }
    match number(last)? {
        last if last < first => None,
        last if last >= bytes => Some(format!("bytes={first}-")),
        last => Some(format!("bytes={first}-{last}")),
    }
}

/// A number of any length: what is larger than any file is as large as the largest.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_range_is_settled() {
        for (asked, bytes, expected) in [
            ("bytes=0-", 10, Some("bytes=0-")),
            ("bytes=2-5", 10, Some("bytes=2-5")),
            ("bytes=2-9", 10, Some("bytes=2-9")),
            ("bytes=2-10", 10, Some("bytes=2-")),
            ("bytes=2-99999999999999999999999", 10, Some("bytes=2-")),
            ("bytes=-3", 10, Some("bytes=7-")),
            ("bytes=-10", 10, Some("bytes=0-")),
            ("bytes=-65536", 10, Some("bytes=0-")),
            ("bytes=-99999999999999999999999", 10, Some("bytes=0-")),
            ("BYTES=0-1", 10, Some("bytes=0-1")),
            ("bytes= 0-1 ,", 10, Some("bytes=0-1")),
            // Behind the end: the sender refuses these.
            ("bytes=-0", 10, Some("bytes=10-")),
            ("bytes=10-", 10, Some("bytes=10-")),
            ("bytes=10-20", 10, Some("bytes=10-")),
            ("bytes=0-", 0, Some("bytes=0-")),
            // The whole file.
            ("bytes=-5", 0, None),
            ("bytes=5-2", 10, None),
            ("bytes=0-1,5-6", 10, None),
            ("bytes=", 10, None),
            ("bytes=-", 10, None),
            ("bytes=a-b", 10, None),
            ("bytes=1", 10, None),
            ("bytes=+1-2", 10, None),
            ("lines=1-2", 10, None),
            ("", 10, None),
        ] {
            assert_eq!(
                part(asked, bytes).as_deref(),
                expected,
                "{asked} of {bytes}"
            );
        }
    }

    #[test]
    fn any_text_is_a_part_or_the_whole() {
        let letters = ["0", "5", "9", "-", ",", " "];
        let mut texts = vec!["bytes=".to_owned()];
        for _ in 0..6 {
            let longer = texts
                .iter()
                .flat_map(|text| letters.map(|letter| format!("{text}{letter}")));
            let longer: Vec<String> = longer.collect();
            for text in &longer {
                for bytes in [0, 1, 7, u64::MAX] {
                    if let Some(settled) = part(text, bytes) {
                        assert_eq!(part(&settled, bytes).as_ref(), Some(&settled), "{text:?}");
                    }
                }
            }
            texts = longer;
        }
    }
}
