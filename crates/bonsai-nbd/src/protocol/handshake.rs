//! Option haggling.

use thiserror::Error;

use super::ExportInfo;
use super::wire::{
    self, BASE_ALLOCATION, BASE_ALLOCATION_ID, MAX_NAME_BYTES, MAX_OPTION_BYTES, MAX_OPTIONS,
    MAX_PAYLOAD, MAX_SKIPPED_BYTES, info, option, rep,
};

/// Answers that are held at most before they have to be taken away, in bytes.
pub const MAX_OUT_BYTES: usize = 256 << 10;

/// A client that does not speak the protocol; the connection is of no use any more.
#[derive(Debug, Error, Eq, PartialEq)]
pub enum ProtocolError {
    /// What came is not what comes here.
    #[error("{found:#x} came where {what} begins")]
    Magic {
        /// What should have begun.
        what: &'static str,
        /// What came.
        found: u64,
    },
    /// Flags that nobody has offered.
    #[error("the client has flags ({0:#x}) that were not offered")]
    Flags(u32),
    /// More than can be skipped.
    #[error("option {option} has {length} bytes of data; {MAX_SKIPPED_BYTES} are the most")]
    TooLong {
        /// Its number.
        option: u32,
        /// What it says.
        length: u32,
    },
    /// It asks and asks.
    #[error("more than {MAX_OPTIONS} options")]
    TooMany,
    /// By the option that cannot be answered.
    #[error("there is no export {0:?}")]
    NoExport(String),
    /// By the option that cannot be answered.
    #[error("an export is asked for without TLS, which is required")]
    TlsRequired,
}

/// The exports there are.
pub trait Exports {
    /// How many.
    fn count(&self) -> usize;
    /// By number, from 0.
    fn get(&self, index: usize) -> Option<ExportInfo>;

    /// By name. The empty name is the first export, if there is only that one.
    fn find(&self, name: &str) -> Option<(usize, ExportInfo)> {
        if name.is_empty() && self.count() == 1 {
            return self.get(0).map(|info| (0, info));
        }
        (0..self.count())
            .find_map(|at| self.get(at).filter(|of| of.name == name).map(|of| (at, of)))
    }
}

/// Whether there is TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tls {
    /// Not here.
    None,
    /// Nothing is told without it.
    Required,
    /// It is there.
    Active,
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Session {
    /// The number of the export.
    pub export: usize,
    /// Whether reads are answered by chunks.
    pub structured: bool,
    /// Whether block status can be asked for.
    pub base_allocation: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// More bytes of the client, once the answers so far have been sent.
    More,
    /// The answers are to be sent, and then TLS begins; what has come already is not to be used.
    StartTls,
    /// The answers are to be sent, and what comes then are requests.
    Ready(Session),
    /// The answers are to be sent, and then the connection closed.
    Close,
}

/// The state of one connection's option haggling.
#[derive(Debug)]
pub struct Handshake {
    tls: Tls,
    /// The client's flags have come.
    greeted: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export that the context was set for.
    context: Option<usize>,
    options: u32,
    /// Data of a refused option that is still to be skipped.
    skip: u32,
    /// The next export of a list that has not been told as a whole.
    listed: Option<usize>,
}

impl Handshake {
    /// A new connection.
    #[must_use]
    pub const fn new(tls: Tls) -> Self {
        Self {
            tls,
            greeted: false,
            no_zeroes: false,
            structured: false,
            context: None,
            options: 0,
            skip: 0,
            listed: None,
        }
    }

    /// What the server says first.
    #[must_use]
    pub fn greeting() -> [u8; 18] {
        let mut all = [0; 18];
        let flags = wire::FIXED_NEWSTYLE | wire::NO_ZEROES;
        let [a, b] = [wire::NBDMAGIC.to_be_bytes(), wire::IHAVEOPT.to_be_bytes()];
        let bytes = a.into_iter().chain(b).chain(flags.to_be_bytes());
        all.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        all
    }

