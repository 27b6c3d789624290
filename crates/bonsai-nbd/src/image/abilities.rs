//! What the block server can use of this kernel, found out by trying it on memory, and on the program's own file.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd as _;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{ReadWriteFlags, preadv2};

use super::{DONTCACHE, Watch, lock, resident};

/// Something that is used where it is there.
#[derive(Debug)]
pub struct Ability {
    /// What the kernel calls it.
    pub name: &'static str,
    /// Why it cannot be used, if it cannot.
    pub fault: Option<io::Error>,
    /// What it is used for.
    pub used: &'static str,
    /// What is lost without it.
    pub lost: &'static str,
}

/// Tries all of them. File systems of images may be others than that of the program.
#[must_use]
pub fn abilities() -> Vec<Ability> {
    let memory = || -> io::Result<File> {
        let memory = memfd_create("bonsai-ability", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, 4096)?;
        Ok(File::from(memory))
    };
    let read = |flags: ReadWriteFlags| -> io::Result<()> {
        let own = File::open("/proc/self/exe")?;
        let mut some = [0; 4096];
        // The first page is in memory while the program runs, or the kernel says that it is not.
        match preadv2(&own, &mut [IoSliceMut::new(&mut some)], 0, flags) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    };
    let ask = |memory: File| match resident::pages(memory.as_fd(), 0, 4096) {
        Some(_) => Ok(()),
        None => Err(io::Error::last_os_error()),
    };
    let watch = || Watch::new(File::open("/proc/self/exe")?.as_fd()).map(drop);
    let take = |memory: File| lock::try_one(&memory);
    vec![
        Ability {
            name: "cachestat",
            fault: memory().and_then(ask).err(),
            used: "reads go to duplicates that the page cache has",
            lost: "a read is redirected only if all of it comes from one place, cached or not; nothing is known of the page cache (Linux 6.5)",
        },
        Ability {
            name: "RWF_DONTCACHE",
            fault: read(DONTCACHE).err(),
            used: "a scan leaves the page cache as it was",
            lost: "a scan has pages dropped after it has read them, also those that others had brought (Linux 6.14, and the file system)",
        },
        Ability {
            name: "RWF_NOWAIT",
            fault: read(ReadWriteFlags::NOWAIT).err(),
            used: "what the page cache has is answered at once",
            lost: "each read is handed over to a worker, also what the page cache has (the file system)",
        },
        Ability {
            name: "io_uring",
            fault: crate::server::rings().err(),
            used: "reads that the disk is needed for are asked for many at once",
            lost: "each such read has a worker woken, which costs twice the processor's time (Linux 5.11; containers often forbid it)",
        },
        Ability {
            name: "fanotify",
            fault: watch().err(),
            used: "a change of an image by others is noticed before the next read is redirected",
            lost: "it is noticed by the image's times, within a second, and only while nothing is written here (Linux 5.13 without privileges)",
        },
        Ability {
            name: "OFD locks",
            fault: memory().and_then(take).err(),
            used: "an image in use by QEMU or another server is refused",
            lost: "nothing keeps two writers from one image",
        },
    ]
}
