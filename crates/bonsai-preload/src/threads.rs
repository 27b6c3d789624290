//! Each thread's three words: its state, its page of counters, and the distance from
//! the latter to the former. Fast paths read them (`gen/threads.rs`).

#[cfg_attr(feature = "alone", path = "threads/table.rs")]
#[cfg_attr(not(feature = "alone"), path = "threads/storage.rs")]
mod place;

pub(crate) use place::*;

use crate::state::Own;
use core::sync::atomic::AtomicU64;

/// State, page, distance.
pub(crate) type Words = [usize; 3];

/// As much of the state of a thread that has none as anybody reads: no epoch, no
/// page.
#[unsafe(link_section = ".bss.bonsai_early")]
pub(crate) static NOBODY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

const _: () = assert!(core::mem::offset_of!(Own, page) < size_of_val(&NOBODY));
