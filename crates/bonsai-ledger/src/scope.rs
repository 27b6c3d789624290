//! What narrows a limit down to some descriptors.

use crate::layout::{BUCKETS, Label};
use crate::sync::Ordering;

/// The descriptors that a limit is for. What is `None` is not looked at; a descriptor has
/// to meet all that is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Sockets whose peer is in this network: an IPv6 address, or an IPv4 one mapped
    /// into it (RFC 4291, 2.5.5.2), and the bits of it that count.
    pub peer: Option<([u8; 16], u8)>,
    /// Sockets with a port from the first to the last of these at one of their ends.
    pub ports: Option<(u16, u16)>,
    /// Files on this device (`st_dev`).
    pub device: Option<u64>,
    /// Files whose path matches a pattern: where that begins in the limit's name, and
    /// how long it is.
    pub path: Option<(u8, u8)>,
}

const PEER: u64 = 1;
const PORTS: u64 = 2;
const DEVICE: u64 = 4;
const PATH: u64 = 8;

impl Scope {
    /// Whether it is for some descriptors only.
    #[must_use]
    pub fn is_narrow(&self) -> bool {
        *self != Self::default()
    }

    /// As it stands in the segment.
    #[must_use]
    pub fn to_words(self) -> [u64; 4] {
        let mut words = [0; 4];
        if let Some((address, bits)) = self.peer {
            words[0] |= PEER | u64::from(bits) << 8;
            let address = u128::from_be_bytes(address);
            words[1] = (address >> 64) as u64;
            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
            {
                words[2] = address as u64;
            }
        }
        if let Some((first, last)) = self.ports {
            words[0] |= PORTS | u64::from(first) << 32 | u64::from(last) << 48;
        }
        if let Some(device) = self.device {
            words[0] |= DEVICE;
            words[3] = device;
        }
        if let Some((from, len)) = self.path {
            words[0] |= PATH | u64::from(from) << 16 | u64::from(len) << 24;
        }
        words
    }

    /// From the segment.
    #[must_use]
    pub fn from_words(words: [u64; 4]) -> Self {
        let byte = |at: u32| words[0].to_le_bytes()[at as usize / 8];
        let port = |at: u32| u16::from_le_bytes([byte(at), byte(at + 8)]);
        let has = |bit: u64| words[0] & bit != 0;
        let address = u128::from(words[1]) << 64 | u128::from(words[2]);
        Self {
            peer: has(PEER).then_some((address.to_be_bytes(), byte(8))),
            ports: has(PORTS).then_some((port(32), port(48))),
            device: has(DEVICE).then_some(words[3]),
            path: has(PATH).then_some((byte(16), byte(24))),
        }
    }
}

impl Label {
    /// What the limit is for.
    #[must_use]
    pub fn scope(&self) -> Scope {
        let word = |i: usize| self.scope[i].load(Ordering::Relaxed);
        Scope::from_words([word(0), word(1), word(2), word(3)])
    }

    /// Writes what the limit is for.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn set_scope(&self, scope: Scope) {
        for (to, from) in self.scope.iter().zip(scope.to_words()) {
            to.store(from, Ordering::Relaxed);
        }
    }

    /// The bytes of its name from `from` on, at most as many as `to` has room for.
    pub fn name_part<'a>(&self, (from, len): (u8, u8), to: &'a mut [u8]) -> &'a [u8] {
        let (from, len) = (usize::from(from), usize::from(len).min(to.len()));
        let (part, _) = to.split_at_mut(len);
        for (i, byte) in part.iter_mut().enumerate() {
            let at = from + i;
            let word = self
                .name
                .get(at / 8)
                .map_or(0, |w| w.load(Ordering::Relaxed));
            *byte = word.to_le_bytes()[at % 8];
        }
        part
    }
}

const _: () = assert!(BUCKETS <= 64);
