//! Whether the kernel may read ahead of an image.
//!
//! Readahead knows nothing of contents: it reads blocks whose duplicates the page cache has already, and what it reads pushes out
//! what others are led to. So where enough of what is read has its content elsewhere, it is left to guests, which read ahead
//! themselves, and to the map ([`super::ahead`]); an image without duplicates is read as by any other server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks that are looked back on: 16 MiB.
const WINDOW: u64 = 4096;

/// All of them.
const ONE: u64 = 1 << 32;

/// From this part on that is led by others, the kernel may not. Measured on four guests of `debian4` in 512 MiB, merged reads,
/// of what nbdkit has the disk read: kernel always 0.64, this rule 0.23, never 0.22; without duplicates, never costs throughput.
const LEAST: u64 = ONE / 50;

/// The part of blocks, of those that were not resident, that are led by others: a moving average, of which an update may be lost.
#[derive(Debug)]
pub(super) struct Led(AtomicU64);

impl Default for Led {
    /// Some are, until it is known better: after some 11 MiB.
    fn default() -> Self {
        Self(AtomicU64::new(2 * LEAST))
    }
}

impl Led {
    /// So many blocks were read, of which some are led by others; whether the kernel may read ahead from now on.
    pub(super) fn may(&self, blocks: u64, led: u64) -> bool {
        let blocks = blocks.min(WINDOW);
        let old = self.0.load(Ordering::Relaxed);
        let new = old - old / WINDOW * blocks + led.min(blocks) * (ONE / WINDOW);
        self.0.store(new, Ordering::Relaxed);
        new < LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_duplicates_are_none() {
        let led = Led::default();
        // At the beginning they may be many.
        let doubted = (0..100_000).take_while(|_| !led.may(100, 1)).count();
        assert!((20..100).contains(&doubted), "{doubted} times 100 blocks");
        for n in 0..100_000 {
            assert!(led.may(100, 1), "1 % of read {n}");
        }
    }

    #[test]
    fn duplicates_are_noticed_soon_and_forgotten_again() {
        let ahead = Led::default();
        let until = |led: u64, wanted: bool| {
            (0..1_000)
                .take_while(|_| ahead.may(32, led) != wanted)
                .count()
        };
        // Without any.
        assert!((50..200).contains(&until(0, true)), "from the beginning on");
        for _ in 0..1_000 {
            ahead.may(32, 0);
        }
        // A tenth of what is read.
        assert!((1..64).contains(&until(3, false)), "soon");
        for _ in 0..1_000 {
            ahead.may(32, 32);
        }
        assert!((100..1_000).contains(&until(0, true)), "again");
        // Absurd numbers do no harm.
        for (blocks, led) in [(u64::MAX, u64::MAX), (0, 5), (u64::MAX, 0)] {
            ahead.may(blocks, led);
        }
        assert!(ahead.may(WINDOW, 0));
    }
}
