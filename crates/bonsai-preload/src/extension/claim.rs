//! What one call draws on: buckets of the service, and of its stream.

use crate::amount::{Args, IoSize, Pages, io_size};
use crate::descriptors::{self, Known, Note};
use crate::group::{self, Shares};
use crate::held::Way;
use crate::hold;
use crate::kept::Kept;
use crate::look;
use crate::own::Own;
use crate::paths;
use bonsai_bucket::QUANTUM_NS;
use bonsai_calls::{CallId, about};
use bonsai_decide::{PAGE, quantum_length};
use bonsai_ledger::{Segment, Tickets, Unshaped, flags};
use core::sync::atomic::Ordering;

/// The most streams' buckets that one call draws on.
pub(crate) const STREAMS: usize = 4;

/// What a call draws on under the limits of one epoch.
pub(crate) struct Claim {
    /// That epoch.
    pub(crate) epoch: u32,
    /// Buckets of the service.
    pub(crate) mask: u64,
    /// Those of them that are for some descriptors.
    pub(crate) scoped: u64,
    /// Buckets that count bytes; the others count calls.
    pub(crate) byte_buckets: u64,
    /// Limits per stream that it is under, by their buckets.
    pub(crate) per_stream: u64,
    /// The lines of its stream under those: index | bucket << 16. One word each, which are
    /// cleared together.
    streams: [u32; STREAMS],
    /// How many there are.
    pub(crate) len: usize,
    /// The call as it came.
    pub(crate) args: Args,
    /// What it draws on of the service's group.
    pub(crate) shares: Shares,
    /// It is the same for every descriptor.
    pub(crate) is_plain: bool,
    /// The way of its descriptor that is held if the call is too early, and must not
    /// block.
    pub(crate) refusable: Option<Way>,
}

impl Claim {
    /// Of no call.
    pub(crate) const fn none(args: Args) -> Self {
        Self {
            epoch: 0,
            mask: 0,
            scoped: 0,
            byte_buckets: 0,
            per_stream: 0,
            streams: [0; STREAMS],
            len: 0,
            args,
            shares: Shares::NONE,
            is_plain: true,
            refusable: None,
        }
    }

    /// Makes it the one of its call as that stands in the registers, under the limits now
    /// in force. In place: copies of it would cost more than what it says.
    pub(crate) fn fill(&mut self, segment: &Segment, call: CallId, pages: &mut Pages) {
        let index = usize::from(call);
        let (epoch, words) = segment.with_config(|config| {
            let load = |word: &bonsai_ledger::sync::AtomicU64| word.load(Ordering::Relaxed);
            (
                config.masks.get(index).map_or(0, load),
                config.narrowed.get(index).map_or(0, load),
                load(&config.byte_buckets),
                load(&config.per_stream),
                Shares::of(config, call),
            )
        });
        let (mask, narrowed, byte_buckets, per_stream, shares) = words;
        (self.epoch, self.mask, self.byte_buckets) = (epoch, mask, byte_buckets);
        (self.scoped, self.per_stream, self.len) = (0, 0, 0);
        self.shares = shares;
        self.is_plain = narrowed == 0;
        let loops = segment.header.flags.load(Ordering::Relaxed) & flags::LOOPS_NOW != 0;
        self.refusable = if loops && Kept::can_keep(shares) {
            hold::way(call, &self.args)
        } else {
            None
        };
        if narrowed != 0 {
            self.narrow(segment, call, (narrowed, per_stream), pages);
        }
    }

    /// Adds the limits on some descriptors that a call is under: of those `narrowed` on
    /// its entry, by what is known of its descriptors.
    fn narrow(
        &mut self,
        segment: &Segment,
        call: CallId,
        (narrowed, per_stream): (u64, u64),
        pages: &mut Pages,
    ) {
        let ends = about::ends(call);
        if ends.both() {
            let [source, target] = [ends.source, ends.target].map(|end| self.fd(end));
            let (at_source, at_target) = look::by_end(segment, narrowed);
            let target = self.draw(segment, target, at_target, per_stream);
            // Where either end may be the one, it is not both.
            self.draw(segment, source, at_source & !target, per_stream);
            return;
        }
        if ends.one() == about::NO_ARG {
            let under = paths::matching(segment, call, &self.args, narrowed, pages);
            self.mask |= under & !per_stream;
            self.scoped |= under & !per_stream;
            return;
        }
        let fd = self.fd(ends.one());
        let known = descriptors::known(segment, fd, self.epoch);
        let mut under = known.matches & narrowed;
        let by_call = known.by_call & narrowed;
        if by_call != 0 {
            let address = look::address(call, &self.args, pages);
            under = under & !by_call | look::by_call(segment, &known, by_call, address);
        }
        self.add(segment, fd, &known, under, per_stream);
    }

