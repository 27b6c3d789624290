//! Option haggling, from the client's side.

use super::ClientError;
use crate::protocol::wire::{
    FIXED_NEWSTYLE, IHAVEOPT, MAX_PAYLOAD, NBDMAGIC, NO_ZEROES, OPTION_REPLY, flags, info, option,
    rep,
};

/// The most data of an answer to an option: names and descriptions are of 4 KiB.
const MAX_ANSWER: usize = 64 << 10;

/// What was agreed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Agreed {
    /// Of the export, bytes.
    pub size: u64,
    /// Flags of the transmission phase ([`flags`]).
    pub flags: u16,
    /// Reads are answered in chunks.
    pub structured: bool,
    /// Offsets and lengths are multiples of that, bytes: a power of two, at most 64 KiB.
    pub min_block: u32,
    /// The most of a read or write, bytes: a multiple of `min_block`, at most 32 MiB.
    pub max_payload: u32,
}

impl Agreed {
    /// Whether the export has all of these [`flags`].
    #[must_use]
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Whether writes are refused.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.has(flags::READ_ONLY)
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Greeting,
    Structured,
    Go,
}

/// A negotiation.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    export: String,
    wants_structured: bool,
    agreed: Agreed,
    /// Size and flags have come.
    is_told: bool,
}

impl Handshake {
    /// For an export; with `structured`, reads are to be answered in chunks where the server can.
    #[must_use]
    pub fn new(export: &str, structured: bool) -> Self {
        Self {
            state: State::Greeting,
            export: export.to_owned(),
            wants_structured: structured,
            agreed: Agreed {
                size: 0,
                flags: 0,
                structured: false,
                min_block: 1,
                max_payload: MAX_PAYLOAD,
            },
            is_told: false,
        }
    }

    /// Takes what came from the server. Says how much of it was used, and what was agreed on in the end; what is to be
    /// sent is added to `out`. Nothing used means that more has to come.
    ///
    /// # Errors
    /// The connection is of no use.
    pub fn push(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Agreed>), ClientError> {
        if self.state == State::Greeting {
            return Ok((self.greeting(input, out)?, None));
        }
        let Some(Answer { option, kind, data }) = answer(input)? else {
            return Ok((0, None));
        };
        let used = 20 + data.len();
        match self.state {
            State::Greeting => {}
            State::Structured => {
                if option != option::STRUCTURED_REPLY {
                    return Err(ClientError::Broken("an answer to what was not asked"));
                }
                self.agreed.structured = kind == rep::ACK;
                self.go(out);
            }
            State::Go => {
                if option != option::GO {
                    return Err(ClientError::Broken("an answer to what was not asked"));
                }
                if self.answered(kind, data)? {
                    return Ok((used, Some(self.agreed)));
                }
            }
        }
        Ok((used, None))
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, ClientError> {
        let Some((head, _)) = input.split_first_chunk::<18>() else {
            return Ok(0);
        };
        let [
            m0,
            m1,
            m2,
            m3,
            m4,
            m5,
            m6,
            m7,
            o0,
            o1,
            o2,
            o3,
            o4,
            o5,
            o6,
            o7,
            f0,
            f1,
        ] = *head;
        let magic = u64::from_be_bytes([m0, m1, m2, m3, m4, m5, m6, m7]);
        if magic != NBDMAGIC {
            let (what, found) = ("a greeting", magic);
            return Err(ClientError::Magic { what, found });
        }
        let offered = u16::from_be_bytes([f0, f1]);
        let style = u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        if style != IHAVEOPT || offered & FIXED_NEWSTYLE == 0 {
            return Err(ClientError::Old);
        }
        let own = u32::from(FIXED_NEWSTYLE | offered & NO_ZEROES);
        out.extend_from_slice(&own.to_be_bytes());
        if self.wants_structured {
            ask(out, option::STRUCTURED_REPLY, &[]);
            self.state = State::Structured;
        } else {
            self.go(out);
        }
        Ok(18)
    }

    fn go(&mut self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.export.len()).unwrap_or(u32::MAX);
        let mut data = length.to_be_bytes().to_vec();
        data.extend_from_slice(self.export.as_bytes());
        data.extend_from_slice(&1_u16.to_be_bytes());
        data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        ask(out, option::GO, &data);
        self.state = State::Go;
    }

