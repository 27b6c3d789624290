//! The filter that every process of an enforced service runs under: which system calls
//! the supervisor is asked about.
//!
//! It cannot be taken off, and children inherit it. Calls that are not named pass at the
//! kernel's own cost: it remembers, number by number, which ones pass whatever their
//! arguments are.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

use bonsai_calls::{BY_NR, CallId, NO_CALL, Selection};
use libc::{sock_filter, sock_fprog};

/// `AUDIT_ARCH_X86_64`.
pub(crate) const ARCH: u32 = 0xc000_003e;

/// Numbers from here on belong to the x32 ABI.
pub(crate) const X32: u32 = 0x4000_0000;

/// Terminal requests that type in another's name.
pub(crate) const TIOCSTI: u32 = 0x5412;
pub(crate) const TIOCLINUX: u32 = 0x541c;

/// Calls that do what an entry of the table does, and that a library does not make.
const SAME_AS: [(u32, CallId); 4] = [
    (435, bonsai_calls::CLONE),
    (452, bonsai_calls::FCHMODAT),
    (304, bonsai_calls::OPENAT),
    (78, bonsai_calls::GETDENTS64),
];

/// Calls that make processes and threads. The supervisor is always asked: with it,
/// a service stops to grow.
const FORKS: [u32; 4] = [56, 57, 58, 435];

/// Calls by which a thread's rights change: its users, groups, capabilities, namespaces and Landlock domain; and a new program.
const RIGHTS: [u32; 15] = [
    59, 105, 106, 113, 114, 116, 117, 119, 122, 123, 126, 272, 308, 322, 446,
];

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refused {
    /// `io_uring` and Linux AIO: the kernel works on behalf of the program, and no call
    /// says how much.
    Asynchronous,
    /// A system call of another ABI (x32, 32 bits).
    ForeignAbi,
    /// Typing into the terminal in another's name.
    Typing,
    /// Limits of another process.
    OthersResources,
    /// Bytes between processes' memories, while they are limited.
    OthersMemory,
    /// A process that lets nobody look into it, while its bytes are limited.
    Closed,
    /// A message whose control data cannot be passed on, while its bytes are limited.
    ControlData,
    /// A message to a Unix socket by a name that leads elsewhere from the supervisor.
    Elsewhere,
    /// Zero-copy transfers: what goes by a ring or comes by a mapping is in no call, and of messages, which are copied, no end is
    /// reported.
    ZeroCopy,
}

impl Refused {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Asynchronous,
        Self::ForeignAbi,
        Self::Typing,
        Self::OthersResources,
        Self::OthersMemory,
        Self::Closed,
        Self::ControlData,
        Self::Elsewhere,
        Self::ZeroCopy,
    ];

    /// In words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Asynchronous => "io_uring or asynchronous I/O (ENOSYS)",
            Self::ForeignAbi => "a system call of another ABI (ENOSYS)",
            Self::Typing => "typing into the terminal (EPERM)",
            Self::OthersResources => "prlimit of another process (EPERM)",
            Self::OthersMemory => "another process's memory under a limit in bytes (EPERM)",
            Self::Closed => "bytes in memory that may not be looked at (EPERM)",
            Self::ControlData => "control data that cannot be passed on (EOPNOTSUPP)",
            Self::Elsewhere => "a message to a Unix socket by its name (EXDEV, EPERM)",
            Self::ZeroCopy => "zero-copy sends and receives, or a ring for sending (EOPNOTSUPP)",
        }
    }

    pub(crate) const fn errno(self) -> i32 {
        match self {
            Self::Asynchronous | Self::ForeignAbi => libc::ENOSYS,
            Self::Typing | Self::OthersResources | Self::OthersMemory | Self::Closed => libc::EPERM,
            Self::ControlData | Self::ZeroCopy => libc::EOPNOTSUPP,
            Self::Elsewhere => libc::EXDEV,
        }
    }
}

/// Calls that are refused whatever the limits are.
const ASYNCHRONOUS: [u32; 5] = [425, 426, 427, 206, 209];
const PRLIMIT: u32 = 302;
const IOCTL: u32 = 16;
const SETSOCKOPT: u32 = 54;
const GETSOCKOPT: u32 = 55;
/// Calls, levels and names of options by which bytes move that no call says: `SO_ZEROCOPY` of `SOL_SOCKET`, `PACKET_TX_RING` of
/// `SOL_PACKET`, `XDP_TX_RING` of `SOL_XDP`, `TCP_ZEROCOPY_RECEIVE` of `IPPROTO_TCP`.
const ZERO_COPY: [[u32; 3]; 4] = [
    [SETSOCKOPT, 1, 60],
    [SETSOCKOPT, 263, 13],
    [SETSOCKOPT, 283, 3],
    [GETSOCKOPT, 6, 35],
];

