//! Heads of messages as clients and cameras write them, made into what the parser takes.
//!
//! ffmpeg, mpv and VLC send an address as it was typed, with spaces and UTF-8; cameras end lines with LF alone, leave the
//! reason of a status out, and send lines that are no headers. The meaning of each is clear, so each is read.

/// Letters of a method: no extension has more.
const LONGEST_METHOD: usize = 32;

/// Bytes of a head up to the end of its empty line; `None` if that has not come.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = at + bytes[at..].iter().position(|byte| *byte == b'\n')?;
        if at > 0 && matches!(&bytes[at..line], b"" | b"\r") {
            return Some(line + 1);
        }
        at = line + 1;
    }
}

/// Whether a message can begin like that: a method, or the version of an answer.
pub(super) fn may_begin(bytes: &[u8]) -> bool {
    let word = bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let is_version = word.starts_with(b"RTSP/");
    is_version || word.len() <= LONGEST_METHOD && word.iter().all(is_token)
}

/// The head as the parser takes it; `None` if it is so already.
pub(super) fn plain(head: &[u8]) -> Option<Vec<u8>> {
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.next()?.trim_ascii_end();
    let is_answer = first.starts_with(b"RTSP/");
    let mut out = match is_answer {
        true => status(first),
        false => request(first),
    };
    out.extend_from_slice(b"\r\n");
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let goes_on = matches!(line, [b' ' | b'\t', ..]);
        match line.iter().position(|byte| *byte == b':') {
            Some(colon) if !goes_on => {
                out.extend_from_slice(line[..colon].trim_ascii());
                out.extend_from_slice(&line[colon..]);
            }
            // Of an answer, only known headers are read; a request that says something unknown is refused.
            None if !goes_on && is_answer => continue,
            _ => out.extend_from_slice(line),
        }
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    if std::str::from_utf8(&out).is_err() {
        for byte in &mut out {
            *byte = if byte.is_ascii() { *byte } else { b'?' };
        }
    }
    (out != head).then_some(out)
}

/// A status line, with the space that stands before a reason (RFC 2326, 7.1), also where there is none.
fn status(line: &[u8]) -> Vec<u8> {
    let mut out = line.to_vec();
    if line.iter().filter(|byte| **byte == b' ').count() == 1 {
        out.push(b' ');
    }
    out
}

/// A request line. Its address is all between the method and the version, with whatever RFC 3986 does not allow in one
/// encoded, and `,` and `;`, at which readers of `RTP-Info` cut.
fn request(line: &[u8]) -> Vec<u8> {
    let Some(method) = line.iter().position(|byte| *byte == b' ') else {
        return line.to_vec();
    };
    let Some(version) = line.windows(6).rposition(|six| six == b" RTSP/") else {
        return line.to_vec();
    };
    if version <= method {
        return line.to_vec();
    }
    let mut out = line[..=method].to_vec();
    let address = line[method + 1..version].trim_ascii();
    for (at, byte) in address.iter().enumerate() {
        let is_escape = || {
            let digits = address.get(at + 1..at + 3);
            digits.is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
        };
        let is_kept = match byte {
            b'%' => is_escape(),
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | b'#' | b',' | b';' => {
                false
            }
            byte => byte.is_ascii_graphic(),
        };
        match is_kept {
            true => out.push(*byte),
            false => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    out.extend_from_slice(&line[version..]);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rtsp_types::Message;

    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_typed() {
        for (typed, expected) in [
            ("rtsp://h:8554/a.mp4", "rtsp://h:8554/a.mp4"),
            ("rtsp://h/sub dir/a b.mp4", "rtsp://h/sub%20dir/a%20b.mp4"),
            ("rtsp://h/日.mp4", "rtsp://h/%E6%97%A5.mp4"),
            ("rtsp://h/%E6%97%A5.mp4", "rtsp://h/%E6%97%A5.mp4"),
            ("rtsp://h/100% a.mp4", "rtsp://h/100%25%20a.mp4"),
            (
                "rtsp://h/a|b^\"{}#.mp4",
                "rtsp://h/a%7Cb%5E%22%7B%7D%23.mp4",
            ),
            ("rtsp://h/a,b;c.mp4/track1", "rtsp://h/a%2Cb%3Bc.mp4/track1"),
            ("rtsp://h/x RTSP/1.0.mp4", "rtsp://h/x%20RTSP/1.0.mp4"),
            (
                "rtsp://h/[a]!$&'()*+=@~.mp4?q=1",
                "rtsp://h/[a]!$&'()*+=@~.mp4?q=1",
            ),
            ("rtsp://[::1]:8554/a.mp4", "rtsp://[::1]:8554/a.mp4"),
            ("*", "*"),
        ] {
            let text = format!("DESCRIBE {typed} RTSP/1.0\r\nCSeq: 1\r\n\r\n");
            let head = plain(text.as_bytes()).unwrap_or_else(|| text.clone().into_bytes());
            let (message, _) = Message::<&[u8]>::parse(&head).expect(typed);
            let Message::Request(request) = message else {
                panic!("{typed}");
            };
            let uri = request.request_uri().map_or("*", |url| url.as_str());
            assert_eq!(uri, expected, "{typed}");
        }
    }

    #[test]
    fn answers_of_careless_servers_are_read() {
        for text in [
            "RTSP/1.0 200 OK\nCSeq: 1\nContent-Length: 2\n\n",
            "RTSP/1.0 200\r\nCSeq: 1\r\nContent-Length: 2\r\n\r\n",
            "RTSP/1.0 200 \r\nCSeq : 1\r\nwhat is this\r\nContent-Length: 2\r\n\r\n",
        ] {
            assert_eq!(length(text.as_bytes()), Some(text.len()), "{text:?}");
            let mut head = plain(text.as_bytes()).unwrap_or_else(|| text.as_bytes().to_vec());
            head.extend_from_slice(b"hi");
            let (message, _) = Message::<Vec<u8>>::parse(&head).expect(text);
            let Message::Response(answer) = message else {
                panic!("{text:?}");
            };
            assert_eq!(answer.body(), b"hi", "{text:?}");
            assert!(
                answer.header(&rtsp_types::headers::CSEQ).is_some(),
                "{text:?}"
            );
        }
        let text = b"RTSP/1.0 404 Non trouv\xe9\r\nCSeq: 1\r\n\r\n";
        Message::<Vec<u8>>::parse(&plain(text).expect("changed")).expect("read");
    }

    proptest! {
        #[test]
        fn any_head_is_made_plain_once(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut head = bytes;
            head.extend_from_slice(b"\n\n");
            let once = plain(&head).unwrap_or(head);
            prop_assert_eq!(plain(&once), None);
        }

        #[test]
        fn a_head_that_is_plain_stays(path in "[a-z0-9/._~-]{0,40}", number in any::<u32>()) {
            let head = format!("PLAY rtsp://h/{path} RTSP/1.0\r\nCSeq: {number}\r\n\r\n");
            prop_assert_eq!(plain(head.as_bytes()), None);
        }
    }
}
