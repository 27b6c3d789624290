//! What an RTSP server says, as far as a viewer has to understand it: answers
//! (RFC 2326), the description of a stream (RFC 4566), RTP headers (RFC 3550).

use anyhow::Context as _;

/// Longer heads and bodies than any server's description of one stream.
const MOST: usize = 1 << 16;

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Answer {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(header, _)| header.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// The answer at the start of `bytes`, and its length; `None` while it is not there
/// as a whole.
///
/// # Errors
/// It is none.
pub(super) fn answer(bytes: &[u8]) -> anyhow::Result<Option<(Answer, usize)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        anyhow::ensure!(
            bytes.len() <= MOST,
            "the RTSP answer has a head of more than {MOST} bytes"
        );
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end]).context("the RTSP answer is no text")?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first
        .strip_prefix("RTSP/1.0 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse().ok())
        .with_context(|| format!("{first:?} is not the first line of an RTSP answer"))?;
    let headers = lines
        .map(|line| {
            let (name, value) = line
                .split_once(':')
                .with_context(|| format!("{line:?} is not a header of an RTSP answer"))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut answer = Answer {
        status,
        headers,
        body: String::new(),
    };
    let len = match answer.header("Content-Length") {
        None => 0,
        Some(text) => text
            .parse()
            .ok()
            .filter(|len| *len <= MOST)
            .with_context(|| format!("{text:?} is not the length of an RTSP answer's body"))?,
    };
    let from = end + 4;
    let Some(body) = bytes.get(from..from + len) else {
        return Ok(None);
    };
    let body = std::str::from_utf8(body).context("the body of the RTSP answer is no text")?;
    body.clone_into(&mut answer.body);
    Ok(Some((answer, from + len)))
}

/// The track of a description.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Track {
    /// Where it is set up.
    pub(super) url: String,
    /// Ticks of its timestamps in a second.
    pub(super) clock: u32,
}

/// The video track of a description that came from `base`.
///
/// # Errors
/// There is none that could be played.
pub(super) fn video(description: &str, base: &str) -> anyhow::Result<Track> {
    let mut lines = description
        .lines()
        .skip_while(|line| !line.starts_with("m=video "))
        .skip(1)
        .take_while(|line| !line.starts_with("m="));
    let (mut control, mut clock) = (None, None);
    for line in &mut lines {
        if let Some(value) = line.strip_prefix("a=control:") {
            control = Some(value.trim());
        } else if let Some(map) = line.strip_prefix("a=rtpmap:") {
            // 96 H264/90000
            clock = map
                .split('/')
                .nth(1)
                .and_then(|rate| rate.trim().parse().ok());
        }
    }
    let control = control.context("the RTSP server describes no video track")?;
    let clock = clock
        .filter(|rate| *rate > 0)
        .context("the RTSP server does not say the clock rate of its video track")?;
    let url = if control.starts_with("rtsp://") {
        control.to_owned()
    } else {
        format!("{}/{control}", base.trim_end_matches('/'))
    };
    Ok(Track { url, clock })
}

/// The fixed part of an RTP header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Rtp {
    pub(super) sequence: u16,
    pub(super) timestamp: u32,
}

/// The header of an RTP packet.
///
/// # Errors
/// It is none.
pub(super) fn rtp(packet: &[u8]) -> anyhow::Result<Rtp> {
    let [first, second, s0, s1, t0, t1, t2, t3, ..] = *packet else {
        anyhow::bail!("an RTP packet of {} bytes has no header", packet.len());
    };
    anyhow::ensure!(
        first >> 6 == 2,
        "a packet on the RTP channel starts with {first:#04x} {second:#04x}, which is not RTP version 2"
    );
    let least = 12 + usize::from(first & 0x0f) * 4;
    anyhow::ensure!(
        packet.len() >= least,
        "an RTP packet of {} bytes is shorter than its header of {least}",
        packet.len()
    );
    Ok(Rtp {
        sequence: u16::from_be_bytes([s0, s1]),
        timestamp: u32::from_be_bytes([t0, t1, t2, t3]),
    })
}

/// What comes next on a connection that carries packets and answers.
#[derive(Debug)]
pub(super) enum Next<'a> {
    /// A packet on a channel, and how many bytes it took.
    Packet(u8, &'a [u8], usize),
    /// An answer, and how many bytes it took.
    Answer(Answer, usize),
    /// Not there as a whole.
    More,
}

