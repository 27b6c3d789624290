//! System calls that the interposer makes on a program's thread for a purpose of its own
//! (`bonsai-preload/src/seccomp.rs` says which for what): what a filter has to allow, so that
//! nothing is given up under it.

/// Their numbers.
#[rustfmt::skip]
pub const HELPERS: &[u16] = &[
    0, 3, 5, 7, 8, 9, 10, 11, 13, 14, 18, 20, 28, 39, 51, 52, 55, 62, 72, 89, 102, 107, 110, 131, 157, 186, 202, 217, 228, 230, 233, 234, 257, 269,
    271, 290, 310, 317, 332, 439, 441, 449,
];

/// Whether a number is one of theirs.
#[must_use]
pub const fn is_helper(number: u16) -> bool {
    let mut i = 0;
    while i < HELPERS.len() {
        if HELPERS[i] == number {
            return true;
        }
        i += 1;
    }
    false
}
