//! The search for branches that lead into a site.

use crate::Site;
use crate::start::{Start, start};

/// Farthest distance from the start of a `jcc rel8` or `jmp rel8` to its target, in bytes.
const SHORT_REACH: usize = 130;

/// Words of the filter over branch targets: 8 KiB on the stack, one bit for each 32 bytes of a text
/// as large as glibc's.
const FILTER_WORDS: usize = 1024;

/// Whether a direct jump or call in `text` seems to lead to an offset above `lo` and below `hi`.
///
/// Looks at every offset where a branch with an 8-bit or 32-bit distance can be read and an
/// instruction may start. It errs to `true` only. `false` means that no such branch is there; an
/// indirect one is not seen.
#[must_use]
pub fn branch_into(text: &[u8], lo: u32, hi: u32) -> bool {
    let inside = |target: u32| lo < target && target < hi;
    let mut found = short_branch_into(text, lo, hi);
    each_near_branch(text, |at, target| {
        found = found || (inside(target) && may_start(text, at));
    });
    found
}

/// Removes each site that a direct jump or call in `text` seems to lead into, in one pass over
/// `text` for all.
///
/// `sites` come from [`scan`](crate::scan) of the same `text`; entries that are `None` are skipped.
/// Those of [`moved_at`](crate::moved_at) are not removed, but from then on say that nothing before
/// them can be moved.
/// Guarded are the 8 bytes of a site and the instructions between the one that sets its number and
/// the site, because a branch to one of them may bring another number.
pub fn reject_branch_targets(text: &[u8], sites: &mut [Option<Site>]) {
    for slot in &mut *sites {
        *slot = slot.and_then(|site| {
            let (lo, hi) = site.guarded();
            kept(site, short_branch_into(text, lo, hi))
        });
    }
    let mut filter = Filter::new(text.len());
    for site in sites.iter().flatten() {
        filter.add(site);
    }
    each_near_branch(text, |at, target| {
        if !filter.may_contain(target) {
            return;
        }
        for slot in &mut *sites {
            // Read only, but for the few that are hit.
            if let Some(site) = *slot {
                let (lo, hi) = site.guarded();
                if lo < target && target < hi && may_start(text, at) {
                    *slot = kept(site, true);
                }
            }
        }
    });
}

/// What is left of a site, and whether a branch leads into it.
fn kept(mut site: Site, entered: bool) -> Option<Site> {
    if entered {
        site.back = 0;
    }
    (!entered || site.is_moved()).then_some(site)
}

/// A set of 2^`shift`-byte pieces of the text, so that most branch targets are dismissed without a
/// look at the sites.
struct Filter {
    shift: u32,
    words: [u64; FILTER_WORDS],
}

impl Filter {
    fn new(text_len: usize) -> Self {
        let mut shift = 3;
        while text_len >> shift >= FILTER_WORDS * 64 {
            shift += 1;
        }
        Self {
            shift,
            words: [0; FILTER_WORDS],
        }
    }

    fn bit(&self, piece: u32) -> (usize, u64) {
        (piece as usize / 64, 1 << (piece % 64))
    }

    fn add(&mut self, site: &Site) {
        let (lo, hi) = site.guarded();
        for piece in lo >> self.shift..=hi >> self.shift {
            let (word, bit) = self.bit(piece);
            if let Some(word) = self.words.get_mut(word) {
                *word |= bit;
            }
        }
    }

