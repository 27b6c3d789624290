//! The kernel's side: `/proc/PID/io`, of processes, threads, and of what a
//! `bonsai run` was given by those that ended.

use std::collections::BTreeSet;
use std::fs;
use std::iter::Sum;
use std::ops::Add;

use bonsai_host::proc::io;
use bonsai_services::service::Service;

use crate::run::Start;

/// Bytes that the loader reads of each library (`struct filebuf` in glibc's
/// `elf/dl-load.c`).
const LOADER_READS: u64 = 832;

/// Bytes of program headers, each 56 and about 13 of them.
const HEADERS: u64 = 13 * 56;

/// Bytes that the kernel reads to start a program: the first 256
/// (`BINPRM_BUF_SIZE`), the loader's header, and the program headers of both; and
/// the loader those of libc, which lie beyond the 832, twice.
const START_READS: u64 = 256 + 64 + 4 * HEADERS;

/// Bytes read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) read: u64,
    pub(super) written: u64,
}

impl Add for Moved {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            read: self.read + other.read,
            written: self.written + other.written,
        }
    }
}

impl Sum for Moved {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// What one process moved itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) moved: Moved,
    pub(super) without_ended_threads: bool,
}

/// What a process and the children that it has waited for moved.
pub(super) fn whole(pid: u32) -> Option<Moved> {
    let io = io(pid).ok()??;
    Some(Moved {
        read: io.rchar,
        written: io.wchar,
    })
}

/// What a process moved without its children: all of it while it has waited for
/// none, otherwise the sum of its threads.
pub(super) fn own(pid: u32) -> Option<Own> {
    if !has_waited(pid)? {
        return Some(Own {
            moved: whole(pid)?,
            without_ended_threads: false,
        });
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let moved: Moved = threads
        .flatten()
        .filter_map(|thread| parse(&fs::read_to_string(thread.path().join("io")).ok()?))
        .sum();
    Some(Own {
        moved,
        without_ended_threads: true,
    })
}

fn parse(text: &str) -> Option<Moved> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    Some(Moved {
        read: field("rchar:")?,
        written: field("wchar:")?,
    })
}

/// Whether a process has waited for a child: no child starts without a page
/// fault, and their sum is handed up together with the bytes.
fn has_waited(pid: u32) -> Option<bool> {
    // cminflt
    stat_field(pid, 11).map(|faults| faults > 0)
}

/// What a keeper had moved itself before it started its program.
pub(super) fn start(service: &Service, keeper: u32) -> Option<Moved> {
    let text = fs::read(service.start_path()).ok()?;
    let start: Start = serde_json::from_slice(&text).ok()?;
    (start.pid == keeper).then_some(Moved {
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
        assert_eq!(
            parse("rchar: 5\nwchar: 7\nsyscr: 1\n"),
            Some(Moved {
                read: 5,
                written: 7
            })
        );
        assert_eq!(parse("rchar: 5\n"), None);
    }
}