/// Looks at the start of `bytes` (RFC 2326, 10.12).
///
/// # Errors
/// It is neither packet nor answer.
pub(super) fn next(bytes: &[u8]) -> anyhow::Result<Next<'_>> {
    match *bytes {
        [b'$', channel, high, low, ..] => {
            let end = 4 + usize::from(u16::from_be_bytes([high, low]));
            Ok(bytes
                .get(4..end)
                .map_or(Next::More, |packet| Next::Packet(channel, packet, end)))
        }
        [b'$', ..] | [] => Ok(Next::More),
        _ => Ok(answer(bytes)?.map_or(Next::More, |(answer, len)| Next::Answer(answer, len))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDP: &str = "v=0\r\nm=audio 0 RTP/AVP 97\r\na=control:stream=1\r\nm=video 0 RTP/AVP 96\r\n\
                       a=rtpmap:96 H264/90000\r\na=control:stream=0\r\n";

    fn refusal<T: std::fmt::Debug>(result: anyhow::Result<T>) -> String {
        let text = format!("{:#}", result.expect_err("refused"));
        assert!(!text.contains('\n'), "one sentence: {text}");
        text
    }

    #[test]
    fn an_answer_is_read_when_it_is_there_as_a_whole() {
        let text = "RTSP/1.0 200 OK\r\nCSeq: 2\r\ncontent-length:  4\r\n\r\nv=0\n$rest";
        let whole = text.len() - "$rest".len();
        for cut in 0..whole {
            assert!(
                answer(&text.as_bytes()[..cut]).expect("so far").is_none(),
                "{cut}"
            );
        }
        let (found, len) = answer(text.as_bytes()).expect("valid").expect("whole");
        assert_eq!((found.status, len), (200, whole));
        assert_eq!(found.header("cseq"), Some("2"));
        assert_eq!(found.body, "v=0\n");
    }

    #[test]
    fn a_malformed_answer_is_refused_in_a_sentence() {
        for (bytes, word) in [
            (b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), "first line"),
            (b"RTSP/1.0 2\r\n\r\n", "first line"),
            (b"RTSP/1.0 \xc3\xa9\xc3\xa9\r\n\r\n", "first line"),
            (b"RTSP/1.0 200 OK\r\nnothing\r\n\r\n", "not a header"),
            (b"RTSP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n", "length"),
            (
                b"RTSP/1.0 200 OK\r\nContent-Length: 99999999\r\n\r\n",
                "length",
            ),
            (b"RTSP/1.0 200 \xff\r\n\r\n", "no text"),
            (
                b"RTSP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n\xff",
                "no text",
            ),
            (&[b'R'; MOST + 1], "head of more"),
        ] {
            let text = refusal(answer(bytes));
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn the_video_track_is_found_among_others() {
        let track = |url: &str| Track {
            url: url.to_owned(),
            clock: 90_000,
        };
        assert_eq!(
            video(SDP, "rtsp://h/film/").expect("a track"),
            track("rtsp://h/film/stream=0")
        );
        let absolute = SDP.replace("stream=0", "rtsp://h/other");
        assert_eq!(
            video(&absolute, "rtsp://h/film").expect("a track"),
            track("rtsp://h/other")
        );
        for (text, word) in [
            ("v=0\r\n".to_owned(), "no video"),
            (SDP.replace("m=video", "m=text"), "no video"),
            (SDP.replace("/90000", ""), "clock rate"),
            (SDP.replace("90000", "0"), "clock rate"),
        ] {
            let found = refusal(video(&text, "rtsp://h/film"));
            assert!(found.contains(word), "{found}");
        }
    }

    #[test]
    fn rtp_headers() {
        let packet = [
            0x80, 0xe0, 0x01, 0x02, 0x00, 0x01, 0x5f, 0x90, 9, 9, 9, 9, 0x65,
        ];
        let expected = Rtp {
            sequence: 0x0102,
            timestamp: 90_000,
        };
        assert_eq!(rtp(&packet).expect("a header"), expected);
        assert!(refusal(rtp(&packet[..7])).contains("no header"));
        assert!(refusal(rtp(&packet[..11])).contains("shorter"));
        let mut sources = packet;
        sources[0] = 0x81;
        assert!(refusal(rtp(&sources)).contains("header of 16"));
        let mut other = packet;
        other[0] = 0x16;
        assert!(refusal(rtp(&other)).contains("version 2"));
    }

    #[test]
    fn packets_and_answers_share_a_connection() {
        let bytes = b"$\x00\x00\x02abRTSP/1.0 200 OK\r\n\r\n";
        for cut in 0..6 {
            assert!(matches!(next(&bytes[..cut]), Ok(Next::More)), "{cut}");
        }
        assert!(matches!(next(bytes), Ok(Next::Packet(0, b"ab", 6))));
        assert!(matches!(next(&bytes[6..]), Ok(Next::Answer(_, 19))));
        assert!(refusal(next(b"\x00\r\n\r\n")).contains("first line"));
    }
}
