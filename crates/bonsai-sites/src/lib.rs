//! Finds the places in x86-64 machine code where a system call can be replaced by a jump.
//!
//! # Definitions
//!
//! A *site* is a `syscall` instruction (`0f 05`) directly followed by the comparison with which
//! glibc looks for an error, `cmp $-4096,%rax` (`48 3d 00 f0 ff ff`) or `cmp $-4095,%rax`
//! (`48 3d 01 f0 ff ff`). The two instructions are 8 bytes long, so a 5-byte `jmp rel32` fits into
//! them, and a stub elsewhere can make the call, repeat the comparison and jump back.
//!
//! The *number* of a site is the system call number that is in `eax` when it is reached. It is
//! known when the code that falls through into the site sets it by `mov $imm32,%eax` or
//! `xor %eax,%eax` at most [`MAX_BACK`] bytes earlier and nothing in between may change it.
//!
//! ```text
//!        offset - back              offset     offset + 2         offset + 8
//!             v                        v            v                  v
//!             | mov $1,%eax | ... ... | syscall | cmp $-4096,%rax | ja error ...
//!             +------- no branch may lead into here -------------+
//! ```
//!
//! Other code makes system calls without that comparison; see [`moved_at`].
//!
//! # What holds for each site that is found and not rejected
//!
//! 1. The instruction that sets the number starts where instructions start: all ways to decode the
//!    bytes before it agree on that.
//! 2. From there, decoding goes straight to `offset`, without a write to `eax`, a call, a return or
//!    an unconditional jump.
//! 3. No direct jump or call in the scanned text leads behind that instruction and before
//!    `offset + 8` (after [`reject_branch_targets`]). A site may still be reached by a jump to its
//!    number-setting instruction, which is harmless.
//!
//! # Limits
//!
//! Indirect jumps are not seen. Compilers make them only to the start of a function, to a `case`
//! label or to a return address, and none of these lies between an inline system call and its
//! comparison. Data inside the text can hide a branch that starts within 32 bytes after it; glibc,
//! its loader and liburing have none. Where in doubt, a site is left out: that costs coverage, never
//! correctness.
//!
//! The crate neither allocates nor panics, and depends on nothing: it also runs inside the preload
//! library.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod branch;
mod empty;
mod insn;
mod moved;
mod musl;
mod notes;
mod point;
mod quick;
mod scan;
mod start;

pub use branch::{branch_into, reject_branch_targets};
pub use empty::does_nothing;
pub use moved::{MOVED_MOST, guess_moved, may_be_call, movable, moved_at};
pub use musl::musl_itself;
pub use notes::{build_id, is_go, is_pascal};
pub use point::{CANCELLING, Point, cancellation_point, cancelling, is_open};
pub use quick::guess_at;
pub use scan::{Scan, find_syscall, scan};

/// Length in bytes of a site: the `syscall` and the comparison after it.
pub const SITE_LEN: usize = 8;

/// How many bytes before a site the instruction that sets its number may start at most.
pub const MAX_BACK: u8 = 48;

/// The number of a site that is not known.
pub const ANY: u16 = u16::MAX;

/// System call numbers from here on are not believed: x86-64 Linux has fewer than 500.
pub const NR_END: u16 = 1024;

/// A system call instruction that can be replaced, together with the comparison after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Offset in bytes of the `0f 05` in the scanned slice.
    pub offset: u32,
    /// The system call number, below [`NR_END`]; of a moved site possibly [`ANY`].
    pub nr: u16,
    /// Distance in bytes from the start of the instruction that sets the number to `offset`, at
    /// most [`MAX_BACK`]; of a moved site, from the start of what is moved.
    pub back: u8,
    /// What `rax` is compared with after the call: -4096 (the error branch is `ja`) or -4095
    /// (`jae`). 0 for a site of [`moved_at`].
    pub cmp: i32,
}

impl Site {
    /// Whether it is one of [`moved_at`].
    #[must_use]
    pub const fn is_moved(&self) -> bool {
        self.cmp == 0
    }

    /// The open interval that no branch may lead into: behind the start of the number-setting
    /// instruction, or of what is moved, and before the end of the comparison, or of the `syscall`.
    fn guarded(&self) -> (u32, u32) {
        let len = if self.is_moved() { 2 } else { 8 };
        (
            self.offset.saturating_sub(u32::from(self.back)),
            self.offset.saturating_add(len),
        )
    }
}

/// Whether the library in the file `name` is left as it is: it helps in debugging, and makes system
/// calls with instructions of its own so that nobody sees them, or somebody sees exactly these.
#[must_use]
pub fn is_left_alone(name: &[u8]) -> bool {
    // One text: a table of names would be relocated at each start of a program.
    const BEGINNINGS: &[u8] = b"libbonsai libasan libtsan liblsan libubsan librr vgpreload";
    BEGINNINGS
        .split(|byte| *byte == b' ')
        .any(|beginning| name.starts_with(beginning))
}

/// Whether `bytes8`, read from the place of `site`, are still the 8 bytes that were found there.
///
/// A slice of any other length than [`SITE_LEN`] gives `false`. To be asked directly before a site
/// is overwritten.
#[must_use]
pub fn verify(bytes8: &[u8], site: &Site) -> bool {
    bytes8.len() == SITE_LEN && scan::comparison(bytes8) == Some(site.cmp)
}