/// What is to be refused of a call, by its number and arguments; the filter asks about
/// these, and about no other `ioctl` and `prlimit64` for this reason.
pub(crate) fn refusal(arch: u32, nr: u32, args: &[u64; 6]) -> Option<Refused> {
    #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
    let low = |i: usize| args[i] as u32;
    if arch != ARCH || nr >= X32 {
        Some(Refused::ForeignAbi)
    } else if ASYNCHRONOUS.contains(&nr) {
        Some(Refused::Asynchronous)
    } else if nr == IOCTL && matches!(low(1), TIOCSTI | TIOCLINUX) {
        Some(Refused::Typing)
    } else if nr == PRLIMIT && low(0) != 0 && args[2] != 0 {
        Some(Refused::OthersResources)
    } else if ZERO_COPY.contains(&[nr, low(1), low(2)]) {
        Some(Refused::ZeroCopy)
    } else {
        None
    }
}

/// The first entry of the table for a call.
pub(crate) fn entry_of(nr: u32) -> Option<CallId> {
    if let Some((_, entry)) = SAME_AS.iter().find(|(same, _)| *same == nr) {
        return Some(*entry);
    }
    let entry = BY_NR.get(usize::try_from(nr).ok()?)?;
    (*entry != NO_CALL).then_some(*entry)
}

/// Whether a call makes processes or threads.
pub(crate) fn forks(nr: u32) -> bool {
    FORKS.contains(&nr)
}

/// Whether a call may change the rights of its thread.
pub(crate) fn changes_rights(nr: u32) -> bool {
    RIGHTS.contains(&nr)
}

/// The numbers of all calls that limits of these selections can be on, and of those
/// that are always asked about.
#[must_use]
pub fn asked_about(selections: &[Selection]) -> Vec<u32> {
    let chosen = |entry: &CallId| {
        let call = &bonsai_calls::CALLS[usize::from(*entry)];
        let rows = bonsai_calls::CALLS.iter().filter(|row| row.nr == call.nr);
        rows.into_iter()
            .any(|row| selections.iter().any(|chosen| chosen.contains(row)))
    };
    let numbers = 0..u32::try_from(bonsai_calls::NR_LIMIT).unwrap_or(0);
    numbers
        .filter(|nr| {
            forks(*nr) || changes_rights(*nr) || entry_of(*nr).as_ref().is_some_and(chosen)
        })
        .collect()
}

// Of linux/bpf_common.h and linux/seccomp.h.
const LOAD_WORD: u16 = 0x20;
const JUMP_EQ: u16 = 0x15;
const JUMP_GE: u16 = 0x35;
const RETURN: u16 = 0x06;
const AT_NR: u32 = 0;
const AT_ARCH: u32 = 4;
/// The lower halves of the arguments, on a little-endian machine.
const AT_ARGS: u32 = 16;
const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
const ALLOW: u32 = 0x7fff_0000;
const ASK: u32 = 0x7fc0_0000;

const fn step(code: u16, k: u32) -> sock_filter {
    branch(code, k, 0, 0)
}

const fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The filter's program.
fn program(asked: &[u32]) -> Vec<sock_filter> {
    let arg = |i: u32| AT_ARGS + 8 * i;
    let is_asked = |nr: u32| if asked.contains(&nr) { ASK } else { ALLOW };
    let mut code = vec![
        step(LOAD_WORD, AT_ARCH),
        branch(JUMP_EQ, ARCH, 1, 0),
        step(RETURN, ASK),
        step(LOAD_WORD, AT_NR),
        branch(JUMP_GE, X32, 0, 1),
        step(RETURN, ASK),
    ];
    let always = ASYNCHRONOUS.iter().chain(asked);
    for nr in always.filter(|nr| ![IOCTL, PRLIMIT, SETSOCKOPT, GETSOCKOPT].contains(nr)) {
        code.extend([branch(JUMP_EQ, *nr, 0, 1), step(RETURN, ASK)]);
    }
    for nr in [SETSOCKOPT, GETSOCKOPT] {
        let options = ZERO_COPY.iter().filter(|option| option[0] == nr);
        let checks: Vec<_> = options
            .flat_map(|[_, level, name]| {
                [
                    step(LOAD_WORD, arg(1)),
                    branch(JUMP_EQ, *level, 0, 3),
                    step(LOAD_WORD, arg(2)),
                    branch(JUMP_EQ, *name, 0, 1),
                    step(RETURN, ASK),
                ]
            })
            .chain([step(RETURN, is_asked(nr))])
            .collect();
        let past = u8::try_from(checks.len()).unwrap_or(u8::MAX);
        code.push(branch(JUMP_EQ, nr, 0, past));
        code.extend(checks);
    }
    code.extend([
        branch(JUMP_EQ, IOCTL, 0, 5),
        step(LOAD_WORD, arg(1)),
        branch(JUMP_EQ, TIOCSTI, 1, 0),
        branch(JUMP_EQ, TIOCLINUX, 0, 1),
        step(RETURN, ASK),
        step(RETURN, is_asked(IOCTL)),
        branch(JUMP_EQ, PRLIMIT, 0, 8),
        // Another process than itself, and something to be set there.
        step(LOAD_WORD, arg(0)),
        branch(JUMP_EQ, 0, 5, 0),
        step(LOAD_WORD, arg(2)),
        branch(JUMP_EQ, 0, 0, 2),
        step(LOAD_WORD, arg(2) + 4),
        branch(JUMP_EQ, 0, 1, 0),
        step(RETURN, ASK),
        step(RETURN, is_asked(PRLIMIT)),
        step(RETURN, ALLOW),
    ]);
    code
}

