//! Dense numbers for (volume, block).

use crate::drive::mix;

const FREE: u32 = u32::MAX;
const VOLUME_SHIFT: u32 = 50;

/// Blocks of a volume at most: 2^50, as many as a trace can name.
pub const MAX_BLOCK: u64 = (1 << VOLUME_SHIFT) - 1;

/// Volumes at most.
pub const MAX_VOLUMES: u32 = 1 << (64 - VOLUME_SHIFT);

/// A block that cannot be numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unnumbered {
    /// Its volume or its place there is out of range.
    #[error(
        "block {block} of volume {volume} is out of range: there are 2^14 volumes of 2^50 blocks"
    )]
    OutOfRange {
        /// The volume's number.
        volume: u32,
        /// The block's number there.
        block: u64,
    },
    /// There are more different blocks than numbers.
    #[error("there are more than 2^32 - 2 different blocks: sample the trace")]
    TooMany,
}

/// Gives each block that comes a number, from 0 on. 14 to 23 bytes a block.
#[derive(Debug)]
pub struct Interner {
    /// Numbers, where the hash of their block says, or behind.
    table: Vec<u32>,
    /// The blocks, by their numbers.
    keys: Vec<u64>,
}

impl Default for Interner {
    fn default() -> Self {
        Self {
            table: vec![FREE; 1024],
            keys: Vec::new(),
        }
    }
}

impl Interner {
    /// The key of a block.
    ///
    /// # Errors
    /// It is out of range.
    pub fn key(volume: u32, block: u64) -> Result<u64, Unnumbered> {
        if block > MAX_BLOCK || volume >= MAX_VOLUMES {
            return Err(Unnumbered::OutOfRange { volume, block });
        }
        Ok(u64::from(volume) << VOLUME_SHIFT | block)
    }

    /// Numbers given.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.keys.len()).unwrap_or(FREE)
    }

    /// Whether none was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Volume and block of a number that was given.
    #[must_use]
    pub fn block(&self, id: u32) -> (u32, u64) {
        let key = self.keys[id as usize];
        let volume = u32::try_from(key >> VOLUME_SHIFT).unwrap_or(0);
        (volume, key & MAX_BLOCK)
    }

    fn start(&self, key: u64) -> usize {
        // The length is a power of two.
        #[expect(clippy::cast_possible_truncation, reason = "the rest is masked away")]
        let hash = mix(key) as usize;
        hash & (self.table.len() - 1)
    }

    /// Numbers for the keys of a batch. What they need of memory is asked for at once.
    ///
    /// # Errors
    /// [`Unnumbered::TooMany`]; those before have their numbers.
    pub fn number(&mut self, keys: &[u64], ids: &mut Vec<u32>) -> Result<(), Unnumbered> {
        for batch in keys.chunks(crate::cache::BATCH) {
            // A longer way along the table costs a key at each step.
            while (self.keys.len() + batch.len()) * 8 > self.table.len() * 5 {
                self.grow();
            }
            let mut starts = [0; crate::cache::BATCH];
            let mut first = [0; crate::cache::BATCH];
            for (n, &key) in batch.iter().enumerate() {
                starts[n] = self.start(key);
                first[n] = self.table[starts[n]];
            }
            let known = first.iter().filter_map(|&id| self.keys.get(id as usize));
            std::hint::black_box(known.fold(0, |sum, key| sum ^ key));
            for (n, &key) in batch.iter().enumerate() {
                ids.push(self.number_from(key, starts[n])?);
            }
        }
        Ok(())
    }

    /// The number of one block.
    ///
    /// # Errors
    /// As [`Self::number`].
    pub fn one(&mut self, volume: u32, block: u64) -> Result<u32, Unnumbered> {
        let mut id = Vec::with_capacity(1);
        self.number(&[Self::key(volume, block)?], &mut id)?;
        id.pop().ok_or(Unnumbered::TooMany)
    }

    /// The number of a block that has one.
    #[must_use]
    pub fn find(&self, volume: u32, block: u64) -> Option<u32> {
        let key = Self::key(volume, block).ok()?;
        let mut at = self.start(key);
        loop {
            match self.table[at] {
                FREE => return None,
                id if self.keys[id as usize] == key => return Some(id),
                _ => at = (at + 1) & (self.table.len() - 1),
            }
        }
    }

    fn number_from(&mut self, key: u64, start: usize) -> Result<u32, Unnumbered> {
        let mut at = start;
        loop {
            match self.table[at] {
                FREE => break,
                id if self.keys[id as usize] == key => return Ok(id),
                _ => at = (at + 1) & (self.table.len() - 1),
            }
        }
        let id = u32::try_from(self.keys.len())
            .ok()
            .filter(|&id| id < FREE - 1);
        let id = id.ok_or(Unnumbered::TooMany)?;
        self.table[at] = id;
        if self.keys.len() == self.keys.capacity() {
            self.keys.reserve_exact((self.keys.len() / 4).max(1_024));
        }
        self.keys.push(key);
        Ok(id)
    }

    fn grow(&mut self) {
        self.table = vec![FREE; self.table.len() * 2];
        for (&key, id) in self.keys.iter().zip(0..) {
            let mut at = self.start(key);
            while self.table[at] != FREE {
                at = (at + 1) & (self.table.len() - 1);
            }
            self.table[at] = id;
        }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.capacity() * size_of::<u32>() + self.keys.capacity() * size_of::<u64>()
    }
}
