//! Requests as columns of small numbers: flags, times, volumes, offsets, lengths, contents.

use crate::model::{BLOCK, Op, Request};

/// Requests, as they come from a frame or go into one.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    heads: Vec<Head>,
    contents: Vec<u32>,
}

/// A request without its contents, and where those begin.
#[derive(Clone, Copy, Debug)]
struct Head {
    time_ns: u64,
    offset: u64,
    volume: u32,
    length: u32,
    first_content: u32,
    contents: u32,
    op: Op,
}

impl Batch {
    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// A request by its number in the batch.
    pub fn get(&self, n: usize) -> Option<Request<'_>> {
        self.heads.get(n).map(|head| self.whole(head))
    }

    /// The requests, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Request<'_>> {
        self.heads.iter().map(|head| self.whole(head))
    }

    fn whole(&self, head: &Head) -> Request<'_> {
        let first = head.first_content as usize;
        Request {
            time_ns: head.time_ns,
            volume: head.volume,
            offset: head.offset,
            length: head.length,
            op: head.op,
            contents: &self.contents[first..first + head.contents as usize],
        }
    }

    pub(super) fn clear(&mut self) {
        self.heads.clear();
        self.contents.clear();
    }
}

const OP: u8 = 0b11;
const SAME_VOLUME: u8 = 1 << 2;
const ONE_BLOCK: u8 = 1 << 3;
const SEQUENTIAL: u8 = 1 << 4;
const CONTENTS: u8 = 1 << 5;
const UNIT: u8 = 6;
/// The units of offsets and lengths, bytes.
const UNITS: [u64; 3] = [1, 512, BLOCK];

/// What both sides know of what was before in a frame.
#[derive(Debug, Default)]
struct Before {
    time_ns: u64,
    volume: u32,
    content: u32,
    /// Where the last request of each volume ended.
    ends: Vec<u64>,
}

impl Before {
    fn end(&mut self, volume: u32) -> &mut u64 {
        let at = volume as usize;
        if self.ends.len() <= at {
            self.ends.resize(at + 1, 0);
        }
        &mut self.ends[at]
    }

    fn clear(&mut self) {
        (self.time_ns, self.volume, self.content) = (0, 0, 0);
        self.ends.clear();
    }
}

/// Puts requests into columns.
#[derive(Debug, Default)]
pub(super) struct Packer {
    before: Before,
    requests: usize,
    contents: usize,
    columns: [Vec<u8>; 6],
}

impl Packer {
    /// Requests and contents since the last frame.
    pub(super) const fn held(&self) -> (usize, usize) {
        (self.requests, self.contents)
    }

    pub(super) fn push(&mut self, request: &Request<'_>) {
        let [flags, times, volumes, offsets, lengths, contents] = &mut self.columns;
        let before = &mut self.before;
        let mut flag = request.op as u8;
        put_signed(times, request.time_ns.wrapping_sub(before.time_ns));
        before.time_ns = request.time_ns;
        if request.volume == before.volume {
            flag |= SAME_VOLUME;
        } else {
            put(volumes, u64::from(request.volume));
            before.volume = request.volume;
        }
        let end = before.end(request.volume);
        let step = request.offset.wrapping_sub(*end);
        let length = u64::from(request.length);
        let both = step | length;
        let unit = if both.is_multiple_of(BLOCK) {
            2
        } else {
            u8::from(both.is_multiple_of(512))
        };
        flag |= unit << UNIT;
        let bits = UNITS[usize::from(unit)].trailing_zeros();
        if step == 0 {
            flag |= SEQUENTIAL;
        } else {
            // The sign stays where it is.
            put_signed(offsets, (step.cast_signed() >> bits).cast_unsigned());
        }
        if length == BLOCK {
            flag |= ONE_BLOCK;
        } else {
            put(lengths, length >> bits);
        }
        *end = request.end();
        if !request.contents.is_empty() {
            flag |= CONTENTS;
            for content in request.contents {
                let step = u64::from(*content).wrapping_sub(u64::from(before.content));
                put_signed(contents, step);
                before.content = content.wrapping_add(1);
            }
        }
        flags.push(flag);
        self.requests += 1;
        self.contents += request.contents.len();
    }

    /// What was pushed, as one frame; and begins anew.
    pub(super) fn take(&mut self, raw: &mut Vec<u8>) {
        raw.clear();
        for column in &mut self.columns {
            let len = u32::try_from(column.len()).unwrap_or(u32::MAX);
            raw.extend(len.to_le_bytes());
        }
        for column in &mut self.columns {
            raw.extend_from_slice(column);
            column.clear();
        }
        self.before.clear();
        (self.requests, self.contents) = (0, 0);
    }
}

/// Reads frames of requests.
#[derive(Debug, Default)]
pub(super) struct Unpacker {
    before: Before,
}

/// How many volumes and contents there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) volumes: usize,
    pub(super) contents: usize,
}

