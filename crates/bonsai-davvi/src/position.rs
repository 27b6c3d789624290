//! Positions in a video, ms from its start.

use bonsai_units::parse_duration;

/// The latest position: a day.
const LATEST_MS: u64 = 86_400_000;

/// Reads a position: `MM:SS`, `H:MM:SS`, either with thousandths, or a time with its unit (`754s`).
///
/// # Errors
/// It is none, in one sentence.
pub fn parse_position(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let ms = match clock(text) {
        Some(ms) => Some(ms),
        None => parse_duration(text)
            .ok()
            .and_then(|time| u64::try_from(time.as_millis()).ok()),
    };
    ms.filter(|ms| *ms <= LATEST_MS).ok_or_else(|| {
        format!("{text:?} is no time in a video: write MM:SS, H:MM:SS or a time with its unit, such as 754s")
    })
}

fn clock(text: &str) -> Option<u64> {
    let number = |digits: &str| -> Option<u64> {
        let is_number =
            (1..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| digits.parse().ok())?
    };
    let (whole, thousandths) = match text.split_once('.') {
        Some((whole, part)) if (1..=3).contains(&part.len()) => {
            (whole, number(&format!("{part:0<3}"))?)
        }
        Some(_) => return None,
        None => (text, 0),
    };
    let parts: Vec<&str> = whole.split(':').collect();
    let (hours, minutes, seconds) = match parts.as_slice() {
        [minutes, seconds] => (0, number(minutes)?, number(seconds)?),
        [hours, minutes, seconds] => (number(hours)?, number(minutes)?, number(seconds)?),
        _ => return None,
    };
    if seconds > 59 || (parts.len() == 3 && minutes > 59) {
        return None;
    }
    Some(((hours * 60 + minutes) * 60 + seconds) * 1000 + thousandths)
}

/// A position for people: `12:34`, or `1:02:03`; with tenths where it is between seconds.
#[must_use]
pub fn format_position(ms: u64) -> String {
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    let tenths = match ms % 1000 / 100 {
        0 => String::new(),
        tenths => format!(".{tenths}"),
    };
    if hours == 0 {
        format!("{minutes}:{seconds:02}{tenths}")
    } else {
        format!("{hours}:{minutes:02}:{seconds:02}{tenths}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_they_are_written() {
        for (text, ms) in [
            ("0:00", 0),
            ("12:34", 754_000),
            ("95:00", 5_700_000),
            ("1:02:03", 3_723_000),
            ("00:01.5", 1_500),
            ("0:01.005", 1_005),
            ("754s", 754_000),
            ("1.5s", 1_500),
            ("2min", 120_000),
            ("24h", 86_400_000),
        ] {
            assert_eq!(parse_position(text), Ok(ms), "{text}");
        }
        for text in [
            "",
            "754",
            "1:60",
            "1:60:00",
            "-1:00",
            "1:2:3:4",
            "1:",
            ":1",
            "0:01.0005",
            "25h",
            "x",
            "999999:00",
            "0:01.",
            "1.5:00",
            "+1:00",
        ] {
            let said = parse_position(text).expect_err(text);
            assert!(said.contains("MM:SS"), "{said}");
        }
    }

    #[test]
    fn positions_are_written_for_people() {
        for (ms, text) in [(0, "0:00"), (754_000, "12:34"), (3_723_400, "1:02:03.4")] {
            assert_eq!(format_position(ms), text);
        }
    }
}
