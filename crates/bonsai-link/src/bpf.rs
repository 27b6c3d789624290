//! Programs that say which class a packet belongs to, and the tables they read.
//!
//! HTB takes a packet into the class that its *priority* names. Packets that come in by an
//! interface get the priority of its class and go out through the shared block (*ifb*); on the
//! uplink they get it from the interface they came in by, because forwarding forgets it. What the
//! machine itself sends there gets it from the group of processes that it is of
//! ([`crate::groups`]).
//!
//! They are some dozens of instructions each, written down here, so that nothing needs a compiler
//! or a loader of objects (`aya`, the runner-up: 36 crates, and clang to build). Filters keep the
//! programs and those the tables, so that all of it outlives whoever made it; it is found again by
//! the numbers in the filters. Source: bpf(2), `include/uapi/linux/bpf.h`.

mod code;
mod tables;

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(crate) use code::Which;
pub(crate) use tables::{Entry, GroupTable, Table, Tables};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_MAP_GET_NEXT_KEY: libc::c_int = 4;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_MAP_GET_FD_BY_ID: libc::c_int = 14;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_PROG_QUERY: libc::c_int = 16;

const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;

const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;

/// A table of the kernel: keys of `K` bytes, values of 8.
#[derive(Debug)]
struct Map<const K: usize>(OwnedFd);

/// A value of any table.
type Value = [u8; 8];

impl<const K: usize> Map<K> {
    /// Makes an empty one.
    fn new(entries: u32, name: &str) -> io::Result<Self> {
        // union bpf_attr: map_type, key_size, value_size, max_entries, map_flags.
        let mut attr = Attr::default();
        let key = u32::try_from(K).unwrap_or(0);
        for (place, value) in [(0, BPF_MAP_TYPE_HASH), (4, key), (8, 8), (12, entries)] {
            attr.u32(place, value);
        }
        attr.u32(16, BPF_F_NO_PREALLOC).text(28, name);
        attr.open(BPF_MAP_CREATE).map(Self)
    }

    fn element(&self, command: libc::c_int, key: &mut [u8; K], value: *mut u8) -> io::Result<()> {
        let mut attr = Attr::default();
        attr.u32(0, raw(self.0.as_fd()))
            .u64(8, address(key.as_mut_ptr()))
            .u64(16, address(value));
        attr.call(command).map(drop)
    }

    /// What stands under a key.
    fn get(&self, mut key: [u8; K]) -> io::Result<Option<Value>> {
        let mut value = [0_u8; 8];
        match self.element(BPF_MAP_LOOKUP_ELEM, &mut key, value.as_mut_ptr()) {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Puts a value under a key, or takes it away. Packets meet the former or the new one.
    fn set(&self, mut key: [u8; K], value: Option<Value>) -> io::Result<()> {
        let Some(mut value) = value else {
            let answer = self.element(BPF_MAP_DELETE_ELEM, &mut key, std::ptr::null_mut());
            return match answer {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                answer => answer,
            };
        };
        self.element(BPF_MAP_UPDATE_ELEM, &mut key, value.as_mut_ptr())
    }

    /// All that is in it, at most so many.
    fn all(&self, most: u32) -> io::Result<Vec<([u8; K], Value)>> {
        let mut found = Vec::new();
        let mut before: Option<[u8; K]> = None;
        // Who changes it meanwhile may send us back to the start.
        for _ in 0..2 * u64::from(most) {
            let mut next = [0_u8; K];
            let mut attr = Attr::default();
            attr.u32(0, raw(self.0.as_fd()));
            if let Some(before) = &mut before {
                attr.u64(8, address(before.as_mut_ptr()));
            }
            attr.u64(16, address(next.as_mut_ptr()));
            match attr.call(BPF_MAP_GET_NEXT_KEY) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
                Err(error) => return Err(error),
            }
            found.extend(self.get(next)?.map(|value| (next, value)));
            before = Some(next);
        }
        Ok(found)
    }
}

/// Gives the kernel a program.
fn load(code: &[u64], name: &str) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    // union bpf_attr: prog_type, insn_cnt, insns, license, ... prog_name at 48.
    let mut attr = Attr::default();
    attr.u32(0, BPF_PROG_TYPE_SCHED_CLS)
        .u32(4, u32::try_from(code.len()).unwrap_or(0))
        .u64(8, address(code.as_ptr()))
        .u64(16, address(license.as_ptr()))
        .text(48, name);
    attr.open(BPF_PROG_LOAD)
}

/// Does something with as much locked memory as may be had. Before Linux 5.11, what programs and tables take is locked memory, of which few
/// processes may have more than 64 KiB, root's included.
fn with_locked_memory<T>(act: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Memlock);
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    // To raise the maximum takes CAP_SYS_RESOURCE.
    let most = Rlimit {
        current: before.maximum,
        ..before
    };
    let _ = setrlimit(Resource::Memlock, unlimited).or_else(|_| setrlimit(Resource::Memlock, most));
    let done = act();
    // To lower it is always allowed.
    let _ = setrlimit(Resource::Memlock, before);
    done
}

