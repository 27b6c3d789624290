//! The short way through a decision, for what most calls of a service with limits on some
//! descriptors, or on each, are: on a descriptor that none of those is for, or on a stream
//! that has a lease (`bonsai_ledger::StreamLine`), while the thread has one under the limits of the whole service
//! (`beside.rs`), where there are such; or on one limit that the thread has a lease of. A few words are looked at, and neither the
//! clock nor the curve of a limit. The library makes those that follow by itself (`gen/quick.rs`). And, in served event loops, for incoming bytes under limits
//! that are the same for every descriptor, while the thread has a lease (`ahead.rs`).
//!
//! # Invariants
//! 1. Whatever is not as said is left to `decide.rs`, with nothing changed: descriptors that
//!    are not known under the limits in force, or of which something is held, kept or owed;
//!    calls under other limits as well; and addresses of calls that may matter.
//! 2. Bytes that come in are paid for after the call. If somebody else has used up the lease
//!    meanwhile, they are waited for as ever.

use crate::amount::{self, Args};
use crate::beside::{self, Mark};
use crate::calls::first_entry;
use crate::claim::Claim;
use crate::descriptors::{self, Known, Note};
use crate::facts::{Site, fact, facts, quick_path};
use crate::held;
use crate::inward;
use crate::look;
use crate::own::Own;
use crate::slow::make;
use crate::steps::count;
use bonsai_calls::{
    CallId, PREAD64, PWRITE64, READ_FILE, READV_FILE, RECVFROM, RECVMSG, SENDMSG, SENDTO,
    WRITE_FILE, WRITEV_FILE, about,
};
use bonsai_ledger::Segment;
use core::sync::atomic::Ordering;

/// The limits that matter to a call.
struct Limits {
    epoch: u32,
    /// None of them: they are on bytes, whatever the descriptor.
    narrowed: u64,
    /// Limits on bytes that are the same for every descriptor.
    mask: u64,
    byte_buckets: u64,
    per_stream: u64,
}

/// The line of a stream that a call draws on, and nothing else.
struct Line<'a> {
    note: &'a Note,
    known: Known,
    index: usize,
    bucket: u8,
}

