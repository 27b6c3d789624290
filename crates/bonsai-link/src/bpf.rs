//! Two programs that say which class a packet belongs to, and the table they read.
//!
//! HTB takes a packet into the class that its *priority* names. Packets that come in by an
//! interface get the priority of its class and go out through the shared block (*ifb*); on the
//! uplink they get it from the interface they came in by, because forwarding forgets it. Both
//! programs ask one table: interface to class and block.
//!
//! They are a dozen of instructions each, written down here, so that nothing needs a compiler or a
//! loader of objects (`aya`, the runner-up: 36 crates, and clang to build). Filters keep the programs
//! and those the table, so that all of it outlives whoever made it; it is found again by the
//! numbers in the filters. Source: bpf(2), `include/uapi/linux/bpf.h`.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::error::Error;

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_MAP_GET_NEXT_KEY: libc::c_int = 4;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_MAP_GET_FD_BY_ID: libc::c_int = 14;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;

const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
/// More interfaces than a machine has.
const ENTRIES: u32 = 65_536;

/// What a packet that came in by an interface belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The class, `major:minor`.
    pub(crate) class: u32,
    /// The block that it goes out through; 0 for none.
    pub(crate) ifb: u32,
}

impl Entry {
    fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.class.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.ifb.to_ne_bytes());
        bytes
    }

    fn from(bytes: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            class: u32::from_ne_bytes([a, b, c, d]),
            ifb: u32::from_ne_bytes([e, f, g, h]),
        }
    }
}

/// Which of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// For what comes in: into the class, and out through the block.
    Incoming,
    /// For what leaves by an uplink: into the class of where it came in.
    Outgoing,
}

impl Which {
    /// The name that `tc filter show` shows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Incoming => "bonsai-in",
            Self::Outgoing => "bonsai-out",
        }
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Table(OwnedFd);

impl Table {
    /// Makes an empty one.
    pub(crate) fn new() -> Result<Self, Error> {
        // union bpf_attr: map_type, key_size, value_size, max_entries, map_flags.
        let mut attr = Attr::default();
        for (place, value) in [(0, BPF_MAP_TYPE_HASH), (4, 4), (8, 8), (12, ENTRIES)] {
            attr.u32(place, value);
        }
        attr.u32(16, BPF_F_NO_PREALLOC).text(28, "bonsai_class");
        attr.open(BPF_MAP_CREATE).map(Self).map_err(Error::Bpf)
    }

    /// The one that a program reads, by the program's number; `None` if it reads none.
    pub(crate) fn of_program(number: u32) -> Result<Option<Self>, Error> {
        let of = |number| -> io::Result<Option<OwnedFd>> {
            let program = Attr::default().u32(0, number).open(BPF_PROG_GET_FD_BY_ID)?;
            let mut maps = [0_u32; 1];
            // struct bpf_prog_info: nr_map_ids at 52, map_ids at 56.
            let mut info = [0_u8; 64];
            info[52..56].copy_from_slice(&1_u32.to_ne_bytes());
            info[56..64].copy_from_slice(&address(maps.as_mut_ptr()).to_ne_bytes());
            let mut attr = Attr::default();
            attr.u32(0, raw(program.as_fd()))
                .u32(4, u32::try_from(info.len()).unwrap_or(0))
                .u64(8, address(info.as_mut_ptr()));
            attr.call(BPF_OBJ_GET_INFO_BY_FD)?;
            if maps[0] == 0 {
                return Ok(None);
            }
            let table = Attr::default().u32(0, maps[0]).open(BPF_MAP_GET_FD_BY_ID)?;
            Ok(Some(table))
        };
        of(number).map(|table| table.map(Self)).map_err(Error::Bpf)
    }

    fn element(&self, command: libc::c_int, mut key: u32, value: *mut u8) -> io::Result<()> {
        let mut attr = Attr::default();
        attr.u32(0, raw(self.0.as_fd()))
            .u64(8, address(&raw mut key))
            .u64(16, address(value));
        attr.call(command).map(drop)
    }

    /// What an interface has.
    pub(crate) fn get(&self, device: u32) -> Result<Option<Entry>, Error> {
        let mut value = [0_u8; 8];
        match self.element(BPF_MAP_LOOKUP_ELEM, device, value.as_mut_ptr()) {
            Ok(()) => Ok(Some(Entry::from(value))),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(Error::Bpf(error)),
        }
    }

