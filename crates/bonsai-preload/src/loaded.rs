//! Libraries that come later, by `dlopen` or as a dependency of one that does.
//!
//! For debuggers, a loader calls an empty function (`r_brk` of its `struct
//! r_debug`, the System V rendezvous) whenever its list of objects has changed.
//! Its first instruction becomes a jump to us. That call comes when the new objects
//! are mapped, and before `dlopen` returns or runs a constructor: nobody else
//! executes their text yet, so that it can be patched while other threads run. It
//! is made under the loader's own lock, costs nothing between two `dlopen`s, and
//! needs neither `dlopen`'s symbol (whose caller counts, with its run path and name
//! space) nor an audit library.
//!
//! glibc only: musl calls it too, but holds a lock that its list is read with.

use crate::elf::{self, Object};
use crate::moved::distance;
use crate::{attach, patch, state};
use core::sync::atomic::{AtomicUsize, Ordering};

/// `struct r_debug`.
#[repr(C)]
struct Rendezvous {
    version: i32,
    first: *const Map,
    called: usize,
    state: i32,
}

/// The objects are mapped, none is on its way in or out.
const CONSISTENT: i32 = 0;

/// `struct link_map`, the part that every loader has.
#[repr(C)]
struct Map {
    base: usize,
    name: *const u8,
    dynamic: usize,
    next: *const Self,
}

/// The last object of the list when it was looked at last. New ones come behind it.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// New objects looked at in one go.
const MOST: usize = 64;

fn rendezvous() -> Option<&'static Rendezvous> {
    // SAFETY: the loader's own, which stays; it changes under the loader's lock
    // only, which is held whenever this is asked.
    let found = unsafe { (elf::rendezvous() as *const Rendezvous).as_ref() };
    found.filter(|r| r.version > 0)
}

/// Where the loader's empty function is, if it is in `object` and can be replaced,
/// and the eight bytes to replace it with.
pub(crate) fn function_in(object: &Object) -> Option<(usize, [u8; 8])> {
    let at = rendezvous()?.called;
    if at == 0 || at % 8 != 0 || !object.contains(at) {
        return None;
    }
    elf::first_definition(b"gnu_get_libc_version")?;
    let text = object
        .texts()
        .find(|text| text.as_ptr_range().contains(&(at as *const u8)))?;
    let code = text.get(at - text.as_ptr() as usize..)?;
    let bytes = *code.first_chunk::<8>()?;
    let empty = bonsai_sites::does_nothing(code);
    let d = distance(at + 5, changed as *const () as usize)?.to_le_bytes();
    empty.then_some((
        at,
        [0xe9, d[0], d[1], d[2], d[3], bytes[5], bytes[6], bytes[7]],
    ))
}

/// From now on only what is behind the present list is new.
pub(crate) fn watch() {
    new_objects(&mut [0; MOST]);
}

/// Collects the bases of the objects that are new: how many.
fn new_objects(bases: &mut [usize; MOST]) -> usize {
    let (mut count, mut behind) = (0, false);
    let (known, mut last) = (LAST.load(Ordering::Relaxed), 0);
    let mut map = rendezvous().map_or(core::ptr::null(), |r| r.first);
    // SAFETY: the loader's list, under its lock.
    while let Some(object) = unsafe { map.as_ref() } {
        if behind && let Some(base) = bases.get_mut(count) {
            *base = object.base;
            count += 1;
        }
        last = map as usize;
        behind |= last == known;
        map = object.next;
    }
    LAST.store(last, Ordering::Relaxed);
    count
}

/// In place of the loader's empty function.
extern "C" fn changed() {
    let (Some(segment), Some(rendezvous)) = (state::segment(), rendezvous()) else {
        return;
    };
    if rendezvous.state != CONSISTENT {
        return;
    }
    let mut bases = [0; MOST];
    let count = new_objects(&mut bases);
    if count > 0 {
        elf::visit(bases.get(..count).unwrap_or_default(), &mut |object| {
            patch::late(segment, object);
        });
        attach::recount(segment);
    }
}