/// What a call draws on.
enum Draws<'a> {
    Line(Line<'a>),
    /// On a limit on some descriptors that is not per stream: its bucket.
    Lease(&'a Note, Known, u8),
    /// On nothing, by what is known of its descriptor, if it has one.
    Nothing(Option<(&'a Note, Known)>),
}

/// Has the calls of this kind that follow on a descriptor made without the slow path; `draws` says what they draw on.
fn remember(note: &Note, known: &Known, call: CallId, args: &Args, draws: u64) {
    let Some(first) = first_entry(args.nr) else {
        return;
    };
    let is_any = match first {
        READ_FILE | PREAD64 | RECVFROM | WRITE_FILE | PWRITE64 | SENDTO => true,
        // Of these the length is in no register.
        READV_FILE | WRITEV_FILE | RECVMSG | SENDMSG => draws == 0,
        _ => false,
    };
    if is_any {
        let is_out = facts(call) & (fact::IN | fact::OUT) == fact::OUT;
        let delta = u64::from(call.wrapping_sub(first) & 3) << quick_path::DELTA_SHIFT;
        let word = u64::from(first) | quick_path::VALID | delta | draws;
        note.remember(is_out, known.version, word);
    }
}

/// Makes a call, if it is such a one.
pub(crate) fn made(
    segment: &'static Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
) -> Option<isize> {
    let way = facts(call) & (fact::IN | fact::OUT);
    if way == 0 {
        return None;
    }
    let limits = Limits::of(segment, call)?;
    if limits.narrowed == 0 {
        return plain(segment, own, call, args, site, &limits);
    }
    if limits.mask != 0 {
        return beside_others(segment, own, call, args, site);
    }
    streamed::<false>(segment, own, call, args, site, &limits)
}

/// The same beside limits of the whole service. By itself, and not with the limits that were read: those of the other way stay in registers.
#[cold]
#[inline(never)]
fn beside_others(
    segment: &'static Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
) -> Option<isize> {
    let limits = Limits::of(segment, call)?;
    streamed::<true>(segment, own, call, args, site, &limits)
}

/// Makes a call that draws on a stream alone, or on nothing; or, `BESIDE` that, on what the thread's lease is of.
#[inline(always)]
fn streamed<const BESIDE: bool>(
    segment: &'static Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
    limits: &Limits,
) -> Option<isize> {
    let line = match limits.draws_on(segment, call, args)? {
        Draws::Line(line) => line,
        Draws::Nothing(_) | Draws::Lease(..) if BESIDE => return None,
        Draws::Lease(note, known, bucket) => {
            let of = (note, &known, Mark::of(bucket));
            return leased(segment, own, call, args, site, of, limits.epoch);
        }
        Draws::Nothing(note) => {
            if let Some((note, known)) = note {
                remember(note, &known, call, args, 0);
            }
            return Some(free(segment, own, call, args, site));
        }
    };
    let is_out = facts(call) & (fact::IN | fact::OUT) == fact::OUT;
    let asked = amount::asked(call, args, &mut own.readable) as u64;
    if !is_out {
        // An answer goes out, and the call takes longer than that.
        line.note.fetch_lines(segment);
    }
    let identity = line.known.identity;
    let lease = segment.stream_lease((line.index, line.bucket), identity, limits.epoch);
    if asked == 0 || lease < asked || line.note.has_kept(is_out) {
        return None;
    }
    if BESIDE && beside::left(own, call, (limits.epoch, Mark::ALL)) < asked {
        return None;
    }
    let place = u64::from(line.bucket) << quick_path::BUCKET_SHIFT
        | (line.index as u64) << quick_path::INDEX_SHIFT;
    let lease = if BESIDE { quick_path::LEASE } else { 0 };
    remember(
        line.note,
        &line.known,
        call,
        args,
        quick_path::LINE | lease | place,
    );
    let of_thread = (limits.epoch, Mark::ALL);
    if is_out {
        if !segment.use_stream_lease(line.index, limits.epoch, asked) {
            return None;
        }
        if BESIDE && !beside::spend(own, call, of_thread, asked) {
            segment.return_to_stream(line.index, asked);
            return None;
        }
        let result = free(segment, own, call, args, site);
        let moved = amount::moved(call, args, result) as u64;
        if moved < asked {
            segment.return_to_stream(line.index, asked - moved);
            if BESIDE {
                beside::restore(own, call, of_thread, asked - moved);
            }
        }
        return Some(result);
    }
    let result = free(segment, own, call, args, site);
    let moved = amount::moved(call, args, result) as u64;
    if moved == 0 {
        return Some(result);
    }
    if BESIDE && !beside::spend(own, call, of_thread, moved) {
        late(segment, own, call, args, moved);
    } else if !segment.use_stream_lease(line.index, limits.epoch, moved) {
        if BESIDE {
            beside::restore(own, call, of_thread, moved);
        }
        late(segment, own, call, args, moved);
    }
    Some(result)
}

/// Makes a call that draws on the lease of the thread under a limit on some descriptors.
#[inline(never)]
fn leased(
    segment: &'static Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
    (note, known, mark): (&Note, &Known, Mark),
    epoch: u32,
) -> Option<isize> {
    let is_out = facts(call) & (fact::IN | fact::OUT) == fact::OUT;
    let asked = amount::asked(call, args, &mut own.readable) as u64;
    let left = beside::left(own, call, (epoch, mark));
    if asked == 0 || left < asked || note.has_kept(is_out) {
        return None;
    }
    let draws = quick_path::LEASE | u64::from(mark.number()) << quick_path::INDEX_SHIFT;
    remember(note, known, call, args, draws);
    if is_out && !beside::spend(own, call, (epoch, mark), asked) {
        return None;
    }
    let result = free(segment, own, call, args, site);
    let moved = amount::moved(call, args, result) as u64;
    if is_out && moved < asked {
        beside::restore(own, call, (epoch, mark), asked - moved);
    } else if !is_out && !beside::spend(own, call, (epoch, mark), moved) {
        late(segment, own, call, args, moved);
    }
    Some(result)
}

/// Makes a call for incoming bytes that is the same for every descriptor, if the thread's
/// lease is enough for all that it may bring, and nothing is held.
#[inline]
fn plain(
    segment: &Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    site: &Site,
    limits: &Limits,
) -> Option<isize> {
    if facts(call) & (fact::IN | fact::OUT) != fact::IN || own.crowd || !held::nothing() {
        return None;
    }
    let asked = amount::asked(call, args, &mut own.readable);
    let entry = own.entries.get(usize::from(call))?;
    let is_leased = entry.granted_us == limits.epoch && asked <= entry.piece as usize;
    let enough = i64::try_from(asked).is_ok_and(|asked| asked <= entry.bytes);
    if asked == 0 || !is_leased || !enough {
        return None;
    }
    let result = make(args, site);
    count(segment, own, call, args, result);
    if let Some(entry) = own.entries.get_mut(usize::from(call)) {
        entry.calls = 0;
    }
    Some(result)
}

/// Makes a call and counts it; what the thread has for such calls is as it was.
fn free(segment: &Segment, own: &mut Own, call: CallId, args: &Args, site: &Site) -> isize {
    let result = make(args, site);
    let index = usize::from(call);
    let had = own
        .entries
        .get(index)
        .map(|entry| (entry.bytes, entry.calls));
    count(segment, own, call, args, result);
    if let (Some(had), Some(entry)) = (had, own.entries.get_mut(index)) {
        (entry.bytes, entry.calls) = had;
    }
    result
}

/// See [`crate::extension::Late`].
pub(crate) unsafe extern "C" fn received(
    segment: &'static Segment,
    own: &mut Own,
    call: CallId,
    args: &Args,
    moved: u64,
) {
    late(segment, own, call, args, moved);
}

/// Waits for bytes that came in, when the lease that they were to be paid from is gone.
#[cold]
#[inline(never)]
fn late(segment: &'static Segment, own: &mut Own, call: CallId, args: &Args, moved: u64) {
    let mut claim = Claim::none(*args);
    claim.fill(segment, call, &mut own.readable);
    let outer = core::mem::replace(&mut own.claim, &raw mut claim as usize);
    let index = usize::from(call);
    if let Some(entry) = own.entries.get_mut(index) {
        entry.bytes -= i64::try_from(moved).unwrap_or(0);
    }
    inward::settle(segment, own, call, args);
    own.claim = outer;
    if let Some(entry) = own.entries.get_mut(index) {
        let left = core::mem::take(&mut entry.bytes);
        if let Some(home) = claim.home(call).filter(|_| left != 0) {
            home.keep(false, left);
        }
    }
}

impl Limits {
    /// Those in force, if they are on some descriptors only or per stream, or none of them is
    /// and all count bytes.
    #[inline]
    fn of(segment: &Segment, call: CallId) -> Option<Self> {
        let index = usize::from(call);
        let (epoch, (words, shares)) = segment.with_config(|config| {
            let load = |word: &bonsai_ledger::sync::AtomicU64| word.load(Ordering::Relaxed);
            let words = [
                config.masks.get(index).map_or(0, load),
                config.narrowed.get(index).map_or(0, load),
                load(&config.byte_buckets),
                load(&config.per_stream),
            ];
            (words, config.grouped(call))
        });
        let [mask, narrowed, byte_buckets, per_stream] = words;
        // Groups, and limits on calls beside those, are left to others.
        let is_one = (mask != 0 || narrowed != 0) && mask & !byte_buckets == 0;
        (is_one && shares == 0).then_some(Self {
            epoch,
            narrowed,
            mask,
            byte_buckets,
            per_stream,
        })
    }

    /// What a call draws on.
    #[inline]
    fn draws_on<'a>(&self, segment: &Segment, call: CallId, args: &Args) -> Option<Draws<'a>> {
        let ends = about::ends(call);
        if ends.one() == about::NO_ARG {
            return None;
        }
        let mut at_target = self.narrowed;
        if ends.both() {
            let at_source;
            (at_source, at_target) = look::by_end(segment, self.narrowed);
            let target = match at_target {
                0 => None,
                _ => Some(self.known(args, ends.target)?),
            };
            let under = target.map_or(0, |(_, known)| known.matches & at_target);
            let other = at_source & !under;
            if other != 0 && self.known(args, ends.source)?.1.matches & other != 0 {
                return None;
            }
            if under == 0 {
                return Some(Draws::Nothing(None));
            }
        }
        let (note, known) = self.known(args, ends.one())?;
        let under = known.matches & at_target;
        if under == 0 {
            let of = (!ends.both()).then_some((note, known));
            return Some(Draws::Nothing(of));
        }
        let is_one = under.is_power_of_two() && under & self.byte_buckets != 0;
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        let bucket = under.trailing_zeros() as u8;
        if is_one && under & self.per_stream == 0 && !ends.both() {
            return Some(Draws::Lease(note, known, bucket));
        }
        let index = note.line(bucket).filter(|_| is_one)?;
        Some(Draws::Line(Line {
            note,
            known,
            index: usize::from(index),
            bucket,
        }))
    }

    /// A descriptor among the arguments, if it is known, and nothing is held of it.
    #[inline]
    fn known(&self, args: &Args, arg: u8) -> Option<(&'static Note, Known)> {
        let fd = args.a.get(usize::from(arg))? & 0xffff_ffff;
        let note = descriptors::note(fd)?;
        let known = note.read_most(self.epoch)?;
        let is_plain = known.by_call & self.narrowed == 0 && held::state(fd) == 0;
        is_plain.then_some((note, known))
    }
}
