//! Making calls: the library does that, for it knows libc.

use crate::amount::Args;
use crate::extension::Make;
use crate::facts::{Site, flag};
use crate::sys;
use core::sync::atomic::{AtomicUsize, Ordering};

static MAKE: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_make(make: Make) {
    MAKE.store(make as usize, Ordering::Relaxed);
}

/// Makes the call as it came.
pub(crate) fn make(args: &Args, site: &Site) -> isize {
    // SAFETY: set before the first call is decided on.
    let make = unsafe { core::mem::transmute::<usize, Make>(MAKE.load(Ordering::Relaxed)) };
    make(args, site)
}

/// Makes another call instead of the site's; by the site's instruction if threads are cancelled there only.
pub(crate) fn make_other(args: &Args, site: &Site) -> isize {
    if site.flags & flag::IN_PLACE != 0 {
        return make(args, site);
    }
    // SAFETY: the program's own call, as the caller has changed it.
    unsafe { sys::syscall(args.nr, args.a) }
}
