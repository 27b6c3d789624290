//! What is known of the process.

pub(crate) use crate::own::Own;
use core::sync::atomic::AtomicBool;

/// A seccomp filter is in place: only the plain futex call is used to wait.
pub(crate) static GUARDED: AtomicBool = AtomicBool::new(false);
