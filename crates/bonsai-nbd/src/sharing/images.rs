//! Images by the numbers of their volumes: a list that only grows, and is read without a lock.

use std::sync::{Arc, OnceLock};

use bonsai_dedup::drive::Volume;

use super::known::Known;

/// Places of the first part; each further one has twice as many.
const FIRST: usize = 64;
/// Parts: more than four billion places.
const PARTS: usize = 26;

type Part = Box<[OnceLock<Arc<Known>>]>;

#[derive(Debug, Default)]
pub(super) struct Images([OnceLock<Part>; PARTS]);

/// The part, and the place there.
fn place(volume: Volume) -> (usize, usize) {
    let at = volume.index() + FIRST;
    let part = (at / FIRST).ilog2();
    (part as usize, at - (FIRST << part))
}

impl Images {
    /// Puts an image at its number; `None` where there are too many.
    pub(super) fn put(&self, volume: Volume, known: Arc<Known>) -> Option<()> {
        let (part, at) = place(volume);
        let of = self.0.get(part)?;
        let of = of.get_or_init(|| (0..FIRST << part).map(|_| OnceLock::new()).collect());
        of.get(at)?.set(known).ok()
    }

    pub(super) fn get(&self, volume: Volume) -> Option<&Arc<Known>> {
        let (part, at) = place(volume);
        self.0.get(part)?.get()?.get(at)?.get()
    }

    /// All images that were put, in the order of their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Known>> {
        let parts = self.0.iter().filter_map(OnceLock::get);
        parts.flatten().filter_map(OnceLock::get)
    }
}

#[cfg(test)]
mod tests {
    use bonsai_dedup::drive::{Config, DriveMap, Group};

    use super::*;

    #[test]
    fn each_number_has_a_place_of_its_own() {
        let mut map = DriveMap::<u32>::new(Config::UNBOUNDED);
        let mut next = (0, 0);
        for _ in 0..10_000 {
            let at = place(map.add_volume(Group(0)).expect("room"));
            assert_eq!(at, next);
            next.1 += 1;
            if next.1 == FIRST << next.0 {
                next = (next.0 + 1, 0);
            }
        }
    }
}
