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
    /// The end of a call with two descriptors that is looked at; else either may be the
    /// one.
    pub end: Option<End>,
    /// Descriptors of this kind only.
    pub kind: Option<Kind>,
}

/// An end of a call with two descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Bytes come from it.
    Source,
    /// Bytes go to it.
    Target,
}

/// A kind of descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular files and block devices.
    Files,
    /// Sockets.
    Sockets,
}

const PEER: u64 = 1;
const PORTS: u64 = 2;
const DEVICE: u64 = 4;
const PATH: u64 = 8;
const SOURCE: u64 = 16;
const TARGET: u64 = 32;
const FILES: u64 = 64;
const SOCKETS: u64 = 128;

/// The bits before an IPv4 address that is mapped into an IPv6 one.
const MAPPED: u8 = 96;

/// An address as a scope has it, from one of IPv4.
#[must_use]
pub const fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// An IPv6 address, or a mapped one of IPv4.
    pub address: [u8; 16],
    /// Its port.
    pub port: u16,
}

impl Scope {
    /// Whether it is for some descriptors of its calls only.
    #[must_use]
    pub const fn is_narrow(&self) -> bool {
        self.is_of_sockets() || self.device.is_some() || self.path.is_some()
    }

    /// Whether it is about sockets.
    #[must_use]
    pub const fn is_of_sockets(&self) -> bool {
        self.peer.is_some() || self.ports.is_some()
    }

    /// Whether a socket is one that it is for: of this port, and with this peer, as far
    /// as there are any.
    #[must_use]
    pub fn has_socket(&self, own_port: Option<u16>, peer: Option<Peer>) -> bool {
        let near = self.peer.is_none_or(|network| {
            let address = peer.map(|peer| peer.address);
            address.is_some_and(|address| is_within(network, address))
        });
        near && self.ports.is_none_or(|(first, last)| {
            let known = [own_port, peer.map(|peer| peer.port)];
            let mut ports = known.into_iter().flatten();
            ports.any(|port| (first..=last).contains(&port))
        })
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
        words[0] |= match self.end {
            None => 0,
            Some(End::Source) => SOURCE,
            Some(End::Target) => TARGET,
        };
        words[0] |= match self.kind {
            None => 0,
            Some(Kind::Files) => FILES,
            Some(Kind::Sockets) => SOCKETS,
        };
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
            end: match (has(SOURCE), has(TARGET)) {
                (true, _) => Some(End::Source),
                (_, true) => Some(End::Target),
                _ => None,
            },
            kind: match (has(FILES), has(SOCKETS)) {
                (true, _) => Some(Kind::Files),
                (_, true) => Some(Kind::Sockets),
                _ => None,
            },
        }
    }
}

/// Whether an address is in a network. One of IPv4 is in no network of IPv6, not even in
/// that of all addresses.
fn is_within((network, bits): ([u8; 16], u8), address: [u8; 16]) -> bool {
    let is_mapped = |address: &[u8; 16]| address.starts_with(&mapped([0; 4])[..12]);
    let of_ipv4 = bits >= MAPPED && is_mapped(&network);
    let differing = u128::from_be_bytes(network) ^ u128::from_be_bytes(address);
    of_ipv4 == is_mapped(&address) && differing.leading_zeros() >= u32::from(bits).min(128)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn peer(address: [u8; 16], port: u16) -> Option<Peer> {
        Some(Peer { address, port })
    }

    #[test]
    fn a_scope_is_read_back() {
        let some = Scope {
            peer: Some((mapped([10, 0, 0, 0]), 104)),
            ports: Some((443, 65_535)),
            device: Some(0xfd01),
            path: Some((5, 155)),
            end: Some(End::Target),
            kind: Some(Kind::Sockets),
        };
        let others = [
            Scope {
                end: Some(End::Source),
                kind: Some(Kind::Files),
                ..some
            },
            Scope {
                peer: Some(([0xfd; 16], 0)),
                end: None,
                kind: None,
                ..some
            },
            Scope {
                ports: Some((0, 1)),
                ..Scope::default()
            },
            Scope::default(),
        ];
        for scope in others.into_iter().chain([some]) {
            assert_eq!(Scope::from_words(scope.to_words()), scope);
        }
        assert!(
            some.is_narrow()
                && !Scope {
                    peer: None,
                    ports: None,
                    device: None,
                    path: None,
                    ..some
                }
                .is_narrow()
        );
    }

    #[test]
    fn networks_count_bits_and_keep_the_families_apart() {
        let within = |network, bits, address| {
            let scope = Scope {
                peer: Some((network, bits)),
                ..Scope::default()
            };
            scope.has_socket(None, peer(address, 1))
        };
        let ten = mapped([10, 0, 0, 0]);
        assert!(within(ten, 104, mapped([10, 255, 1, 2])));
        assert!(!within(ten, 104, mapped([11, 0, 0, 0])));
        assert!(within(mapped([10, 1, 2, 3]), 128, mapped([10, 1, 2, 3])));
        assert!(!within(mapped([10, 1, 2, 3]), 128, mapped([10, 1, 2, 2])));
        assert!(within(mapped([0; 4]), 96, mapped([1, 2, 3, 4])));
        assert!(!within(mapped([0; 4]), 96, [0xfd; 16]));
        assert!(within([0; 16], 0, [0xfd; 16]));
        assert!(!within([0; 16], 0, mapped([1, 2, 3, 4])));
        assert!(within([0xfd; 16], 8, {
            let mut a = [0; 16];
            a[0] = 0xfd;
            a
        }));
        assert!(
            !Scope {
                peer: Some((ten, 104)),
                ..Scope::default()
            }
            .has_socket(Some(1), None)
        );
    }

    #[test]
    fn ports_are_those_of_either_end() {
        let scope = Scope {
            ports: Some((80, 90)),
            ..Scope::default()
        };
        let far = |port| peer([1; 16], port);
        assert!(scope.has_socket(Some(80), None) && scope.has_socket(Some(90), far(5)));
        assert!(scope.has_socket(Some(5), far(85)));
        assert!(!scope.has_socket(Some(79), far(91)) && !scope.has_socket(None, None));
        let both = Scope {
            peer: Some((mapped([10, 0, 0, 0]), 104)),
            ..scope
        };
        assert!(both.has_socket(Some(80), peer(mapped([10, 0, 0, 1]), 5)));
        assert!(!both.has_socket(Some(80), far(80)) && !both.has_socket(Some(80), None));
    }
}
