use core::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use rtsp_types::Message;

use super::*;
use crate::clip::Clip;
use crate::clip::sketch::Sketch;
use crate::timeline::{Started, Timeline};

/// A host that sends nothing, and writes down what it is to do.
struct Told {
    found: Found,
    timelines: HashMap<usize, Timeline>,
    did: Vec<String>,
    admits: bool,
    /// Whether clips are still to be read.
    reads: bool,
    names: u32,
}

impl Told {
    fn new() -> Self {
        let sketch = Sketch::new();
        let bytes = u64::try_from(sketch.file.len()).expect("small");
        let clip = Clip::read(&sketch.movie, bytes).expect("a clip");
        Self {
            found: Found {
                clip: Arc::new(clip),
                version: 1,
                needs: Vec::new().into(),
            },
            timelines: HashMap::new(),
            did: Vec::new(),
            admits: true,
            reads: false,
            names: 0,
        }
    }
}

impl Host for Told {
    fn find(&mut self, path: &Path) -> Poll<Result<Found, Refusal>> {
        match path.to_string().as_str() {
            _ if self.reads => Poll::Pending,
            "clip.mp4" => Poll::Ready(Ok(self.found.clone())),
            other => Poll::Ready(Err(Refusal::new(StatusCode::NotFound, other))),
        }
    }

    fn address(&self) -> Result<IpAddr, Refusal> {
        Ok(IpAddr::from([127, 0, 0, 1]))
    }

    fn admit(&mut self, session: usize, _: usize, _: &Path, _: &Found) -> Result<String, Refusal> {
        if !self.admits {
            return Err(Refusal::new(StatusCode::NotEnoughBandwidth, "full"));
        }
        self.names += 1;
        self.timelines
            .insert(session, Timeline::new(self.found.clip.clone()));
        Ok(format!("name{}", self.names))
    }

    fn set_up(&mut self, session: usize, track: usize, offer: &Offer) -> Result<Way, Refusal> {
        let timeline = self.timelines.get_mut(&session).expect("a session");
        timeline.add(track, 7, 100, 1000);
        match *offer {
            Offer::Datagrams(1, _) => {
                Err(Refusal::new(StatusCode::UnsupportedTransport, "no ports"))
            }
            Offer::Datagrams(first, second) => Ok(Way::Datagrams {
                client: (first, second),
                server: (6970, 6971),
                ssrc: 7,
            }),
            Offer::Interleaved(channels) => Ok(Way::Interleaved {
                channels: channels.unwrap_or((0, 1)),
                ssrc: 7,
            }),
        }
    }

    fn play(
        &mut self,
        session: usize,
        from_ns: Option<u64>,
        until_ns: Option<u64>,
    ) -> Result<Started, Refusal> {
        self.did.push(format!("play {session}"));
        let timeline = self.timelines.get_mut(&session).expect("a session");
        Ok(timeline.play(from_ns, until_ns, 0))
    }

    fn pause(&mut self, session: usize) {
        self.did.push(format!("pause {session}"));
    }

    fn end(&mut self, session: usize, why: Ended) {
        self.did.push(format!("end {session} {why:?}"));
        self.timelines.remove(&session);
    }
}

/// A server, and a viewer who speaks to it by hand.
struct Talk {
    server: Server,
    host: Told,
    now: u64,
}

impl Talk {
    fn new() -> Self {
        Self {
            server: Server::new(60 * SECOND),
            host: Told::new(),
            now: 0,
        }
    }

    /// An answer to a request by connection 0.
    fn ask(&mut self, line: &str, headers: &str) -> String {
        self.ask_by(0, line, headers)
    }

    fn ask_by(&mut self, connection: usize, line: &str, headers: &str) -> String {
        let answer = self.try_by(connection, line, headers);
        answer.unwrap_or_else(|| panic!("{line} is pending"))
    }

    fn try_by(&mut self, connection: usize, line: &str, headers: &str) -> Option<String> {
        let text = format!("{line} RTSP/1.0\r\nCSeq: 5\r\n{headers}\r\n");
        let (message, _) = Message::parse(text.as_bytes()).expect("a message");
        let Message::Request(request) = message else {
            panic!("{text}");
        };
        let answer = self
            .server
            .answer(&request, connection, &mut self.host, self.now);
        let Poll::Ready(answer) = answer else {
            return None;
        };
        let text = String::from_utf8(answer.bytes).expect("text");
        assert_eq!(
            text.starts_with("RTSP/1.0 200"),
            answer.refused.is_none(),
            "{text}"
        );
        assert!(text.contains("CSeq: 5\r\n"), "{text}");
        Some(text)
    }