    fn fd(&self, arg: u8) -> usize {
        let fd = self.args.a.get(usize::from(arg)).copied();
        fd.unwrap_or(usize::MAX) & 0xffff_ffff
    }

    /// Adds those of `narrowed` that a descriptor is under, and returns them.
    fn draw(&mut self, segment: &Segment, fd: usize, narrowed: u64, per_stream: u64) -> u64 {
        if narrowed == 0 {
            return 0;
        }
        let known = descriptors::known(segment, fd, self.epoch);
        let under = known.matches & narrowed;
        self.add(segment, fd, &known, under, per_stream);
        under
    }

    fn add(&mut self, segment: &Segment, fd: usize, known: &Known, under: u64, per_stream: u64) {
        self.mask |= under & !per_stream;
        self.scoped |= under & !per_stream;
        let mut left = under & per_stream;
        while left != 0 {
            #[expect(clippy::cast_possible_truncation, reason = "below 64")]
            let bucket = left.trailing_zeros() as u8;
            left &= left - 1;
            match descriptors::line(segment, fd, known.identity, bucket) {
                Some(index) if self.len < STREAMS => {
                    self.streams[self.len % STREAMS] = u32::from(index) | u32::from(bucket) << 16;
                    self.len += 1;
                    self.per_stream |= 1 << bucket;
                }
                _ => segment.count_unshaped(Unshaped::NoStream),
            }
        }
    }

