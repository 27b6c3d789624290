//! A call as it was copied: its descriptors are ours, and nothing of it can change.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bonsai_calls::{self as calls, CallId};
use bonsai_decide::charge::{self, LONGEST_TICKET_NS, Moved};
use bonsai_decide::{
    Division, Extras, FileKind, OpenFile, PAGE, RECORD, SocketType, division, read_division,
};
use bonsai_ledger::Tickets;
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};

use super::attempt::FLAGS;
use super::plan::{Plan, next_message};
use crate::enforce::drawn::Drawn;
use crate::enforce::listener::Asked;
use crate::enforce::look::{kind_of, type_of_open};
use crate::enforce::rights::Rights;
use crate::enforce::serve::Enforcer;
use crate::enforce::threads::{descriptor, entry_on};
use crate::enforce::{amount, memory};

/// Pieces are at least and at most so long; between, what [`LONGEST_TICKET_NS`] gives.
pub(super) const LEAST: u64 = 64 * 1024;
pub(super) const MOST: u64 = RECORD as u64;
const BLOCK: u64 = PAGE as u64;

/// The longest piece of a call that is one: it is copied as a whole.
const WHOLE: u64 = 16 * MOST;

/// The longest message that a transfer sends as one.
const MESSAGE: u64 = 4 * LEAST;

/// What a thread's call is known by, while it is made for it.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) nr: u32,
    pub(crate) args: [u64; 6],
    pub(crate) id: AtomicU64,
    pub(crate) cancelled: AtomicBool,
    /// A signal ends it, as its socket has a time limit, and nothing has moved.
    pub(crate) is_timed: AtomicBool,
    /// It was told that a signal has ended it.
    pub(crate) told: AtomicBool,
}

/// All flags of `splice` that there are (`SPLICE_F_ALL`).
const SPLICE_FLAGS: u32 = 0xf;

#[derive(Debug)]
pub(super) struct Job {
    pub(super) asked: Asked,
    pub(super) handle: Arc<Handle>,
    pub(super) pid: u32,
    pub(super) process: Arc<OwnedFd>,
    /// Whose rights it has, where ours are more.
    pub(super) rights: Option<Arc<Rights>>,
    /// Of a socket that it sends to.
    pub(super) domain: i32,
    pub(super) entry: CallId,
    pub(super) plan: Plan,
    pub(super) fd: OwnedFd,
    pub(super) other: Option<OwnedFd>,
    pub(super) kind: FileType,
    pub(super) other_kind: FileType,
    /// Whether it may wait; what its descriptor says, where that was not asked yet.
    blocks: Option<bool>,
    /// A message that goes whole or not at all.
    pub(super) whole: bool,
    pub(super) no_signal: bool,
    pub(super) deadline: u64,
    pub(super) since: u64,
    /// When its present wait for a limit began, and how long it has waited in all.
    pub(super) limited_since: Option<u64>,
    pub(super) waited: u64,
    pub(super) done: u64,
    /// Messages of a list that are done, and their bytes.
    pub(super) messages: u64,
    pub(super) before: u64,
    /// Bytes of results that have not moved: they stay in the queue, or were cut off.
    pub(super) unmoved: u64,
    pub(super) paid: Option<Paid>,
    pub(super) counted: bool,
    /// Since when its thread has been seen not to wait for it.
    pub(super) away_since: Option<u64>,
    /// The same, and it would be its turn.
    pub(super) turn_since: Option<u64>,
    /// It may wait for a device, and is made by whoever may.
    pub(super) slow: bool,
}

/// A finished job whose descriptors are closed.
pub(super) struct Closed {
    pub(super) asked: Asked,
    pub(super) handle: Arc<Handle>,
    pub(super) entry: CallId,
    pub(super) moved: u64,
    pub(super) has_moved: bool,
    pub(super) waited: u64,
}

/// What a job has tickets for and has not used.
#[derive(Debug)]
pub(super) struct Paid {
    pub(super) tickets: Tickets,
    pub(super) bytes: u64,
    pub(super) calls: u64,
    /// Since when they are due.
    pub(super) due_since: Option<u64>,
}

