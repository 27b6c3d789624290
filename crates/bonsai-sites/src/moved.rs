//! System call instructions of any code: those without glibc's comparison behind them.
//!
//! Behind such an instruction anything may stand, also a target of a branch (`syscall; ret`, or the
//! end of a function after four bytes). What stands *before* it is better known: it is executed on
//! the way to the `syscall`, straight on. So the jump replaces the last whole instructions before the
//! `syscall` together with it, and those are *moved*: executed elsewhere, and then the call is made.
//!
//! ```text
//!     offset - back                    offset      offset + 2
//!          v                              v            v
//!          | mov $7,%esi | mov %rsp,%rdx | syscall | anything
//!          +------ no branch may lead into here ---+
//! ```

use crate::insn::length;
use crate::scan::number;
use crate::start::{Start, start};
use crate::{ANY, Site};

/// What a jump needs before the two bytes of the `syscall`.
const LEAST: u8 = 3;

/// The most bytes of instructions that are moved.
pub const MOVED_MOST: u8 = 15;

/// The site of the `syscall` instruction at offset `at`, if there is one for certain.
///
/// Its [`Site::cmp`] is 0, its number [`ANY`] if it is not known, and [`Site::back`] is the length of
/// the instructions to be moved; 0 if they cannot be. The number is what the straight way to the site
/// sets; another way may bring another one, so it is to be compared when the site is reached.
#[must_use]
pub fn moved_at(text: &[u8], at: usize) -> Option<Site> {
    site(text, at, |text, at| number(text, at).map(|(nr, _)| nr))
}

/// Like [`moved_at`] in less code: its number is a guess.
#[must_use]
pub fn guess_moved(text: &[u8], at: usize) -> Option<Site> {
    site(text, at, |text, at| {
        crate::quick::number(text, at).map(|(nr, _)| nr)
    })
}

/// Whether the bytes of a system call at offset `at` may be one: there is code that reads `0f 05`
/// within other instructions.
#[must_use]
pub fn may_be_call(text: &[u8], at: usize) -> bool {
    start(text, at) != Start::Never
}

#[inline]
fn site(text: &[u8], at: usize, number: impl Fn(&[u8], usize) -> Option<u16>) -> Option<Site> {
    if !text.get(at..)?.starts_with(&[0x0f, 0x05]) || start(text, at) != Start::Always {
        return None;
    }
    Some(Site {
        offset: u32::try_from(at).ok()?,
        nr: number(text, at).unwrap_or(ANY),
        back: room(text, at).unwrap_or(0),
        cmp: 0,
    })
}

/// The shortest length of whole instructions before `at` that suffices.
fn room(text: &[u8], at: usize) -> Option<u8> {
    for back in LEAST..=MOVED_MOST {
        let first = at.checked_sub(usize::from(back))?;
        if !movable(text.get(first..at)?) {
            continue;
        }
        match start(text, first) {
            Start::Always => return Some(back),
            Start::Never => {}
            Start::Unsure => return None,
        }
    }
    None
}

