//! What is registered with a ring: files, which entries name by their place, and rings,
//! which calls name by theirs.

use super::known::{self, Held, Ring, params};
use super::places;
use super::toll;
use crate::amount::Args;
use crate::kind;
use crate::own::Own;
use crate::seccomp::ask;
use bonsai_calls::Fd;
use bonsai_ledger::Segment;
use core::sync::atomic::{AtomicU8, Ordering};

/// `IORING_REGISTER_USE_REGISTERED_RING`.
const BY_PLACE: usize = 1 << 31;

const FILES: usize = 2;
const NO_FILES: usize = 3;
const FILES_UPDATE: usize = 6;
const FILES2: usize = 13;
const FILES_UPDATE2: usize = 16;
const RINGS: usize = 20;
const NO_RINGS: usize = 21;
const RESIZE: usize = 33;

/// The kernel takes no more (`IORING_MAX_FIXED_FILES`).
const MOST_FILES: usize = 1 << 20;

/// `struct io_uring_rsrc_update` and, as far as it is read, `io_uring_files_update`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// Something was registered.
pub(crate) fn registered(segment: &'static Segment, own: &mut Own, args: &Args, result: isize) {
    if result < 0 {
        return;
    }
    if toll::begin(segment, own) {
        known::inherit();
    }
    let (opcode, at, n) = (args.a[1] & 0xffff_ffff & !BY_PLACE, args.a[2], args.a[3]);
    let done = usize::try_from(result).unwrap_or(0);
    if matches!(opcode, RINGS | NO_RINGS) {
        rings(segment, own, opcode, at, done.min(n));
        return;
    }
    let of_interest = [FILES, NO_FILES, FILES_UPDATE, FILES2, FILES_UPDATE2, RESIZE];
    if !of_interest.contains(&opcode) {
        return;
    }
    let Some(ring) = ring(segment, own, args) else {
        return;
    };
    // SAFETY: the kernel has just read all of this.
    unsafe {
        match opcode {
            FILES => set_files(&ring, at as *const i32, n),
            FILES2 => {
                let [head, _, data, ..] = *(at as *const [u64; 4]);
                let data = usize::try_from(data).unwrap_or(0);
                set_files(&ring, data as *const i32, low(head));
            }
            NO_FILES => clear_files(&ring),
            RESIZE => {
                let words = &*(at as *const [u32; params::WORDS]);
                ring.0.resize(words);
            }
            _ => {
                let update = &*(at as *const Update);
                let n = if opcode == FILES_UPDATE {
                    n
                } else {
                    low(*(at as *const u64).add(3))
                };
                let data = usize::try_from(update.data).unwrap_or(0) as *const i32;
                for i in 0..n.min(done) {
                    let place = update.offset.wrapping_add(u32::try_from(i).unwrap_or(0));
                    put(&ring, place, *data.add(i));
                }
            }
        }
    }
}

const fn low(word: u64) -> usize {
    (word & 0xffff_ffff) as usize
}

fn ring(segment: &Segment, own: &mut Own, args: &Args) -> Option<Held> {
    if args.a[1] & BY_PLACE != 0 {
        return places::at_place(segment, own.tid, args.a[0], &mut own.readable);
    }
    known::find(segment, args.a[0], &mut own.readable)
}

/// Rings that the thread will name by their places.
fn rings(segment: &Segment, own: &mut Own, opcode: usize, at: usize, n: usize) {
    // SAFETY: the kernel has just read it, and written the places.
    let updates = unsafe { core::slice::from_raw_parts(at as *const Update, n) };
    for update in updates {
        if opcode == NO_RINGS {
            places::remove_place(own.tid, update.offset);
            continue;
        }
        let fd = low(update.data);
        if let Some(ring) = known::find(segment, fd, &mut own.readable) {
            places::put_place(ring.0, own.tid, update.offset);
        }
    }
}

/// The ring has a new table of files.
unsafe fn set_files(ring: &Held, list: *const i32, n: usize) {
    clear_files(ring);
    if n == 0 || n > MOST_FILES || !has_room(ring, n) {
        return;
    }
    ring.files_len.store(n, Ordering::Release);
    if list.is_null() {
        return;
    }
    for i in 0..n {
        // SAFETY: the list has `n` numbers.
        put(ring, u32::try_from(i).unwrap_or(0), unsafe { *list.add(i) });
    }
}

/// Makes an empty table of at least that length. One that is too short stays mapped, since a thread
/// may be looking at it; each is twice as long as the one before.
fn has_room(ring: &Held, n: usize) -> bool {
    let room = ring.files_room.load(Ordering::Relaxed);
    if n <= room {
        let at = ring.files.load(Ordering::Relaxed);
        for place in 0..room {
            // SAFETY: within the table.
            let kind = unsafe { &*((at + place) as *const AtomicU8) };
            kind.store(0, Ordering::Relaxed);
        }
        return true;
    }
    let room = n.next_power_of_two();
    // SAFETY: new memory: PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS.
    let at = unsafe { ask!(Mmap, 0, room, 3, 0x22, -1_isize, 0) };
    let Ok(at) = usize::try_from(at) else {
        return false;
    };
    ring.files_room.store(room, Ordering::Relaxed);
    ring.files.store(at, Ordering::Release);
    true
}

/// Nothing is known of any place.
fn clear_files(ring: &Held) {
    ring.files_len.store(0, Ordering::Relaxed);
}

/// `IORING_REGISTER_FILES_SKIP`.
const SKIP: i32 = -2;

fn put(ring: &Held, place: u32, fd: i32) {
    if fd == SKIP {
        return;
    }
    let kind = usize::try_from(fd).map_or(Fd::Any, |fd| {
        kind::known(fd).unwrap_or_else(|| kind::look(fd).kind)
    });
    set_kind(ring, place, kind);
}

fn slot(ring: &Ring, place: u32) -> Option<&'static AtomicU8> {
    // In this order: a later table is not shorter than an earlier one.
    let len = ring.files_len.load(Ordering::Acquire);
    let at = ring.files.load(Ordering::Acquire);
    let is_there = at != 0 && (place as usize) < len;
    // SAFETY: within the table, which stays as long as the ring.
    is_there.then(|| unsafe { &*((at + place as usize) as *const AtomicU8) })
}

/// A file goes to a place of the table.
pub(super) fn set_kind(ring: &Ring, place: u32, kind: Fd) {
    if let Some(slot) = slot(ring, place) {
        slot.store(1 + kind::offset(kind), Ordering::Relaxed);
    }
}

/// What is at a place of the table: what is not known is a file, of which limits take the
/// bytes beforehand.
pub(super) fn kind_at(ring: &Ring, place: u32) -> Fd {
    match slot(ring, place).map(|slot| slot.load(Ordering::Relaxed)) {
        Some(2) => Fd::Socket,
        Some(3) => Fd::Other,
        _ => Fd::File,
    }
}
