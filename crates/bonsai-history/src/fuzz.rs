//! What the fuzz targets call. No part of the interface.

use crate::codec::{Block, Level, checksum, entries};
use crate::query::Bins;

/// Reads any bytes as blocks and rows of each tier; what is a block is the same block when
/// it is written and read again.
pub fn blocks(bytes: &[u8]) {
    // With a checksum that is right, or nothing else would ever be tried.
    let mut sealed = bytes.to_vec();
    sealed.extend(checksum(bytes).to_le_bytes());
    for level in Level::ALL {
        for bytes in [bytes, &sealed] {
            for only in [None, Some(0), Some(usize::MAX)] {
                let Ok(block) = Block::decode(bytes, level, only) else {
                    continue;
                };
                let _ = block.summary(level);
                let mut bins = Bins::new(0, (0, u64::MAX), 60);
                bins.add(level, 0, &block);
                assert!(bins.slots().count() <= level.slots());
                if only.is_none() {
                    let again = Block::decode(&block.encoded(level), level, None);
                    assert_eq!(again.as_ref(), Ok(&block));
                    let _ = block.clone().merged(&block, level).encoded(level);
                }
            }
            for entry in entries(bytes).flatten() {
                let _ = entry.block(level, None);
            }
        }
    }
}
