//! A search small enough for a library that lives in other programs: it guesses a
//! site's number from the bytes before it instead of decoding them. Whoever uses it
//! compares the number when the site is reached.

use crate::Site;

/// How far back the number is looked for.
const BACK: usize = 32;

/// Sites whose number is guessed: the nearest `mov $imm32,%eax` with a small
/// number, or `xor %eax,%eax`, in the 32 bytes before the `syscall`. Jumps into a
/// site are not looked for; see [`crate::reject_branch_targets`].
pub fn guess(text: &[u8]) -> impl Iterator<Item = Site> + '_ {
    let mut at = 0;
    core::iter::from_fn(move || {
        loop {
            let rest = text.get(at..)?;
            let found = rest.windows(8).position(|w| {
                w[0] == 0x0f
                    && w[1] == 0x05
                    && w[2] == 0x48
                    && w[3] == 0x3d
                    && w[5..] == [0xf0, 0xff, 0xff]
            })?;
            let offset = at + found;
            at = offset + 8;
            if let Some(site) = site(text, offset) {
                return Some(site);
            }
        }
    })
}

fn site(text: &[u8], offset: usize) -> Option<Site> {
    let cmp = match text.get(offset + 4)? {
        0 => -4096,
        1 => -4095,
        _ => return None,
    };
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
            _ => return None,
        };
        Some((nr, u8::try_from(back).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::guess;
    use std::vec::Vec;

    #[test]
    fn finds_what_the_careful_search_finds_in_libc() {
        let Ok(file) = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6") else {
            return;
        };
        let careful: Vec<_> = crate::scan(&file).collect();
        let guessed: Vec<_> = guess(&file).collect();
        assert!(careful.len() > 300);
        for site in &careful {
            let same = guessed.iter().find(|g| g.offset == site.offset);
            assert_eq!(same.map(|g| g.nr), Some(site.nr), "at {:#x}", site.offset);
        }
    }

    #[test]
    fn a_site_without_a_number_is_left_out() {
        assert_eq!(
            guess(&[0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff]).count(),
            0
        );
        let code = [
            0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 1, 0xf0, 0xff, 0xff,
        ];
        let sites: Vec<_> = guess(&code).collect();
        assert_eq!((sites[0].nr, sites[0].offset, sites[0].cmp), (1, 5, -4095));
    }
}
