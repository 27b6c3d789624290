//! The search for sites and their numbers.

use crate::insn::{Eax, Flow, decode};
use crate::start::{Start, start};
use crate::{MAX_BACK, NR_END, SITE_LEN, Site};

/// Bytes that one step of the search looks at.
const BLOCK: usize = 64;

/// Searches `text` for sites whose system call number is known, in ascending order.
///
/// `text` is executable code that begins with an instruction, best a whole executable segment: what
/// lies before a site helps to tell where instructions start. Only the first 4 GiB are searched. The sites are candidates:
/// [`reject_branch_targets`](crate::reject_branch_targets) must see them before one is replaced.
#[must_use]
pub fn scan(text: &[u8]) -> Scan<'_> {
    Scan { text, at: 0 }
}

/// The iterator that [`scan`] returns.
#[derive(Clone, Debug)]
pub struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl Iterator for Scan<'_> {
    type Item = Site;

    fn next(&mut self) -> Option<Site> {
        loop {
            let at = find_syscall(self.text, self.at)?;
            let offset = u32::try_from(at).ok()?;
            self.at = at + 2;
            let Some(cmp) = self.text.get(at..at + SITE_LEN).and_then(comparison) else {
                continue;
            };
            if let Some((nr, back)) = number(self.text, at) {
                return Some(Site {
                    offset,
                    nr,
                    back,
                    cmp,
                });
            }
        }
    }
}

/// The operand of the comparison, if `bytes` start with a site.
pub(crate) fn comparison(bytes: &[u8]) -> Option<i32> {
    match bytes.first_chunk::<SITE_LEN>()? {
        [0x0f, 0x05, 0x48, 0x3d, imm @ ..] => match i32::from_le_bytes(*imm) {
            cmp @ (-4096 | -4095) => Some(cmp),
            _ => None,
        },
        _ => None,
    }
}

/// The offset of the first `0f 05` at or after `from`.
#[must_use]
pub fn find_syscall(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    // Without a branch per byte, so that the compiler makes vector instructions of it.
    while let Some(block) = text
        .get(at..)
        .and_then(<[u8]>::first_chunk::<{ BLOCK + 1 }>)
    {
        let mut hit = false;
        for i in 0..BLOCK {
            hit |= (block[i] == 0x0f) & (block[i + 1] == 0x05);
        }
        if hit {
            break;
        }
        at += BLOCK;
    }
    let rest = text.get(at..)?;
    rest.windows(2)
        .position(|pair| pair == [0x0f, 0x05])
        .map(|i| at + i)
}

/// The system call number at the site `at`, and how far before it the instruction that sets it
/// starts; `None` if that is not certain.
pub(crate) fn number(text: &[u8], at: usize) -> Option<(u16, u8)> {
    for back in 2..=MAX_BACK {
        let first = at.checked_sub(usize::from(back))?;
        let code = text.get(first..at)?;
        let Some(nr) = straight_line(code) else {
            continue;
        };
        match start(text, first) {
            Start::Always => return Some((nr, back)),
            // These bytes belong to a longer instruction: look further back.
            Start::Never => {}
            Start::Unsure => return None,
        }
    }
    None
}

/// If `code` begins with an instruction that sets `eax` to a possible number, and decodes from
/// there to its very end without touching `eax` or leaving the straight line: that number.
fn straight_line(code: &[u8]) -> Option<u16> {
    // Most offsets are sorted out here, before anything is decoded.
    let (nr, mut rest) = match code {
        // test %eax,%eax; jne: what goes on has 0 in it. glibc before 2.33 asks so whether there are threads, and then reads.
        [0x85, 0xc0, 0x75, _, rest @ ..] | [0x85, 0xc0, 0x0f, 0x85, _, _, _, _, rest @ ..] => {
            (0, rest)
        }
        [0xb8, ..] | [0x31 | 0x33, 0xc0, ..] => {
            let first = decode(code)?;
            let Eax::Set(value) = first.eax else {
                return None;
            };
            let nr = u16::try_from(value).ok().filter(|nr| *nr < NR_END)?;
            (nr, code.get(first.len()..)?)
        }
        _ => return None,
    };
    while !rest.is_empty() {
        let insn = decode(rest)?;
        if insn.eax != Eax::Kept || !matches!(insn.flow, Flow::Next | Flow::Branch) {
            return None;
        }
        rest = rest.get(insn.len()..)?;
    }
    Some(nr)
}
