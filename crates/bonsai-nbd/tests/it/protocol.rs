//! The protocol without sockets, and what odd clients get.

use bonsai_nbd::protocol::{
    ExportInfo, Exports, Handshake, MAX_OUT_BYTES, ProtocolError, Session, Step, Tls,
};
use proptest::prelude::*;

use crate::client::{Client, FLUSH, READ, STATUS, TRIM, WRITE, ZEROES, answer, greeted, option};
use crate::house::House;

struct Two;

impl Exports for Two {
    fn count(&self) -> usize {
        2
    }

    fn get(&self, index: usize) -> Option<ExportInfo> {
        let name = ["one", "two"].get(index)?;
        Some(ExportInfo {
            name: (*name).to_owned(),
            description: String::new(),
            size: 1 << 20,
            read_only: index == 1,
            discard: true,
            rotational: false,
            fast_zero: true,
            preferred_block: 4096,
        })
    }
}

fn wire(options: &[(u32, &[u8])]) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    for (number, data) in options {
        bytes.extend_from_slice(b"IHAVEOPT");
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(data);
    }
    bytes
}

fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

fn context(name: &str) -> Vec<u8> {
    let mut rest = 1u32.to_be_bytes().to_vec();
    rest.extend(named("base:allocation", &[]));
    named(name, &rest)
}

/// All of it, in pieces of that size.
fn run(tls: Tls, bytes: &[u8], piece: usize) -> (Result<Step, ProtocolError>, Vec<u8>) {
    let (mut shake, mut held, mut all) = (Handshake::new(tls), Vec::new(), Vec::new());
    for part in bytes.chunks(piece.max(1)) {
        held.extend_from_slice(part);
        loop {
            let mut out = Vec::new();
            let done = shake.push(&held, &Two, &mut out);
            shake.check_invariants();
            assert!(
                out.len() < MAX_OUT_BYTES + 8192,
                "answers are taken away in between"
            );
            all.extend(out);
            match done {
                Err(error) => return (Err(error), all),
                Ok((used, step)) => {
                    assert!(used <= held.len(), "more is used than was given");
                    held.drain(..used);
                    if step != Step::More {
                        return (Ok(step), all);
                    }
                    if used == 0 {
                        break;
                    }
                }
            }
        }
    }
    (Ok(Step::More), all)
}

#[test]
fn a_context_is_of_its_export_alone() {
    for (asked, expected) in [("one", true), ("two", false)] {
        let bytes = wire(&[(8, &[]), (10, &context("one")), (7, &named(asked, &[0, 0]))]);
        let session = Session {
            export: usize::from(asked == "two"),
            structured: true,
            base_allocation: expected,
        };
        assert_eq!(run(Tls::None, &bytes, 7).0, Ok(Step::Ready(session)));
    }
}

#[test]
fn nothing_is_told_without_tls() {
    let bytes = wire(&[(3, &[]), (6, &named("one", &[0, 0])), (8, &[])]);
    let (step, out) = run(Tls::Required, &bytes, usize::MAX);
    assert_eq!(step, Ok(Step::More));
    assert!(
        !out.windows(3).any(|window| window == b"one"),
        "a name is told"
    );
    let (step, _) = run(Tls::Required, &wire(&[(1, b"one")]), usize::MAX);
    assert_eq!(step, Err(ProtocolError::TlsRequired));
    assert_eq!(
        run(Tls::Required, &wire(&[(5, &[])]), 3).0,
        Ok(Step::StartTls)
    );
}

