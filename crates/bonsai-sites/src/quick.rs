//! A search small enough for a library that lives in other programs: it guesses a
//! site's number from the bytes before it instead of decoding them. Whoever uses it
//! compares the number when the site is reached.

use crate::Site;

/// How far back the number is looked for.
const BACK: usize = 32;

/// The site of the `syscall` instruction at `offset`, its number guessed: the nearest
/// `mov $imm32,%eax` with a small number, `xor %eax,%eax`, or a test of it for zero, in the 32 bytes before.
/// Jumps into a site are not looked for; see [`crate::reject_branch_targets`].
#[must_use]
pub fn guess_at(text: &[u8], offset: usize) -> Option<Site> {
    let cmp = crate::scan::comparison(text.get(offset..offset.checked_add(8)?)?)?;
    let (nr, back) = number(text, offset)?;
    Some(Site {
        offset: u32::try_from(offset).ok()?,
        nr,
        back,
        cmp,
    })
}

/// The number, and how far before the site it is set.
pub(crate) fn number(text: &[u8], offset: usize) -> Option<(u16, u8)> {
    let before = text.get(offset.saturating_sub(BACK)..offset)?;
    (2..=before.len()).find_map(|back| {
        let code = before.get(before.len() - back..)?;
        let nr = match *code {
            [0xb8, low, high, 0, 0, ..] if high < 2 => u16::from_le_bytes([low, high]),
            [0x31 | 0x33, 0xc0, ..] => 0,
            // test %eax,%eax; jne; and nothing between that and the call
            [0x85, 0xc0, 0x75, _] | [0x85, 0xc0, 0x0f, 0x85, _, _, _, _] => 0,
            _ => return None,
        };
        Some((nr, u8::try_from(back).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::guess_at;
    use crate::{Site, find_syscall};
    use std::vec::Vec;

    fn guess(text: &[u8]) -> Vec<Site> {
        let mut at = 0;
        let next = core::iter::from_fn(|| {
            let found = find_syscall(text, at)?;
            at = found + 2;
            Some(guess_at(text, found))
        });
        next.flatten().collect()
    }

    #[test]
    fn finds_what_the_careful_search_finds_in_libc() {
        let Ok(file) = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6") else {
            return;
        };
        let careful: Vec<_> = crate::scan(&file).collect();
        let guessed = guess(&file);
        assert!(careful.len() > 300);
        for site in &careful {
            let same = guessed.iter().find(|g| g.offset == site.offset);
            assert_eq!(same.map(|g| g.nr), Some(site.nr), "at {:#x}", site.offset);
        }
    }

    #[test]
    fn a_site_without_a_number_is_left_out() {
        assert_eq!(guess(&[0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff]), []);
        let code = [
            0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 1, 0xf0, 0xff, 0xff,
        ];
        let sites = guess(&code);
        assert_eq!((sites[0].nr, sites[0].offset, sites[0].cmp), (1, 5, -4095));
    }
}
