//! The segment of a group, mapped by the processes of all its members.
//!
//! Its arithmetic and its exchanges are `bonsai_bucket`'s (`group.rs` there says what the
//! words mean); here they are shared words.
//!
//! ```text
//! head     who, which version; the epoch
//! terms    two copies of rates, guarantees, ceilings and weights: the epoch's lowest bit
//!          says which is in force
//! pools    the hot line of each thing that is shared
//! lines    those of each member
//! members  which service has which number
//! ```
//!
//! # Invariants
//! 1. Nobody ever waits for anybody, as in the ledger of a service: no lock but the file's,
//!    which serialises those who change the terms and goes with its holder.
//! 2. A member's number has a generation. A process that still has an earlier one is no
//!    member any more: it draws on nothing, and its calls are counted as unshaped.
//! 3. The layout is frozen per [`GROUP_VERSION`].
//!
//! # Limits
//! [`MEMBERS`] services, [`GROUPS`] things that are shared. Changes of terms void the places
//! of all members: each may lose or gain one turn by it.

#[cfg(all(feature = "std", not(loom)))]
mod agree;
#[cfg(all(feature = "std", not(loom)))]
mod file;

#[cfg(all(feature = "std", not(loom)))]
pub use agree::{GroupEditor, MOST_WEIGHT, MemberReport, Part, PartReport, THING_NAME, Thing, Who};
#[cfg(all(feature = "std", not(loom)))]
pub use file::Group;

use crate::config::{CurveWords, consistent};
use crate::layout::{Epoch, GROUPS, scaled};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use bonsai_bucket::{Curve, Member, Pool, QUANTUM_NS, Seat, Terms, Word};

/// "BONSAI\x01G" in memory order.
pub const GROUP_MAGIC: u64 = u64::from_le_bytes(*b"BONSAI\x01G");

/// The version of this layout.
pub const GROUP_VERSION: u32 = 2;

/// Services in a group at a time: a bit each in [`PoolLine`].
pub const MEMBERS: usize = scaled(64, 3, 2);

/// Where a note of a wait has a bucket, this and what the group shares.
pub const GROUP_BUCKET: u8 = 128;

/// Bytes of the segment.
pub const GROUP_LEN: usize = core::mem::size_of::<GroupSegment>();

/// Who has not asked for so long does not count among those who ask.
const ASKING_NS: u64 = 20_000_000;

/// A word of the segment.
#[derive(Debug)]
#[repr(transparent)]
pub struct Shared(pub AtomicU64);

impl Word for Shared {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn exchange(&self, seen: u64, next: u64) -> Result<(), u64> {
        let done = self
            .0
            .compare_exchange(seen, next, Ordering::Relaxed, Ordering::Relaxed);
        done.map(|_| ())
    }

    fn add(&self, units: u64) {
        self.0.fetch_add(units, Ordering::Relaxed);
    }
}

/// The segment.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub struct GroupSegment {
    /// Who, which version, the epoch.
    pub head: GroupHead,
    /// The terms, twice.
    pub terms: [GroupTerms; 2],
    /// What all members change.
    pub pools: [PoolLine; GROUPS],
    /// What each member changes.
    pub lines: [[MemberLine; GROUPS]; MEMBERS],
    /// Who they are.
    pub members: [GroupMember; MEMBERS],
}

/// The first page.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub struct GroupHead {
    /// [`GROUP_MAGIC`], stored last.
    pub magic: AtomicU64,
    /// [`GROUP_VERSION`].
    pub version: AtomicU32,
    pub(crate) _pad: AtomicU32,
    /// [`GROUP_LEN`].
    pub length: AtomicU64,
    /// When it was made, ns of the wall clock since 1970.
    pub created_ns: AtomicU64,
    /// Its name, UTF-8, padded with zeros.
    pub name: [AtomicU64; 8],
    /// Advances with each change of terms; the futex word of those who wait. In the same
    /// place as that of a service.
    pub epoch: Epoch,
}

/// One copy of the terms.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub struct GroupTerms {
    /// What is shared.
    pub pools: [PoolTerms; GROUPS],
    /// What each member has of it.
    pub members: [[MemberTerms; GROUPS]; MEMBERS],
}

/// One thing that is shared.
#[derive(Debug)]
#[repr(C)]
pub struct PoolTerms {
    /// Its rate; the last word is 1 where there is one.
    pub curve: CurveWords,
    /// The call or class, UTF-8, padded with zeros.
    pub name: [AtomicU64; 4],
    /// Whether bytes are counted; otherwise calls.
    pub bytes: AtomicU64,
    pub(crate) _pad: [AtomicU64; 5],
}

