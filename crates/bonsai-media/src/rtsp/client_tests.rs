use super::*;

const SDP: &str = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=control:*\r\n\
    m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=control:track1\r\n\
    m=audio 0 RTP/AVP 97\r\na=rtpmap:97 mpeg4-generic/48000\r\na=control:track2\r\n";

/// A server that answers what it is told to.
struct Server {
    client: Client,
    now: u64,
}

impl Server {
    fn new(lower: Lower) -> Self {
        let url = Url::parse("rtsp://host/clip").expect("an address");
        Self {
            client: Client::new(url, lower, 5 * SECOND, 0),
            now: 0,
        }
    }

    /// What the client asks for: method, address, number and all of it.
    fn request(&mut self) -> (String, String, String) {
        let bytes = std::mem::take(self.client.out());
        let text = String::from_utf8(bytes).expect("text");
        let mut words = text.split_ascii_whitespace();
        let (method, url) = (
            words.next().expect("a method"),
            words.next().expect("an address"),
        );
        (method.to_owned(), url.to_owned(), text.clone())
    }

    fn answer(&mut self, status: &str, headers: &str, body: &str) -> Result<(), Failure> {
        let cseq = self.client.session.cseq;
        let text = format!(
            "RTSP/1.0 {status}\r\nCSeq: {cseq}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.client
            .receive(text.as_bytes(), self.now, |_| panic!("no packet"))
    }

    fn described(lower: Lower) -> Self {
        let mut server = Self::new(lower);
        assert_eq!(server.request().0, "OPTIONS");
        server
            .answer("200 OK", "Public: DESCRIBE, GET_PARAMETER\r\n", "")
            .expect("good");
        let (method, _, text) = server.request();
        assert!(
            method == "DESCRIBE" && text.contains("Accept: application/sdp"),
            "{text}"
        );
        server.answer("200 OK", "", SDP).expect("good");
        server
    }

    fn playing(lower: Lower) -> Self {
        let mut server = Self::described(lower);
        for track in 1..3 {
            if lower == Lower::Udp {
                assert_eq!(server.client.needs_ports(), Some(track - 1));
                server.client.ports((5000, 5001), 0);
            }
            let (method, url, text) = server.request();
            assert_eq!(
                (&*method, url),
                ("SETUP", format!("rtsp://host/clip/track{track}"))
            );
            let transport = text
                .lines()
                .find_map(|line| line.strip_prefix("Transport: "));
            let transport = transport.expect("one").to_owned();
            let headers = format!(
                "Session: 77;timeout=10\r\nTransport: {transport};server_port=6970-6971;ssrc=0000ABCD\r\n"
            );
            server.answer("200 OK", &headers, "").expect("good");
        }
        let (method, _, text) = server.request();
        assert!(
            method == "PLAY" && text.contains("Session: 77\r\n"),
            "{text}"
        );
        server.answer("200 OK", "", "").expect("good");
        assert_eq!(server.client.phase(), Phase::Playing);
        server
    }
}

#[test]
fn a_clip_is_asked_for_track_by_track() {
    let server = Server::playing(Lower::Udp);
    let [video, audio] = server.client.set_up() else {
        panic!("two tracks");
    };
    assert_eq!(
        (video.server, audio.ssrc),
        (Some((6970, 6971)), Some(0xabcd))
    );
    let tracks = &server.client.description().expect("described").tracks;
    assert_eq!(
        (tracks[0].clock_rate, tracks[1].clock_rate),
        (90_000, 48_000)
    );
}

#[test]
fn packets_among_messages_are_given_with_their_track() {
    let mut server = Server::playing(Lower::Tcp);
    let mut heard = Vec::new();
    let bytes = b"$\x00\x00\x02ab$\x03\x00\x01c$\x09\x00\x01d$\x02\x00\x01e";
    server
        .client
        .receive(bytes, 0, |of| {
            heard.push((of.track, of.is_control, of.bytes.to_vec()));
        })
        .expect("good");
    let expected = [
        (0, false, b"ab".to_vec()),
        (1, true, b"c".to_vec()),
        (1, false, b"e".to_vec()),
    ];
    assert_eq!(heard, expected);
}

#[test]
fn it_says_that_it_is_there_and_ends() {
    let mut server = Server::playing(Lower::Udp);
    assert_eq!(server.client.due(), 5 * SECOND);
    server.client.tick(5 * SECOND).expect("good");
    assert_eq!(server.request().0, "GET_PARAMETER");
    // An answer to that is not waited for.
    assert_eq!(server.client.due(), 10 * SECOND);
    server.client.end(6 * SECOND);
    let (method, _, text) = server.request();
    assert!(
        method == "TEARDOWN" && text.contains("Session: 77"),
        "{text}"
    );
    server
        .answer("454 Session Not Found", "", "")
        .expect("it is over");
    assert_eq!(
        (server.client.phase(), server.client.due()),
        (Phase::Over, u64::MAX)
    );
}

#[test]
fn whoever_is_refused_or_waits_too_long_has_failed() {
    let mut refused = Server::described(Lower::Udp);
    refused.client.ports((5000, 5001), 0);
    let failure = refused
        .answer("400 Bad Request", "", "")
        .expect_err("refused");
    assert_eq!(failure.to_string(), "SETUP: 400 Bad Request");

    let mut silent = Server::new(Lower::Udp);
    silent.client.tick(4 * SECOND).expect("there is time");
    let failure = silent.client.tick(5 * SECOND).expect_err("too long");
    assert_eq!(failure.to_string(), "OPTIONS: no answer in 5 s");

    let mut nameless = Server::described(Lower::Tcp);
    let failure = nameless
        .answer("200 OK", "Transport: RTP/AVP/TCP;interleaved=0-1\r\n", "")
        .expect_err("no session");
    assert_eq!(failure.phase, Phase::Setup);

    let mut datagrams = Server::described(Lower::Tcp);
    let headers = "Session: 1\r\nTransport: RTP/AVP;client_port=1-2\r\n";
    datagrams
        .answer("200 OK", headers, "")
        .expect_err("not among messages");
}

#[test]
fn a_server_that_knows_no_options_is_asked_on() {
    let mut server = Server::new(Lower::Tcp);
    server.answer("501 Not Implemented", "", "").expect("good");
    assert_eq!(server.client.phase(), Phase::Describe);
}
