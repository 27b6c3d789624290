//! Of a description, the lines that a viewer needs, as the parser takes them: cameras send others, wrong ones, and a NUL
//! behind the last.

/// The lines of bandwidths, attributes and media, in the order of RFC 8866, 5; `None` if it is no description.
pub(super) fn plain(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]);
    let mut lines = text.split(['\r', '\n']).map(str::trim);
    let first = lines.find(|line| !line.is_empty())?;
    if !first.trim_start_matches('\u{feff}').starts_with("v=") {
        return None;
    }
    let mut out = "v=0\r\no=- 0 0 IN IP4 0.0.0.0\r\ns=-\r\n".to_owned();
    let (mut bandwidths, mut attributes) = (String::new(), String::new());
    let mut is_session = true;
    for line in lines {
        if line.starts_with("m=") {
            close(&mut out, is_session, &mut bandwidths, &mut attributes);
            is_session = false;
            out.push_str(line);
            out.push_str("\r\n");
        } else if line.starts_with("a=") && line.len() > 2 {
            attributes.push_str(line);
            attributes.push_str("\r\n");
        } else if let Some(rate) = line.strip_prefix("b=AS:")
            && let Ok(rate) = rate.trim().parse::<u64>()
        {
            bandwidths.push_str(&format!("b=AS:{rate}\r\n"));
        }
    }
    close(&mut out, is_session, &mut bandwidths, &mut attributes);
    Some(out.into_bytes())
}

fn close(out: &mut String, is_session: bool, bandwidths: &mut String, attributes: &mut String) {
    out.push_str(bandwidths);
    if is_session {
        out.push_str("t=0 0\r\n");
    }
    out.push_str(attributes);
    bandwidths.clear();
    attributes.clear();
}

#[cfg(test)]
mod tests {
    use super::super::Description;

    #[test]
    fn careless_descriptions_are_read() {
        let base = "rtsp://h/x".parse().expect("an address");
        for text in [
            "v=0\r\ns=x\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n\0",
            "v=0\nz z\nx=y\nt=\nm=video 0 RTP/AVP 96\na=rtpmap:96 H264/90000\n\n",
            "\r\nv=0\r\no=\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\nb=AS:x\r\nc=IN\r\n",
            "v=0\r\na=control:*\r\nb=AS:5\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=\r\nb=AS:64\r\n",
        ] {
            let read = Description::read(text.as_bytes(), &base).expect(text);
            let track = &read.tracks[0];
            assert_eq!(
                (read.tracks.len(), &*track.encoding),
                (1, "H264"),
                "{text:?}"
            );
            let rate = text.ends_with("b=AS:64\r\n").then_some(64_000);
            assert_eq!(track.bits_per_sec, rate, "{text:?}");
        }
        Description::read(b"<html>v=0</html>", &base).expect_err("no description");
    }
}
