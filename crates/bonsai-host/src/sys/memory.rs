//! Abilities of the memory manager, each tried on a page of our own.

#![expect(
    unsafe_code,
    reason = "whether a mapping works can only be found out by mapping; there is no safe interface"
)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

use super::{Capability, State};

const PAGE: usize = 4096;

/// A private page that nothing else refers to.
struct Page(*mut c_void);

impl Page {
    fn anonymous() -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses a free place.
        unsafe { mmap_anonymous(ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE) }.map(Self)
    }

    /// The first page of `file`, readable and executable as program text is.
    fn text(file: &File) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: as above; the mapping is private, so it cannot change the file.
        unsafe {
            mmap(
                ptr::null_mut(),
                PAGE,
                protection,
                MapFlags::PRIVATE,
                file,
                0,
            )
        }
        .map(Self)
    }

    fn of_program() -> io::Result<Self> {
        Ok(Self::text(&File::open("/proc/self/exe")?)?)
    }

    /// True if the page may be written and executed at once.
    fn is_made_writable(&self) -> bool {
        let protection = MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC;
        // SAFETY: the page is ours; more is allowed there than before.
        unsafe { mprotect(self.0, PAGE, protection) }.is_ok()
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the page is ours, holds nothing, and these advices do not unmap it.
        unsafe { madvise(self.0, PAGE, advice) }
    }

    fn first_bytes(&self) -> [u8; 8] {
        // SAFETY: the page is mapped readable and aligned; volatile, because it may have been
        // changed through /proc/self/mem, behind the compiler's back.
        unsafe { ptr::read_volatile(self.0.cast()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by us with this length, and `self` was its only user.
        let unmapped = unsafe { munmap(self.0, PAGE) };
        debug_assert!(unmapped.is_ok(), "a mapped page can be unmapped");
    }
}

fn advice(name: &'static str, advice: Advice, yes: &str, no: &str) -> Capability {
    let (state, detail) = match Page::anonymous().and_then(|page| page.advise(advice)) {
        Ok(()) => (State::Yes, yes.to_owned()),
        Err(Errno::INVAL) => (State::No, no.to_owned()),
        Err(errno) => (State::Unknown, errno.to_string()),
    };
    Capability::new(name, state, detail)
}

pub(super) fn populate_write() -> Capability {
    let yes = "pages of a service can be made ready at its start";
    let no = "Linux 5.14 brought it; pages are made ready by writing to them";
    advice(
        "madvise_populate_write",
        Advice::LinuxPopulateWrite,
        yes,
        no,
    )
}

pub(super) fn wipe_on_fork() -> Capability {
    let yes = "a forked child cannot spend its parent's lease";
    let no = "Linux 4.14 brought it; leases are given back at every fork";
    advice("madvise_wipe_on_fork", Advice::LinuxWipeOnFork, yes, no)
}

/// Tries what the preload library does to replace system call sites in a private, read-only, executable page of a file: it makes the page
/// writable for a moment, or, where memory may not be writable and executable, writes through `/proc/self/mem`.
pub(super) fn text_write() -> Capability {
    let name = "text_write";
    if Page::of_program().is_ok_and(|page| page.is_made_writable()) {
        return Capability::new(name, State::Yes, "libc's system call sites can be replaced");
    }
    match try_text_write() {
        Ok(true) => Capability::new(name, State::Yes, "libc's system call sites can be replaced"),
        Ok(false) => {
            let detail = "a write through /proc/self/mem had no effect: only calls through \
                          exported symbols are shaped";
            Capability::new(name, State::No, detail)
        }
        Err(error) => {
            let detail =
                format!("/proc/self/mem: {error}: only calls through exported symbols are shaped");
            Capability::new(name, State::No, detail)
        }
    }
}

fn try_text_write() -> io::Result<bool> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let memory = rustix::fs::open("/proc/self/mem", flags, rustix::fs::Mode::empty())?;
    let memory = File::from(memory);
    let page = Page::of_program()?;
    let mark = page.first_bytes().map(|byte| !byte);
    memory.write_all_at(&mark, page.0.addr() as u64)?;
    Ok(page.first_bytes() == mark)
}