/// What a member has of one thing.
#[derive(Debug)]
#[repr(C)]
pub struct MemberTerms {
    /// Its guarantee; the last word is 1 where there is one.
    pub guarantee: CurveWords,
    /// Its ceiling, likewise.
    pub ceiling: CurveWords,
    /// Its smallest place, units; 0 where it has nothing of this.
    pub grain: AtomicU64,
    /// Its weight.
    pub weight: AtomicU64,
    pub(crate) _pad: [AtomicU64; 2],
}

/// The words of a pool: two lines, as of a bucket.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct PoolLine {
    pub(crate) issued: Shared,
    pub(crate) guaranteed: Shared,
    pub(crate) served: Shared,
    /// Members that asked lately, a bit each.
    pub(crate) asking: AtomicU64,
}

/// The words of a member.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct MemberLine {
    pub(crate) asked: Shared,
    pub(crate) granted: Shared,
    pub(crate) place: Shared,
    pub(crate) served: Shared,
    pub(crate) guaranteed: Shared,
    pub(crate) capped: Shared,
    pub(crate) looked: Shared,
    pub(crate) borrowed: Shared,
    pub(crate) alone: Shared,
    pub(crate) leased: Shared,
    /// Waits for this, and their sum, ns.
    pub(crate) waits: Shared,
    pub(crate) waited_ns: Shared,
}

/// A service that is a member.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct GroupMember {
    /// Advances when the number is given to another service, and when it is given back.
    pub generation: AtomicU32,
    /// The process that made the service; 0 where the number is free.
    pub pid: AtomicU32,
    /// When that was started, ticks since boot.
    pub started: AtomicU64,
    /// The user it runs as.
    pub uid: AtomicU32,
    pub(crate) _pad: AtomicU32,
    /// The service's name, UTF-8, padded with zeros.
    pub name: [AtomicU64; 8],
}

#[cfg(not(any(loom, miri)))]
mod frozen {
    use super::*;
    use core::mem::{offset_of, size_of};

    const _: () = {
        assert!(offset_of!(GroupHead, epoch) == 128);
        assert!(size_of::<GroupHead>() == 4096);
        assert!(size_of::<PoolTerms>() == 128);
        assert!(size_of::<MemberTerms>() == 128);
        assert!(size_of::<PoolLine>() == 128);
        assert!(size_of::<MemberLine>() == 128);
        assert!(size_of::<GroupMember>() == 128);
        assert!(offset_of!(GroupSegment, terms) == 4096);
        assert!(offset_of!(GroupSegment, pools) == 143_360);
        assert!(offset_of!(GroupSegment, lines) == 144_384);
        assert!(offset_of!(GroupSegment, members) == 209_920);
        assert!(GROUP_LEN == 221_184);
    };
}

/// Which number a service has in its group: a word of [`crate::Config::groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Its number.
    pub member: usize,
    /// That number's generation.
    pub generation: u32,
}

impl Membership {
    /// As it stands in the ledger, never 0, with the tag of its joining: another one each
    /// time that the service joins a group.
    #[must_use]
    pub const fn to_word(self, tag: u16) -> u64 {
        1 | (self.member as u64) << 8 | Self::none(tag) | (self.generation as u64) << 32
    }

    /// The word of a service in no group, after the joining of that tag.
    #[must_use]
    pub const fn none(tag: u16) -> u64 {
        (tag as u64) << 16
    }

    /// The tag in a word.
    #[must_use]
    pub const fn tag(word: u64) -> u16 {
        (word >> 16 & 0xffff) as u16
    }

    /// From the ledger.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word & 1 == 0 {
            return None;
        }
        Some(Self {
            member: (word >> 8 & 0xff) as usize,
            generation: (word >> 32) as u32,
        })
    }
}

/// A curve that may not be there.
pub(crate) fn optional(words: &CurveWords) -> Option<Curve> {
    let (curve, there) = words.load();
    (there != 0).then_some(curve)
}

