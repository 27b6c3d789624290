//! A request, written attribute by attribute; and attributes, read where they lie.
//!
//! Source: netlink(7), rtnetlink(7), `include/uapi/linux/rtnetlink.h`.

use std::ops::Range;

use super::NLM_F_REQUEST;

const NLM_F_DUMP: u16 = 0x300;
/// Bytes of a `nlmsghdr`.
const HEADER: usize = 16;
/// Messages and attributes begin at multiples of this.
const ALIGN: usize = 4;
/// Of an attribute's kind: it holds attributes.
const NLA_F_NESTED: u16 = 0x8000;
/// The rest of the kind, without that and the order of bytes.
const KIND: u16 = 0x3fff;

/// A message as it lies in a datagram.
pub(crate) struct Received<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    /// The port of whoever asked for what it tells; 0 if that is the kernel's own doing.
    pub(crate) port: u32,
    /// What is behind its head.
    pub(crate) payload: &'a [u8],
}

/// The messages of a datagram, as far as they are whole.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let kinds = u32_at(bytes, 4)?.to_ne_bytes();
        let message = Received {
            kind: u16::from_ne_bytes([kinds[0], kinds[1]]),
            flags: u16::from_ne_bytes([kinds[2], kinds[3]]),
            sequence: u32_at(bytes, 8)?,
            port: u32_at(bytes, 12)?,
            payload: bytes.get(HEADER..length)?,
        };
        bytes = bytes
            .get(length.next_multiple_of(ALIGN)..)
            .unwrap_or_default();
        Some(message)
    })
}

/// A request to the kernel. Its sequence number is set when it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message of a type, with flags, and the fixed part that its family has.
    pub(crate) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; HEADER - 8]);
        bytes.extend_from_slice(fixed);
        let mut message = Self { bytes };
        message.pad();
        message
    }

    /// Asks for all of a kind.
    pub(crate) fn dump(kind: u16, fixed: &[u8]) -> Self {
        Self::new(kind, NLM_F_REQUEST | NLM_F_DUMP, fixed)
    }

    fn pad(&mut self) {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }

    /// Adds an attribute.
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.nest_as(kind, |message| message.bytes.extend_from_slice(value))
    }

    /// Adds a text, with the zero that ends it.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.nest_as(kind, |message| {
            message.bytes.extend_from_slice(value.as_bytes());
            message.bytes.push(0);
        })
    }

    /// Adds a number of 32 bits.
    pub(crate) fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_ne_bytes())
    }

    /// Adds a number of 64 bits.
    pub(crate) fn u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.put(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute that holds what `inside` adds.
    pub(crate) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) -> &mut Self {
        self.nest_as(kind | NLA_F_NESTED, inside)
    }

    fn nest_as(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        inside(self);
        // What is put here is ours, and far from 64 KiB.
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.pad();
        self
    }

    /// Makes it what is sent: with its length and its number.
    pub(crate) fn finish(&self, sequence: u32, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&self.bytes);
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        into[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        into[start + 8..start + 12].copy_from_slice(&sequence.to_ne_bytes());
    }
}

/// The attributes that lie in `bytes`, as far as they are whole.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        // struct nlattr: length with this head, and kind.
        let (head, _) = bytes.split_first_chunk::<4>()?;
        let [a, b, c, d] = *head;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let kind = u16::from_ne_bytes([c, d]) & KIND;
        let value = bytes.get(4..length)?;
        bytes = bytes
            .get(length.next_multiple_of(ALIGN)..)
            .unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of a kind.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(of, value)| (of == kind).then_some(value))
}

/// Where the value of the first attribute of a kind is.
pub(crate) fn place_of(bytes: &[u8], kind: u16) -> Option<Range<usize>> {
    let value = attribute(bytes, kind)?;
    let start = value.as_ptr().addr() - bytes.as_ptr().addr();
    Some(start..start + value.len())
}

/// A number of 32 bits at a place of a fixed part.
pub(crate) fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    let four = bytes.get(place..place.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

/// A number of 64 bits at a place of a fixed part.
pub(crate) fn u64_at(bytes: &[u8], place: usize) -> Option<u64> {
    let eight = bytes.get(place..place.checked_add(8)?)?;
    Some(u64::from_ne_bytes(eight.try_into().ok()?))
}

/// A text, up to the zero that ends it; what is no UTF-8 is replaced.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut message = Message::new(40, 5, &[7; 20]);
        message.text(1, "htb").nest(2, |options| {
            options.u32(3, 9).u64(4, 1 << 40).put(5, &[1, 2, 3]);
        });
        let mut bytes = Vec::new();
        message.finish(77, &mut bytes);
        assert_eq!(u32_at(&bytes, 0), u32::try_from(bytes.len()).ok());
        assert_eq!(u32_at(&bytes, 8), Some(77));
        assert_eq!(bytes.len() % ALIGN, 0);
        let rest = &bytes[HEADER + 20..];
        assert_eq!(attribute(rest, 1).map(text).as_deref(), Some("htb"));
        let options = attribute(rest, 2).expect("options");
        assert_eq!(attribute(options, 3).and_then(|v| u32_at(v, 0)), Some(9));
        assert_eq!(
            attribute(options, 4).and_then(|v| u64_at(v, 0)),
            Some(1 << 40)
        );
        assert_eq!(attribute(options, 5), Some(&[1, 2, 3][..]));
    }

    #[test]
    fn what_is_cut_off_is_not_read() {
        let mut message = Message::new(40, 5, &[]);
        message.put(1, &[1; 8]).put(2, &[2; 8]);
        let mut bytes = Vec::new();
        message.finish(1, &mut bytes);
        for end in HEADER..bytes.len() {
            for (kind, value) in attributes(&bytes[HEADER..end]) {
                assert_eq!(value.len(), 8, "attribute {kind} of {end} bytes");
            }
        }
        for end in 0..bytes.len() {
            assert_eq!(messages(&bytes[..end]).count(), 0, "{end} bytes");
        }
        assert_eq!(messages(&bytes).count(), 1);
        // An attribute shorter than its own head ends the list.
        assert_eq!(attributes(&[3, 0, 1, 0, 9, 9, 9, 9]).count(), 0);
        assert_eq!(attributes(&[0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }
}