    fn may_contain(&self, target: u32) -> bool {
        let (word, bit) = self.bit(target >> self.shift);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// Whether a branch with an 8-bit distance seems to lead into the open interval.
fn short_branch_into(text: &[u8], lo: u32, hi: u32) -> bool {
    let (lo, hi) = (lo as usize, hi as usize);
    let first = lo.saturating_sub(SHORT_REACH);
    let last = hi.saturating_add(SHORT_REACH).min(text.len());
    (first..last).any(|at| {
        let Some([opcode, distance]) = text.get(at..).and_then(<[u8]>::first_chunk) else {
            return false;
        };
        if !matches!(opcode, 0x70..=0x7f | 0xe0..=0xe3 | 0xeb) {
            return false;
        }
        let distance = isize::from(i8::from_ne_bytes([*distance]));
        let target = (at + 2).checked_add_signed(distance);
        target.is_some_and(|target| lo < target && target < hi) && may_start(text, at)
    })
}

/// Whether the opcode at `at` may be executed: an instruction may start there or at a prefix before
/// it.
fn may_start(text: &[u8], at: usize) -> bool {
    let mut first = at;
    loop {
        if start(text, first) != Start::Never {
            return true;
        }
        let before = first.checked_sub(1);
        match before.and_then(|before| text.get(before)) {
            Some(0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3) => {
                first -= 1;
            }
            _ => return false,
        }
    }
}

/// Calls `found` with the offset and the target of everything in `text` that reads as a jump, call
/// or `xbegin` with a 32-bit distance and leads to an offset below 4 GiB.
fn each_near_branch(text: &[u8], mut found: impl FnMut(usize, u32)) {
    let mut at = 0;
    // Eight opcodes at a time, each with the byte behind it.
    while let Some([first, rest @ .., last]) = text.get(at..).and_then(<[u8]>::first_chunk::<9>) {
        let [a, b, c, d, e, f, g] = *rest;
        let word = u64::from_le_bytes([*first, a, b, c, d, e, f, g]);
        let behind = u64::from_le_bytes([a, b, c, d, e, f, g, *last]);
        let call_or_jmp = bytes_equal(word & !splat(0x01), 0xe8);
        let jcc = bytes_equal(word, 0x0f) & bytes_equal(behind & splat(0xf0), 0x80);
        let xbegin = bytes_equal(word, 0xc7) & bytes_equal(behind, 0xf8);
        let mut hits = call_or_jmp | jcc | xbegin;
        while hits != 0 {
            let hit = at + hits.trailing_zeros() as usize / 8;
            near_branch(text, hit, &mut found);
            hits &= hits - 1;
        }
        at += 8;
    }
    for at in at..text.len() {
        near_branch(text, at, &mut found);
    }
}

#[inline]
fn near_branch(text: &[u8], at: usize, found: &mut impl FnMut(usize, u32)) {
    let opcode_len = match text.get(at..).and_then(<[u8]>::first_chunk) {
        Some([0xe8 | 0xe9, _]) => 1,
        Some([0x0f, 0x80..=0x8f] | [0xc7, 0xf8]) => 2,
        _ => return,
    };
    let distance_at = at + opcode_len;
    let Some(distance) = text.get(distance_at..).and_then(<[u8]>::first_chunk::<4>) else {
        return;
    };
    let target = u32::try_from(distance_at + 4)
        .ok()
        .and_then(|end| end.checked_add_signed(i32::from_le_bytes(*distance)));
    if let Some(target) = target {
        found(at, target);
    }
}

const fn splat(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The top bit of each byte of `word` that equals `byte`, and no other bit.
fn bytes_equal(word: u64, byte: u8) -> u64 {
    let difference = word ^ splat(byte);
    let low = splat(0x7f);
    !(((difference & low) + low) | difference | low)
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::{branch_into, bytes_equal, reject_branch_targets};
    use crate::{SITE_LEN, scan};

    /// `write` as glibc has it, with room for a branch before and behind.
    fn text() -> (Vec<u8>, usize) {
        let mut text = vec![0x90; 200];
        text.extend([
            0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 1,
        ]);
        text.extend([0xc3; 9]);
        text.resize(600, 0x90);
        (text, 205)
    }

    fn survives(text: &[u8]) -> bool {
        let mut sites = vec![scan(text).next(), None];
        assert!(sites[0].is_some(), "the site is found");
        reject_branch_targets(text, &mut sites);
        sites[0].is_some()
    }

    #[test]
    fn a_site_that_nothing_leads_into_stays() {
        assert!(survives(&text().0));
    }

    #[test]
    fn targets_decide_by_the_byte() {
        let kinds: [(usize, &[u8]); 6] = [
            (1, &[0x74]),
            (1, &[0xeb]),
            (4, &[0xe9]),
            (4, &[0xe8]),
            (4, &[0x0f, 0x8d]),
            (4, &[0x3e, 0x0f, 0x84]),
        ];
        for (width, opcode) in kinds {
            for branch_at in [120, 300] {
                // From before the `mov` to behind the `cmp`.
                for target in 198..218 {
                    let (mut text, site) = text();
                    let end = branch_at + opcode.len() + width;
                    let distance =
                        i32::try_from(target).expect("small") - i32::try_from(end).expect("small");
                    text[branch_at..][..opcode.len()].copy_from_slice(opcode);
                    text[end - width..end].copy_from_slice(&distance.to_le_bytes()[..width]);
                    let harmless = target <= site - 5 || target >= site + SITE_LEN;
                    assert_eq!(
                        survives(&text),
                        harmless,
                        "{opcode:02x?} {branch_at} {target}"
                    );
                    let lo = u32::try_from(target).expect("small");
                    assert!(branch_into(&text, lo - 1, lo + 1));
                    assert!(!branch_into(&text, lo, lo + 1));
                }
            }
        }
    }

    #[test]
    fn the_inside_of_another_instruction_is_no_branch() {
        let (mut text, site) = text();
        // `mov $0x..eb..,%edx`: the `eb` within it would lead to the comparison.
        let distance = u8::try_from(site + 2 - 193).expect("near");
        text[190..195].copy_from_slice(&[0xba, 0xeb, distance, 0, 0]);
        assert!(survives(&text));
    }

    #[test]
    fn finds_bytes_in_words() {
        assert_eq!(
            bytes_equal(0x0fff_0f10_000e_010f, 0x0f),
            0x8000_8000_0000_0080
        );
    }
}
