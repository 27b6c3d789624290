//! Making calls: the library does that, for it knows libc.

use crate::amount::Args;
use crate::extension::Make;
use crate::facts::Site;
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