    /// Gives an interface an entry, or takes it away. Packets meet the former or the new one.
    pub(crate) fn set(&self, device: u32, entry: Option<Entry>) -> Result<(), Error> {
        let answer = match entry {
            Some(entry) => {
                let mut value = entry.bytes();
                self.element(BPF_MAP_UPDATE_ELEM, device, value.as_mut_ptr())
            }
            None => self.element(BPF_MAP_DELETE_ELEM, device, std::ptr::null_mut()),
        };
        match answer {
            Err(error) if entry.is_none() && error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            answer => answer.map_err(Error::Bpf),
        }
    }

    /// All that is in it.
    pub(crate) fn all(&self) -> Result<Vec<(u32, Entry)>, Error> {
        let mut found = Vec::new();
        let mut before: Option<u32> = None;
        loop {
            let mut next = 0_u32;
            let mut attr = Attr::default();
            attr.u32(0, raw(self.0.as_fd()));
            if let Some(before) = &mut before {
                attr.u64(8, address(before));
            }
            attr.u64(16, address(&raw mut next));
            match attr.call(BPF_MAP_GET_NEXT_KEY) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(found),
                Err(error) => return Err(Error::Bpf(error)),
            }
            found.extend(self.get(next)?.map(|entry| (next, entry)));
            before = Some(next);
        }
    }

    /// Gives the kernel a program that reads this table.
    pub(crate) fn program(&self, which: Which) -> Result<OwnedFd, Error> {
        let code = code(which, self.0.as_fd());
        let license = c"Dual MIT/GPL";
        // union bpf_attr: prog_type, insn_cnt, insns, license, ... prog_name at 48.
        let mut attr = Attr::default();
        attr.u32(0, BPF_PROG_TYPE_SCHED_CLS)
            .u32(4, u32::try_from(code.len()).unwrap_or(0))
            .u64(8, address(code.as_ptr()))
            .u64(16, address(license.as_ptr()))
            .text(48, which.name());
        attr.open(BPF_PROG_LOAD).map_err(Error::Bpf)
    }
}

/// An instruction: operation, registers (target in the lower half), offset, number.
const fn insn(op: u8, registers: u8, offset: i16, number: u32) -> u64 {
    op as u64
        | (registers as u64) << 8
        | (offset.cast_unsigned() as u64) << 16
        | (number as u64) << 32
}

// Places in `struct __sk_buff`.
const PRIORITY: i16 = 32;
const INGRESS_IFINDEX: i16 = 36;
const IFINDEX: i16 = 40;
const MAP_LOOKUP_ELEM: u32 = 1;
const REDIRECT: u32 = 23;
/// `TC_ACT_UNSPEC`: the next filter is asked, and the packet goes its way.
const GO_ON: u32 = u32::MAX;

fn code(which: Which, table: BorrowedFd<'_>) -> Vec<u64> {
    let key = match which {
        Which::Incoming => IFINDEX,
        Which::Outgoing => INGRESS_IFINDEX,
    };
    // r6 is the packet, r0 what was found.
    let mut code = vec![
        insn(0xbf, 0x16, 0, 0),                    // r6 = r1
        insn(0x61, 0x12, key, 0),                  // r2 = *(u32 *)(r1 + key)
        insn(0x63, 0x2a, -4, 0),                   // *(u32 *)(r10 - 4) = r2
        insn(0x18, 0x11, 0, raw(table)),           // r1 = table
        0,                                         //
        insn(0xbf, 0xa2, 0, 0),                    // r2 = r10
        insn(0x07, 0x02, 0, 4_u32.wrapping_neg()), // r2 -= 4
        insn(0x85, 0x00, 0, MAP_LOOKUP_ELEM),      // r0 = lookup(r1, r2)
        insn(0x55, 0x00, 2, 0),                    // if r0 != 0 skip 2
        insn(0xb4, 0x00, 0, GO_ON),                // w0 = GO_ON
        insn(0x95, 0x00, 0, 0),                    // exit
        insn(0x61, 0x01, 0, 0),                    // r1 = class
        insn(0x63, 0x16, PRIORITY, 0),             // packet's priority = r1
    ];
    if which == Which::Incoming {
        code.extend([
            insn(0x61, 0x01, 4, 0),        // r1 = block
            insn(0x15, 0x01, 3, 0),        // if r1 == 0 skip 3
            insn(0xb4, 0x02, 0, 0),        // w2 = 0
            insn(0x85, 0x00, 0, REDIRECT), // r0 = redirect(r1, r2)
            insn(0x95, 0x00, 0, 0),        // exit
        ]);
    }
    code.extend([
        insn(0xb4, 0x00, 0, GO_ON), // w0 = GO_ON
        insn(0x95, 0x00, 0, 0),     // exit
    ]);
    code
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
        let fd = self.call(command)?;
        let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
        // SAFETY: the kernel has just made this descriptor for us (close-on-exec).
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
