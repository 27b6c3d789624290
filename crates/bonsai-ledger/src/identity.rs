//! Identities of processes and threads: a number says something only with its pid namespace.
//!
//! # Definitions
//! - *Namespace*: the inode of `/proc/PID/ns/pid`, 32 bits. The kernel gives the lowest free one,
//!   so that a later namespace may have the number of one that has ended. 0 stands for one that is
//!   not known, where `/proc` is missing or a seccomp filter is in the way.
//! - *Short namespace*: 20 bits of it, for the words of [`Segment::owners`], whose other bits are
//!   two numbers below 2^22 (`PID_MAX_LIMIT`).
//!
//! # Invariants
//! 1. Entries and pages are of one process: all of the identity is compared.
//! 2. The end of a process is judged within its own namespace, where `kill` knows its number, or
//!    from a namespace above, by `/proc` ([`Segment::reclaim`]). To others it lives.

#[cfg(doc)]
use crate::layout::Segment;

/// The bits of a number of a process or thread.
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
const NUMBER_BITS: u32 = 22;

/// The bits of a short namespace.
const SHORT: u32 = (1 << 20) - 1;

/// The namespace of an entry that is being reclaimed; no namespace has this inode.
pub(crate) const LEAVING: u32 = 1;

/// The namespace of a process that has been seen to have ended.
pub(crate) const ENDED: u32 = 2;

/// A process in its pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// Number in that namespace.
    pub pid: u32,
    /// The inode of the namespace, 0 where that is not known.
    pub namespace: u32,
}

impl ProcessId {
    /// As a word of the ledger.
    #[must_use]
    #[inline]
    pub const fn word(self) -> u64 {
        (self.namespace as u64) << 32 | self.pid as u64
    }

    /// Reads a word of the ledger; `None` for a free entry.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word as u32 == 0 {
            return None;
        }
        Some(Self {
            pid: word as u32,
            namespace: (word >> 32) as u32,
        })
    }

    /// True once the process was seen to have ended, so that its entry is free.
    #[must_use]
    #[inline]
    pub const fn has_ended(self) -> bool {
        self.namespace == ENDED
    }

    /// True while it is found out whether the process has ended: the namespace is not known meanwhile.
    #[must_use]
    #[inline]
    pub(crate) const fn is_in_doubt(self) -> bool {
        self.namespace == LEAVING
    }
}

/// The short form of a namespace.
#[must_use]
#[inline]
pub const fn short_namespace(namespace: u32) -> u32 {
    let short = namespace & SHORT;
    // The marks above are no namespace's.
    if namespace > ENDED && short <= ENDED {
        return short | 1 << 19;
    }
    short
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// The short form of the pid namespace of both.
    pub namespace: u32,
}

impl Owner {
    /// A thread of a process, by its number in the same namespace.
    #[must_use]
    #[inline]
    pub const fn of(process: ProcessId, tid: u32) -> Self {
        Self {
            pid: process.pid,
            tid,
            namespace: short_namespace(process.namespace),
        }
    }

    /// As a word of [`Segment::owners`].
    #[must_use]
    #[inline]
    pub const fn word(self) -> u64 {
        (self.namespace as u64) << (2 * NUMBER_BITS)
            | (self.pid as u64 & NUMBER) << NUMBER_BITS
            | self.tid as u64 & NUMBER
    }

    /// Reads a word of [`Segment::owners`]; `None` for a free page.
    #[must_use]
    #[inline]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self {
            pid: (word >> NUMBER_BITS & NUMBER) as u32,
            tid: (word & NUMBER) as u32,
            namespace: (word >> (2 * NUMBER_BITS)) as u32,
        })
    }

    /// True for a thread of that process.
    #[must_use]
    #[inline]
    pub const fn is_of(self, process: ProcessId) -> bool {
        self.pid == process.pid && self.is_in(process.namespace)
    }

    /// True for a thread of that namespace.
    #[must_use]
    #[inline]
    pub const fn is_in(self, namespace: u32) -> bool {
        self.namespace == short_namespace(namespace)
    }
}
