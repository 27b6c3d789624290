//! Getting ready: all of the file stands in memory as it is in the file, to be read and
//! run only.

use super::{Begin, Extension, Make, Now};
use crate::found::{Search, Sites};
use crate::identity::KNOWN_AT;
use crate::kind::{self, Kinds};
use crate::seccomp::FORBIDDEN_AT;
use crate::{clock, held, joined, slow, unfold};
use bonsai_calls::CallId;
use bonsai_ledger::Segment;
use core::sync::atomic::{AtomicU64, Ordering};

const _: Begin = bonsai_extension;

/// Named as the file's entry.
#[unsafe(no_mangle)]
unsafe extern "C" fn bonsai_extension(
    fd: usize,
    kinds: *const Kinds,
    forbidden: *const AtomicU64,
    identity: *const AtomicU64,
    make: Make,
    now: Now,
    segment: &'static Segment,
) -> Option<&'static Extension> {
    // SAFETY: by contract; nothing that is written is touched before.
    unsafe {
        if !unfold::unfold(fd, super::LENGTH) {
            return None;
        }
    }
    FORBIDDEN_AT.store(forbidden.cast_mut(), Ordering::Relaxed);
    KNOWN_AT.store(identity.cast_mut(), Ordering::Relaxed);
    kind::set_kinds(kinds);
    slow::set_make(make);
    clock::set_now(now);
    // Now, too: later, another user's process may not be able to open it.
    joined::begin(segment);
    held::begin();
    Some(&EXTENSION)
}

static EXTENSION: Extension = Extension {
    known,
    late: crate::quick::received,
    decide: super::decide::decide,
    given: super::decide::given,
    covers,
    install: crate::filter::install,
    signal: crate::signals::other,
    signals: crate::signals::call,
    search,
    leave,
    judge: crate::judge::judge,
    release: crate::ahead::release,
};

extern "C" fn known(places: &mut [usize; 2]) {
    *places = [crate::descriptors::place(), held::place()];
}

extern "C" fn covers(segment: &'static Segment, call: CallId, fd: usize) -> bool {
    let (epoch, narrowed) = segment.with_config(|config| {
        let mask = config.narrowed.get(usize::from(call));
        mask.map_or(0, |mask| mask.load(Ordering::Relaxed))
    });
    narrowed & crate::descriptors::known(segment, fd, epoch).matches != 0
}

extern "C" fn leave() {
    crate::loops::leave();
}

unsafe extern "C" fn search(text: *const u8, len: usize, how: Search, found: &mut Sites) {
    // SAFETY: the text of a mapped library.
    let text = unsafe { core::slice::from_raw_parts(text, len) };
    crate::search::look_through(text, how, found);
}
