//! The exported symbols: each jumps to where it was found to belong, and finds out
//! in its first call.

use bonsai_calls::symbols::SYMBOLS;

/// The number of `syscall` among the symbols.
pub(crate) const SYSCALL: usize = number(b"syscall");
/// The number of `prctl` among the symbols.
pub(crate) const PRCTL: usize = number(b"prctl");

/// The number of `mmap` among the symbols.
pub(crate) const MMAP: usize = number(b"mmap");

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

// Where the target is says which symbol it is. The lowest byte of rax tells variadic
// functions whether there may be vector arguments: too many is no harm.
macro_rules! symbol {
    (read) => { symbol!(@often read); };
    (write) => { symbol!(@often write); };
    (pread) => { symbol!(@often pread); };
    (pread64) => { symbol!(@often pread64); };
    (pwrite) => { symbol!(@often pwrite); };
    (pwrite64) => { symbol!(@often pwrite64); };
    (readv) => { symbol!(@often readv); };
    (writev) => { symbol!(@often writev); };
    (recv) => { symbol!(@often recv); };
    (recvfrom) => { symbol!(@often recvfrom); };
    (recvmsg) => { symbol!(@often recvmsg); };
    (send) => { symbol!(@often send); };
    (sendto) => { symbol!(@often sendto); };
    (sendmsg) => { symbol!(@often sendmsg); };
    (close) => { symbol!(@often close); };
    (getppid) => { symbol!(@often getppid); };
    (@often $name:ident) => {
        symbol!(@code $name, "cmp qword ptr [rax], 0", "jz bonsai_find", "jmp qword ptr [rax]");
    };
    (@code $name:ident, $($code:literal),*) => {
        /// # Safety
        /// As libc's function of that name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                concat!("lea rax, [rip + bonsai_target_", stringify!($name), "]"),
                $($code,)*
            )
        }
    };
    // The same code, in one place: eight bytes less for each.
    ($name:ident) => { symbol!(@code $name, "jmp bonsai_symbol"); };
}

macro_rules! exported {
    ($($group:ident { $(($name:ident $($rest:ident)+))* })*) => {
        $($(symbol!($name);)*)*
    };
}
bonsai_calls::for_each_symbol!(exported);
