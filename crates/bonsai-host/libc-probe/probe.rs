//! Program that moves known numbers of bytes through the C library that it is started with, for `bonsai doctor`.
//!
//! Standard input is a file, standard output a sink. Each way moves the file's length a number of times that is a power of two, so that the
//! sum of what was seen says which ways were: see `libc_probe::Way`. Exit codes: 0; 1 where a call failed; 3 without threads.
//!
//! Symbols have no version here, so that the loader of any glibc, and of musl, binds them.
#![no_std]
#![no_main]

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process.
    unsafe { _exit(1) }
}

#[repr(C)]
struct File([u8; 0]);

unsafe extern "C" {
    fn read(fd: c_int, to: *mut u8, len: usize) -> isize;
    fn write(fd: c_int, from: *const u8, len: usize) -> isize;
    fn send(fd: c_int, from: *const u8, len: usize, flags: c_int) -> isize;
    fn recv(fd: c_int, to: *mut u8, len: usize, flags: c_int) -> isize;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, to: *mut [c_int; 2]) -> c_int;
    fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64;
    fn dup(fd: c_int) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut File;
    fn fread(to: *mut u8, size: usize, count: usize, file: *mut File) -> usize;
    fn fwrite(from: *const u8, size: usize, count: usize, file: *mut File) -> usize;
    fn fclose(file: *mut File) -> c_int;
    fn pthread_create(
        thread: *mut usize,
        attributes: *const c_void,
        start: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
        arg: *mut c_void,
    ) -> c_int;
    fn pthread_join(thread: usize, value: *mut *mut c_void) -> c_int;
    fn _exit(code: c_int) -> !;
}

// Before glibc 2.34, a library of its own has them. The entry is that of the C library's own programs (crt1.o).
core::arch::global_asm!(
    ".weak pthread_create",
    ".weak pthread_join",
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov r9, rdx",
    "pop rsi",
    "mov rdx, rsp",
    "and rsp, -16",
    "push rax",
    "push rsp",
    "lea rdi, [rip + {main}]",
    "xor ecx, ecx",
    "xor r8d, r8d",
    "call [rip + __libc_start_main@GOTPCREL]",
    "hlt",
    main = sym main,
);

/// Longest input.
const LEN: usize = 1 << 16;

static mut BYTES: [u8; LEN] = [0; LEN];

/// Moves the input by each way: `times` its length by stdio, twice as much by functions. Returns false where a call failed.
///
/// # Safety
/// By one thread at a time.
unsafe fn moves(times: u32) -> bool {
    let bytes = &raw mut BYTES as *mut u8;
    // SAFETY: the buffer has room for `len` bytes, and one thread at a time uses it.
    unsafe {
        let len = lseek(0, 0, 2) as usize;
        if len == 0 || len > LEN {
            return false;
        }
        let stdio = || {
            lseek(0, 0, 0);
            let (from, to) = (fdopen(dup(0), c"r".as_ptr()), fdopen(dup(1), c"w".as_ptr()));
            if from.is_null() || to.is_null() {
                return false;
            }
            let moved = fread(bytes, 1, len, from) == len && fwrite(bytes, 1, len, to) == len;
            // At the end of the file, nothing that was read beforehand is given back.
            moved && fclose(to) == 0 && fclose(from) == 0
        };
        let function = || {
            let mut ends = [0; 2];
            lseek(0, 0, 0);
            socketpair(1, 1, 0, &raw mut ends) == 0
                && read(0, bytes, len) == len as isize
                && write(1, bytes, len) == len as isize
                && send(ends[0], bytes, len, 0) == len as isize
                && recv(ends[1], bytes, len, 0x100) == len as isize
        };
        (0..times).all(|_| stdio()) && (0..2 * times).all(|_| function())
    }
}

unsafe extern "C" fn thread(failed: *mut c_void) -> *mut c_void {
    // SAFETY: the first thread waits.
    if unsafe { moves(4) } {
        ptr::null_mut()
    } else {
        failed
    }
}

unsafe extern "C" fn main() -> c_int {
    let (mut id, mut ended) = (0, ptr::null_mut());
    let start = pthread_create as *const () as usize;
    // SAFETY: the only thread; and the functions are those of the C library.
    unsafe {
        if !moves(1) {
            return 1;
        }
        if core::hint::black_box(start) == 0 {
            return 3;
        }
        if pthread_create(&raw mut id, ptr::null(), thread, &raw mut id as *mut c_void) != 0
            || pthread_join(id, &raw mut ended) != 0
        {
            return 1;
        }
    }
    c_int::from(!ended.is_null())
}
