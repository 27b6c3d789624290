//! The client that replays traces: against this server, against nbdkit, and against servers that lie.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use bonsai_nbd::client::{
    Agreed, Ask, ClientError, Connection, Event, Handshake, OpenError, Place, Session, Uri,
};
use bonsai_nbd::protocol::{Command, flags};
use proptest::prelude::*;

use crate::client::{FLUSH, TRIM, WRITE, ZEROES};
use crate::house::{House, has};

const PATIENCE: Duration = Duration::from_secs(20);

/// The client, one request at a time.
pub(crate) struct Own(Connection);

impl Own {
    pub(crate) fn new(uri: &Uri, structured: bool) -> Self {
        Self(Connection::open(uri, structured, PATIENCE).unwrap())
    }

    fn wait(&mut self, ask: Ask, payload: &[u8]) -> Result<Vec<u8>, u32> {
        let length = if ask.command == Command::Read {
            ask.length
        } else {
            0
        };
        let mut data = vec![0xee; length as usize];
        let mut done = None;
        let own = self.0.ask(ask, payload);
        let deadline = Instant::now() + PATIENCE;
        while done.is_none() {
            assert!(Instant::now() < deadline, "no answer to {ask:?}");
            let turn = self.0.turn(PATIENCE, &mut |event| match event {
                Event::Data { cookie, at, bytes } => {
                    assert_eq!(cookie, own);
                    data[at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                Event::Zeroes { cookie, at, length } => {
                    assert_eq!(cookie, own);
                    data[at as usize..][..length as usize].fill(0);
                }
                Event::Done { cookie, error } => {
                    assert_eq!(cookie, own);
                    done = Some(error);
                }
            });
            turn.unwrap();
        }
        match done.flatten() {
            None => Ok(data),
            Some(error) => Err(error),
        }
    }

    /// The error, or 0.
    pub(crate) fn ask(
        &mut self,
        (flags, kind): (u16, u16),
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> u32 {
        let command = match kind {
            WRITE => Command::Write,
            FLUSH => Command::Flush,
            TRIM => Command::Trim,
            ZEROES => Command::WriteZeroes,
            other => Command::Unknown(other),
        };
        let ask = Ask {
            command,
            flags,
            offset,
            length,
        };
        self.wait(ask, data).err().unwrap_or(0)
    }

    pub(crate) fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, u32> {
        let ask = Ask {
            command: Command::Read,
            flags: 0,
            offset,
            length: u32::try_from(length).unwrap(),
        };
        self.wait(ask, &[])
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> u32 {
        let length = u32::try_from(data.len()).unwrap();
        self.ask((u16::from(fua), WRITE), offset, length, data)
    }
}

/// What any server has to do right.
fn tried(uri: &Uri, size: u64) {
    for structured in [true, false] {
        let mut client = Own::new(uri, structured);
        assert_eq!(client.0.agreed().size, size);
        assert!(!client.0.agreed().is_read_only());
        assert_eq!(client.0.agreed().structured, structured);
        let bytes: Vec<u8> = (0..3 << 20)
            .map(|at: u32| at.to_le_bytes()[0] ^ 0x5a)
            .collect();
        assert_eq!(client.write(4096, &bytes, false), 0);
        assert_eq!(client.ask((0, ZEROES), 8192, 1 << 20, &[]), 0);
        let read = client.read(0, 4 << 20).unwrap();
        assert!(read[..4096].iter().all(|byte| *byte == 0));
        assert!(read[4096..8192] == bytes[..4096]);
        assert!(read[8192..8192 + (1 << 20)].iter().all(|byte| *byte == 0));
        assert!(read[8192 + (1 << 20)..4096 + (3 << 20)] == bytes[4096 + (1 << 20)..]);
        assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
        assert_eq!(client.ask((0, ZEROES), 0, 4 << 20, &[]), 0);
        assert_eq!(client.read(size - 1, 2), Err(22));
        assert_eq!(client.read(size - 1, 1), Ok(vec![0]));
    }
}

#[test]
fn our_client_agrees_with_our_server() {
    let mut house = House::new(&["a", "b"], 8 << 20);
    tried(&house.uri("a").parse().unwrap(), 8 << 20);
    let open = |name: &str| Connection::open(&house.uri(name).parse().unwrap(), true, PATIENCE);
    let error = open("c").unwrap_err();
    assert!(
        matches!(&error, OpenError::Client(ClientError::NoExport(name)) if name == "c"),
        "{error}"
    );
    let mut open = open("b").unwrap();
    house.end();
    let error = open.turn(PATIENCE, &mut |_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Closed), "{error}");
}

#[test]
fn our_client_agrees_with_nbdkit() {
    if !has("our_client_agrees_with_nbdkit", "nbdkit") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    for more in [&[][..], &["--no-sr"]] {
        let mut server = Process::new("nbdkit")
            .args(["-f", "-U"])
            .arg(&socket)
            .args(more)
            .args(["memory", "8M"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let uri = Uri {
            place: Place::Unix(socket.clone()),
            export: String::new(),
        };
        let deadline = Instant::now() + PATIENCE;
        // Its name is there before it listens.
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < deadline, "nbdkit does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        if more.is_empty() {
            tried(&uri, 8 << 20);
        } else {
            let client = Own::new(&uri, true);
            assert!(
                !client.0.agreed().structured,
                "it has no structured replies"
            );
        }
        server.kill().unwrap();
        server.wait().unwrap();
        let _ = std::fs::remove_file(&socket);
    }
}

/// A server's part of a handshake.
fn answers(replies: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut bytes = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    for (option, kind, data) in replies {
        bytes.extend_from_slice(&0x0003_e889_0455_65a9_u64.to_be_bytes());
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(data);
    }
    bytes
}

/// All of it, in pieces of that size.
fn shake(bytes: &[u8], piece: usize) -> Result<Option<Agreed>, ClientError> {
    let mut shake = Handshake::new("x", true);
    let (mut held, mut out) = (Vec::new(), Vec::new());
    for part in bytes.chunks(piece.max(1)) {
        held.extend_from_slice(part);
        loop {
            let (used, agreed) = shake.push(&held, &mut out)?;
            if agreed.is_some() {
                return Ok(agreed);
            }
            held.drain(..used);
            if used == 0 {
                break;
            }
        }
    }
    Ok(None)
}

/// Information on an export of a mebibyte, with flags.
fn export(flags: u16) -> Vec<u8> {
    let mut data = vec![0, 0];
    data.extend_from_slice(&(1_u64 << 20).to_be_bytes());
    data.extend_from_slice(&flags.to_be_bytes());
    data
}

fn sizes(min: u32, max: u32) -> Vec<u8> {
    let mut data = vec![0, 3];
    for word in [min, 4096, max] {
        data.extend_from_slice(&word.to_be_bytes());
    }
    data
}

#[test]
fn servers_that_lie_are_left() {
    let (info, block) = (export(flags::HAS_FLAGS), sizes(512, 1 << 20));
    let good = answers(&[(8, 1, &[]), (7, 3, &info), (7, 3, &block), (7, 1, &[])]);
    for piece in [1, 7, usize::MAX] {
        let agreed = shake(&good, piece).unwrap().unwrap();
        assert_eq!((agreed.size, agreed.min_block), (1 << 20, 512));
        assert_eq!((agreed.max_payload, agreed.structured), (1 << 20, true));
    }
    let old = answers(&[(8, 1 << 31 | 1, &[]), (7, 3, &info), (7, 1, &[])]);
    assert!(!shake(&old, 3).unwrap().unwrap().structured);
    let refused = |kind: u32, why: &[u8]| {
        shake(&answers(&[(8, 1, &[]), (7, 1 << 31 | kind, why)]), 64).unwrap_err()
    };
    assert_eq!(refused(6, b""), ClientError::NoExport("x".to_owned()));
    assert_eq!(refused(5, b""), ClientError::Tls);
    assert!(refused(2, b"not today").to_string().contains("not today"));
    let wrong: [&[u8]; 8] = [
        b"HTTP/1.1 400 Bad Request",
        b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53........",
        &answers(&[(7, 1, &[])]),
        &answers(&[(8, 1, &[]), (7, 1, &[])]),
        &answers(&[(8, 1, &[]), (7, 3, &[0, 0, 1])]),
        &answers(&[(8, 1, &[]), (7, 3, &sizes(3, 4096))]),
        &answers(&[(8, 1, &[]), (7, 3, &sizes(4096, 512))]),
        &answers(&[(8, 1, &[]), (7, 3, &vec![9; 65 << 10])]),
    ];
    for bytes in wrong {
        shake(bytes, 64).expect_err("a server that lies");
    }
}

/// What came of each read: its data, and its error.
type Reads = BTreeMap<u64, (Vec<u8>, Option<u32>)>;

/// A session with these reads, their replies, and what came of them.
fn replies(
    structured: bool,
    reads: &[(u64, u32)],
    bytes: &[u8],
    piece: usize,
) -> Result<Reads, ClientError> {
    let agreed = Agreed {
        size: 1 << 20,
        flags: flags::HAS_FLAGS,
        structured,
        min_block: 1,
        max_payload: 1 << 20,
    };
    let mut session = Session::new(agreed);
    let mut open = BTreeMap::new();
    for (offset, length) in reads {
        let ask = Ask {
            command: Command::Read,
            flags: 0,
            offset: *offset,
            length: *length,
        };
        let cookie = session.ask(ask, &mut Vec::new());
        open.insert(cookie, vec![0xee; *length as usize]);
    }
    let (mut held, mut done) = (Vec::new(), BTreeMap::new());
    for part in bytes.chunks(piece.max(1)) {
        held.extend_from_slice(part);
        let used = session.push(&held, &mut |event| match event {
            Event::Data { cookie, at, bytes } => {
                open.get_mut(&cookie).unwrap()[at as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Event::Zeroes { cookie, at, length } => {
                open.get_mut(&cookie).unwrap()[at as usize..][..length as usize].fill(0);
            }
            Event::Done { cookie, error } => {
                let data = open.remove(&cookie).expect("done once");
                done.insert(cookie, (data, error));
            }
        });
        session.check_invariants();
        held.drain(..used?);
    }
    assert_eq!(session.in_flight(), open.len());
    Ok(done)
}

fn chunk(flags: u16, kind: u16, cookie: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33ef_u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn at(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = offset.to_be_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes
}

#[test]
fn chunks_come_in_any_order_and_lies_are_noticed() {
    let reads = [(100, 6), (200, 4)];
    let mut good = chunk(0, 1, 0, &at(103, b"def"));
    good.extend(chunk(1, 0x8001, 1, &[0, 0, 0, 5, 0, 2, b'n', b'o']));
    good.extend(chunk(0, 2, 0, &at(102, &1_u32.to_be_bytes())));
    good.extend(chunk(1, 1, 0, &at(100, b"ab")));
    for piece in [1, 5, usize::MAX] {
        let done = replies(true, &reads, &good, piece).unwrap();
        assert_eq!(done[&0], (b"ab\0def".to_vec(), None));
        assert_eq!(done[&1].1, Some(5));
    }
    let lies = [
        chunk(1, 1, 0, &at(99, b"abcdef")),
        chunk(1, 1, 0, &at(101, b"abcdef")),
        chunk(1, 1, 0, &at(100, b"abcde")),
        chunk(1, 1, 2, &at(100, b"abcdef")),
        chunk(1, 1, 0, &at(u64::MAX, b"abcdef")),
        chunk(1, 2, 0, &at(100, &u32::MAX.to_be_bytes())),
        chunk(0, 0, 0, &[]),
        chunk(1, 0, 0, &[]),
        chunk(1, 5, 0, &[0; 12]),
        chunk(1, 0x8001, 0, &[0; 6]),
        chunk(1, 0x8001, 0, &[1; 8192]),
        b"GARBAGE.............".to_vec(),
        // A simple reply where there have to be chunks.
        [&0x6744_6698_u32.to_be_bytes()[..], &[0; 12], b"abcdef"].concat(),
    ];
    for bytes in lies {
        replies(true, &reads, &bytes, usize::MAX).expect_err("a lie");
    }
    let simple = [&0x6744_6698_u32.to_be_bytes()[..], &[0; 12], b"abcdef"].concat();
    let done = replies(false, &reads, &simple, 3).unwrap();
    assert_eq!(done[&0], (b"abcdef".to_vec(), None));
    replies(false, &reads, &good, 64).expect_err("chunks that were not agreed on");
}

proptest! {
    #[test]
    fn any_replies_are_taken_or_refused(
        parts in prop::collection::vec(
            (0u16..2, prop::sample::select(vec![0u16, 1, 2, 5, 0x8001]), 0u64..3, 96u64..110, 0usize..8),
            0..12,
        ),
        piece in 1usize..40,
    ) {
        let mut bytes = Vec::new();
        for (flags, kind, cookie, offset, length) in parts {
            bytes.extend(chunk(flags, kind, cookie, &at(offset, &vec![7; length])));
        }
        let reads = [(100, 6), (98, 8)];
        let whole = replies(true, &reads, &bytes, usize::MAX);
        prop_assert_eq!(replies(true, &reads, &bytes, piece), whole);
    }
}

#[test]
fn silence_has_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
        // Until the client has gone.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let uri = Uri {
        place: Place::Unix(path),
        export: "x".to_owned(),
    };
    let error = Connection::open(&uri, true, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, OpenError::Silent(_)), "{error}");
    server.join().unwrap();
}
