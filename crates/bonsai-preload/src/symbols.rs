//! The exported symbols: each jumps to where it was found to belong, and finds out
//! in its first call.

use bonsai_calls::symbols::SYMBOLS;

/// The number of `syscall` among the symbols.
pub(crate) const SYSCALL: usize = number(b"syscall");
/// The number of `prctl` among the symbols.
pub(crate) const PRCTL: usize = number(b"prctl");

const fn number(name: &[u8]) -> usize {
    let mut i = 0;
    loop {
        let known = SYMBOLS[i].name.as_bytes();
        let mut same = known.len() == name.len();
        let mut k = 0;
        while same && k < name.len() {
            same = known[k] == name[k];
            k += 1;
        }
        if same {
            return i;
        }
        i += 1;
    }
}

macro_rules! exported {
    ($($group:ident { $(($name:ident $($rest:ident)+))* })*) => {
        $($(
            /// # Safety
            /// As libc's function of that name.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    // Where the target is says which symbol it is. The lowest byte of
                    // rax tells variadic functions whether there may be vector
                    // arguments: too many is no harm.
                    concat!("lea rax, [rip + bonsai_target_", stringify!($name), "]"),
                    "cmp qword ptr [rax], 0",
                    "jz bonsai_find",
                    "jmp qword ptr [rax]",
                )
            }
        )*)*
    };
}
bonsai_calls::for_each_symbol!(exported);