impl Job {
    pub(super) fn new(
        asked: Asked,
        handle: Arc<Handle>,
        (pid, process): (u32, Arc<OwnedFd>),
        first: CallId,
        now: u64,
    ) -> io::Result<Self> {
        let a = &asked.args;
        // From, and where it goes to.
        let (from, to) = match asked.nr {
            40 => (a[1], Some(a[0])),
            275 | 326 => (a[0], Some(a[2])),
            276 => (a[0], Some(a[1])),
            _ => (a[0], None),
        };
        check_first(&asked)?;
        let fd = descriptor(&process, from)?;
        let other = match to.map(|to| descriptor(&process, to)) {
            // Something else may be wrong before.
            Some(Err(error)) if error.raw_os_error() == Some(libc::EBADF) => None,
            other => other.transpose()?,
        };
        let kind = type_of_open(&fd)?;
        let to_kind = other.as_ref().map(type_of_open).transpose()?;
        let entry = match (asked.nr, to_kind) {
            // By its destination; by its end that is not the pipe.
            (40, Some(to)) => entry_on(first, kind_of(to)),
            (275, Some(to)) if kind == FileType::Fifo => entry_on(first, kind_of(to)),
            _ => entry_on(first, kind_of(kind)),
        };
        let mut plan = Plan::read(&asked)?;
        let seeks = matches!(
            &plan,
            Plan::Write {
                offset: Some(_),
                ..
            } | Plan::Read {
                offset: Some(_),
                ..
            }
        );
        let is_unknown = matches!(&plan, Plan::Write { flags, .. } | Plan::Read { flags, .. } if flags & !FLAGS != 0);
        if is_unknown || seeks && matches!(kind, FileType::Fifo | FileType::Socket) {
            plan = Plan::Refused;
        }
        let status = if fails_by_itself(&plan, &asked, kind) {
            None
        } else {
            let own = rustix::fs::fcntl_getfl(&fd)?;
            Some((
                own,
                other.as_ref().map_or(Ok(own), rustix::fs::fcntl_getfl)?,
            ))
        };
        if asked.nr == 278
            && let Some((status, _)) = status
            && status & OFlags::ACCMODE == OFlags::RDONLY
            && let Plan::Write { spans, .. } = plan
        {
            plan = Plan::Read {
                spans,
                offset: None,
                flags: 0,
            };
        }
        let (mut reads, mut writes) = (true, true);
        if let Some((own, status)) = status {
            let denies = |status: OFlags, mode: OFlags| {
                status.contains(OFlags::PATH) || status & OFlags::ACCMODE == mode
            };
            let is_out = matches!(plan, Plan::Write { .. });
            (reads, writes) = match &other {
                None if to.is_some() => (false, false),
                Some(_) => (
                    !denies(own, OFlags::WRONLY),
                    !denies(status, OFlags::RDONLY),
                ),
                None if is_out => (true, !denies(own, OFlags::RDONLY)),
                None => (!denies(own, OFlags::WRONLY), true),
            };
        }
        let messages = matches!(plan, Plan::Send(_) | Plan::Receive(_) | Plan::Nothing);
        if messages && kind != FileType::Socket {
            return Err(io::Error::from_raw_os_error(libc::ENOTSOCK));
        }
        if !reads || !writes || (asked.nr == 278 && kind != FileType::Fifo) {
            match &mut plan {
                Plan::Transfer { denied, .. } => *denied = true,
                plan => *plan = Plan::Refused,
            }
        }
        let (flags, whole) = match &plan {
            Plan::Send(message) | Plan::Receive(message) => (message.flags, !is_stream(&fd)),
            _ => (0, kind == FileType::Socket && !is_stream(&fd)),
        };
        let now_only = match &plan {
            // These two say so themselves.
            _ if matches!(asked.nr, 275 | 276 | 278) => {
                let flags = asked.args[if asked.nr == 275 { 5 } else { 3 }];
                flags & u64::from(libc::SPLICE_F_NONBLOCK) != 0
            }
            Plan::Read { flags, .. } | Plan::Write { flags, .. } => flags & libc::RWF_NOWAIT != 0,
            _ => false,
        };
        let now_only = now_only || flags & libc::MSG_DONTWAIT != 0;
        let blocks = match (asked.nr, status) {
            _ if now_only => Some(false),
            // It does not care whether the pipe would wait.
            (278, _) => Some(true),
            // Of a splice, either end may forbid to wait.
            (275 | 276, Some((own, other))) => Some(!(own | other).contains(OFlags::NONBLOCK)),
            (_, Some((_, status))) => Some(!status.contains(OFlags::NONBLOCK)),
            (_, None) => None,
        };
        let domain = match (to_kind, kind) {
            _ if plan.is_in() => 0,
            (Some(FileType::Socket), _) => other.as_ref().map_or(0, domain_of),
            (None, FileType::Socket) => domain_of(&fd),
            _ => 0,
        };
        let which = if plan.is_in() {
            libc::SO_RCVTIMEO
        } else {
            libc::SO_SNDTIMEO
        };
        let patience = if kind == FileType::Socket {
            time_limit(&fd, which)
        } else {
            u64::MAX
        };
        handle
            .is_timed
            .store(patience != u64::MAX, Ordering::Relaxed);
        Ok(Self {
            asked,
            handle,
            pid,
            process,
            rights: None,
            domain,
            entry,
            whole,
            no_signal: flags & libc::MSG_NOSIGNAL != 0,
            plan,
            fd,
            other,
            kind,
            other_kind: to_kind.unwrap_or(FileType::Unknown),
            blocks,
            deadline: now.saturating_add(patience),
            since: now,
            limited_since: None,
            waited: 0,
            done: 0,
            messages: 0,
            before: 0,
            unmoved: 0,
            paid: None,
            counted: false,
            away_since: None,
            turn_since: None,
            slow: false,
        })
    }