    /// Sets both tracks up by datagrams.
    fn ready(&mut self) {
        let first = self.ask("SETUP rtsp://h/clip.mp4/track1", DATAGRAMS);
        assert!(first.contains("Session: name1;timeout=60\r\n"), "{first}");
        assert!(
            first.contains("server_port=6970-6971;ssrc=00000007"),
            "{first}"
        );
        let headers = format!("{DATAGRAMS}{NAMED}");
        let second = self.ask("SETUP rtsp://h/clip.mp4/track2", &headers);
        assert!(second.contains("Session: name1;"), "{second}");
    }
}

const DATAGRAMS: &str = "Transport: RTP/AVP;unicast;client_port=5000-5001\r\n";
const NAMED: &str = "Session: name1\r\n";

fn status(answer: &str) -> u16 {
    let words = answer.split(' ').nth(1);
    words.and_then(|word| word.parse().ok()).expect("a status")
}

#[test]
fn a_viewer_is_served_from_the_first_word_to_the_last() {
    let mut talk = Talk::new();
    let options = talk.ask("OPTIONS *", "");
    assert!(
        options.contains("Public: OPTIONS, DESCRIBE, SETUP, PLAY, PAUSE, TEARDOWN"),
        "{options}"
    );
    let described = talk.ask(
        "DESCRIBE rtsp://h:8554/clip.mp4",
        "Accept: application/sdp\r\n",
    );
    assert!(
        described.contains("Content-Base: rtsp://h:8554/clip.mp4/\r\n"),
        "{described}"
    );
    assert!(described.contains("a=control:track2\r\n"), "{described}");
    talk.ready();
    let played = talk.ask(
        "PLAY rtsp://h/clip.mp4/",
        &format!("{NAMED}Range: npt=0.5-\r\n"),
    );
    assert!(played.contains("Range: npt=0.400-1.984\r\n"), "{played}");
    let info = "RTP-Info: url=rtsp://h/clip.mp4/track1;seq=100;rtptime=1000,\
                url=rtsp://h/clip.mp4/track2;seq=100;rtptime=1000\r\n";
    assert!(played.contains(info), "{played}");
    // That it is to play what plays is no news.
    assert_eq!(status(&talk.ask("PLAY rtsp://h/clip.mp4", NAMED)), 200);
    assert_eq!(status(&talk.ask("PAUSE rtsp://h/clip.mp4", NAMED)), 200);
    assert_eq!(status(&talk.ask("PLAY rtsp://h/clip.mp4", NAMED)), 200);
    assert_eq!(
        status(&talk.ask("GET_PARAMETER rtsp://h/clip.mp4", NAMED)),
        200
    );
    assert_eq!(status(&talk.ask("TEARDOWN rtsp://h/clip.mp4", NAMED)), 200);
    assert_eq!(talk.host.did, ["play 0", "pause 0", "play 0", "end 0 Told"]);
    assert_eq!(status(&talk.ask("PLAY rtsp://h/clip.mp4", NAMED)), 454);
    assert!(talk.server.is_empty());
}

