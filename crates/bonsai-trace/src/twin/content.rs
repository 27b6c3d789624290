//! Bytes for contents.

use crate::model::Digest;

/// Those of a block.
const BYTES: usize = 4096;
const LANES: usize = 4;

/// Fills a block with the bytes of a content: equal digests give equal bytes, different ones different bytes, as
/// the digest stands at the beginning. The rest cannot be compressed.
pub fn fill(digest: Digest, block: &mut [u8; BYTES]) {
    let half = |at: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&digest.0[at..at + 8]);
        u64::from_le_bytes(half)
    };
    // Lanes that do not wait for each other, each with an odd step of its own (xorshift*).
    let mut lanes: [u64; LANES] = [1, 3, 5, 7].map(|n| {
        let state = half(0).rotate_left(n)
            ^ half(8).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ u64::from(n) << 1);
        state | 1
    });
    for words in block.chunks_exact_mut(8 * LANES) {
        for (lane, word) in lanes.iter_mut().zip(words.chunks_exact_mut(8)) {
            *lane ^= *lane >> 12;
            *lane ^= *lane << 25;
            *lane ^= *lane >> 27;
            word.copy_from_slice(&lane.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
        }
    }
    block[..16].copy_from_slice(&digest.0);
}
