//! The kernel's side: `/proc/PID/io`, of processes, threads, and of what a
//! `bonsai run` was given by those that ended.

use std::collections::BTreeSet;
use std::fs;

pub(super) use bonsai_services::observe::{Moved, moved_with_children as whole};
use bonsai_services::observe::{Start, has_waited, moved_by};
use bonsai_services::service::Service;

/// Bytes that the loader reads of each library (`struct filebuf` in glibc's
/// `elf/dl-load.c`).
const LOADER_READS: u64 = 832;

/// Bytes of program headers, each 56 and about 13 of them.
const HEADERS: u64 = 13 * 56;

/// Bytes that the kernel reads to start a program: the first 256
/// (`BINPRM_BUF_SIZE`), the loader's header, and the program headers of both; and
/// the loader those of libc, which lie beyond the 832, twice.
const START_READS: u64 = 256 + 64 + 4 * HEADERS;

/// What one process moved itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) moved: Moved,
    pub(super) without_ended_threads: bool,
}

/// What a process moved without its children: all of it while it has waited for
/// none, otherwise the sum of its threads.
pub(super) fn own(pid: u32) -> Option<Own> {
    let has_waited = has_waited(pid)?;
    Some(Own {
        moved: moved_by(pid)?,
        without_ended_threads: has_waited,
    })
}

/// What a keeper had moved itself before it started its program.
pub(super) fn start(service: &Service, keeper: u32) -> Option<Moved> {
    let start = Start::of(service, keeper)?;
    Some(Moved {
        read: start.rchar,
        written: start.wchar,
    })
}

/// What a keeper was given since then.
pub(super) fn since(keeper: u32, start: Moved) -> Option<Moved> {
    let now = whole(keeper)?;
    Some(Moved {
        read: now.read.saturating_sub(start.read),
        written: now.written.saturating_sub(start.written),
    })
}

/// What starting its program read, by the number of its libraries; nothing for a
/// process that was forked and started none.
pub(super) fn start_estimate(pid: u32, parent: u32) -> u64 {
    if stack_of(pid).is_some_and(|stack| stack_of(parent) == Some(stack)) {
        return 0;
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    START_READS + LOADER_READS * libraries(&maps)
}

/// Where the stack of a process starts: at a random place for each program.
fn stack_of(pid: u32) -> Option<u64> {
    stat_field(pid, 28).filter(|address| *address != 0)
}

/// A number in `/proc/PID/stat`, counted as in proc(5); from the third on.
fn stat_field(pid: u32, field: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, from_third) = stat.rsplit_once(") ")?;
    from_third
        .split_ascii_whitespace()
        .nth(field - 3)?
        .parse()
        .ok()
}

/// Libraries in the mappings of a process: files with code, apart from the
/// program itself and the loader.
fn libraries(maps: &str) -> u64 {
    let with_code = |line: &&str| {
        line.split_ascii_whitespace()
            .nth(1)
            .is_some_and(|p| p.contains('x'))
    };
    let code = maps.lines().filter(with_code);
    // What is patched has several mappings.
    let files: BTreeSet<&str> = code
        .filter_map(|line| line.find(" /").map(|at| &line[at..]))
        .collect();
    (files.len() as u64).saturating_sub(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_files_with_code() {
        let maps = "\
5581-5582 r--p 00000000 fe:00 1 /usr/bin/cat
5582-5583 r-xp 00001000 fe:00 1 /usr/bin/cat
7f01-7f02 r-xp 00001000 fe:00 2 /usr/lib/libc.so.6
7f02-7f03 r-xp 00002000 fe:00 2 /usr/lib/libc.so.6
7f02-7f03 rw-p 00000000 00:00 0
7f03-7f04 r-xp 00000000 fe:00 3 /run/x/preload.so
7f04-7f05 r-xp 00000000 fe:00 4 /usr/lib/ld-linux-x86-64.so.2
7ffc-7ffd r-xp 00000000 00:00 0 [vdso]
";
        assert_eq!(libraries(maps), 2);
        assert_eq!(libraries(""), 0);
    }

    #[test]
    fn a_process_without_children_is_counted_whole() {
        let own = own(std::process::id()).expect("this process");
        assert!(own.moved.read > 0);
    }
}
