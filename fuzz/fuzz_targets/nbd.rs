//! Any bytes as a client of the block server: options in pieces, then requests.
#![no_main]

use bonsai_nbd::protocol::{
    Command, ExportInfo, Exports, HEADER_BYTES, Handshake, MAX_OUT_BYTES, MAX_PAYLOAD, Request, Session,
    Step, Tls,
};
use libfuzzer_sys::fuzz_target;

struct One;

impl Exports for One {
    fn count(&self) -> usize {
        1
    }

    fn get(&self, index: usize) -> Option<ExportInfo> {
        (index == 0).then(|| ExportInfo {
            name: "a".to_owned(),
            description: "b".to_owned(),
            size: 1 << 30,
            read_only: false,
            rotational: false,
            fast_zero: true,
            preferred_block: 4096,
        })
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, mut rest)) = bytes.split_first() else {
        return;
    };
    let tls = if first & 1 == 0 { Tls::None } else { Tls::Required };
    let piece = usize::from(first >> 1) + 1;
    let mut shake = Handshake::new(tls);
    let mut held = Vec::new();
    let session = loop {
        let mut out = Vec::new();
        let Ok((used, step)) = shake.push(&held, &One, &mut out) else {
            return;
        };
        shake.check_invariants();
        assert!(used <= held.len() && out.len() <= MAX_OUT_BYTES + 8192);
        held.drain(..used);
        match step {
            Step::Ready(session) => break session,
            Step::Close => return,
            Step::StartTls => {
                held.clear();
                shake.tls_is_there();
            }
            Step::More if used > 0 => {}
            Step::More if rest.is_empty() => return,
            Step::More => {
                let (some, more) = rest.split_at(piece.min(rest.len()));
                held.extend_from_slice(some);
                rest = more;
            }
        }
    };
    assert!(session.export == 0 && (!session.base_allocation || session.structured));
    held.extend_from_slice(rest);
    requests(&held, &session);
});

fn requests(bytes: &[u8], session: &Session) {
    let info = One.get(0).unwrap();
    let mut rest = bytes;
    while let Some((header, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let Ok(request) = Request::parse(header) else {
            return;
        };
        if request.check(&info, session).is_ok() && request.command != Command::Disconnect {
            assert!(request.offset + u64::from(request.length) <= info.size);
            assert!(request.payload() <= MAX_PAYLOAD);
        }
        rest = behind.get(request.payload() as usize..).unwrap_or_default();
    }
}