/// Whether a call that we have heard of can wait for its answer as one does that no signal interrupts (Linux 5.19): otherwise any
/// handler ends it with `EINTR`, also calls that never end so.
pub(crate) fn waits_killable() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECV;
        let none = std::ptr::null::<sock_fprog>();
        // SAFETY: without a program nothing is installed.
        unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                none,
            )
        };
        // Flags come before the program.
        std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
    })
}

/// Puts the calling thread under the filter, for good; returns the listener.
///
/// # Errors
/// What the kernel says: `EINVAL` without listeners, `EBUSY` where there is one already,
/// `EACCES` or `EPERM` without the right.
pub(crate) fn install(asked: &[u32]) -> std::io::Result<OwnedFd> {
    let mut code = program(asked);
    let len = u16::try_from(code.len()).unwrap_or(u16::MAX);
    let program = sock_fprog {
        len,
        filter: code.as_mut_ptr(),
    };
    let killable = if waits_killable() {
        WAIT_KILLABLE_RECV
    } else {
        0
    };
    // SAFETY: the program lives during the call, which copies it.
    let made = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | killable,
            &raw const program,
        )
    };
    match i32::try_from(made) {
        // SAFETY: a new descriptor that nobody else has.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonsai_calls::select;

    /// What the program answers, step by step as the kernel takes it.
    fn run(code: &[sock_filter], arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(nr.to_le_bytes());
        data.extend(arch.to_le_bytes());
        data.extend(0_u64.to_le_bytes());
        args.iter().for_each(|arg| data.extend(arg.to_le_bytes()));
        let (mut at, mut a) = (0, 0_u32);
        loop {
            let step = &code[at];
            at += 1;
            let k = usize::try_from(step.k).expect("small");
            let taken = match step.code {
                LOAD_WORD => {
                    a = u32::from_le_bytes(data[k..k + 4].try_into().expect("four"));
                    continue;
                }
                RETURN => return step.k,
                JUMP_EQ => a == step.k,
                JUMP_GE => a >= step.k,
                other => panic!("{other:#x}"),
            };
            at += usize::from(if taken { step.jt } else { step.jf });
        }
    }

    #[test]
    fn the_filter_asks_about_what_is_limited_and_what_is_refused() {
        let chosen = [select("write").expect("a class")];
        let code = program(&asked_about(&chosen));
        assert!(code.len() < 4096, "the kernel's limit");
        let ask = |nr, args| run(&code, ARCH, nr, args) == ASK;
        for nr in 0..600 {
            let asked = ask(nr, [0; 6]);
            let entry = entry_of(nr).map(usize::from);
            let selected = entry.is_some_and(|_| {
                let row = bonsai_calls::CALLS.iter().filter(|c| u32::from(c.nr) == nr);
                row.into_iter().any(|c| chosen[0].contains(c))
            });
            let always = forks(nr) || changes_rights(nr);
            let expected = selected || always || refusal(ARCH, nr, &[0; 6]).is_some();
            assert_eq!(asked, expected, "{nr}");
            assert!(run(&code, 0x4000_0003, nr, [0; 6]) == ASK, "32 bits {nr}");
            assert!(ask(nr | X32, [0; 6]), "x32 {nr}");
        }
        let tiocsti = u64::from(TIOCSTI);
        for high in [0, 1 << 32, u64::MAX << 32] {
            assert!(ask(16, [0, tiocsti | high, 0, 0, 0, 0]));
        }
        assert!(!ask(16, [0, 0x5413, 0, 0, 0, 0]));
        assert!(ask(54, [3, 1 | 1 << 32, 60, 0, 0, 0]) && ask(54, [3, 1, 60, 0, 0, 0]));
        assert!(!ask(54, [3, 1, 61, 0, 0, 0]) && !ask(54, [3, 6, 60, 0, 0, 0]));
        assert!(ask(54, [3, 263, 13, 0, 0, 0]) && ask(54, [3, 283, 3, 0, 0, 0]));
        assert!(!ask(54, [3, 263, 60, 0, 0, 0]) && !ask(54, [3, 1, 13, 0, 0, 0]));
        assert!(ask(55, [3, 6, 35, 0, 0, 0]) && !ask(55, [3, 6, 11, 0, 0, 0]));
        for (pid, new, asked) in [
            (0, 1, false),
            (7, 0, false),
            (7, 1, true),
            (7, 1 << 32, true),
        ] {
            let args = [pid, 7, new, 0, 0, 0];
            assert_eq!(ask(302, args), asked, "{pid} {new}");
            assert_eq!(refusal(ARCH, 302, &args).is_some(), asked);
        }
    }

    #[test]
    fn calls_that_the_table_lacks_belong_to_those_they_stand_for() {
        let asked = asked_about(&[select("chmod").expect("a class")]);
        assert!(asked.contains(&452) && asked.contains(&90) && asked.contains(&435));
        assert!(!asked.contains(&1));
    }
}
