//! Whether somebody else changed a file, as the kernel tells it (fanotify).
//!
//! Each call that changes a file leaves an event with the process that made it, once its bytes have moved; those of
//! this process are no news. Equal events are one while they wait, so that the queue stays short. Without privileges
//! other processes have the number 0, which is enough. What does not come: changes through memory maps, and
//! of a device those through another node or a mounted file system.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::{Errno, read};

/// `struct fanotify_event_metadata` of linux/fanotify.h: its bytes, and where its fields are.
const EVENT_BYTES: usize = 24;
const LENGTH_AT: usize = 0;
const MASK_AT: usize = 8;
const PROCESS_AT: usize = 20;

/// Events that are read together, in bytes.
const TOGETHER: usize = 4096;

/// The most that one event takes: with a file handle of 128 bytes.
const MOST: usize = 256;

/// Changes of one file.
#[derive(Debug)]
pub(crate) struct Watch {
    events: OwnedFd,
    own: u32,
}

impl Watch {
    /// From now on.
    ///
    /// # Errors
    /// The kernel (before 5.13 without privileges), the file system, or a limit of the user's
    /// (`fs.fanotify.max_user_groups`) does not allow it.
    pub(crate) fn new(file: BorrowedFd<'_>) -> io::Result<Self> {
        let flags =
            libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
        // SAFETY: the call takes no pointers.
        let events = unsafe { libc::fanotify_init(flags, 0) };
        if events < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else has it.
        let events = unsafe { OwnedFd::from_raw_fd(events) };
        // SAFETY: both descriptors are open during the call; without a path, the mark is for the second one's file.
        let marked = unsafe {
            libc::fanotify_mark(
                events.as_raw_fd(),
                libc::FAN_MARK_ADD,
                libc::FAN_MODIFY,
                file.as_raw_fd(),
                std::ptr::null(),
            )
        };
        if marked < 0 {
            return Err(io::Error::last_os_error());
        }
        let own = std::process::id();
        Ok(Self { events, own })
    }

    /// Whether somebody else changed it since this was asked last.
    pub(crate) fn is_changed(&self) -> bool {
        let mut bytes = [0; TOGETHER];
        let mut changed = false;
        loop {
            match read(&self.events, &mut bytes) {
                Ok(count) => {
                    changed |= self.foreign(bytes.get(..count));
                    // All that was there has been read; own writes may go on making events.
                    if count + MOST <= TOGETHER {
                        return changed;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return changed,
                // What is not known may have been.
                Err(_) => return true,
            }
        }
    }

    /// Whether one of these events is of somebody else, or says that some are lost.
    fn foreign(&self, bytes: Option<&[u8]>) -> bool {
        let mut rest = bytes.unwrap_or_default();
        while let Some(event) = rest.first_chunk::<EVENT_BYTES>() {
            let word = |at: usize| {
                let bytes = event.get(at..).and_then(<[u8]>::first_chunk::<4>);
                bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
            };
            let lost = event
                .get(MASK_AT..)
                .and_then(<[u8]>::first_chunk::<8>)
                .is_some_and(|mask| u64::from_ne_bytes(*mask) & libc::FAN_Q_OVERFLOW != 0);
            if lost || word(PROCESS_AT) != self.own {
                return true;
            }
            let length = usize::try_from(word(LENGTH_AT)).unwrap_or(0);
            rest = rest.get(length.max(EVENT_BYTES)..).unwrap_or_default();
        }
        false
    }
}
