//! From where to where something is played (RFC 2326, 3.6 and 12.29), nanoseconds.

use rtsp_types::StatusCode;

use super::Refusal;

/// From, and to; what is not said is where it is, and the end.
pub(super) type Range = (Option<u64>, Option<u64>);

/// Later than any clip lasts, seconds.
const LONGEST: f64 = 1e8;

/// Reads a range of normal play time.
///
/// # Errors
/// It is of another kind of time, or wrong.
pub(super) fn read(text: &str) -> Result<Range, Refusal> {
    let wrong = |status| Refusal::new(status, format!("range {text:?}"));
    // When it is to begin may follow; now is when it begins.
    let range = text.split(';').next().unwrap_or_default().trim();
    let range = match range.split_once('=') {
        Some((kind, range)) if kind.trim().eq_ignore_ascii_case("npt") => range,
        // VLC's and Janus' older versions leave the kind out.
        None if range.starts_with(|first: char| first.is_ascii_digit()) => range,
        _ => return Err(wrong(StatusCode::NotImplemented)),
    };
    let invalid = || wrong(StatusCode::InvalidRange);
    let (from, until) = range.split_once('-').unwrap_or((range, ""));
    let time = |text: &str| match text.trim() {
        "" | "now" | "end" => Ok(None),
        text => time(text).map(Some).ok_or_else(invalid),
    };
    match (time(from)?, time(until)?) {
        (None, None) if from.trim().is_empty() => Err(invalid()),
        range => Ok(range),
    }
}

/// `12.5`, or `0:00:12.5`.
fn time(text: &str) -> Option<u64> {
    let parts: Vec<&str> = text.split(':').collect();
    let number = |text: &str| {
        let is_plain = text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        text.parse::<f64>()
            .ok()
            .filter(|number| is_plain && *number < LONGEST)
    };
    let seconds = match parts[..] {
        [seconds] => number(seconds)?,
        [hours, minutes, seconds] => {
            let (minutes, seconds) = (number(minutes)?, number(seconds)?);
            let fits = minutes < 60.0 && seconds < 60.0;
            fits.then_some(number(hours)?.mul_add(3600.0, minutes * 60.0) + seconds)?
        }
        _ => return None,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "some years at most, and not negative"
    )]
    let ns = (seconds * 1e9).round() as u64;
    Some(ns)
}

/// A range as it is played, in milliseconds, of which the first is not later than it begins.
pub(super) fn write(from_ns: u64, until_ns: u64) -> String {
    let ms = |ns: u64| format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000);
    format!("npt={}-{}", ms(from_ns), ms(until_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let ms = |ms: u64| Some(ms * 1_000_000);
        for (text, expected) in [
            ("npt=0.000-", (ms(0), None)),
            ("npt=12.5-20", (ms(12500), ms(20000))),
            ("npt = 1:02:03.25-", (ms(3723250), None)),
            ("npt=now-", (None, None)),
            ("0.000-", (ms(0), None)),
            ("2-3.5", (ms(2000), ms(3500))),
            ("NPT=1-", (ms(1000), None)),
            ("npt=1-end", (ms(1000), None)),
            ("npt=-20", (None, ms(20000))),
            ("npt=5", (ms(5000), None)),
            ("npt=5-;time=19970123T143720Z", (ms(5000), None)),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for (text, status) in [
            ("npt=", StatusCode::InvalidRange),
            ("npt=-", StatusCode::InvalidRange),
            ("npt=a-b", StatusCode::InvalidRange),
            ("npt=1e3-", StatusCode::InvalidRange),
            ("npt=inf-", StatusCode::InvalidRange),
            ("npt=1:99:00-", StatusCode::InvalidRange),
            ("npt=999999999999999-", StatusCode::InvalidRange),
            ("clock=19961108T142300Z-", StatusCode::NotImplemented),
            ("smpte=0:10:00-", StatusCode::NotImplemented),
            ("", StatusCode::NotImplemented),
        ] {
            assert_eq!(read(text).expect_err(text).status, status, "{text}");
        }
        assert_eq!(write(1_500_999_999, 20_000_000_000), "npt=1.500-20.000");
    }
}