/// Whether `code` is nothing but whole instructions that do the same wherever they stand, one after
/// the other, and no system call.
#[must_use]
pub fn movable(code: &[u8]) -> bool {
    let mut rest = code;
    while !rest.is_empty() {
        match length(rest) {
            Some((len, true)) if !rest.starts_with(&[0x0f, 0x05]) => {
                rest = rest.get(len..).unwrap_or_default();
            }
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::{MOVED_MOST, movable, moved_at};
    use crate::{ANY, Site, reject_branch_targets};

    /// `code` behind enough no-ops to be sure of; and the offset of its `syscall`.
    fn text(code: &[u8]) -> (Vec<u8>, usize) {
        let mut text = vec![0x90; 200];
        text.extend(code);
        let at = text
            .windows(2)
            .position(|two| two == [0x0f, 0x05])
            .expect("a system call");
        text.resize(600, 0x90);
        (text, at)
    }

    fn back(code: &[u8]) -> Option<u8> {
        let (text, at) = text(code);
        moved_at(&text, at).map(|site| site.back)
    }

    #[test]
    fn moves_whole_instructions_and_no_more_than_needed() {
        // mov $0x1ab,%eax
        assert_eq!(back(&[0xb8, 0xab, 1, 0, 0, 0x0f, 0x05, 0xc3]), Some(5));
        // mov $0x1ab,%eax; mov %rsp,%rdx
        assert_eq!(
            back(&[0xb8, 0xab, 1, 0, 0, 0x48, 0x89, 0xe2, 0x0f, 0x05]),
            Some(3)
        );
        // mov $3,%eax; xor %edi,%edi
        assert_eq!(back(&[0xb8, 3, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05]), Some(7));
        // movq $0,8(%rsp)
        let long = [0x48, 0xc7, 0x44, 0x24, 8, 0, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(back(&long), Some(9));
    }

    #[test]
    fn what_depends_on_its_place_stays() {
        for code in [
            // mov 0x1000(%rip),%rdi
            &[0x48, 0x8b, 0x3d, 0, 0x10, 0, 0, 0x0f, 0x05][..],
            // lea 0x1000(%rip),%rsi; xor %edx,%edx
            &[0x48, 0x8d, 0x35, 0, 0x10, 0, 0, 0x31, 0xd2, 0x0f, 0x05],
            // call; jne; xbegin
            &[0xe8, 0, 0, 0, 0, 0x0f, 0x05],
            &[0x0f, 0x85, 0, 0, 0, 0, 0x0f, 0x05],
            &[0xc7, 0xf8, 0, 0, 0, 0, 0x0f, 0x05],
            // vmovdqu 0x1000(%rip),%xmm0
            &[
                0xc5, 0xfa, 0x6f, 0x05, 0, 0x10, 0, 0, 0x0f, 0x05, 0x0f, 0x05,
            ],
        ] {
            let end = code.len() - 2;
            assert!(!movable(&code[..end]), "{code:02x?}");
        }
        // A base register, or an absolute address in a SIB byte, is none of that.
        assert!(movable(&[0x48, 0x8b, 0x7d, 0]));
        assert!(movable(&[0x48, 0x8b, 0x3c, 0x25, 0, 0x10, 0, 0]));
    }

    #[test]
    fn a_second_call_is_not_moved_with_the_first() {
        let (text, at) = text(&[0xb8, 24, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x05]);
        assert_eq!(moved_at(&text, at).map(|s| (s.nr, s.back)), Some((24, 5)));
        assert_eq!(moved_at(&text, at + 2).map(|s| s.back), Some(0));
    }

    #[test]
    fn numbers_are_known_or_any() {
        let known = text(&[0xb8, 0xaa, 1, 0, 0, 0x0f, 0x05, 0xc3]);
        assert_eq!(moved_at(&known.0, known.1).map(|s| s.nr), Some(426));
        // mov %r15d,%eax
        let other = text(&[0x44, 0x89, 0xf8, 0x0f, 0x05, 0x85, 0xc0]);
        assert_eq!(
            moved_at(&other.0, other.1).map(|s| (s.nr, s.back)),
            Some((ANY, 3))
        );
    }

    #[test]
    fn branches_behind_the_call_are_harmless_and_others_are_not() {
        let (original, at) = text(&[0xb8, 0xab, 1, 0, 0, 0x48, 0x89, 0xe2, 0x0f, 0x05, 0xc3]);
        for target in at - 10..at + 6 {
            let mut text = original.clone();
            let from = at + 40;
            text[from] = 0xe9;
            let distance =
                i32::try_from(target).expect("small") - i32::try_from(from + 5).expect("small");
            text[from + 1..from + 5].copy_from_slice(&distance.to_le_bytes());
            let mut sites = [moved_at(&text, at)];
            assert!(sites[0].is_some());
            reject_branch_targets(&text, &mut sites);
            let inside = at - 3 < target && target < at + 2;
            let back = sites[0].map(|site| site.back);
            assert_eq!(back, Some(if inside { 0 } else { 3 }), "{target} of {at}");
        }
    }

    /// The real library, where it is installed: all its calls of io_uring can be moved, and what is
    /// found is what a disassembler finds.
    #[test]
    fn liburing_can_be_entered() {
        let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let found = places
            .iter()
            .find_map(|place| std::fs::read(std::format!("{place}/liburing.so.2")).ok());
        let Some(file) = found else { return };
        let sites: Vec<Site> = (0..file.len())
            .filter_map(|at| moved_at(&file, at))
            .filter(|site| (425..=427).contains(&site.nr))
            .collect();
        assert!(sites.len() >= 20, "{}", sites.len());
        for site in &sites {
            assert!((3..=MOVED_MOST).contains(&site.back), "{site:x?}");
        }
    }
}