    /// An answer to GO; whether it was the last.
    fn answered(&mut self, kind: u32, data: &[u8]) -> Result<bool, ClientError> {
        match kind {
            rep::ACK if self.is_told => Ok(true),
            rep::ACK => Err(ClientError::Broken("an export without its size")),
            rep::INFO => self.told(data).map(|()| false),
            rep::ERR_UNKNOWN => Err(ClientError::NoExport(self.export.clone())),
            rep::ERR_TLS_REQD => Err(ClientError::Tls),
            kind if kind >> 31 == 1 => {
                let said = String::from_utf8_lossy(data);
                let why = match said.trim() {
                    "" => format!("error {:#x}", kind & !(1 << 31)),
                    said => said.to_owned(),
                };
                let export = self.export.clone();
                Err(ClientError::Refused { export, why })
            }
            _ => Err(ClientError::Broken("an answer of an unknown kind")),
        }
    }

    fn told(&mut self, data: &[u8]) -> Result<(), ClientError> {
        let Some((kind, rest)) = data.split_first_chunk::<2>() else {
            return Err(ClientError::Broken("information without a kind"));
        };
        match u16::from_be_bytes(*kind) {
            info::EXPORT => {
                let Some((&[s0, s1, s2, s3, s4, s5, s6, s7, f0, f1], [])) =
                    rest.split_first_chunk::<10>()
                else {
                    return Err(ClientError::Broken("a size of other than 10 bytes"));
                };
                self.agreed.size = u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
                self.agreed.flags = u16::from_be_bytes([f0, f1]);
                self.is_told = true;
            }
            info::BLOCK_SIZE => {
                let (words, rest) = rest.as_chunks::<4>();
                let ([min, _, max], []) = (words, rest) else {
                    return Err(ClientError::Broken("block sizes of other than 12 bytes"));
                };
                let (min, max) = (u32::from_be_bytes(*min), u32::from_be_bytes(*max));
                if !min.is_power_of_two() || min > 64 << 10 || max < min {
                    return Err(ClientError::Broken("block sizes that there cannot be"));
                }
                self.agreed.min_block = min;
                self.agreed.max_payload = max.min(MAX_PAYLOAD) / min * min;
            }
            // A name, a description, or what came later.
            _ => {}
        }
        Ok(())
    }
}

fn ask(out: &mut Vec<u8>, number: u32, data: &[u8]) {
    out.extend_from_slice(&IHAVEOPT.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(data);
}

/// An answer to an option.
struct Answer<'a> {
    option: u32,
    kind: u32,
    data: &'a [u8],
}

/// The next answer, once all of it is there.
fn answer(input: &[u8]) -> Result<Option<Answer<'_>>, ClientError> {
    let Some((head, rest)) = input.split_first_chunk::<20>() else {
        return Ok(None);
    };
    let [
        m0,
        m1,
        m2,
        m3,
        m4,
        m5,
        m6,
        m7,
        o0,
        o1,
        o2,
        o3,
        k0,
        k1,
        k2,
        k3,
        l0,
        l1,
        l2,
        l3,
    ] = *head;
    let found = u64::from_be_bytes([m0, m1, m2, m3, m4, m5, m6, m7]);
    if found != OPTION_REPLY {
        let what = "an answer to an option";
        return Err(ClientError::Magic { what, found });
    }
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if length > MAX_ANSWER {
        return Err(ClientError::Broken("an answer of more than 64 KiB"));
    }
    let data = rest.get(..length);
    let option = u32::from_be_bytes([o0, o1, o2, o3]);
    let kind = u32::from_be_bytes([k0, k1, k2, k3]);
    Ok(data.map(|data| Answer { option, kind, data }))
}
