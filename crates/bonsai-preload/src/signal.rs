//! What the kernel hands to the handler of `SIGSYS`.

/// `siginfo_t` of `SIGSYS`.
#[repr(C)]
pub(crate) struct Info {
    _signal: i32,
    pub(crate) errno: u32,
    pub(crate) code: i32,
}

/// `SYS_SECCOMP`
pub(crate) const SECCOMP: i32 = 1;

/// A handler of it.
pub(crate) type Handler = unsafe extern "C" fn(i32, &Info, &mut Context);

/// `struct ucontext`, as far as it is needed (`asm/sigcontext.h`).
#[repr(C)]
pub(crate) struct Context {
    _head: [usize; 5],
    pub(crate) r8: usize,
    pub(crate) r9: usize,
    pub(crate) r10: usize,
    _r11_to_r15: [usize; 5],
    pub(crate) rdi: usize,
    pub(crate) rsi: usize,
    _rbp_rbx: [usize; 2],
    pub(crate) rdx: usize,
    pub(crate) rax: usize,
    _rest: [usize; 18],
    pub(crate) mask: usize,
}

const _: () = assert!(core::mem::offset_of!(Context, rax) == 40 + 13 * 8);
const _: () = assert!(core::mem::offset_of!(Context, mask) == 40 + 256);