#[test]
fn what_is_refused_has_its_number() {
    let mut talk = Talk::new();
    let clip = "rtsp://h/clip.mp4";
    for (line, headers, expected) in [
        (format!("DESCRIBE {clip}"), "Accept: text/html\r\n", 406),
        ("DESCRIBE rtsp://h/other.mp4".to_owned(), "", 404),
        ("DESCRIBE rtsp://h/a%2f..%2fb".to_owned(), "", 400),
        ("DESCRIBE *".to_owned(), "", 400),
        (format!("DESCRIBE {clip}"), "Require: magic\r\n", 551),
        (format!("SETUP {clip}"), DATAGRAMS, 459),
        (format!("SETUP {clip}/track3"), DATAGRAMS, 404),
        (format!("SETUP {clip}/track1"), "", 461),
        (
            format!("SETUP {clip}/track1"),
            "Transport: RTP/AVP;multicast\r\n",
            461,
        ),
        (
            format!("SETUP {clip}/track1"),
            "Transport: RTP/AVP;client_port=1-2\r\n",
            461,
        ),
        (format!("SETUP {clip}/track1"), "Session: other\r\n", 454),
        (format!("PLAY {clip}"), "", 454),
        (format!("RECORD {clip}"), "", 405),
        (format!("ANNOUNCE {clip}"), "", 405),
        (format!("DANCE {clip}"), "", 501),
        (format!("SET_PARAMETER {clip}"), "", 200),
    ] {
        let answer = talk.ask(&line, headers);
        assert_eq!(status(&answer), expected, "{line} {headers} {answer}");
        assert!(talk.server.is_empty(), "{line}: nothing is half set up");
    }
    talk.host.admits = false;
    assert_eq!(
        status(&talk.ask(&format!("SETUP {clip}/track1"), DATAGRAMS)),
        453
    );
    let mut talk = Talk::new();
    talk.ready();
    for (line, headers, expected) in [
        (format!("SETUP {clip}/track1"), DATAGRAMS, 455),
        ("SETUP rtsp://h/other.mp4/track1".to_owned(), DATAGRAMS, 459),
        (format!("PAUSE {clip}"), "", 200),
        (format!("PLAY {clip}/track1"), "", 460),
        ("PLAY rtsp://h/other.mp4".to_owned(), "", 404),
        (format!("PLAY {clip}"), "Range: npt=99-\r\n", 457),
        (format!("PLAY {clip}"), "Range: npt=1-0.5\r\n", 457),
        (format!("PLAY {clip}"), "Range: smpte=0:10:00-\r\n", 501),
        (format!("PLAY {clip}"), "", 200),
        (format!("SETUP {clip}/track2"), DATAGRAMS, 455),
    ] {
        let answer = talk.ask(&line, &format!("{NAMED}{headers}"));
        assert_eq!(status(&answer), expected, "{line} {headers} {answer}");
    }
    let body = "Content-Length: 8\r\n";
    let text = format!("GET_PARAMETER {clip} RTSP/1.0\r\nCSeq: 5\r\n{NAMED}{body}\r\nposition");
    let (message, _) = Message::parse(text.as_bytes()).expect("a message");
    let Message::Request(request) = message else {
        panic!("{text}");
    };
    let answer = talk.server.answer(&request, 0, &mut talk.host, 0);
    let Poll::Ready(answer) = answer else {
        panic!("it is pending");
    };
    assert!(answer.bytes.starts_with(b"RTSP/1.0 451 "));
}

#[test]
fn a_request_that_is_satisfied_already_is_granted() {
    let mut talk = Talk::new();
    talk.ready();
    let clip = "rtsp://h/clip.mp4";
    for line in ["PAUSE", "PLAY", "PLAY", "PAUSE", "PAUSE"] {
        let answer = talk.ask(&format!("{line} {clip}"), NAMED);
        assert_eq!(status(&answer), 200, "{line} {answer}");
    }
    assert_eq!(talk.host.did, ["play 0", "pause 0"]);
    // Up to the end, and behind it: GStreamer says PAUSE there.
    talk.ask(&format!("PLAY {clip}"), NAMED);
    talk.server.stopped(0);
    assert_eq!(status(&talk.ask(&format!("PAUSE {clip}"), NAMED)), 200);
    let again = talk.ask(&format!("PLAY {clip}"), NAMED);
    assert!(again.contains("Range: npt=0.000-"), "{again}");
    for _ in 0..2 {
        assert_eq!(status(&talk.ask(&format!("TEARDOWN {clip}"), NAMED)), 200);
    }
    assert_eq!(status(&talk.ask(&format!("TEARDOWN {clip}"), "")), 454);
}

