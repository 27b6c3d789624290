//! Subtitles as WebVTT (W3C), the form that HLS carries (RFC 8216, 3.5): from SubRip files, and from tracks of text
//! (3GPP TS 26.245, ISO/IEC 14496-30).

use core::fmt::Write as _;

use crate::clip::stored::child;

/// True if tracks of that codec can be shown.
#[must_use]
pub fn is_known(codec: [u8; 4]) -> bool {
    matches!(&codec, b"tx3g" | b"text" | b"wvtt")
}

/// The first lines of a file of cues for a film that is moved by `lead_ns`.
#[must_use]
pub fn heading(lead_ns: u64) -> String {
    // RFC 8216, 3.5: ticks of 90 kHz at the time zero of the cues.
    let ticks = u128::from(lead_ns) * 90_000 / 1_000_000_000;
    format!("WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:{ticks}\n\n")
}

/// A cue as a player shows it; nothing where the sample has no text.
#[must_use]
pub fn cue(codec: [u8; 4], sample: &[u8], (begins_ms, ends_ms): (u64, u64)) -> String {
    let text = match &codec {
        b"wvtt" => of_wvtt(sample),
        _ => of_tx3g(sample),
    };
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
        .collect();
    match lines.is_empty() || ends_ms <= begins_ms {
        true => String::new(),
        false => format!(
            "{} --> {}\n{}\n\n",
            time(begins_ms),
            time(ends_ms),
            lines.join("\n")
        ),
    }
}

/// Text with its length before it, in UTF-8 or, behind a mark, UTF-16; no markup.
fn of_tx3g(sample: &[u8]) -> String {
    let Some((length, rest)) = sample.split_first_chunk::<2>() else {
        return String::new();
    };
    let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
    let text = match &rest[..length] {
        [0xfe, 0xff, wide @ ..] => {
            let units = wide
                .chunks_exact(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            char::decode_utf16(units)
                .map(|c| c.unwrap_or('\u{fffd}'))
                .collect()
        }
        plain => String::from_utf8_lossy(plain).into_owned(),
    };
    escaped(&text)
}

/// Cues of WebVTT in boxes: their payloads are markup already.
fn of_wvtt(sample: &[u8]) -> String {
    let payload = child(sample, *b"vttc").and_then(|cue| child(cue, *b"payl"));
    payload.map_or_else(String::new, |text| {
        without_times(&String::from_utf8_lossy(text))
    })
}

/// A line with an arrow would end a cue.
fn without_times(text: &str) -> String {
    text.replace("-->", "--&gt;")
}

fn escaped(text: &str) -> String {
    let plain = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    plain.replace('\r', "\n")
}

/// `HH:MM:SS.mmm`
fn time(ms: u64) -> String {
    let (s, ms) = (ms / 1000, ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}", s / 3600, s / 60 % 60, s % 60)
}

/// A SubRip file as WebVTT, behind [`heading`]; blocks that are no cue are left out. Markup is that of both (`<i>`).
#[must_use]
pub fn of_srt(text: &str) -> String {
    let text = text
        .trim_start_matches('\u{feff}')
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    let mut cues = String::new();
    for block in text.split("\n\n") {
        let mut lines = block.lines().skip_while(|line| !line.contains("-->"));
        let Some((begins, ends)) = lines.next().and_then(times) else {
            continue;
        };
        let said: Vec<String> = lines
            .map(|line| without_times(line.trim_end()))
            .filter(|line| !line.is_empty())
            .collect();
        if ends > begins && !said.is_empty() {
            // Writing to memory does not fail.
            let _ = write!(
                cues,
                "{} --> {}\n{}\n\n",
                time(begins),
                time(ends),
                said.join("\n")
            );
        }
    }
    cues
}

/// A file of WebVTT without its first lines, behind [`heading`].
#[must_use]
pub fn of_vtt(text: &str) -> String {
    let text = text
        .trim_start_matches('\u{feff}')
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    let body = text
        .strip_prefix("WEBVTT")
        .and_then(|rest| rest.split_once("\n\n"));
    body.map_or_else(String::new, |(_, cues)| {
        cues.trim_start_matches('\n').to_owned()
    })
}

/// `00:01:02,500 --> 00:01:04,000`, ms.
fn times(line: &str) -> Option<(u64, u64)> {
    let (begins, ends) = line.split_once("-->")?;
    let ends = ends.split_whitespace().next()?;
    Some((at(begins.trim())?, at(ends)?))
}

fn at(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once([',', '.']).unwrap_or((text, "0"));
    let mut seconds = 0_u64;
    for number in whole.split(':') {
        let number: u64 = number
            .trim()
            .parse()
            .ok()
            .filter(|number| *number < 1_000_000)?;
        seconds = seconds.checked_mul(60)?.checked_add(number)?;
    }
    // Thousandths, also where there are fewer digits.
    let digits: String = part.chars().take(3).collect();
    let ms: u64 = digits.parse().ok()?;
    let scale = [1000, 100, 10, 1][digits.len()];
    seconds.checked_mul(1000)?.checked_add(ms * scale)
}