    /// Of the call under way.
    pub(crate) fn current(own: &Own) -> Option<&'static mut Self> {
        // SAFETY: on the stack of the decision that is under way, which does not touch
        // it meanwhile; one reference at a time.
        unsafe { (own.claim as *mut Self).as_mut() }
    }

    /// The descriptor that what a call has paid or owes is kept with; none where it is the
    /// same for every one, as then the thread keeps it.
    pub(crate) fn home(&self, call: CallId) -> Option<&'static Note> {
        let ends = about::ends(call);
        let has_one = ends
            != about::Ends {
                source: about::NO_ARG,
                target: about::NO_ARG,
            };
        (!self.is_plain && has_one && self.counts().0)
            .then(|| descriptors::note(self.fd(ends.one())))?
    }

    /// All limits that it is under.
    pub(crate) const fn all(&self) -> u64 {
        self.mask | self.per_stream
    }

    /// Whether it draws on anything.
    pub(crate) const fn is_any(&self) -> bool {
        self.all() != 0 || self.shares.any()
    }

    /// Whether one of them counts bytes, and whether one counts calls.
    pub(crate) const fn counts(&self) -> (bool, bool) {
        let all = self.all();
        let (bytes, calls) = self.shares.counts();
        (
            all & self.byte_buckets != 0 || bytes,
            all & !self.byte_buckets != 0 || calls,
        )
    }

    /// The lines of its stream: index and bucket.
    fn lines(&self) -> impl Iterator<Item = (usize, u8)> {
        let words = self.streams.get(..self.len).unwrap_or_default();
        words.iter().map(|word| {
            let [low, high, bucket, _] = word.to_le_bytes();
            (usize::from(u16::from_le_bytes([low, high])), bucket)
        })
    }

    /// Its stream's line, index and bucket, if it draws on nothing else, and on bytes.
    pub(crate) fn only_line(&self) -> Option<(usize, u8)> {
        let alone = self.mask == 0 && self.len == 1 && self.counts() == (true, false);
        self.lines().next().filter(|_| alone && !self.shares.any())
    }

    const fn units(&self, bucket: u8, bytes: u64, calls: u64) -> u64 {
        self.units_of(bucket as usize, bytes, calls)
    }

    const fn units_of(&self, bucket: usize, bytes: u64, calls: u64) -> u64 {
        if self.byte_buckets & 1 << bucket != 0 {
            bytes
        } else {
            calls
        }
    }

    /// Takes what a call needs if all of it may go at `now`, and nothing otherwise.
    pub(crate) fn take_due(&self, segment: &Segment, bytes: u64, calls: u64, now: u64) -> bool {
        let mut taken = 0;
        for bucket in look::bits(self.mask) {
            let units = self.units_of(bucket, bytes, calls);
            if !segment.take_due(bucket, units, now) {
                segment.refund_mask(taken, self.byte_buckets, bytes, calls);
                return false;
            }
            taken |= 1 << bucket;
        }
        for (i, line) in self.lines().enumerate() {
            if !segment.take_stream_due(line, self.units(line.1, bytes, calls), now) {
                segment.refund_mask(taken, self.byte_buckets, bytes, calls);
                for (index, bucket) in self.lines().take(i) {
                    segment.refund_stream(index, self.units(bucket, bytes, calls));
                }
                return false;
            }
        }
        true
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
            let units = self.units(bucket, bytes, calls);
            if !segment.take_stream(&mut tickets, (index, bucket), is_bytes, units, now) {
                segment.refund(&tickets, bytes, calls);
                return None;
            }
        }
        Some(tickets)
    }

    /// Part of `bytes` that may go at `now`.
    pub(crate) fn due_part(&self, segment: &Segment, bytes: u64, now: u64) -> u64 {
        let Some(tickets) = self.take(segment, bytes, 0, now) else {
            return 0;
        };
        let part = match segment.stale(&tickets) {
            true => 0,
            false => segment.due_part(&tickets, bytes, now),
        };
        segment.refund(&tickets, bytes, 0);
        part
    }

    /// Gives units back that were taken and not used.
    pub(crate) fn refund(&self, segment: &Segment, bytes: u64, calls: u64) {
        self.refund_own(segment, bytes, calls);
        group::give_back(segment, self.shares, bytes, calls);
    }

    /// The same for the service's own limits, and not for its group.
    pub(crate) fn refund_own(&self, segment: &Segment, bytes: u64, calls: u64) {
        segment.refund_mask(self.mask, self.byte_buckets, bytes, calls);
        for (index, bucket) in self.lines() {
            segment.refund_stream(index, self.units(bucket, bytes, calls));
        }
        self.note(segment, (bytes.wrapping_neg(), calls.wrapping_neg()), 0);
    }

    /// Notes with its limits and its stream what went through, bytes and calls, and how
    /// long that waited.
    pub(crate) fn note(&self, segment: &Segment, (bytes, calls): (u64, u64), waited_ns: u64) {
        for (index, bucket) in self.lines() {
            let units = self.units(bucket, bytes, calls);
            if let Some(line) = segment.streams.get(index) {
                line.note(units, waited_ns);
            }
        }
        // Of a limit per stream, the streams' own counts are added up where they are read:
        // a word that all of them share would be what they compete for.
        for bucket in look::bits(self.scoped) {
            let units = self.units_of(bucket, bytes, calls);
            if let Some(line) = segment.lines.get(bucket) {
                line.note(units, waited_ns);
            }
        }
    }

    /// The length of the pieces of a large call: what its buckets give in a quantum,
    /// whole pages; 0 where none is large enough. One that is the same for every descriptor
    /// is for calls of every size, as it is kept.
    pub(crate) fn piece(&self, segment: &Segment, call: CallId) -> u32 {
        let small = |arg: u8| self.args.a.get(usize::from(arg)).is_none_or(|n| *n <= PAGE);
        match io_size(call) {
            IoSize::None => return 0,
            IoSize::Arg(arg) if !self.is_plain && small(arg) => return 0,
            _ if !self.counts().0 => return 0,
            _ => {}
        }
        // Where the next piece of a stream is an event of its loop, each costs a server more
        // than its bytes do; of its own bucket, nobody else waits for a part.
        let for_itself = self.refusable == Some(Way::Out) && self.mask | self.scoped == 0;
        let time = if for_itself {
            4 * QUANTUM_NS
        } else {
            QUANTUM_NS
        };
        let most = segment.bytes_in(self.all(), self.byte_buckets, time);
        let most = most.min(group::quantum(segment, self.shares));
        quantum_length(most)
    }
}