impl GroupSegment {
    /// The number of the terms in force.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.head.epoch.0.load(Ordering::Acquire)
    }

    /// Reads the terms in force.
    pub fn with_terms<T>(&self, read: impl FnMut(&GroupTerms) -> T) -> T {
        consistent(&self.head.epoch.0, &self.terms, read).1
    }

    /// Whether a service still has its number.
    #[must_use]
    pub fn has(&self, membership: Membership) -> bool {
        let member = self.members.get(membership.member);
        member.is_some_and(|m| m.generation.load(Ordering::Relaxed) == membership.generation)
    }

    /// What is agreed with a member on one thing; `None` where it has nothing of that.
    #[must_use]
    pub fn terms_of(&self, member: usize, thing: usize) -> Option<Terms> {
        self.with_terms(|terms| {
            let pool = optional(&terms.pools.get(thing)?.curve)?;
            let own = terms.members.get(member)?.get(thing)?;
            let grain = own.grain.load(Ordering::Relaxed);
            (grain != 0).then_some(Terms {
                pool,
                guarantee: optional(&own.guarantee),
                ceiling: optional(&own.ceiling),
                grain,
            })
        })
    }

    /// The words of a member and its pool.
    #[must_use]
    pub fn seat(&self, member: usize, thing: usize) -> Option<Seat<'_, Shared>> {
        let pool = self.pools.get(thing)?;
        let line = self.lines.get(member)?.get(thing)?;
        Some(Seat {
            pool: Pool {
                issued: &pool.issued,
                guaranteed: &pool.guaranteed,
                served: &pool.served,
            },
            member: Member {
                asked: &line.asked,
                granted: &line.granted,
                place: &line.place,
                served: &line.served,
                guaranteed: &line.guaranteed,
                capped: &line.capped,
                looked: &line.looked,
                borrowed: &line.borrowed,
                alone: &line.alone,
                leased: &line.leased,
            },
        })
    }

    /// Gets a member what it may have at `now`; see [`Seat::serve`]. A thing that is no
    /// longer shared is not waited for.
    pub fn serve(&self, member: usize, thing: usize, ticket: u64, now: u64) -> Option<u64> {
        let seat = self.seat(member, thing)?;
        if seat.is_ready(ticket) {
            return None;
        }
        let terms = self.terms_of(member, thing)?;
        let pool = self.pools.get(thing)?;
        if pool.asking.load(Ordering::Relaxed) & 1 << member == 0 {
            pool.asking.fetch_or(1 << member, Ordering::Relaxed);
        }
        seat.serve(&terms, ticket, now, || self.asking(thing, now))
    }

    /// Takes `short` units of what a member has been granted, and a lease of at most so many
    /// beyond them for one of its threads; see [`Seat::lease`].
    #[must_use]
    pub fn lease(
        &self,
        member: usize,
        thing: usize,
        (short, most): (u64, u64),
        tag: u32,
    ) -> Option<u64> {
        let seat = self.seat(member, thing)?;
        if !seat.is_ready(seat.member.asked.get().wrapping_add(short)) {
            return None;
        }
        let terms = self.terms_of(member, thing)?;
        // Not all of it to one thread.
        seat.lease(&terms, short, most.min(terms.leases() / 2), tag)
    }

    /// The grains of those who ask, one each.
    fn asking(&self, thing: usize, now: u64) -> u64 {
        let Some(pool) = self.pools.get(thing) else {
            return 0;
        };
        let mut grains = 0_u64;
        let mut left = pool.asking.load(Ordering::Relaxed);
        while left != 0 {
            let member = left.trailing_zeros() as usize;
            left &= left - 1;
            let line = self.lines.get(member).and_then(|lines| lines.get(thing));
            let looked = line.map_or(0, |line| line.looked.get());
            if now.saturating_sub(looked) > ASKING_NS {
                pool.asking.fetch_and(!(1 << member), Ordering::Relaxed);
                continue;
            }
            // One word of the copy in force: no retry is needed.
            let terms = &self.terms[(self.epoch() & 1) as usize];
            let own = terms.members.get(member).and_then(|own| own.get(thing));
            let grain = own.map_or(0, |own| own.grain.load(Ordering::Relaxed));
            grains = grains.saturating_add(grain);
        }
        grains
    }

    /// What a member may have of a thing in a quantum, at most.
    #[must_use]
    pub fn quantum(&self, member: usize, thing: usize) -> u64 {
        self.terms_of(member, thing).map_or(u64::MAX, |terms| {
            let ceiling = terms.ceiling.map_or(u64::MAX, |c| c.units_in(QUANTUM_NS));
            terms.pool.units_in(QUANTUM_NS).min(ceiling)
        })
    }

    /// Notes that a call of a member has waited.
    pub fn note_wait(&self, member: usize, thing: usize, ns: u64) {
        if let Some(line) = self.lines.get(member).and_then(|lines| lines.get(thing)) {
            line.waits.add(1);
            line.waited_ns.add(ns);
        }
    }
}