#[test]
fn headers_are_read_as_clients_write_them() {
    let mut talk = Talk::new();
    let clip = "rtsp://h/clip.mp4";
    for kinds in ["Application/SDP", "text/html, APPLICATION/*;q=0.5", "*/*"] {
        let answer = talk.ask(&format!("DESCRIBE {clip}"), &format!("Accept: {kinds}\r\n"));
        assert_eq!(status(&answer), 200, "{kinds}");
    }
    talk.ready();
    for (header, expected) in [
        ("Scale: 2", "Scale: 1.0\r\n"),
        ("Scale: -1", "Scale: 1.0\r\n"),
        ("Speed: 4", "Speed: 1.0\r\n"),
    ] {
        let answer = talk.ask(
            &format!("PLAY {clip}"),
            &format!("{NAMED}{header}\r\nRange: npt=0-\r\n"),
        );
        assert!(answer.contains(expected), "{header}: {answer}");
    }
    let plain = talk.ask(
        &format!("PLAY {clip}"),
        &format!("{NAMED}Range: npt=0-\r\n"),
    );
    assert!(
        !plain.contains("Scale") && !plain.contains("Speed"),
        "{plain}"
    );
}

#[test]
fn a_connection_that_takes_packets_keeps_its_session() {
    let mut talk = Talk::new();
    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
    talk.ask("SETUP rtsp://h/clip.mp4/track1", transport);
    talk.ask("PLAY rtsp://h/clip.mp4", NAMED);
    for minute in 1..5 {
        talk.now = minute * 60 * SECOND;
        talk.server.tick(&mut talk.host, talk.now);
        assert_eq!(talk.server.len(), 1, "{minute}");
    }
    // A session that is not sent to has nothing that says so.
    talk.ask("PAUSE rtsp://h/clip.mp4", NAMED);
    talk.now += 60 * SECOND;
    talk.server.tick(&mut talk.host, talk.now);
    assert_eq!(talk.host.did, ["play 0", "pause 0", "end 0 Silent"]);
}

#[test]
fn a_clip_that_is_still_to_be_read_is_asked_for_again() {
    let mut talk = Talk::new();
    talk.host.reads = true;
    let setup = "SETUP rtsp://h/clip.mp4/track1";
    for _ in 0..3 {
        for (line, headers) in [("DESCRIBE rtsp://h/clip.mp4", ""), (setup, DATAGRAMS)] {
            assert_eq!(talk.try_by(0, line, headers), None, "{line}");
            assert!(talk.server.is_empty() && talk.host.timelines.is_empty());
        }
    }
    // What needs no clip is answered meanwhile, and so is what makes no sense.
    assert_eq!(status(&talk.ask("OPTIONS *", "")), 200);
    assert_eq!(status(&talk.ask(setup, "")), 461);
    talk.host.reads = false;
    talk.ready();
    // A session knows its clip.
    talk.host.reads = true;
    assert_eq!(status(&talk.ask("PLAY rtsp://h/clip.mp4", NAMED)), 200);
    assert_eq!(talk.try_by(0, "DESCRIBE rtsp://h/clip.mp4", ""), None);
    talk.server.closed(0, &mut talk.host, 0);
    talk.server.tick(&mut talk.host, ORPHAN);
    assert!(talk.server.is_empty());
}

#[test]
fn another_version_and_no_number_are_refused() {
    for (text, expected) in [
        ("OPTIONS * RTSP/2.0\r\nCSeq: 1\r\n\r\n", 505),
        ("OPTIONS * RTSP/1.0\r\n\r\n", 400),
        ("OPTIONS * RTSP/1.0\r\nCSeq: one\r\n\r\n", 400),
    ] {
        let (message, _) = Message::parse(text.as_bytes()).expect("a message");
        let Message::Request(request) = message else {
            panic!("{text}");
        };
        let answer = Server::new(SECOND).answer(&request, 0, &mut Told::new(), 0);
        let Poll::Ready(answer) = answer else {
            panic!("it is pending");
        };
        let text = String::from_utf8(answer.bytes).expect("text");
        assert_eq!(status(&text), expected, "{text}");
    }
    assert!(Server::unreadable().starts_with(b"RTSP/1.0 400 Bad Request\r\n"));
}

