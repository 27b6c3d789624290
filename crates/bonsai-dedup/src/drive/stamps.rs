//! Whether a block was written since: counters for classes of blocks.

use super::Volume;

/// Classes: few enough for 32 KiB, so many that two blocks at work at once seldom share one.
const CLASSES: usize = 4_096;

/// How often a class of blocks had been written when the stamp was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(u32);

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    changes: u32,
    under_way: u32,
}

#[derive(Debug)]
pub(super) struct Stamps {
    classes: Box<[Class]>,
}

impl Stamps {
    pub(super) fn new() -> Self {
        Self {
            classes: vec![Class::default(); CLASSES].into_boxed_slice(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.classes)
    }

    /// Neighbours are in classes of their own.
    fn class(volume: Volume, block: u64) -> usize {
        let spread = u64::from(volume.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let mixed = block ^ (block >> 12).wrapping_mul(0x2545_f491_4f6c_dd1d) ^ spread;
        usize::try_from(mixed % (CLASSES as u64)).unwrap_or(0)
    }

    pub(super) fn of(&self, volume: Volume, block: u64) -> Option<Stamp> {
        let class = self.classes[Self::class(volume, block)];
        (class.under_way == 0).then_some(Stamp(class.changes))
    }

    pub(super) fn begin(&mut self, volume: Volume, block: u64) {
        let class = &mut self.classes[Self::class(volume, block)];
        class.changes = class.changes.wrapping_add(1);
        class.under_way += 1;
    }

    /// No stamp that was taken holds any more.
    pub(super) fn void(&mut self) {
        for class in &mut self.classes {
            class.changes = class.changes.wrapping_add(1);
        }
    }

    pub(super) fn end(&mut self, volume: Volume, block: u64) {
        let class = &mut self.classes[Self::class(volume, block)];
        class.changes = class.changes.wrapping_add(1);
        class.under_way = class.under_way.saturating_sub(1);
    }
}