    /// TLS is there: what was agreed on before is forgotten ("NBD_OPT_STARTTLS").
    pub const fn tls_is_there(&mut self) {
        self.tls = Tls::Active;
        self.structured = false;
        self.context = None;
    }

    /// Takes what has come, says how much of it is used, and adds the answers to `out`. What is
    /// not used is to be given again, with more behind it. As long as there are answers, there may be more of them, also where
    /// nothing was used.
    ///
    /// # Errors
    /// [`ProtocolError`]: the connection is to be closed.
    pub fn push(
        &mut self,
        input: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), ProtocolError> {
        let mut rest = input;
        let used = |rest: &[u8]| input.len() - rest.len();
        if !self.greeted {
            let Some((flags, behind)) = rest.split_first_chunk::<4>() else {
                return Ok((0, Step::More));
            };
            self.flags(u32::from_be_bytes(*flags))?;
            rest = behind;
        }
        while out.len() < MAX_OUT_BYTES {
            if self.listed.is_some() {
                self.list(exports, out);
                continue;
            }
            if self.skip > 0 {
                let skipped = rest.len().min(self.skip as usize);
                self.skip -= u32::try_from(skipped).unwrap_or(self.skip);
                rest = rest.get(skipped..).unwrap_or_default();
                if self.skip > 0 {
                    break;
                }
            }
            let Some((number, length, behind)) = header(rest)? else {
                break;
            };
            if length as usize > MAX_OPTION_BYTES {
                self.too_long(number, length, out)?;
                rest = behind;
                continue;
            }
            let Some((data, behind)) = behind.split_at_checked(length as usize) else {
                break;
            };
            rest = behind;
            self.count()?;
            match self.option(number, data, exports, out)? {
                Step::More => {}
                step => return Ok((used(rest), step)),
            }
        }
        Ok((used(rest), Step::More))
    }

    /// Checks what must always hold; for tests and fuzzing.
    ///
    /// # Panics
    /// It does not.
    pub fn check_invariants(&self) {
        assert!(
            self.context.is_none() || self.structured,
            "a context without structured replies"
        );
        assert!(
            self.tls != Tls::Required || self.context.is_none(),
            "told without TLS"
        );
        assert!(self.options <= MAX_OPTIONS, "too many options");
        assert!(self.skip <= MAX_SKIPPED_BYTES, "too much to skip");
        assert!(
            self.greeted || self.options == 0,
            "options before the client's flags"
        );
    }

