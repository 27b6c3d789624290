//! Calls that musl makes by itself, of the form of other libraries' calls.

use crate::{ANY, NR_END, Site};

/// Calls by which musl reads, writes, opens and looks things up by itself (stdio, the resolver, ...):
/// `read`, `write`, `open`, `close`, `lseek`, `pread64`, `pwrite64`, `readv`, `writev`, `access`,
/// `socket`, `bind`, `rename`, `mkdir`, `unlink`, `readlink`, `getdents64`, `openat`, `unlinkat`,
/// `preadv`, `pwritev`. The functions of these names, where they have such a site of their own, are
/// not entered after the decision on their symbol: no call is seen twice.
const ITSELF: [u16; 21] = [
    0, 1, 2, 3, 8, 17, 18, 19, 20, 21, 41, 49, 82, 83, 87, 89, 217, 257, 263, 295, 296,
];

/// The site of such a call, with its number, if `site` (of [`crate::moved_at`], in the text of musl) is one.
#[must_use]
pub fn musl_itself(text: &[u8], site: Site) -> Option<Site> {
    let nr = match site.nr {
        ANY => number_kept(text, site.offset as usize)?,
        nr => nr,
    };
    ITSELF.contains(&nr).then_some(Site { nr, ..site })
}

/// The number of a call in a loop, which a register keeps (`__stdio_write`): it is set before
/// (`mov $nr,%r12d`) and copied just before the `syscall` at `at` (`mov %r12,%rax`). A guess, which is
/// compared when the site is reached.
fn number_kept(text: &[u8], at: usize) -> Option<u16> {
    /// The copy, and the instruction that sets the lower half, for `rbx`, `rbp`, `r8` to `r15`.
    const KEPT: [([u8; 3], &[u8]); 10] = [
        ([0x48, 0x89, 0xd8], &[0xbb]),
        ([0x48, 0x89, 0xe8], &[0xbd]),
        ([0x4c, 0x89, 0xc0], &[0x41, 0xb8]),
        ([0x4c, 0x89, 0xc8], &[0x41, 0xb9]),
        ([0x4c, 0x89, 0xd0], &[0x41, 0xba]),
        ([0x4c, 0x89, 0xd8], &[0x41, 0xbb]),
        ([0x4c, 0x89, 0xe0], &[0x41, 0xbc]),
        ([0x4c, 0x89, 0xe8], &[0x41, 0xbd]),
        ([0x4c, 0x89, 0xf0], &[0x41, 0xbe]),
        ([0x4c, 0x89, 0xf8], &[0x41, 0xbf]),
    ];
    /// Bytes before the call in which it is looked for; and the copy.
    const FAR: usize = 256;
    const NEAR: usize = 16;
    let before = text.get(at.saturating_sub(FAR)..at)?;
    let near = before.len().saturating_sub(NEAR);
    KEPT.iter().find_map(|(copy, set)| {
        before.get(near..)?.windows(3).find(|code| code == copy)?;
        let found = before.windows(set.len() + 4).rev().find_map(|code| {
            let nr = code.strip_prefix(*set)?.first_chunk().copied()?;
            u16::try_from(u32::from_le_bytes(nr)).ok()
        })?;
        (found < NR_END).then_some(found)
    })
}
