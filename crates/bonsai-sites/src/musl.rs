//! musl's cancellation point.

/// `__syscall_cp_asm`, hand-written and the same since 2015 (`src/thread/x86_64/syscall_cp.s`), up to
/// and with its `ret`. A `jmp` to `__cancel` follows, named `__cp_cancel`.
const POINT: [u8; 42] = [
    0x8b, 0x07, // __cp_begin: mov (%rdi),%eax
    0x85, 0xc0, // test %eax,%eax
    0x75, 0x24, // jne __cp_cancel
    0x49, 0x89, 0xfb, // mov %rdi,%r11
    0x48, 0x89, 0xf0, // mov %rsi,%rax
    0x48, 0x89, 0xd7, // mov %rdx,%rdi
    0x48, 0x89, 0xce, // mov %rcx,%rsi
    0x4c, 0x89, 0xc2, // mov %r8,%rdx
    0x4d, 0x89, 0xca, // mov %r9,%r10
    0x4c, 0x8b, 0x44, 0x24, 0x08, // mov 8(%rsp),%r8
    0x4c, 0x8b, 0x4c, 0x24, 0x10, // mov 16(%rsp),%r9
    0x4c, 0x89, 0x5c, 0x24, 0x08, // mov %r11,8(%rsp)
    0x0f, 0x05, // syscall
    0xc3, // __cp_end: ret
];

/// Where the `syscall` is in it.
const CALL: usize = 39;

/// Whether the `syscall` at offset `at` is the one by which a function of musl that is a cancellation
/// point makes its call.
///
/// musl cancels a thread that is in such a call if its instruction pointer is between `__cp_begin` and
/// `__cp_end`, so the call must be made by this very instruction. When it is reached, the word at
/// `8(%rsp)` is the address of the thread's `int` that is not 0 once it has been cancelled.
#[must_use]
pub fn is_cancellation_point(text: &[u8], at: usize) -> bool {
    let code = at.checked_sub(CALL).and_then(|first| text.get(first..));
    let behind = code.and_then(|code| code.strip_prefix(&POINT));
    matches!(behind, Some([0xe9 | 0xeb, ..]))
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::{CALL, POINT, is_cancellation_point};
    use crate::{ANY, moved_at};

    #[test]
    fn it_is_known_by_all_of_its_bytes() {
        let mut text: Vec<u8> = std::vec![0x90; 200];
        text.extend(POINT);
        text.extend([0xe9, 0, 0, 0, 0]);
        text.resize(600, 0x90);
        let at = 200 + CALL;
        assert!(is_cancellation_point(&text, at));
        // The jump takes the place of the last instruction before it, and leaves it as it is.
        let site = moved_at(&text, at).expect("a site");
        assert_eq!((site.nr, site.back), (ANY, 5));
        for changed in 200..200 + POINT.len() + 1 {
            let mut text = text.clone();
            text[changed] ^= 0x40;
            assert!(!is_cancellation_point(&text, at), "{changed}");
        }
        assert!(!is_cancellation_point(&text, 3));
        assert!(!is_cancellation_point(&text[..at + 3], at));
    }
}
