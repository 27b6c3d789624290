//! What one call draws on: buckets of the service, and of its stream.

use crate::amount::Args;
use crate::descriptors;
use crate::held::Way;
use crate::hold;
use crate::own::Own;
use bonsai_bucket::QUANTUM_NS;
use bonsai_calls::CallId;
use bonsai_ledger::{Segment, Tickets, flags};
use core::sync::atomic::Ordering;

/// The most streams' buckets that one call draws on.
pub(crate) const STREAMS: usize = 4;

/// Pieces of a large call are at least this long.
const LEAST_PIECE: u64 = 4096;

/// What a call draws on under the limits of one epoch.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    /// That epoch.
    pub(crate) epoch: u32,
    /// Buckets of the service.
    pub(crate) mask: u64,
    /// Buckets that count bytes; the others count calls.
    pub(crate) byte_buckets: u64,
    /// Limits per stream that it is under, by their buckets.
    pub(crate) per_stream: u64,
    /// The lines of its stream under those: index and bucket.
    pub(crate) streams: [(u16, u8); STREAMS],
    /// How many there are.
    pub(crate) len: usize,
    /// The descriptor that it is about.
    pub(crate) fd: usize,
    /// The way of that which is held if the call is too early, and it must not block.
    pub(crate) refusable: Option<Way>,
    /// The call's arguments.
    pub(crate) args: [usize; 6],
    /// It is the same for every descriptor.
    pub(crate) is_plain: bool,
}

impl Claim {
    /// Of a call as it stands in the registers.
    pub(crate) fn of(segment: &Segment, call: CallId, args: &Args) -> Self {
        let index = usize::from(call);
        let (epoch, (mask, narrowed, byte_buckets, per_stream)) = segment.with_config(|config| {
            let load = |word: &bonsai_ledger::sync::AtomicU64| word.load(Ordering::Relaxed);
            (
                config.masks.get(index).map_or(0, load),
                config.narrowed.get(index).map_or(0, load),
                load(&config.byte_buckets),
                load(&config.per_stream),
            )
        });
        let mut claim = Self {
            epoch,
            mask,
            byte_buckets,
            per_stream: 0,
            streams: [(0, 0); STREAMS],
            len: 0,
            fd: args.a[0],
            refusable: None,
            args: args.a,
            is_plain: narrowed == 0,
        };
        if segment.header.flags.load(Ordering::Relaxed) & flags::LOOPS_NOW != 0 {
            claim.refusable = hold::way(call);
        }
        if narrowed != 0 {
            descriptors::narrow(segment, call, args, narrowed, per_stream, &mut claim);
        }
        claim
    }

    /// The same under the limits now in force.
    pub(crate) fn anew(&self, segment: &Segment, call: CallId) -> Self {
        Self::of(
            segment,
            call,
            &Args {
                a: self.args,
                nr: 0,
            },
        )
    }

    /// Of the call under way.
    pub(crate) fn current(own: &Own) -> Option<&'static Self> {
        // SAFETY: on the stack of the decision that is under way.
        unsafe { (own.claim as *const Self).as_ref() }
    }

    /// All limits that it is under.
    pub(crate) const fn all(&self) -> u64 {
        self.mask | self.per_stream
    }

    /// Whether one of them counts bytes, and whether one counts calls.
    pub(crate) const fn counts(&self) -> (bool, bool) {
        let all = self.all();
        (all & self.byte_buckets != 0, all & !self.byte_buckets != 0)
    }

    fn lines(&self) -> &[(u16, u8)] {
        self.streams.get(..self.len).unwrap_or_default()
    }

    const fn units(&self, bucket: u8, bytes: u64, calls: u64) -> u64 {
        if self.byte_buckets & 1 << bucket != 0 {
            bytes
        } else {
            calls
        }
    }

    /// Takes tickets; `None`, with nothing taken, if there are too many.
    pub(crate) fn take(
        &self,
        segment: &Segment,
        bytes: u64,
        calls: u64,
        now: u64,
    ) -> Option<Tickets> {
        let mut tickets = segment.take(self.mask, self.byte_buckets, bytes, calls, now)?;
        for (index, bucket) in self.lines() {
            let is_bytes = self.byte_buckets & 1 << bucket != 0;
            let units = self.units(*bucket, bytes, calls);
            let line = (usize::from(*index), *bucket);
            if !segment.take_stream(&mut tickets, line, is_bytes, units, now) {
                segment.refund(&tickets, bytes, calls);
                return None;
            }
        }
        Some(tickets)
    }

    /// Gives units back that were taken and not used.
    pub(crate) fn refund(&self, segment: &Segment, bytes: u64, calls: u64) {
        segment.refund_mask(self.mask, self.byte_buckets, bytes, calls);
        for (index, bucket) in self.lines() {
            segment.refund_stream(usize::from(*index), self.units(*bucket, bytes, calls));
        }
    }

    /// Notes with its stream what went through, and how long that waited.
    pub(crate) fn note(&self, segment: &Segment, bytes: u64, calls: u64, waited_ns: u64) {
        for (index, bucket) in self.lines() {
            if let Some(line) = segment.streams.get(usize::from(*index)) {
                line.note(self.units(*bucket, bytes, calls), waited_ns);
            }
        }
    }

    /// The length of the pieces of a large call: what its buckets give in a quantum,
    /// whole pages.
    pub(crate) fn piece(&self, segment: &Segment) -> u32 {
        let most = segment.bytes_in(self.all(), self.byte_buckets, QUANTUM_NS);
        u32::try_from((most / LEAST_PIECE * LEAST_PIECE).max(LEAST_PIECE)).unwrap_or(u32::MAX)
    }
}