    /// Closes its descriptors.
    pub(super) fn closed(self) -> Closed {
        Closed {
            entry: self.entry,
            moved: (self.before + self.done).saturating_sub(self.unmoved),
            has_moved: self.has_moved(),
            waited: self.waited,
            asked: self.asked,
            handle: self.handle,
        }
    }

    /// Whether something has been done already.
    pub(super) fn has_moved(&self) -> bool {
        self.done > 0 || self.messages > 0
    }

    /// Whether a receive waits for all requested bytes (`MSG_WAITALL`): on a blocking stream.
    pub(super) fn waits_for_all(&self) -> bool {
        const NOT: i32 = libc::MSG_PEEK | libc::MSG_ERRQUEUE | libc::MSG_OOB;
        let wanted = matches!(&self.plan, Plan::Receive(message)
            if message.flags & libc::MSG_WAITALL != 0 && message.flags & NOT == 0);
        wanted && !self.whole && !matches!(self.asked.nr, 299) && self.blocks()
    }

    /// Bytes that have moved, of one message or another call with that result.
    pub(super) fn moved_of(&self, result: u64) -> u64 {
        let Plan::Receive(message) = &self.plan else {
            return result;
        };
        let got = isize::try_from(result).unwrap_or(isize::MAX);
        match charge::moved(calls::RECVFROM, message.flags.cast_unsigned(), got) {
            Moved::Bytes(bytes) => bytes as u64,
            _ => result.min(memory::total(&message.spans)),
        }
    }

    /// A transfer asks for no more than its file has. That has to be asked of whoever has the file, who may be slow to answer.
    pub(super) fn shorten(&mut self) {
        let is_file = self.kind == FileType::RegularFile;
        if !self.has_moved() && self.paid.is_none() {
            self.plan.shorten(self.asked.tid, &self.fd, is_file);
        }
    }

    /// Whether an attempt may wait for a device, or for whoever makes its file.
    pub(super) const fn may_hang(&self) -> bool {
        self.slow && !matches!(self.kind, FileType::Socket | FileType::Fifo)
    }

    /// Whether the call may wait.
    pub(super) fn blocks(&self) -> bool {
        let asked = || rustix::fs::fcntl_getfl(&self.fd);
        self.blocks
            .unwrap_or_else(|| asked().is_ok_and(|status| !status.contains(OFlags::NONBLOCK)))
    }

    /// Whether the supervisor must not make the call: what such a descriptor gives or takes depends on the process that asks (signals,
    /// terminals, files of the kernel such as `/proc/self/loginuid`), or it takes orders in the name and namespace of that process
    /// (netlink(7)).
    pub(super) fn is_unfit(&self) -> bool {
        let special = !matches!(
            self.kind,
            FileType::RegularFile | FileType::BlockDevice | FileType::Socket | FileType::Fifo
        );
        let orders = self.domain == libc::AF_NETLINK
            && matches!(self.plan, Plan::Write { .. } | Plan::Send(_));
        // The registers hold the whole call, and the receiver may ask for the sender: the supervisor, without the rights to name the
        // program. The bytes sent are not known then, so non-blocking sends, which a full queue refuses, are performed otherwise.
        let unix = self.asked.nr == 44
            && self.domain == libc::AF_UNIX
            && (self.rights.is_none() || self.blocks());
        // Registers say all of a write as well. Of a list that is changed after it was read, more moves than is charged: but what
        // such files take is little, and none of it goes to a device. What is read is taken from the thread's counters.
        let is_list =
            matches!(self.asked.nr, 20 | 296 | 328) && !matches!(self.plan, Plan::Refused);
        let is_read = matches!(self.plan, Plan::Read { .. }) && self.asked.nr != 278;
        let of_kernel = self.kind == FileType::RegularFile
            && (self.asked.nr == 1 || is_list || is_read)
            && is_kernel_file(&self.fd)
            && (self.asked.nr == 1 || is_on_kernel_file_system(&self.fd));
        let by_registers = special && matches!(self.asked.nr, 0 | 1);
        orders || unix || of_kernel || by_registers || self.is_signals()
    }