impl Unpacker {
    /// Fills the batch with the requests of a frame.
    pub(super) fn unpack(
        &mut self,
        raw: &[u8],
        requests: usize,
        known: Known,
        batch: &mut Batch,
    ) -> Result<(), &'static str> {
        batch.clear();
        self.before.clear();
        let mut columns = split(raw).ok_or("the columns of a frame do not fit")?;
        if columns[0].0.len() != requests {
            return Err("a frame has not as many requests as it says");
        }
        batch.heads.reserve(requests);
        let flags = std::mem::take(&mut columns[0].0);
        for flag in flags {
            self.one(*flag, &mut columns, known, batch)?;
        }
        if columns.iter().any(|column| !column.0.is_empty()) {
            return Err("a frame has more numbers than requests");
        }
        Ok(())
    }

    fn one(
        &mut self,
        flag: u8,
        columns: &mut [Column<'_>; 6],
        known: Known,
        batch: &mut Batch,
    ) -> Result<(), &'static str> {
        const SHORT: &str = "a frame has fewer numbers than requests";
        let [_, times, volumes, offsets, lengths, contents] = columns;
        let before = &mut self.before;
        let unit = UNITS
            .get(usize::from(flag >> UNIT))
            .ok_or("a request has an unknown unit")?
            .trailing_zeros();
        before.time_ns = before.time_ns.wrapping_add(times.signed().ok_or(SHORT)?);
        if flag & SAME_VOLUME == 0 {
            let volume = volumes.unsigned().ok_or(SHORT)?;
            before.volume = u32::try_from(volume).unwrap_or(u32::MAX);
        }
        if before.volume as usize >= known.volumes {
            return Err("a request is of an unknown volume");
        }
        let step = if flag & SEQUENTIAL == 0 {
            offsets.signed().ok_or(SHORT)? << unit
        } else {
            0
        };
        let length = if flag & ONE_BLOCK == 0 {
            let length = lengths.unsigned().ok_or(SHORT)?;
            let bytes = length.checked_mul(1 << unit);
            bytes.and_then(|bytes| u32::try_from(bytes).ok())
        } else {
            Some(BLOCK as u32)
        };
        let (time_ns, volume) = (before.time_ns, before.volume);
        let end = before.end(volume);
        let mut head = Head {
            time_ns,
            offset: end.wrapping_add(step),
            volume,
            length: length.ok_or("a request is too long")?,
            first_content: batch.contents.len() as u32,
            contents: 0,
            op: Op::ALL[usize::from(flag & OP)],
        };
        let bare = batch.whole(&head);
        if let Some(wrong) = bare.wrong() {
            return Err(wrong);
        }
        *end = bare.end();
        if flag & CONTENTS != 0 {
            head.contents = (u64::from(head.length) / BLOCK) as u32;
            if head.contents == 0 || !bare.is_aligned() {
                return Err("a request has contents, and no whole blocks");
            }
            for _ in 0..head.contents {
                let step = contents.signed().ok_or(SHORT)?;
                let content = u64::from(before.content).wrapping_add(step);
                let content = u32::try_from(content).unwrap_or(u32::MAX);
                if content as usize >= known.contents {
                    return Err("a request has an unknown content");
                }
                batch.contents.push(content);
                before.content = content + 1;
            }
        }
        batch.heads.push(head);
        Ok(())
    }
}

/// Numbers that follow each other.
struct Column<'a>(&'a [u8]);

fn split(raw: &[u8]) -> Option<[Column<'_>; 6]> {
    let (lengths, mut rest) = raw.split_at_checked(24)?;
    let mut columns = [const { Column(&[]) }; 6];
    for (column, length) in columns.iter_mut().zip(lengths.chunks_exact(4)) {
        let length = u32::from_le_bytes(length.try_into().ok()?);
        let (own, others) = rest.split_at_checked(length as usize)?;
        (*column, rest) = (Column(own), others);
    }
    rest.is_empty().then_some(columns)
}

impl Column<'_> {
    fn unsigned(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        if *first < 0x80 {
            self.0 = rest;
            return Some(u64::from(*first));
        }
        let mut n = 0;
        for (at, byte) in self.0.iter().enumerate().take(10) {
            n |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Some(n);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<u64> {
        let n = self.unsigned()?;
        Some((n >> 1) ^ (n & 1).wrapping_neg())
    }
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn put(column: &mut Vec<u8>, mut n: u64) {
    let (mut bytes, mut length) = ([0; 10], 0);
    while n >= 0x80 {
        bytes[length] = n as u8 | 0x80;
        n >>= 7;
        length += 1;
    }
    bytes[length] = n as u8;
    // All of them: to copy as many as there are takes longer.
    let end = column.len() + length + 1;
    column.extend_from_slice(&bytes);
    column.truncate(end);
}

/// Small numbers of either sign are short: 0, -1, 1, -2 and so on.
fn put_signed(column: &mut Vec<u8>, n: u64) {
    let signed = n.cast_signed();
    put(column, (signed << 1 ^ signed >> 63).cast_unsigned());
}