/// The tables that a program reads, by the program's number, at most two: each with the bytes of its
/// keys.
fn tables_of(program: u32) -> io::Result<Vec<(OwnedFd, u32)>> {
    let program = Attr::default()
        .u32(0, program)
        .open(BPF_PROG_GET_FD_BY_ID)?;
    let mut numbers = [0_u32; 2];
    // struct bpf_prog_info: nr_map_ids at 52, map_ids at 56.
    let mut info = [0_u8; 64];
    info[52..56].copy_from_slice(&2_u32.to_ne_bytes());
    info[56..64].copy_from_slice(&address(numbers.as_mut_ptr()).to_ne_bytes());
    inform(program.as_fd(), &mut info)?;
    let mut tables = Vec::new();
    for number in numbers.into_iter().filter(|number| *number != 0) {
        let table = Attr::default().u32(0, number).open(BPF_MAP_GET_FD_BY_ID)?;
        // struct bpf_map_info: type, id, key_size.
        let mut info = [0_u8; 64];
        inform(table.as_fd(), &mut info)?;
        let [.., a, b, c, d] = info[..12] else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        tables.push((table, u32::from_ne_bytes([a, b, c, d])));
    }
    Ok(tables)
}

/// The name of the first program that a device of the calling thread's namespace has at tcx; `None` where it has none, or
/// the kernel no tcx.
pub(crate) fn first_of_tcx(device: u32, comes_in: bool) -> Option<String> {
    const MOST: u32 = 64;
    let mut programs = [0_u32; MOST as usize];
    let place = match comes_in {
        true => BPF_TCX_INGRESS,
        false => BPF_TCX_EGRESS,
    };
    // union bpf_attr, query: target_ifindex, attach_type, two of flags, prog_ids at 16, prog_cnt.
    let mut attr = Attr::default();
    attr.u32(0, device)
        .u32(4, place)
        .u64(16, address(programs.as_mut_ptr()))
        .u32(24, MOST);
    let answer = attr.call(BPF_PROG_QUERY);
    // Of more than that it names the first as well.
    if answer.is_err_and(|error| error.raw_os_error() != Some(libc::ENOSPC)) {
        return None;
    }
    let first = programs.into_iter().next().filter(|id| *id != 0)?;
    Some(named(first))
}

/// A program by its name and number, as far as the kernel tells them.
pub(crate) fn named(program: u32) -> String {
    name_of(program).unwrap_or_else(|_| program.to_string())
}

/// The name of a program, with its number.
fn name_of(program: u32) -> io::Result<String> {
    let fd = Attr::default()
        .u32(0, program)
        .open(BPF_PROG_GET_FD_BY_ID)?;
    // struct bpf_prog_info: name at 64, 16 bytes with the zero.
    let mut info = [0_u8; 80];
    inform(fd.as_fd(), &mut info)?;
    let name = info[64..].split(|byte| *byte == 0).next();
    // The kernel allows letters, digits, dots and low lines.
    let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
    Ok(match name.is_empty() {
        true => format!("{program}"),
        false => format!("{name} ({program})"),
    })
}

fn inform<const N: usize>(of: BorrowedFd<'_>, info: &mut [u8; N]) -> io::Result<()> {
    let mut attr = Attr::default();
    attr.u32(0, raw(of))
        .u32(4, u32::try_from(info.len()).unwrap_or(0))
        .u64(8, address(info.as_mut_ptr()));
    attr.call(BPF_OBJ_GET_INFO_BY_FD).map(drop)
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn address<T>(of: *const T) -> u64 {
    of.expose_provenance() as u64
}

/// `union bpf_attr`, as far as it is used: the kernel takes any length, if the rest is zero.
struct Attr([u8; 128]);

impl Default for Attr {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl Attr {
    fn u32(&mut self, place: usize, value: u32) -> &mut Self {
        self.0[place..place + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(&mut self, place: usize, value: u64) -> &mut Self {
        self.0[place..place + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// A name of at most 15 letters; `-` is not allowed in names.
    fn text(&mut self, place: usize, value: &str) -> &mut Self {
        for (to, from) in self.0[place..place + 15].iter_mut().zip(value.bytes()) {
            *to = if from == b'-' { b'_' } else { from };
        }
        self
    }

    fn call(&mut self, command: libc::c_int) -> io::Result<libc::c_long> {
        // SAFETY: the union is as long as is said. The addresses in it are of live buffers of the
        // callers, as long as the command reads or writes there. No library offers the call.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                self.0.as_mut_ptr(),
                size_of::<Self>(),
            )
        };
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(answer)
    }

    fn open(&mut self, command: libc::c_int) -> io::Result<OwnedFd> {
        let fd = match self.call(command) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                with_locked_memory(|| self.call(command))?
            }
            answer => answer?,
        };
        let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
        // SAFETY: the kernel has just made this descriptor for us (close-on-exec).
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_may_be_locked_for_as_long_as_it_takes() {
        let before = getrlimit(Resource::Memlock);
        let within = with_locked_memory(|| getrlimit(Resource::Memlock).current);
        assert!(
            within.is_none() || within == before.maximum,
            "{within:?} of {before:?}"
        );
        assert_eq!(getrlimit(Resource::Memlock).current, before.current);
    }
}
