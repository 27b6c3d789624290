//! Media times in the order in which pictures are decoded.
//!
//! A picture that others shown before it are predicted from is sent before them, and has the time that it is
//! shown at (RFC 6184, 5.1): by that time alone, each of them is early or late by some pictures, and the jitter of a
//! stream that keeps its time perfectly is 97 ms. Decoders take pictures at an even pace: the first that came
//! at the first of all times, the second at the second, and so on.
//!
//! ```text
//!   came at      0    40    80   120   160      with the time     0   120    40    80   240
//!   goes with    0    40    80   120   ...      as soon as four more have come
//! ```

/// Pictures that are waited for before one is given its time. Of those that are shown in another order than they
/// are sent, encoders hold two or three (x264: two, whatever its options).
const DEPTH: usize = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// When they came, from the first on, and their times, from the least on.
    came_ns: [u64; DEPTH],
    times: [u32; DEPTH],
    waiting: usize,
    last: Option<u32>,
}

impl Order {
    /// A packet has come. If it is the first of its media time: when the one came that waits longest, and the time
    /// that it goes with.
    pub(super) fn arrive(&mut self, at_ns: u64, timestamp: u32) -> Option<(u64, u32)> {
        let times = &self.times[..self.waiting];
        if self.last.replace(timestamp) == Some(timestamp) || times.contains(&timestamp) {
            return None;
        }
        let is_before = |of: &u32| of.wrapping_sub(timestamp).cast_signed() < 0;
        let place = times.partition_point(is_before);
        if self.waiting < DEPTH {
            self.times.copy_within(place..self.waiting, place + 1);
            self.times[place] = timestamp;
            self.came_ns[self.waiting] = at_ns;
            self.waiting += 1;
            return None;
        }
        let (came, least) = (self.came_ns[0], self.times[0]);
        self.came_ns.rotate_left(1);
        self.came_ns[DEPTH - 1] = at_ns;
        if place == 0 {
            // All that wait are shown behind it.
            return Some((came, timestamp));
        }
        self.times.copy_within(1..place, 0);
        self.times[place - 1] = timestamp;
        Some((came, least))
    }

    /// What follows has other times.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn given(pictures: impl IntoIterator<Item = (u64, u32)>) -> Vec<(u64, u32)> {
        let mut order = Order::default();
        let pairs = pictures
            .into_iter()
            .filter_map(|(at, timestamp)| order.arrive(at, timestamp));
        pairs.collect()
    }

    #[test]
    fn pictures_shown_in_another_order_go_with_an_even_time() {
        // A pyramid, as x264 makes it, over the end of the numbers.
        let groups = (0..25_u32).flat_map(|group| [4, 2, 1, 3].map(|of| group * 4 + of));
        let shown = std::iter::once(0).chain(groups).take(100);
        let pictures = (0..).zip(shown);
        let pictures = pictures.map(|(number, of)| (number * 40, (of * 3600).wrapping_sub(9000)));
        let pairs = given(pictures);
        assert_eq!(pairs.len(), 96);
        for (number, (came, time)) in (0..).zip(pairs) {
            assert_eq!(came, u64::from(number) * 40);
            assert_eq!(time, (number * 3600_u32).wrapping_sub(9000), "{number}");
        }
    }

    proptest! {
        #[test]
        fn those_in_order_go_with_their_own_times(
            first in any::<u32>(),
            steps in prop::collection::vec(1_u32..100_000, 5..60),
        ) {
            let mut timestamp = first;
            let pictures: Vec<(u64, u32)> = (0..).zip(steps).map(|(number, step)| {
                timestamp = timestamp.wrapping_add(step);
                (number * 7, timestamp)
            }).collect();
            // More packets of the same picture change nothing.
            let packets = pictures.iter().flat_map(|of| [*of, (of.0 + 1, of.1)]);
            let pairs = given(packets);
            prop_assert_eq!(&pairs[..], &pictures[..pictures.len() - DEPTH]);
        }

        #[test]
        fn each_time_is_given_once(shown in prop::collection::hash_set(0_u32..200, 5..80)) {
            let pictures = (0..).zip(&shown).map(|(number, of)| (number, of * 3600));
            let mut times: Vec<u32> = given(pictures).into_iter().map(|(_, time)| time).collect();
            prop_assert_eq!(times.len(), shown.len() - DEPTH);
            times.sort_unstable();
            times.dedup();
            prop_assert_eq!(times.len(), shown.len() - DEPTH);
        }
    }
}
