//! Any bytes as what viewers send to a server, by several connections, in any pieces: each request has
//! one answer, and a session is there for as long as the server and its host both know it.
#![no_main]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;

use bonsai_media::clip::Clip;
use bonsai_media::rtsp::Reader;
use bonsai_media::rtsp::server::{
    Ended, Found, Host, MOST_REQUEST, Offer, Path, Refusal, Server, Way,
};
use bonsai_media::timeline::{Started, Timeline};
use libfuzzer_sys::fuzz_target;
use rtsp_types::{Message, StatusCode};

/// The body of a small film's movie box.
const MOVIE: &[u8] = include_bytes!("../seeds/movie.bin");

const SECOND: u64 = 1_000_000_000;

/// Words that requests are put together from.
const WORDS: [&str; 24] = [
    "OPTIONS",
    "DESCRIBE",
    "SETUP",
    "PLAY",
    "PAUSE",
    "TEARDOWN",
    "GET_PARAMETER",
    " rtsp://h/clip.mp4",
    "/track1",
    "/track2",
    " RTSP/1.0\r\n",
    "CSeq: 1\r\n",
    "\r\n",
    "Session: s0\r\n",
    "Session: s1\r\n",
    "Transport: RTP/AVP;unicast;client_port=5000-5001\r\n",
    "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n",
    "Range: npt=0.5-\r\n",
    "Range: npt=0-0.3\r\n",
    "Content-Length: 4\r\n",
    "Require: play.basic\r\n",
    "Accept: application/sdp\r\n",
    "$\0\0\u{4}abcd",
    "*",
];

struct House {
    found: Found,
    sessions: BTreeMap<usize, Timeline>,
    names: usize,
    /// Whether clips are still to be read.
    reads: bool,
    now: u64,
}

impl Host for House {
    fn find(&mut self, path: &Path) -> Poll<Result<Found, Refusal>> {
        assert!(
            path.clip()
                .iter()
                .all(|part| part != ".." && !part.contains('/'))
        );
        // Each other time it is still to be read.
        self.reads = !self.reads;
        match path.to_string().len() % 5 {
            _ if self.reads => Poll::Pending,
            0 => Poll::Ready(Err(Refusal::new(StatusCode::NotFound, "none"))),
            _ => Poll::Ready(Ok(self.found.clone())),
        }
    }

    fn address(&self) -> Result<IpAddr, Refusal> {
        Ok([127, 0, 0, 1].into())
    }

    fn admit(&mut self, session: usize, _: usize, _: &Path, _: &Found) -> Result<String, Refusal> {
        if self.sessions.len() >= 4 {
            return Err(Refusal::new(StatusCode::NotEnoughBandwidth, "full"));
        }
        let timeline = Timeline::new(self.found.clip.clone());
        assert!(
            self.sessions.insert(session, timeline).is_none(),
            "a number is used twice"
        );
        self.names += 1;
        Ok(format!("s{}", self.names - 1))
    }

    fn set_up(&mut self, session: usize, track: usize, offer: &Offer) -> Result<Way, Refusal> {
        let timeline = self.sessions.get_mut(&session).expect("it was let in");
        assert!(track < timeline.clip().tracks.len());
        timeline.add(track, 7, 0, 0);
        match *offer {
            Offer::Datagrams(port, _) if port % 7 == 0 => {
                Err(Refusal::new(StatusCode::ServiceUnavailable, "no ports"))
            }
            Offer::Datagrams(packets, reports) => Ok(Way::Datagrams {
                client: (packets, reports),
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
        let timeline = self.sessions.get_mut(&session).expect("it was let in");
        Ok(timeline.play(from_ns, until_ns, self.now))
    }

    fn pause(&mut self, session: usize) {
        let timeline = self.sessions.get_mut(&session).expect("it was let in");
        timeline.pause(self.now);
    }

    fn end(&mut self, session: usize, _: Ended) {
        self.sessions.remove(&session).expect("it ends once");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let clip = Clip::read(MOVIE, 1 << 20).expect("a good one");
    let mut house = House {
        found: Found {
            needs: clip.needs(1388, |_, _| None).into(),
            clip: Arc::new(clip),
            version: 1,
        },
        sessions: BTreeMap::new(),
        names: 0,
        reads: false,
        now: 0,
    };
    let mut server = Server::new(10 * SECOND);
    let mut readers: Vec<Option<Reader>> = (0..3)
        .map(|_| Some(Reader::with_most(MOST_REQUEST)))
        .collect();
    let mut rest = bytes;
    while let [what, value, more @ ..] = rest {
        rest = more;
        let connection = usize::from(what % 3);
        match what / 3 {
            // A word, or some bytes as they are.
            0..=60 => {
                let word = WORDS[usize::from(*value) % WORDS.len()];
                hear(
                    &mut server,
                    &mut house,
                    &mut readers,
                    connection,
                    word.as_bytes(),
                );
            }
            61..=80 => {
                let (piece, behind) = rest.split_at(usize::from(*value).min(rest.len()));
                rest = behind;
                hear(&mut server, &mut house, &mut readers, connection, piece);
            }
            81..=83 => {
                house.now += u64::from(*value) * SECOND / 10;
                let now = house.now;
                server.tick(&mut house, now);
            }
            84 => {
                let now = house.now;
                server.closed(connection, &mut house, now);
                readers[connection] = Some(Reader::with_most(MOST_REQUEST));
            }
            _ => server.alive(usize::from(*value), house.now),
        }
        assert_eq!(server.len(), house.sessions.len());
    }
    // Nobody is heard of any more.
    let now = house.now + 100 * SECOND;
    server.tick(&mut house, now);
    assert!(server.is_empty() && house.sessions.is_empty());
});

fn hear(
    server: &mut Server,
    house: &mut House,
    readers: &mut [Option<Reader>],
    connection: usize,
    bytes: &[u8],
) {
    let Some(reader) = &mut readers[connection] else {
        return;
    };
    reader.add(bytes);
    let now = house.now;
    loop {
        match reader.message() {
            Ok(None) => return,
            Ok(Some(Message::Request(request))) => {
                let before = server.len();
                let Poll::Ready(answer) = server.answer(&request, connection, house, now) else {
                    assert_eq!(server.len(), before, "nothing has changed");
                    reader.again();
                    continue;
                };
                let (first, ok) = (&answer.bytes[..12], b"RTSP/1.0 200");
                assert!(first.starts_with(b"RTSP/1.0 "));
                assert_eq!(answer.refused.is_none(), first == ok);
            }
            Ok(Some(_)) => {}
            Err(_) => {
                readers[connection] = None;
                return server.closed(connection, house, now);
            }
        }
    }
}