#[test]
fn absurd_options_are_refused_and_the_next_is_heard() {
    let long = vec![0; 100 << 10];
    let bytes = wire(&[
        (3, &long),
        (6, &[1, 2, 3]),
        (77, &[]),
        (7, &named("one", &[0, 0])),
    ]);
    for piece in [1, 1000, usize::MAX] {
        let (step, out) = run(Tls::None, &bytes, piece);
        assert!(matches!(step, Ok(Step::Ready(_))), "{step:?}");
        for kind in [9u32, 3, 1] {
            let kind = (1 << 31 | kind).to_be_bytes();
            assert!(
                out.windows(4).any(|window| window == kind),
                "{kind:?} is not among the answers"
            );
        }
    }
    let mut huge = wire(&[(3, &[])]);
    huge.truncate(huge.len() - 4);
    huge.extend_from_slice(&u32::MAX.to_be_bytes());
    assert!(matches!(
        run(Tls::None, &huge, 5).0,
        Err(ProtocolError::TooLong { .. })
    ));
    assert!(matches!(
        run(Tls::None, b"\0\0\0\x03GET / HTTP/1.1", 64).0,
        Err(ProtocolError::Magic { .. })
    ));
    assert_eq!(
        run(Tls::None, &[0xff; 4], 4).0,
        Err(ProtocolError::Flags(u32::MAX))
    );
    let many = wire(&vec![(8, &[][..]); 600]);
    assert_eq!(run(Tls::None, &many, 4096).0, Err(ProtocolError::TooMany));
}

proptest! {
    #[test]
    fn pieces_make_no_difference(
        options in prop::collection::vec((0u32..12, prop::collection::vec(0u8..4, 0..24)), 0..12),
        piece in 1usize..40,
    ) {
        let options: Vec<(u32, &[u8])> = options.iter().map(|(a, b)| (*a, b.as_slice())).collect();
        let bytes = wire(&options);
        prop_assert_eq!(run(Tls::None, &bytes, piece), run(Tls::None, &bytes, usize::MAX));
    }
}

#[test]
fn requests_that_make_no_sense_have_their_errors() {
    const SIZE: u64 = 1 << 20;
    let house = House::new(&["a"], SIZE);
    let mut client = Client::new(&house.socket(), "a");
    let cases: [((u16, u16), u64, u32, u32); 12] = [
        ((0, READ), SIZE - 1, 2, 22),
        ((0, READ), u64::MAX, 2, 22),
        ((0, READ), 0, 33 << 20, 22),
        ((4, READ), 0, 512, 22),
        ((0, TRIM), SIZE, 1, 22),
        ((0, ZEROES), SIZE - 1, 2, 28),
        ((2, TRIM), 0, 1, 22),
        ((0, STATUS), 0, 512, 22),
        ((0, FLUSH), 1, 0, 22),
        ((0, 99), 0, 0, 22),
        ((0x8000, READ), 0, 1, 22),
        ((0, FLUSH), 0, 0, 0),
    ];
    for (what, offset, length, expected) in cases {
        assert_eq!(
            client.ask(what, offset, length, &[]),
            expected,
            "{what:?} {offset} {length}"
        );
    }
    // The data of a write that is refused is skipped.
    assert_eq!(client.ask((0, WRITE), SIZE - 1, 2, b"ab"), 28);
    let long = vec![1; 33 << 20];
    assert_eq!(client.ask((0, WRITE), 0, 33 << 20, &long), 22);
    assert_eq!(client.write(3, b"odd", true), 0);
    assert_eq!(client.read(2, 5), Ok(b"\0odd\0".to_vec()));
    assert_eq!(client.ask((0, READ), 7, 0, &[]), 0, "a read of nothing");
}

#[test]
fn exports_are_listed_and_unknown_ones_refused() {
    let house = House::new(&["a", "b"], 1 << 20);
    let mut stream = greeted(&house.socket());
    option(&mut stream, 3, &[]);
    assert_eq!(answer(&mut stream).0, 2);
    let (kind, second) = answer(&mut stream);
    assert_eq!((kind, second.get(4)), (2, Some(&b'b')));
    assert_eq!(answer(&mut stream).0, 1);
    option(&mut stream, 7, &named("c", &[0, 0]));
    assert_eq!(answer(&mut stream).0, 1 << 31 | 6);
    option(&mut stream, 5, &[]);
    assert_eq!(
        answer(&mut stream).0,
        1 << 31 | 2,
        "no TLS over a Unix socket"
    );
    option(&mut stream, 2, &[]);
    assert_eq!(answer(&mut stream).0, 1);
}
