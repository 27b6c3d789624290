//! Mappings of a process, asked for one by one (`PROCMAP_QUERY` of `linux/fs.h`, Linux 6.11).
//!
//! The text of `/proc/PID/maps` takes the kernel 30 to 70 us, most of it for the paths of libraries. Nearly all
//! processes share one writable file, or two.
#![expect(unsafe_code, reason = "a request that rustix does not know")]

use std::fs::File;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// `struct procmap_query`.
#[derive(Debug, Default)]
#[repr(C)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const REQUEST: Opcode = opcode::read_write::<Query>(b'f', 17);

/// Writable, shared, of a file, at an address or the first one behind it.
const WANTED: u64 = 0x02 | 0x08 | 0x20 | 0x10;

/// Mappings that are asked for, at most.
const MOST: usize = 16;

/// True if one of the first writable shared mappings is of this file; false also where the kernel cannot tell. `maps` is the open
/// `/proc/PID/maps`.
pub(crate) fn shares(maps: &File, device: (u32, u32), inode: u64) -> bool {
    let mut at = 0;
    for _ in 0..MOST {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_flags: WANTED,
            query_addr: at,
            ..Query::default()
        };
        // SAFETY: the request reads and writes a value of this layout; no name and no build-id is asked for, so that nothing else is
        // written.
        let asked = unsafe { ioctl(maps, Updater::<REQUEST, Query>::new(&mut query)) };
        if asked.is_err() {
            return false;
        }
        if query.inode == inode && (query.dev_major, query.dev_minor) == device {
            return true;
        }
        at = query.vma_end;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    #[test]
    fn a_shared_file_is_found_and_another_is_not() {
        let maps = File::open("/proc/self/maps").expect("procfs");
        let [shared, other] = [(); 2].map(|()| {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(4096).expect("room");
            file
        });
        let is_shared = |file: &File| {
            let metadata = file.metadata().expect("its metadata");
            let device = metadata.dev();
            let device = (rustix::fs::major(device), rustix::fs::minor(device));
            shares(&maps, device, metadata.ino())
        };
        assert!(!is_shared(&shared));
        let (none, rights) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: new memory, which nothing refers to.
        let at = unsafe { mmap(none, 4096, rights, MapFlags::SHARED, &shared, 0) }.expect("mapped");
        if is_shared(&shared) {
            assert!(!is_shared(&other));
        } else {
            eprintln!(
                "SKIP: this kernel does not answer (Linux 6.11), or its device numbers differ"
            );
        }
        // SAFETY: as above.
        unsafe { munmap(at, 4096) }.expect("unmapped");
        assert!(!is_shared(&shared));
    }
}
