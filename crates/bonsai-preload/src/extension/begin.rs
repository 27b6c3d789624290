//! Getting ready: all of the file stands in memory as it is in the file, to be read and
//! run only.

use super::{Begin, Extension, Make, Now};
use crate::found::{Search, Sites};
use crate::kind::{self, KINDS};
use crate::state::GUARDED;
use crate::sys::{call, nr};
use crate::{clock, group, held, slow};
use bonsai_ledger::Segment;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const _: Begin = bonsai_extension;

/// Named as the file's entry.
#[unsafe(no_mangle)]
unsafe extern "C" fn bonsai_extension(
    at: usize,
    fd: isize,
    kinds: *const [AtomicU8; KINDS],
    guarded: *const AtomicBool,
    make: Make,
    now: Now,
    segment: &'static Segment,
) -> &'static Extension {
    // SAFETY: by contract; nothing that is written is touched before.
    unsafe {
        place_data(at, fd);
        GUARDED.store((*guarded).load(Ordering::Relaxed), Ordering::Relaxed);
    }
    kind::set_kinds(kinds);
    slow::set_make(make);
    clock::set_now(now);
    // Now, too: later, another user's process may not be able to open it.
    group::map(segment);
    held::begin();
    &EXTENSION
}

static EXTENSION: Extension = Extension {
    decide: super::decide::decide,
    install: crate::filter::install,
    signal: crate::signals::other,
    search,
};

unsafe extern "C" fn search(text: *const u8, len: usize, how: Search, found: &mut Sites) {
    // SAFETY: the text of a mapped library.
    let text = unsafe { core::slice::from_raw_parts(text, len) };
    crate::search::look_through(text, how, found);
}

/// A program header (System V ABI, chapter 5).
#[repr(C)]
struct Phdr {
    kind: u32,
    flags: u32,
    offset: usize,
    vaddr: usize,
    paddr: usize,
    in_file: usize,
    in_memory: usize,
    align: usize,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PF_W: u32 = 2;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const PAGE: usize = 4096;

/// Maps what is written where it belongs, and relocates it.
unsafe fn place_data(at: usize, fd: isize) {
    let up = |n: usize| n.next_multiple_of(PAGE);
    // SAFETY: the headers stand at the start of the file; each mapping is within the
    // first, and holds what is said.
    unsafe {
        let first = *((at + 32) as *const usize);
        let count = usize::from(*((at + 56) as *const u16));
        let headers = core::slice::from_raw_parts((at + first) as *const Phdr, count);
        let mut dynamic = core::ptr::null::<[usize; 2]>();
        for header in headers {
            if header.kind == PT_DYNAMIC {
                dynamic = (at + header.vaddr) as *const [usize; 2];
            }
            if header.kind != PT_LOAD || header.flags & PF_W == 0 {
                continue;
            }
            let from = at + header.vaddr / PAGE * PAGE;
            let offset = header.offset / PAGE * PAGE;
            let file_end = at + header.vaddr + header.in_file;
            let end = at + header.vaddr + header.in_memory;
            // PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED
            call!(nr::MMAP, from, up(file_end) - from, 3, 0x12, fd, offset);
            // What the file has behind it is not zero. Functions cannot be called by
            // their addresses yet, as the compiler would do with `memset`.
            for byte in file_end..up(file_end) {
                (byte as *mut u8).write_volatile(0);
            }
            if up(end) > up(file_end) {
                // The same and MAP_ANONYMOUS
                let len = up(end) - up(file_end);
                call!(nr::MMAP, up(file_end), len, 3, 0x32, -1_isize, 0);
            }
        }
        let (mut table, mut len) = (0, 0);
        while (*dynamic)[0] != 0 {
            match *dynamic {
                [DT_RELA, value] => table = value,
                [DT_RELASZ, value] => len = value,
                _ => {}
            }
            dynamic = dynamic.add(1);
        }
        // Of one kind all: R_X86_64_RELATIVE.
        let entries = core::slice::from_raw_parts((at + table) as *const [usize; 3], len / 24);
        for [place, _, addend] in entries {
            *((at + place) as *mut usize) = at + addend;
        }
        // The rest of what was mapped.
        let last = headers.iter().filter(|h| h.kind == PT_LOAD);
        let end = last.map(|h| up(h.vaddr + h.in_memory)).max().unwrap_or(0);
        call!(nr::MUNMAP, at + end, super::LENGTH - end);
    }
}