    /// Whether the call reads from a signalfd(2), which gives the signals of the reading thread.
    fn is_signals(&self) -> bool {
        let link = || std::fs::read_link(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        let is_signals = || link().is_ok_and(|link| link.as_os_str() == "anon_inode:[signalfd]");
        matches!(self.plan, Plan::Read { offset: None, .. })
            && self.kind == FileType::Unknown
            && is_signals()
    }

    /// Bytes of the whole call, of all messages where there are several.
    pub(super) fn total(&self) -> u64 {
        let further = (1..).map_while(|number| match next_message(&self.asked, number) {
            Some(Ok(plan)) => Some(plan.len()),
            _ => None,
        });
        self.plan.len().saturating_add(further.sum())
    }

    pub(super) fn piece(&self, own: &Enforcer, drawn: Drawn) -> u64 {
        let left = self.plan.len().saturating_sub(self.done);
        if self.whole || !drawn.counts_bytes() {
            return left.min(WHOLE);
        }
        let slice = own
            .ledger
            .bytes_in(drawn.mask, drawn.byte_buckets, LONGEST_TICKET_NS);
        // Direct I/O goes by blocks.
        let slice = slice.clamp(LEAST, MOST) & !(BLOCK - 1);
        let streams = |kind| matches!(kind, FileType::Socket | FileType::Fifo);
        let takes_less = match self.other {
            Some(_) => streams(self.kind) || streams(self.other_kind),
            None => streams(self.kind) && !self.plan.is_in() && !self.blocks(),
        };
        let most = if takes_less {
            // Bytes that are not taken go back, up to the burst.
            slice.min(drawn.most_at_once(&own.ledger))
        } else {
            slice
        };
        if left <= most {
            return left;
        }
        match self.division() {
            Division::Any if self.kind == FileType::Fifo => {
                amount::first_of_pipe(left, most, BLOCK)
            }
            Division::Any => most,
            Division::Records => left.min(MOST),
            Division::Never if self.other_kind == FileType::Socket => left.min(MESSAGE),
            // Transfers, and pages given to a pipe (vmsplice(2)), may be short.
            Division::Never if self.other.is_some() || self.entry == calls::VMSPLICE => most,
            Division::Never => left.min(WHOLE),
        }
    }

    /// Parts that the call may be made in. What comes in may be less than was asked for, unless it is read from a file.
    fn division(&self) -> Division {
        if self.plan.is_in() {
            return match read_division(self.entry, || self.target().kind()) {
                Division::Never => Division::Any,
                division => division,
            };
        }
        let extras = match &self.plan {
            Plan::Send(message) => Extras {
                flags: message.flags.cast_unsigned(),
                is_addressed: !message.name.is_empty() || !message.control.is_empty(),
            },
            Plan::Write { flags, .. } => Extras {
                flags: flags.cast_unsigned(),
                is_addressed: false,
            },
            _ => Extras::default(),
        };
        division(self.entry, extras, &self.target())
    }

    /// The file that its bytes go to, or come from.
    fn target(&self) -> Target<'_> {
        match &self.other {
            Some(other) => Target(other, self.other_kind),
            None => Target(&self.fd, self.kind),
        }
    }
}

/// An open file and its type.
struct Target<'a>(&'a OwnedFd, FileType);

