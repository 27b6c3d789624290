//! The extension, and the engine beside the preload library: only its file has been mapped,
//! as it is, with room behind it. Its data is put in place here, before anything in it is
//! used.

use crate::headers::{PT_DYNAMIC, PT_LOAD, Phdr};
use crate::sys::{call, nr, place};
use core::arch::asm;
use core::slice::from_raw_parts;

const PF_W: u32 = 2;
const PAGE: usize = 4096;

const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;

const PROT_RW: usize = 3;
const PRIVATE_FIXED: usize = 0x12;
const ANONYMOUS: usize = 0x20;

/// Maps what is written, relocates it, and gives back what is left of the `room` that was
/// mapped. Closes the file. False if it does not fit, or memory could not be had.
///
/// # Safety
/// Once, in the file's first mapping.
#[inline(never)]
pub(crate) unsafe fn unfold(fd: usize, room: usize) -> bool {
    let at = place!("__ehdr_start");
    // SAFETY: our own header, as the linker has made it.
    unsafe {
        let headers = (at + *((at + 32) as *const usize)) as *const Phdr;
        let headers = from_raw_parts(headers, usize::from(*((at + 56) as *const u16)));
        let mut parts = headers.iter().filter(|h| h.kind == PT_LOAD);
        let mut end = 0;
        let mapped = parts.all(|part| {
            end = (part.address + part.len).next_multiple_of(PAGE);
            end <= room && (part.flags & PF_W == 0 || map(at, part, fd))
        });
        call!(nr::CLOSE, fd);
        if !mapped {
            return false;
        }
        if room > end {
            call!(nr::MUNMAP, at + end, room - end);
        }
        if let Some(dynamic) = headers.iter().find(|h| h.kind == PT_DYNAMIC) {
            relocate(at, at + dynamic.address);
        }
        true
    }
}

/// # Safety
/// As of [`unfold`].
unsafe fn map(at: usize, part: &Phdr, fd: usize) -> bool {
    let start = at + part.address;
    let from = start & !(PAGE - 1);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "of a file of some kilobytes"
    )]
    let (in_file, offset) = (
        start + part.file_len as usize,
        part.offset as usize & !(PAGE - 1),
    );
    let end = in_file.next_multiple_of(PAGE);
    let all = (start + part.len).next_multiple_of(PAGE);
    let fits = |result: isize| !(-4095..0).contains(&result);
    // SAFETY: within the room behind the file's first page.
    unsafe {
        if !fits(call!(
            nr::MMAP,
            from,
            end - from,
            PROT_RW,
            PRIVATE_FIXED,
            fd,
            offset
        )) {
            return false;
        }
        // What the file has behind it is not zero. The compiler's function for that is
        // called by an address that is not relocated yet.
        asm!("rep stosb", inout("rdi") in_file => _, inout("rcx") end - in_file => _,
            in("al") 0_u8, options(nostack, preserves_flags));
        all == end
            || fits(call!(
                nr::MMAP,
                end,
                all - end,
                PROT_RW,
                PRIVATE_FIXED | ANONYMOUS,
                -1_isize,
                0
            ))
    }
}

/// # Safety
/// `dynamic` is where the table of that name is, whose relocations are all relative.
unsafe fn relocate(at: usize, dynamic: usize) {
    let (mut table, mut len) = (0, 0);
    let mut entry = dynamic as *const [usize; 2];
    // SAFETY: as the linker has made them.
    unsafe {
        while (*entry)[0] != 0 {
            match *entry {
                [DT_RELA, address] => table = at + address,
                [DT_RELASZ, bytes] => len = bytes / size_of::<[usize; 3]>(),
                _ => {}
            }
            entry = entry.add(1);
        }
        for [word, _, value] in from_raw_parts(table as *const [usize; 3], len) {
            ((at + word) as *mut usize).write(at + value);
        }
    }
}
