//! What the allocator keeps for itself.
#![expect(unsafe_code, reason = "libc's allocator has no safe interface")]

/// Has all threads allocate from one arena; to be called before there are any.
///
/// glibc has one for each thread that allocates, up to eight a processor, and each keeps what it
/// once had at most: of a program whose threads are busy by turns, so many times as much as it
/// needs at a time (mallopt(3), `M_ARENA_MAX`). Other C libraries have one anyway.
pub fn one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator's.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