impl OpenFile for Target<'_> {
    fn kind(&self) -> FileKind {
        match self.1 {
            FileType::RegularFile | FileType::BlockDevice => FileKind::File,
            FileType::Socket => FileKind::Socket,
            FileType::Fifo => FileKind::Pipe,
            _ => FileKind::Other,
        }
    }

    fn status(&self) -> Option<u32> {
        rustix::fs::fcntl_getfl(self.0)
            .ok()
            .map(|flags| flags.bits())
    }

    fn socket(&self) -> SocketType {
        let fd = self.0.as_raw_fd();
        let [kind, protocol] = [libc::SO_TYPE, libc::SO_PROTOCOL]
            .map(|name| option::<4>(fd, name).map_or(0, u32::from_le_bytes));
        SocketType { kind, protocol }
    }
}

/// What the kernel looks at before the descriptors.
fn check_first(asked: &Asked) -> io::Result<()> {
    let a = &asked.args;
    #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
    let flags = a[5] as u32;
    let is_own = matches!(asked.nr, 327 | 328) && a[3] == u64::MAX;
    let is_wrong = match asked.nr {
        295 | 296 | 327 | 328 => a[3].cast_signed() < 0 && !is_own,
        275 => flags & !SPLICE_FLAGS != 0,
        #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
        276 => a[3] as u32 & !SPLICE_FLAGS != 0,
        _ => false,
    };
    if is_wrong {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    if matches!(asked.nr, 44 | 45) && !amount::is_memory(a[1], a[2].min(amount::MOST)) {
        return Err(memory::fault());
    }
    if asked.nr == 40 && a[2] != 0 {
        let _: [u8; 8] = memory::read_exactly(asked.tid, a[2])?;
    }
    Ok(())
}

/// Whether a call on a descriptor that was not opened for it is refused by the kernel when
/// we make it, before anything else happens.
fn fails_by_itself(plan: &Plan, asked: &Asked, kind: FileType) -> bool {
    let is_file = matches!(kind, FileType::RegularFile | FileType::BlockDevice);
    match plan {
        Plan::Write { .. } => asked.nr != 278 && !is_file,
        Plan::Send(_) | Plan::Receive(_) | Plan::Refused => true,
        Plan::Read { .. } | Plan::Transfer { .. } | Plan::Nothing => false,
    }
}

/// An option of a socket; none of other files.
pub(super) fn option<const N: usize>(fd: RawFd, name: i32) -> Option<[u8; N]> {
    let (mut value, mut len) = ([0; N], libc::socklen_t::try_from(N).unwrap_or(0));
    // SAFETY: the value has the length that is said.
    let got = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (got == 0).then_some(value)
}

/// Whether a regular file may be one of procfs, sysfs or a control group, where a write acts on the process that makes it: its own login
/// (`loginuid`), name (`comm`), security context (`attr/current`), or, by a `0`, its place (`cgroup.procs`). What is read there may be
/// of the reader's namespaces (`/proc/sys/kernel/hostname`, `/proc/PID/cgroup`, `cgroup.procs`).
///
/// By the device and the name, as `statfs` could wait for a server; a file of another file system with such a name costs its writes
/// no more than a charge to all kinds.
fn is_kernel_file(fd: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(fd, c"", flags, StatxFlags::TYPE);
    if stat.is_ok_and(|stat| stat.stx_dev_major != 0) {
        return false;
    }
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    name.is_ok_and(|name| {
        let name = name.as_os_str().as_bytes();
        let has = |part: &[u8]| name.windows(part.len()).any(|at| at == part);
        has(b"/proc/") || has(b"/sys/") || has(b"/cgroup")
    })
}

/// By the file system itself.
fn is_on_kernel_file_system(fd: &OwnedFd) -> bool {
    /// procfs, sysfs, cgroup and cgroup2 (linux/magic.h).
    const MAGIC: [i64; 4] = [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];
    rustix::fs::fstatfs(fd).is_ok_and(|of| MAGIC.contains(&of.f_type))
}

fn is_stream(fd: &OwnedFd) -> bool {
    option::<4>(fd.as_raw_fd(), libc::SO_TYPE)
        .is_some_and(|kind| i32::from_le_bytes(kind) == libc::SOCK_STREAM)
}

fn domain_of(fd: &OwnedFd) -> i32 {
    option::<4>(fd.as_raw_fd(), libc::SO_DOMAIN).map_or(0, i32::from_le_bytes)
}

/// The time limit of a socket, ns; for ever where there is none.
pub(crate) fn time_limit(fd: &OwnedFd, which: i32) -> u64 {
    let words = option::<16>(fd.as_raw_fd(), which).unwrap_or([0; 16]);
    let word = |at: usize| memory::word(&words, at);
    match word(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(word(8) * 1000)
    {
        0 => u64::MAX,
        ns => ns,
    }
}
