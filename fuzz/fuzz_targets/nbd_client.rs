//! Any bytes as a server of NBD: answers to options in pieces, then replies to some requests.
#![no_main]

use bonsai_nbd::client::{Agreed, Ask, Event, Handshake, Session, Uri};
use bonsai_nbd::protocol::Command;
use libfuzzer_sys::fuzz_target;

/// Of an export that need not be true.
const AGREED: Agreed = Agreed {
    size: 1 << 30,
    flags: 1,
    structured: true,
    min_block: 1,
    max_payload: 1 << 20,
};

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let piece = usize::from(first >> 2) + 1;
    let structured = first & 1 == 0;
    match first & 2 {
        0 => shake(rest, piece, structured),
        _ => replies(rest, piece, structured),
    }
    if let Ok(text) = str::from_utf8(rest) {
        let _ = text.parse::<Uri>();
    }
});

fn shake(bytes: &[u8], piece: usize, structured: bool) {
    let mut shake = Handshake::new("a", structured);
    let (mut held, mut out) = (Vec::new(), Vec::new());
    for part in bytes.chunks(piece) {
        held.extend_from_slice(part);
        loop {
            let Ok((used, agreed)) = shake.push(&held, &mut out) else {
                return;
            };
            assert!(used <= held.len() && out.len() < 256);
            held.drain(..used);
            if let Some(agreed) = agreed {
                assert!(agreed.min_block.is_power_of_two() && agreed.max_payload >= agreed.min_block);
                assert!(structured || !agreed.structured);
                return replies(&held, piece, agreed.structured);
            }
            if used == 0 {
                break;
            }
        }
    }
}

fn replies(bytes: &[u8], piece: usize, structured: bool) {
    let mut session = Session::new(Agreed { structured, ..AGREED });
    let asks = [(Command::Read, 0, 4096), (Command::Read, 8192, 10), (Command::Flush, 0, 0)];
    let mut open = Vec::new();
    for (command, offset, length) in asks {
        let ask = Ask { command, flags: 0, offset, length };
        open.push((session.ask(ask, &mut Vec::new()), length, 0));
    }
    let mut held = Vec::new();
    for part in bytes.chunks(piece) {
        held.extend_from_slice(part);
        let used = session.push(&held, &mut |event| {
            let (Event::Data { cookie, .. } | Event::Zeroes { cookie, .. } | Event::Done { cookie, .. }) = event;
            let at = open.iter().position(|(own, _, _)| *own == cookie).expect("asked for, and not done");
            let (at, came) = match event {
                Event::Data { at: from, bytes, .. } => (at, (from, bytes.len() as u32)),
                Event::Zeroes { at: from, length, .. } => (at, (from, length)),
                Event::Done { error, .. } => {
                    let (_, length, got) = open.remove(at);
                    assert!(error.is_some() || got == length, "a read of which not all came");
                    return;
                }
            };
            let (_, length, got) = &mut open[at];
            assert!(came.0 + came.1 <= *length, "data beyond its read");
            *got += came.1;
            assert!(*got <= *length);
        });
        session.check_invariants();
        let Ok(used) = used else {
            return;
        };
        held.drain(..used);
        // A header, or the words of an error.
        assert!(held.len() <= 20 + 16 + 4096 + piece);
    }
    assert_eq!(session.in_flight(), open.len());
}
