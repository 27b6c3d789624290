//! Which packets of a stream have come, by their numbers.
//!
//! # Definitions
//! - *Extended number*: the 16-bit number of a packet with its cycles (RFC 3550, appendix A.1). An
//!   *episode* is what came with numbers that belong together; a sender that starts again begins
//!   another one.
//! - *Window*: the last [`WINDOW`] numbers up to the largest, of each of which is known whether it
//!   came. What leaves the window is *settled*: it has come, or is lost.
//! - *Stray*: a packet whose number is far from all others. The second in a row begins an episode, as in
//!   RFC 3550; the first stays a stray.
//!
//! # Invariants
//! 1. Of an episode, expected = largest - first + 1 = came + lost, where duplicates count once.
//! 2. A number is settled once, in order.

use super::bursts::Bursts;

/// So many numbers are remembered. A packet that is later than that is a stray.
const WINDOW: u64 = 1024;

/// A jump ahead of so many numbers or more is not loss (RFC 3550, A.1: `MAX_DROPOUT`).
const DROPOUT: u16 = 3000;

/// Extended numbers begin in the second cycle, so that there is room before the first.
const CYCLE: u64 = 1 << 16;

/// What a packet is among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The largest so far.
    Next,
    /// Another one with a larger number came before it.
    Late,
    /// It has come already.
    Duplicate,
    /// It belongs to no episode, and is not counted.
    Stray,
    /// The first of an episode.
    First,
}

/// What has come.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// The first and the largest number of this episode; `None` before the first packet.
    range: Option<(u64, u64)>,
    came: [u64; (WINDOW / 64) as usize],
    /// The number that would follow a stray.
    suspect: Option<u16>,
    bursts: Bursts,
    /// Packets of earlier episodes.
    expected_before: u64,
    pub(super) unique: u64,
    pub(super) episodes: u32,
}

impl Sequence {
    pub(super) fn new() -> Self {
        Self {
            range: None,
            came: [0; (WINDOW / 64) as usize],
            suspect: None,
            bursts: Bursts::default(),
            expected_before: 0,
            unique: 0,
            episodes: 0,
        }
    }

    /// Packets that should have come up to now.
    pub(super) fn expected(&self) -> u64 {
        let now = self.range.map_or(0, |(first, last)| last - first + 1);
        self.expected_before + now
    }

    /// The largest number, with its cycles from the first on.
    pub(super) fn largest(&self) -> u32 {
        let largest = self.range.map_or(0, |(_, last)| last.saturating_sub(CYCLE));
        u32::try_from(largest & 0xffff_ffff).unwrap_or(0)
    }

    /// A packet has come.
    pub(super) fn arrive(&mut self, number: u16) -> Place {
        let Some((first, last)) = self.range else {
            return self.begin(number);
        };
        let ahead = number.wrapping_sub(low(last));
        let behind = u64::from(low(last).wrapping_sub(number));
        if ahead == 0 {
            return Place::Duplicate;
        }
        if ahead < DROPOUT {
            self.suspect = None;
            let new = last + u64::from(ahead);
            self.advance(first, last, new);
            self.range = Some((first, new));
            self.note(new);
            return Place::Next;
        }
        if behind < WINDOW {
            self.suspect = None;
            let extended = last - behind;
            if self.has(extended) && extended >= first {
                return Place::Duplicate;
            }
            // What overtook the first one was counted from.
            self.range = Some((first.min(extended), last));
            self.note(extended);
            return Place::Late;
        }
        if self.suspect == Some(number) {
            return self.begin(number);
        }
        self.suspect = Some(number.wrapping_add(1));
        Place::Stray
    }

    /// The sender is another one.
    pub(super) fn forget(&mut self) {
        self.expected_before = self.expected();
        self.settle_all();
        self.range = None;
        self.suspect = None;
    }

    /// Losses as bursts and gaps, with what is not settled yet taken as it is.
    pub(super) fn bursts(&self) -> Bursts {
        let mut all = self.clone();
        all.settle_all();
        all.bursts
    }

    fn begin(&mut self, number: u16) -> Place {
        self.forget();
        let extended = CYCLE + u64::from(number);
        self.came = [0; (WINDOW / 64) as usize];
        self.range = Some((extended, extended));
        self.episodes += 1;
        self.note(extended);
        Place::First
    }

    /// Settles what leaves the window when the largest number moves.
    fn advance(&mut self, first: u64, last: u64, new: u64) {
        for number in last + 1..=new {
            if let Some(leaves) = number.checked_sub(WINDOW).filter(|leaves| *leaves >= first) {
                self.bursts.settle(self.has(leaves));
            }
            let (word, bit) = slot(number);
            self.came[word] &= !bit;
        }
    }

    fn settle_all(&mut self) {
        let Some((first, last)) = self.range else {
            return;
        };
        for number in first.max((last + 1).saturating_sub(WINDOW))..=last {
            self.bursts.settle(self.has(number));
        }
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = slot(number);
        self.came[word] & bit != 0
    }

