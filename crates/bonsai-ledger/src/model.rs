//! What the model checker and miri need: a segment in plain memory, and changes
//! of it without a file.

use crate::layout::Segment;

/// A segment as it is after creation, without a name.
#[must_use]
pub fn segment() -> Box<Segment> {
    let segment = zeroed();
    segment
        .header
        .epoch
        .0
        .store(2, crate::sync::Ordering::Relaxed);
    segment
}

/// A group as it is after creation, without terms.
#[must_use]
pub fn group() -> Box<crate::GroupSegment> {
    let group = zeroed_group();
    let epoch = &group.head.epoch.0;
    epoch.store(2, crate::sync::Ordering::Relaxed);
    group
}

/// Starts a change; see [`crate::Editor`]. Returns the index of the copy to edit.
#[must_use]
pub fn begin_change(segment: &Segment) -> usize {
    segment.begin_change()
}

/// Lifts the limit of a bucket in the copy `next`, at `now`.
pub fn lift(segment: &Segment, next: usize, bucket: usize, now: u64) {
    segment.lift(next, bucket, now);
}

/// Prepares the line of a bucket to start anew at `now` with an empty bucket.
pub fn restart(segment: &Segment, bucket: usize, curve: &bonsai_bucket::Curve, now: u64) {
    segment.restart(bucket, curve, now);
}

/// Puts a change into force and returns the new epoch. Wakes nobody.
pub fn end_change(segment: &Segment, anew: &[usize]) -> u32 {
    segment.end_change(anew)
}

#[cfg(not(loom))]
fn zeroed() -> Box<Segment> {
    // SAFETY: the segment consists of atomic integers, for which zeros are valid.
    unsafe { Box::<Segment>::new_zeroed().assume_init() }
}

#[cfg(not(loom))]
fn zeroed_group() -> Box<crate::GroupSegment> {
    // SAFETY: as above.
    unsafe { Box::<crate::GroupSegment>::new_zeroed().assume_init() }
}

#[cfg(loom)]
use made::{zeroed, zeroed_group};

/// The atomics of loom are no plain memory and have to be made one by one.
#[cfg(loom)]
mod made {
    use super::Segment;
    use crate::layout::{
        BucketLine, Count, DelayRow, DelayShard, Enter, Epoch, Header, Label, Process, SiteLib,
        SiteTable, StreamLine, ThreadPage, WaitNote,
    };
    use crate::sync::{AtomicU32, AtomicU64};
    use crate::{
        Config, CurveWords, GroupHead, GroupMember, GroupSegment, GroupTerms, MemberLine,
        MemberTerms, PoolLine, PoolTerms, Shared,
    };

    trait Zero {
        fn zero() -> Self;
    }

    impl<T: Zero, const N: usize> Zero for [T; N] {
        fn zero() -> Self {
            std::array::from_fn(|_| T::zero())
        }
    }

    impl Zero for AtomicU32 {
        fn zero() -> Self {
            Self::new(0)
        }
    }

    impl Zero for AtomicU64 {
        fn zero() -> Self {
            Self::new(0)
        }
    }

    impl Zero for Epoch {
        fn zero() -> Self {
            Self(Zero::zero())
        }
    }

    impl Zero for CurveWords {
        fn zero() -> Self {
            Self(Zero::zero())
        }
    }

    macro_rules! zero {
        ($($name:ident { $($field:ident)* })*) => {
            $(impl Zero for $name {
                fn zero() -> Self {
                    Self { $($field: Zero::zero()),* }
                }
            })*
        };
    }

    zero! {
        Header {
            magic version calls lengths creator uid created_ns check namespace name epoch high cursor
            _pad2 processes_lost unshaped flags _pad1 longest_wait_ns keeper bell entering extension group
            beside mapped overhead
        }
        Enter { asker state helper }
        Config { masks byte_buckets _pad curves narrowed special per_stream groups grouped
            group_bytes }
        BucketLine { issued leased generation short_until_ms used waited }
        Label { name scope }
        StreamLine { key issued generation fd pid namespace used waited_ns waits lease }
        SiteTable { libs sites }
        SiteLib { build_id first count _pad }
        Process { id coverage sites reason _pad0 attached_ns attach_cost_ns program missed beside beside_of trapped expected_ns unseen mapped mapped_of before before_of }
        DelayShard { rows }
        DelayRow { buckets sum_ns _pad }
        ThreadPage { wait counts }
        WaitNote { since_ns what uncounted_ns due_ns slept_ns _pad }
        Count { calls bytes base_calls base_bytes }
        GroupHead { magic version _pad length created_ns name epoch }
        GroupTerms { pools members }
        PoolTerms { curve name bytes _pad }
        MemberTerms { guarantee ceiling grain weight _pad }
        PoolLine { issued guaranteed served asking }
        MemberLine {
            asked granted place served guaranteed capped looked borrowed alone leased waits waited_ns
        }
        GroupMember { generation pid started uid _pad name }
        GroupSegment { head terms pools lines members }
    }

    impl Zero for Shared {
        fn zero() -> Self {
            Self(Zero::zero())
        }
    }

    pub(super) fn zeroed_group() -> Box<GroupSegment> {
        Box::new(Zero::zero())
    }

    macro_rules! in_place {
        ($at:expr, $($field:ident)*) => {{
            let at: *mut Segment = $at;
            // SAFETY: `at` is memory for a segment; each field is written once.
            $(unsafe { (&raw mut (*at).$field).write(Zero::zero()) };)*
        }};
    }

    /// Field by field: the whole does not fit on the stack of a modelled thread.
    pub(super) fn zeroed() -> Box<Segment> {
        let mut memory = Box::<Segment>::new_uninit();
        in_place!(memory.as_mut_ptr(), header configs lines labels sites owners processes delays
            crowd threads streams);
        // SAFETY: every field has just been written.
        unsafe { memory.assume_init() }
    }
}