    fn flags(&mut self, flags: u32) -> Result<(), ProtocolError> {
        if flags & !u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES) != 0 {
            return Err(ProtocolError::Flags(flags));
        }
        self.no_zeroes = flags & u32::from(wire::NO_ZEROES) != 0;
        self.greeted = true;
        Ok(())
    }

    fn count(&mut self) -> Result<(), ProtocolError> {
        if self.options == MAX_OPTIONS {
            return Err(ProtocolError::TooMany);
        }
        self.options += 1;
        Ok(())
    }

    fn too_long(
        &mut self,
        option: u32,
        length: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        // EXPORT_NAME has no answer that says no.
        if length > MAX_SKIPPED_BYTES || option == option::EXPORT_NAME {
            return Err(ProtocolError::TooLong { option, length });
        }
        self.count()?;
        self.skip = length;
        refuse(
            out,
            option,
            rep::ERR_TOO_BIG,
            "more data than any option needs",
        );
        Ok(())
    }

    fn option(
        &mut self,
        number: u32,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<Step, ProtocolError> {
        let hidden = self.tls == Tls::Required;
        match number {
            option::EXPORT_NAME if hidden => return Err(ProtocolError::TlsRequired),
            option::EXPORT_NAME => return self.export_name(data, exports, out),
            option::ABORT => {
                answer(out, number, rep::ACK, &[]);
                return Ok(Step::Close);
            }
            option::STARTTLS => return Ok(self.start_tls(data, out)),
            _ if hidden => refuse(out, number, rep::ERR_TLS_REQD, "TLS is required here"),
            option::LIST if data.is_empty() => self.listed = Some(0),
            option::LIST => refuse(out, number, rep::ERR_INVALID, "it has no data"),
            option::INFO | option::GO => return Ok(self.info(number, data, exports, out)),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                answer(out, number, rep::ACK, &[]);
            }
            option::STRUCTURED_REPLY => refuse(out, number, rep::ERR_INVALID, "it has no data"),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(number, data, exports, out);
            }
            _ => refuse(out, number, rep::ERR_UNSUP, "not known here"),
        }
        Ok(Step::More)
    }

    /// Tells the next export of a list, or its end: a long list is not held as a whole.
    fn list(&mut self, exports: &dyn Exports, out: &mut Vec<u8>) {
        let index = self.listed.take().unwrap_or(exports.count());
        if index >= exports.count() {
            answer(out, option::LIST, rep::ACK, &[]);
            return;
        }
        self.listed = Some(index + 1);
        let Some(export) = exports.get(index) else {
            return;
        };
        let length = u32::try_from(export.name.len()).unwrap_or(0);
        let mut data = length.to_be_bytes().to_vec();
        data.extend_from_slice(export.name.as_bytes());
        data.extend_from_slice(export.description.as_bytes());
        answer(out, option::LIST, rep::SERVER, &data);
    }

    fn start_tls(&self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let number = option::STARTTLS;
        match self.tls {
            _ if !data.is_empty() => refuse(out, number, rep::ERR_INVALID, "it has no data"),
            Tls::None => refuse(out, number, rep::ERR_POLICY, "there is no TLS here"),
            Tls::Active => refuse(out, number, rep::ERR_INVALID, "TLS is there already"),
            Tls::Required => {
                answer(out, number, rep::ACK, &[]);
                return Step::StartTls;
            }
        }
        Step::More
    }

    fn export_name(
        &self,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<Step, ProtocolError> {
        let name = String::from_utf8_lossy(data);
        let Some((export, info)) = exports.find(&name) else {
            return Err(ProtocolError::NoExport(name.chars().take(80).collect()));
        };
        out.extend_from_slice(&info.size.to_be_bytes());
        out.extend_from_slice(&info.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Ok(Step::Ready(self.session(export)))
    }

    fn session(&self, export: usize) -> Session {
        Session {
            export,
            structured: self.structured,
            base_allocation: self.context == Some(export),
        }
    }

    fn info(&self, number: u32, data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Step {
        let Some((name, wanted)) = info_request(data) else {
            refuse(
                out,
                number,
                rep::ERR_INVALID,
                match number {
                    option::GO => "malformed NBD_OPT_GO payload",
                    _ => "malformed NBD_OPT_INFO payload",
                },
            );
            return Step::More;
        };
        let Some((export, about)) = exports.find(name) else {
            refuse(
                out,
                number,
                rep::ERR_UNKNOWN,
                "there is no export of that name",
            );
            return Step::More;
        };
        let mut data = info::EXPORT.to_be_bytes().to_vec();
        data.extend_from_slice(&about.size.to_be_bytes());
        data.extend_from_slice(&about.flags(self.structured).to_be_bytes());
        answer(out, number, rep::INFO, &data);
        let block_size = || {
            let sizes = [1, about.preferred_block, MAX_PAYLOAD];
            sizes.into_iter().flat_map(u32::to_be_bytes).collect()
        };
        let more: [(u16, &dyn Fn() -> Vec<u8>); 3] = [
            (info::NAME, &|| about.name.clone().into_bytes()),
            (info::DESCRIPTION, &|| {
                about.description.clone().into_bytes()
            }),
            (info::BLOCK_SIZE, &block_size),
        ];
        for (kind, body) in more {
            // Sizes of blocks are said in any case: who does not know them skips them.
            if wanted.contains(&kind) || kind == info::BLOCK_SIZE {
                let mut data = kind.to_be_bytes().to_vec();
                data.extend(body());
                answer(out, number, rep::INFO, &data);
            }
        }
        answer(out, number, rep::ACK, &[]);
        match number {
            option::GO => Step::Ready(self.session(export)),
            _ => Step::More,
        }
    }

    fn contexts(&mut self, number: u32, data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) {
        let sets = number == option::SET_META_CONTEXT;
        if sets {
            // Whatever becomes of it, the former choice is gone.
            self.context = None;
        }
        if !self.structured {
            refuse(
                out,
                number,
                rep::ERR_INVALID,
                "structured replies come first",
            );
            return;
        }
        let Some((name, queries)) = context_request(data) else {
            refuse(
                out,
                number,
                rep::ERR_INVALID,
                match number {
                    option::SET_META_CONTEXT => "malformed NBD_OPT_SET_META_CONTEXT payload",
                    _ => "malformed NBD_OPT_LIST_META_CONTEXT payload",
                },
            );
            return;
        };
        let Some((export, _)) = exports.find(name) else {
            refuse(
                out,
                number,
                rep::ERR_UNKNOWN,
                "there is no export of that name",
            );
            return;
        };
        let all = !sets && queries.is_empty();
        let named =
            |query: &&[u8]| *query == BASE_ALLOCATION.as_bytes() || (!sets && *query == b"base:");
        if all || queries.iter().any(named) {
            let id = if sets { BASE_ALLOCATION_ID } else { 0 };
            let mut data = id.to_be_bytes().to_vec();
            data.extend_from_slice(BASE_ALLOCATION.as_bytes());
            answer(out, number, rep::META_CONTEXT, &data);
            if sets {
                self.context = Some(export);
            }
        }
        answer(out, number, rep::ACK, &[]);
    }
}

/// Of an option: its number, the length of its data, and what is behind.
type Header<'a> = (u32, u32, &'a [u8]);

/// The header of an option: its number, the length of its data, and what is behind.
fn header(input: &[u8]) -> Result<Option<Header<'_>>, ProtocolError> {
    // Told as soon as it shows: who speaks something else may send no more.
    if let Some((magic, _)) = input.split_first_chunk::<8>() {
        let found = u64::from_be_bytes(*magic);
        if found != wire::IHAVEOPT {
            let what = "an option";
            return Err(ProtocolError::Magic { what, found });
        }
    }
    let Some((header, behind)) = input.split_first_chunk::<16>() else {
        return Ok(None);
    };
    let [_, _, _, _, _, _, _, _, number @ .., l0, l1, l2, l3] = *header;
    let length = u32::from_be_bytes([l0, l1, l2, l3]);
    Ok(Some((u32::from_be_bytes(number), length, behind)))
}