    fn note(&mut self, number: u64) {
        let (word, bit) = slot(number);
        self.came[word] |= bit;
        self.unique += 1;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "that is what is meant")]
const fn low(extended: u64) -> u16 {
    extended as u16
}

fn slot(number: u64) -> (usize, u64) {
    let place = number % WINDOW;
    let word = usize::try_from(place / 64).unwrap_or(0);
    (word, 1 << (place % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn fed(numbers: &[u16]) -> (Sequence, Vec<Place>) {
        let mut sequence = Sequence::new();
        let places = numbers.iter().map(|one| sequence.arrive(*one)).collect();
        (sequence, places)
    }

    #[test]
    fn each_kind_is_told() {
        use Place::{Duplicate, First, Late, Next, Stray};
        for (numbers, places, expected, unique) in [
            (&[7, 8, 9][..], &[First, Next, Next][..], 3, 3),
            (&[7, 9], &[First, Next], 3, 2),
            (&[7, 9, 8, 8], &[First, Next, Late, Duplicate], 3, 3),
            (&[7, 7], &[First, Duplicate], 1, 1),
            // Over the end of the numbers.
            (&[65_535, 0, 1], &[First, Next, Next], 3, 3),
            (&[65_534, 1, 65_535], &[First, Next, Late], 4, 3),
            // One that was overtaken by the first that is seen.
            (&[7, 6], &[First, Late], 2, 2),
            (&[0, 65_535], &[First, Late], 2, 2),
            // Far from all others: one of those, and then a sender that has started again.
            (&[7, 40_000, 8], &[First, Stray, Next], 2, 2),
            (
                &[7, 40_000, 40_001, 40_002],
                &[First, Stray, First, Next],
                3,
                3,
            ),
        ] {
            let (sequence, told) = fed(numbers);
            assert_eq!(told, places, "{numbers:?}");
            assert_eq!(
                (sequence.expected(), sequence.unique),
                (expected, unique),
                "{numbers:?}"
            );
        }
    }

    #[test]
    fn many_cycles_are_counted() {
        let mut sequence = Sequence::new();
        let mut number = 65_000_u16;
        for _ in 0..300_000 {
            sequence.arrive(number);
            number = number.wrapping_add(1);
        }
        assert_eq!((sequence.expected(), sequence.unique), (300_000, 300_000));
        assert_eq!(sequence.episodes, 1);
    }

    proptest! {
        #[test]
        fn whatever_is_lost_swapped_and_doubled_is_counted(
            start: u16,
            lost in prop::collection::btree_set(1_u64..3_000, 0..200),
            doubled in prop::collection::btree_set(1_u64..3_000, 0..50),
            swapped in prop::collection::btree_set(1_u64..2_990, 0..50),
        ) {
            let mut order: Vec<u64> = (0..3_000).filter(|of| !lost.contains(of)).collect();
            for at in &swapped {
                let at = usize::try_from(*at).expect("small");
                if at + 5 < order.len() {
                    order.swap(at, at + 5);
                }
            }
            let mut sequence = Sequence::new();
            let mut largest = None;
            let mut seen = BTreeSet::new();
            for of in &order {
                let times = 1 + u64::from(doubled.contains(of));
                for _ in 0..times {
                    let number = low(u64::from(start) + of);
                    let place = sequence.arrive(number);
                    let expected = match (seen.insert(*of), largest) {
                        (false, _) => Place::Duplicate,
                        (true, None) => Place::First,
                        (true, Some(largest)) if *of > largest => Place::Next,
                        (true, Some(_)) => Place::Late,
                    };
                    prop_assert_eq!(place, expected);
                    largest = largest.max(Some(*of));
                }
            }
            let (first, last) = (*seen.first().expect("some"), *seen.last().expect("some"));
            prop_assert_eq!(sequence.expected(), last - first + 1);
            prop_assert_eq!(sequence.unique, seen.len() as u64);
            let settled = sequence.bursts();
            prop_assert_eq!(settled.lost(), sequence.expected() - sequence.unique);
            prop_assert_eq!(settled.settled(), sequence.expected());
        }

        #[test]
        fn any_numbers_are_counted_without_harm(numbers in prop::collection::vec(any::<u16>(), 0..4_000)) {
            let (sequence, places) = fed(&numbers);
            let counts = |of: &&Place| !matches!(of, Place::Stray | Place::Duplicate);
            prop_assert_eq!(sequence.unique, places.iter().filter(counts).count() as u64);
            prop_assert!(sequence.unique <= sequence.expected());
            let settled = sequence.bursts();
            prop_assert_eq!(settled.settled(), sequence.expected());
            prop_assert_eq!(settled.lost(), sequence.expected() - sequence.unique);
        }
    }
}
