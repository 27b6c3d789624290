//! The exported symbols: each jumps to where it was found to belong.

use bonsai_calls::symbols::SYMBOLS;

/// The number of `syscall` among the symbols.
pub(crate) const SYSCALL: usize = {
    let mut i = 0;
    while !matches!(SYMBOLS[i].name.as_bytes(), b"syscall") {
        i += 1;
    }
    i
};

macro_rules! exported {
    ($($group:ident { $(($name:ident $($rest:ident)+))* })*) => {
        $($(
            /// # Safety
            /// As libc's function of that name.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(concat!("jmp qword ptr [rip + bonsai_target_", stringify!($name), "]"))
            }
        )*)*
    };
}
bonsai_calls::for_each_symbol!(exported);