fn take_u32(data: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = data.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*head), rest))
}

/// A name with its length before it.
fn take_name(data: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = take_u32(data)?;
    let (name, rest) = rest.split_at_checked(length as usize)?;
    let name = str::from_utf8(name).ok()?;
    (name.len() <= MAX_NAME_BYTES).then_some((name, rest))
}

fn info_request(data: &[u8]) -> Option<(&str, Vec<u16>)> {
    let (name, rest) = take_name(data)?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let (kinds, none) = rest.as_chunks::<2>();
    let fits = kinds.len() == usize::from(u16::from_be_bytes(*count)) && none.is_empty();
    fits.then(|| {
        (
            name,
            kinds.iter().map(|kind| u16::from_be_bytes(*kind)).collect(),
        )
    })
}

fn context_request(data: &[u8]) -> Option<(&str, Vec<&[u8]>)> {
    let (name, rest) = take_name(data)?;
    let (count, mut rest) = take_u32(rest)?;
    // Each takes 4 bytes at least, so that the count is no reason to reserve memory.
    let mut queries = Vec::new();
    for _ in 0..count {
        let (length, behind) = take_u32(rest)?;
        let (query, behind) = behind.split_at_checked(length as usize)?;
        queries.push(query);
        rest = behind;
    }
    rest.is_empty().then_some((name, queries))
}

fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) {
    answer(out, option, kind, why.as_bytes());
}

fn answer(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&wire::OPTION_REPLY.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(data);
}