#[test]
fn whoever_is_not_heard_of_is_not_sent_to() {
    let mut talk = Talk::new();
    talk.ready();
    talk.now = 59 * SECOND;
    talk.server.tick(&mut talk.host, talk.now);
    assert_eq!(talk.server.len(), 1);
    // A request, and a report of what came, say that somebody is there.
    talk.ask("GET_PARAMETER rtsp://h/clip.mp4", NAMED);
    talk.now = 118 * SECOND;
    talk.server.alive(0, talk.now);
    talk.now = 177 * SECOND;
    talk.server.tick(&mut talk.host, talk.now);
    assert_eq!(talk.server.len(), 1);
    talk.now = 178 * SECOND;
    talk.server.tick(&mut talk.host, talk.now);
    assert_eq!(talk.host.did, ["end 0 Silent"]);
}

#[test]
fn a_session_outlives_its_connection_for_a_while_and_may_be_gone_on_with() {
    let mut talk = Talk::new();
    talk.ready();
    talk.server.closed(0, &mut talk.host, 0);
    talk.now = ORPHAN - 1;
    talk.server.tick(&mut talk.host, talk.now);
    assert_eq!(
        status(&talk.ask_by(3, "PLAY rtsp://h/clip.mp4", NAMED)),
        200
    );
    talk.now += 50 * SECOND;
    talk.server.tick(&mut talk.host, talk.now);
    assert_eq!(talk.server.len(), 1);
    talk.server.closed(3, &mut talk.host, talk.now);
    talk.now += ORPHAN;
    talk.server.tick(&mut talk.host, talk.now);
    assert_eq!(talk.host.did, ["play 0", "end 0 Silent"]);
}

#[test]
fn packets_among_messages_end_with_their_connection() {
    let mut talk = Talk::new();
    let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=2-3\r\n";
    let answer = talk.ask("SETUP rtsp://h/clip.mp4/track1", transport);
    assert!(answer.contains("interleaved=2-3;ssrc=00000007"), "{answer}");
    talk.server.closed(1, &mut talk.host, 0);
    assert_eq!(talk.server.len(), 1);
    talk.server.closed(0, &mut talk.host, 0);
    assert_eq!(talk.host.did, ["end 0 Closed"]);
    // Its number is used again, and its name is not.
    let answer = talk.ask("SETUP rtsp://h/clip.mp4/track1", transport);
    assert!(answer.contains("Session: name2;"), "{answer}");
}

/// Requests that make sense one by one, in any order.
fn any_line() -> impl Strategy<Value = (String, String, usize)> {
    let methods = prop::sample::select(vec![
        "OPTIONS",
        "DESCRIBE",
        "SETUP",
        "PLAY",
        "PAUSE",
        "TEARDOWN",
        "GET_PARAMETER",
        "RECORD",
        "X",
    ]);
    let clips = prop::sample::select(vec![
        "clip.mp4",
        "clip.mp4/track1",
        "clip.mp4/track2",
        "no",
        "",
    ]);
    let headers = prop::sample::select(vec![
        "",
        NAMED,
        "Session: name2\r\n",
        DATAGRAMS,
        "Transport: RTP/AVP/TCP\r\n",
        "Session: name1\r\nTransport: RTP/AVP/TCP\r\n",
        "Session: name1\r\nRange: npt=1-\r\n",
        "Session: name2\r\nRange: npt=now-\r\n",
    ]);
    (methods, clips, headers, 0..3_usize).prop_map(|(method, clip, headers, connection)| {
        (
            format!("{method} rtsp://h/{clip}"),
            headers.to_owned(),
            connection,
        )
    })
}

proptest! {
    #[test]
    fn any_dialogue_is_answered_and_leaves_nothing_behind(
        lines in prop::collection::vec(any_line(), 0..60),
        steps in prop::collection::vec(0..40_u64, 60),
    ) {
        let mut talk = Talk::new();
        for ((line, headers, connection), step) in lines.iter().zip(steps) {
            talk.now += step * SECOND;
            talk.ask_by(*connection, line, headers);
            talk.server.tick(&mut talk.host, talk.now);
            if step == 7 {
                talk.server.closed(*connection, &mut talk.host, talk.now);
            }
            // The host has as many as the server, and no others.
            prop_assert_eq!(talk.server.len(), talk.host.timelines.len());
        }
        // What plays in an open connection goes on.
        for connection in 0..3 {
            talk.server.closed(connection, &mut talk.host, talk.now);
        }
        talk.server.tick(&mut talk.host, talk.now + 61 * SECOND);
        prop_assert!(talk.server.is_empty() && talk.host.timelines.is_empty());
    }
}
