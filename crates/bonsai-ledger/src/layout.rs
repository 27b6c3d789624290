//! The layout of the segment, version [`VERSION`].

use crate::config::Config;
use crate::sync::{AtomicU32, AtomicU64};

/// A length as it is, under miri, and under loom: the one visits every word at each
/// borrow, the other makes the whole segment anew for every order of accesses.
pub(crate) const fn scaled(full: usize, miri: usize, loom: usize) -> usize {
    if cfg!(loom) {
        loom
    } else if cfg!(miri) {
        miri
    } else {
        full
    }
}

/// Rows for the entries of the table of calls.
pub(crate) const ROWS: usize = scaled(bonsai_calls::MAX_CALLS, 16, 1);

/// "BONSAI\x01L" in memory order: the first eight bytes of every segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"BONSAI\x01L");

/// The version of the layout. Any change to this file is a new one.
pub const VERSION: u32 = 9;

/// Programs that are being entered from outside at a time.
pub const ENTERING: usize = scaled(8, 2, 1);

/// Limits in force at a time.
pub const BUCKETS: usize = scaled(64, 4, 2);

/// Threads with a page of counters of their own.
pub const THREADS: usize = scaled(2048, 3, 3);

/// Processes described at a time.
pub const PROCESSES: usize = scaled(256, 4, 2);

/// Delay histograms have this many buckets (`bonsai_stats::BUCKETS`).
pub const DELAYS: usize = scaled(64, 64, 1);

/// System call sites that fit into the table.
pub const SITES: usize = scaled(976, 1, 1);

/// Libraries with system call sites.
pub const SITE_LIBS: usize = scaled(8, 1, 1);

/// Shards of the delay histograms.
pub const SHARDS: usize = scaled(2, 2, 1);

/// The longest name of a limit, bytes.
pub const LIMIT_NAME: usize = 160;

/// Words for a path.
pub const PATH: usize = scaled(64, 1, 1);

/// Streams (connections, open files) with a bucket of their own at a time, over all
/// limits that are per stream.
pub const STREAMS: usize = scaled(8192, 4, 2);

/// What a group can share at a time.
pub const GROUPS: usize = scaled(8, 1, 1);

/// Bytes that exist from the start; the pages of threads follow and are
/// populated one by one.
pub const FIXED_LEN: usize = core::mem::offset_of!(Segment, threads);

/// Bytes of the whole segment, most of them never touched.
pub const TOTAL_LEN: usize = core::mem::size_of::<Segment>();

/// The segment.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub struct Segment {
    /// Who, which version, the epoch.
    pub header: Header,
    /// The limits, twice; `epoch & 1` says which copy is in force.
    pub configs: [Config; 2],
    /// The hot line of each bucket.
    pub lines: [BucketLine; BUCKETS],
    /// The name of each bucket's limit.
    pub labels: [Label; BUCKETS],
    /// System call sites of libraries.
    pub sites: SiteTable,
    /// Owner of each page of counters, 0 for free: the words of [`crate::Owner`].
    pub owners: [AtomicU64; THREADS],
    /// Attached processes.
    pub processes: [Process; PROCESSES],
    /// Waits imposed.
    pub delays: [DelayShard; SHARDS],
    /// Counters for threads without a page of their own; several writers.
    pub crowd: ThreadPage,
    /// Counters, a page per thread.
    pub threads: [ThreadPage; THREADS],
    /// Buckets of streams.
    pub streams: [StreamLine; STREAMS],
}

/// The first page. The first line never changes after creation.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub struct Header {
    /// [`MAGIC`], stored last when the segment is complete.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Entries of the table of calls when the segment was made.
    pub calls: AtomicU32,
    /// [`FIXED_LEN`] and [`TOTAL_LEN`].
    pub lengths: [AtomicU64; 2],
    /// Process id of the creator.
    pub creator: AtomicU32,
    /// User id of the creator.
    pub uid: AtomicU32,
    /// When it was made, ns of the wall clock since 1970.
    pub created_ns: AtomicU64,
    /// A checksum of the fields above and the name.
    pub check: AtomicU64,
    /// Pid namespace of the creator and the keeper (`identity.rs`).
    pub namespace: AtomicU64,
    /// The service's name, UTF-8, padded with zeros.
    pub name: [AtomicU64; 8],
    /// The line that every call reads: advances with each change of limits, is
    /// the futex word of every sleeper, and never 0.
    pub epoch: Epoch,
    /// Pages of counters ever in use: `owners[..high]` are looked at.
    pub high: AtomicU32,
    /// Where the next search for dead owners starts.
    pub cursor: AtomicU32,
    pub(crate) _pad2: AtomicU32,
    /// Processes that found no free entry.
    pub processes_lost: AtomicU32,
    /// Calls that went through without a decision, by [`Unshaped`].
    pub unshaped: [AtomicU64; 16],
    /// Flags of [`flags`].
    pub flags: AtomicU32,
    pub(crate) _pad1: AtomicU32,
    /// The longest single wait, ns.
    pub longest_wait_ns: AtomicU64,
    /// Process id of the service's keeper, which finds helpers for those who ask in
    /// `entering`; 0 for none.
    pub keeper: AtomicU32,
    /// Advances with each question; the keeper sleeps on it.
    pub bell: AtomicU32,
    /// Who asks for the program that it runs next to be entered.
    pub entering: [Enter; ENTERING],
    /// The path of the extension, which ends with a zero; empty where there is none.
    pub extension: [AtomicU64; PATH],
    /// The path of its group's segment, likewise.
    pub group: [AtomicU64; PATH],
    /// Bytes read and written through rings and queues, which the kernel does not count
    /// in `/proc/PID/io`.
    pub beside: [AtomicU64; 2],
    /// Bytes of files that programs have mapped to read, and to write, while such calls were under limits.
    pub mapped: [AtomicU64; 2],
    /// Bytes that the kernel counts as read and written, and that no call of a program has moved: starts of programs, and helpers.
    pub overhead: [AtomicU64; 2],
}

/// A process about to run a program without a loader; see `entering`.
#[derive(Debug)]
#[repr(C)]
pub struct Enter {
    /// The process, or thread, that asks: the word of a [`crate::ProcessId`]; 0 for free.
    pub asker: AtomicU64,
    /// How far it is: a futex word.
    pub state: AtomicU32,
    /// The process that answers, in the namespace of the keeper.
    pub helper: AtomicU32,
}

/// A cache line of its own for the epoch: read by every call, written at a change.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Epoch(pub AtomicU32);

/// Bits of [`Header::flags`].
pub mod flags {
    /// Do not patch system call sites: exported symbols only.
    pub const NO_PATCH: u32 = 1;
    /// The limits hold against hostile programs: the supervisor decides.
    pub const ENFORCED: u32 = 2;
    /// What cannot be covered is not started.
    pub const STRICT: u32 = 4;
    /// Event loops are not made to wait: readiness is withheld from them.
    pub const EVENT_LOOPS: u32 = 8;
    /// The extension is wanted from the start.
    pub const EXTENDED: u32 = 16;
    /// Event loops are made to wait, whatever the limits are.
    pub const NO_EVENT_LOOPS: u32 = 32;
    /// Readiness may have been withheld: calls that wait for it are looked at for good.
    pub const LOOPS_SEEN: u32 = 64;
    /// Calls on descriptors that do not block are refused instead of delayed.
    pub const LOOPS_NOW: u32 = 128;
    /// There are limits on some descriptors, or on each.
    pub const NARROWED: u32 = 256;
    /// Somebody has a ring in sight: the closing of descriptors is decided on.
    pub const RINGS: u32 = 512;
    /// Calls of code that cannot be patched are trapped, in the processes that have such.
    pub const TRAP: u32 = 1024;
    /// The service ends with its supervisor, and a program with whoever enters it.
    pub const ENDS: u32 = 2048;
    /// Requests of a server's clients draw on the limits, as `pread64` and `pwrite64`, and nothing else does.
    pub const REQUESTS: u32 = 4096;
    /// `bonsai run` is under a seccomp filter that allows every call of the interposer's own.
    pub const FILTER_ALLOWS: u32 = 8192;
    /// A process has said on standard error that calls inside its libc are not seen.
    pub const UNSEEN: u32 = 16384;
    /// A process has said on standard error that it makes limited calls by instructions that cannot be replaced.
    pub const HOLES: u32 = 32768;
}

/// Why calls went through without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Unshaped {
    /// Before the process had attached.
    Early,
    /// A wait could not be made (the futex call failed).
    WaitFailed,
    /// More limits applied to the call than can be waited for together.
    TooManyLimits,
    /// A call at a patched site had another number than the site's.
    OtherNumber,
    /// It would have been decided on by the extension, which could not be loaded: limits
    /// on some descriptors, groups and rings.
    NotExtended,
    /// There was no room for the bucket of its stream.
    NoStream,
    /// The path of its descriptor could not be found out.
    NoPath,
    /// The segment of the service's group could not be mapped, or its place in there went
    /// to another service.
    NoGroup,
    /// It went through a ring or queue that could not be looked into, or asked for what is
    /// not known.
    Ring,
}

/// The words of a bucket that every ticket changes: two lines, so that the
/// neighbour is not fetched along with them.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct BucketLine {
    /// Units ever asked for, by the lowest bit of `generation`.
    pub issued: [AtomicU64; 2],
    /// Units out as leases, and in the upper half the epoch they belong to.
    pub leased: AtomicU64,
    /// Advances when the line starts anew: when it is given to another limit, and
    /// when its rate drops so far that waiting in the old order means nothing.
    pub generation: AtomicU32,
    /// Until then leases are booked before their tickets are taken: one that was due had
    /// found no room. ms, modulo 2^32.
    pub short_until_ms: AtomicU32,
    /// Units that went through under a limit on some descriptors, or per stream; not
    /// counted for others.
    pub used: AtomicU64,
    /// Waits imposed by such a limit, ns, and how many.
    pub waited: [AtomicU64; 2],
}

/// The name of a limit, and the descriptors that it is for.
#[derive(Debug)]
#[repr(C)]
pub struct Label {
    /// The limit as it was written, without its rate: the name of a call or class, and
    /// what narrows it down. UTF-8, padded with zeros.
    pub name: [AtomicU64; LIMIT_NAME / 8],
    /// The same for machines; see [`crate::Scope`].
    pub scope: [AtomicU64; 4],
}

/// The bucket of one stream under one limit; see `streams.rs`.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StreamLine {
    /// Which stream under which limit; 0 for free, 1 while it is given out.
    pub(crate) key: AtomicU64,
    /// Units ever asked for, on the curve of the limit.
    pub(crate) issued: AtomicU64,
    /// The generation of the limit's line that `issued` belongs to.
    pub(crate) generation: AtomicU32,
    /// The descriptor's number in the process that used it first.
    pub(crate) fd: AtomicU32,
    /// Number of that process in its pid namespace.
    pub(crate) pid: AtomicU32,
    /// Pid namespace of that process.
    pub(crate) namespace: AtomicU32,
    /// Units that went through.
    pub(crate) used: AtomicU64,
    /// Waits imposed, ns.
    pub(crate) waited_ns: AtomicU64,
    /// How many.
    pub(crate) waits: AtomicU64,
    /// Units that are taken already and not used yet: epoch << 32 | units.
    pub(crate) lease: AtomicU64,
}

/// Where the system call instructions of libraries are.
#[derive(Debug)]
#[repr(C)]
pub struct SiteTable {
    /// The libraries, free ones with a count of 0.
    pub libs: [SiteLib; SITE_LIBS],
    /// Offset from the load base | number << 32 | (1 if the comparison is with
    /// -4095 instead of -4096, 2 if there is none, 3 for libc's function `syscall`, which
    /// is entered in processes that run already) << 48 | bytes to be moved << 50;
    /// the number 65535 if it is not known.
    pub sites: [AtomicU64; SITES],
}

/// One library of a [`SiteTable`].
#[derive(Debug)]
#[repr(C)]
pub struct SiteLib {
    /// The first 24 bytes of its GNU build-id, padded with zeros.
    pub build_id: [AtomicU64; 3],
    /// Index of its first site.
    pub first: AtomicU32,
    /// How many it has.
    pub count: AtomicU32,
    pub(crate) _pad: [AtomicU64; 4],
}

/// One process.
#[derive(Debug)]
#[repr(C)]
pub struct Process {
    /// Identity of the process: the word of a [`crate::ProcessId`], 0 for free.
    pub id: AtomicU64,
    /// Bits of [`coverage`].
    pub coverage: AtomicU32,
    /// Sites patched.
    pub sites: AtomicU32,
    /// Why it is not (fully) covered: a [`Reason`].
    pub reason: AtomicU32,
    pub(crate) _pad0: AtomicU32,
    /// When it attached, ns of the monotonic clock.
    pub attached_ns: AtomicU64,
    /// What attaching took, ns.
    pub attach_cost_ns: AtomicU64,
    /// The file name of its program, last 40 bytes, padded with zeros.
    pub program: [AtomicU64; 5],
    /// Sites of libraries other than libc that could not be patched.
    pub missed: AtomicU64,
    /// Part of the process in [`Header::beside`], if `beside_of` is its identity.
    pub beside: [AtomicU64; 2],
    /// The process that has counted there.
    pub beside_of: AtomicU64,
    /// Calls that came by a trap.
    pub trapped: AtomicU64,
    /// When it was about to run a program in which the library or the engine has not come up since,
    /// ns of the monotonic clock; 0 once it has.
    pub expected_ns: AtomicU64,
    /// Entries of system calls of which a site could not be replaced, a bit each.
    pub unseen: [AtomicU64; 2],
    /// Part of the process in [`Header::mapped`], if `mapped_of` is its identity.
    pub mapped: [AtomicU64; 2],
    /// The process that has mapped these.
    pub mapped_of: AtomicU64,
    /// Bytes that the process had read and written before it was put under limits, if `before_of` is its identity.
    pub before: [AtomicU64; 2],
    /// The process that was put under limits as it ran.
    pub before_of: AtomicU64,
}

/// Bits of [`Process::coverage`].
pub mod coverage {
    /// The interposer runs in it.
    pub const ATTACHED: u32 = 1;
    /// libc's system call sites are patched.
    pub const PATCHED: u32 = 2;
    /// It runs under a seccomp filter: calls of our own are made only if that allows them.
    pub const GUARDED: u32 = 4;
    /// It is about to run a program that cannot be entered.
    pub const UNCOVERED: u32 = 8;
    /// The extension is loaded.
    pub const EXTENDED: u32 = 16;
    /// It submits through rings (io_uring) or queues (libaio), which is charged as it
    /// enters.
    pub const RINGS: u32 = 32;
    /// It asked for a ring that a kernel thread polls, and enters it by calls instead.
    pub const UNPOLLED: u32 = 64;
    /// A kernel thread polls a ring of it: what goes through that is not seen.
    pub const POLLED: u32 = 128;
    /// Calls of its code that cannot be patched are trapped.
    pub const TRAPPED: u32 = 256;
    /// It has code that could be neither patched nor put under the trap.
    pub const UNTRAPPED: u32 = 512;
    /// Calls that must not block are delayed: readiness is waited for by calls that are not seen.
    pub const LOOPS_UNSEEN: u32 = 1024;
    /// Likewise: a descriptor is in several epoll sets.
    pub const LOOPS_SEVERAL: u32 = 2048;
    /// Likewise: a descriptor is above 65,535, or under more limits than can be kept for it.
    pub const LOOPS_BEYOND: u32 = 4096;
}

/// Why a process is not, or not fully, covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// It is covered.
    None,
    /// Memory protection forbids changing libc's text.
    PatchDenied,
    /// Its libc has no known sites (musl, or an unknown build).
    NoSites,
    /// Patching was switched off.
    PatchOff,
    /// The program is statically linked.
    Static,
    /// The program is set-user-ID, set-group-ID or has file capabilities.
    SetId,
    /// The program is for another architecture.
    ForeignArch,
    /// The interposer or the ledger cannot be opened as the current user.
    NoAccess,
    /// Valgrind runs it: its calls are those of the program within, where the library is.
    Valgrind,
    /// Calls made through its libc at the start were not seen (an unknown build).
    Unseen,
    /// The interposer or the ledger is not there in its view of the file system.
    NoFile,
    /// The ledger cannot be written in its view of the file system.
    ReadOnly,
    /// Neither library nor engine came up in it.
    NotArrived,
}

impl Reason {
    /// The reason of that number; unknown numbers read as [`Reason::None`].
    #[must_use]
    pub const fn from_u32(n: u32) -> Self {
        match n {
            1 => Self::PatchDenied,
            2 => Self::NoSites,
            3 => Self::PatchOff,
            4 => Self::Static,
            5 => Self::SetId,
            6 => Self::ForeignArch,
            7 => Self::NoAccess,
            8 => Self::Valgrind,
            9 => Self::Unseen,
            10 => Self::NoFile,
            11 => Self::ReadOnly,
            12 => Self::NotArrived,
            _ => Self::None,
        }
    }

    /// In words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::None => "covered",
            Self::PatchDenied => {
                "libc may not be patched here: calls inside libc (stdio) are unseen"
            }
            Self::NoSites => {
                "this libc's call sites are not known: calls inside libc (stdio) are unseen"
            }
            Self::PatchOff => "patching is switched off: calls inside libc (stdio) are unseen",
            Self::Static => "statically linked: cannot be entered",
            Self::SetId => "set-user-ID or file capabilities: the loader refuses to be entered",
            Self::ForeignArch => "for another architecture: cannot be entered",
            Self::NoAccess => {
                "changed user or rights: the interposer or its ledger may not be opened any more"
            }
            Self::Valgrind => "statically linked, and run by valgrind: cannot be entered",
            Self::NoFile => {
                "changed root or mounts: the interposer or its ledger is not there any more"
            }
            Self::ReadOnly => {
                "its view of the file system is read-only: the ledger cannot be opened for writing"
            }
            Self::NotArrived => {
                "the library did not come up in it: it ran without limits, or ended before"
            }
            Self::Unseen => {
                "calls that this libc makes at the start were not seen: calls inside libc (stdio) are unseen"
            }
        }
    }
}

/// Waits imposed on calls.
#[derive(Debug)]
#[repr(C)]
pub struct DelayShard {
    /// By call.
    pub rows: [DelayRow; ROWS],
}

/// Waits imposed on one call.
#[derive(Debug)]
#[repr(C)]
pub struct DelayRow {
    /// How many fell into each bucket of `bonsai_stats::bucket_of`.
    pub buckets: [AtomicU64; DELAYS],
    /// Their sum, ns.
    pub sum_ns: AtomicU64,
    pub(crate) _pad: AtomicU64,
}

/// What one thread has done: one page. The interposer's own state of a thread
/// has the same stride, so that one offset finds a call's entry in both.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub struct ThreadPage {
    /// What the thread waits for.
    pub wait: WaitNote,
    /// By call.
    pub counts: [Count; ROWS],
}

/// A wait under way, noted by the thread that waits; see `noted.rs`. Never written in
/// [`Segment::crowd`].
#[derive(Debug)]
#[repr(C)]
pub struct WaitNote {
    /// When the call began to wait, ns of the monotonic clock; 0 while it does not.
    pub(crate) since_ns: AtomicU64,
    /// Entry of the table | bucket << 8 | thread id << 32.
    pub(crate) what: AtomicU64,
    /// From when on the wait is not in [`Segment::delays`] yet.
    pub(crate) uncounted_ns: AtomicU64,
    /// When the last of its tickets is due.
    pub(crate) due_ns: AtomicU64,
    /// When the thread last went to sleep.
    pub(crate) slept_ns: AtomicU64,
    pub(crate) _pad: [AtomicU64; 3],
}

/// Calls and their units.
#[derive(Debug)]
#[repr(C)]
pub struct Count {
    /// Calls made.
    pub calls: AtomicU64,
    /// Bytes moved.
    pub bytes: AtomicU64,
    /// Calls that previous processes had counted when this one took the page over.
    pub base_calls: AtomicU64,
    /// Bytes, likewise.
    pub base_bytes: AtomicU64,
}

#[cfg(not(any(loom, miri)))]
mod frozen {
    use super::*;
    use core::mem::{offset_of, size_of};

    const _: () = {
        assert!(size_of::<Header>() == 4096);
        assert!(offset_of!(Header, epoch) == 128);
        assert!(offset_of!(Header, high) == 256);
        assert!(offset_of!(Header, keeper) == 416);
        assert!(offset_of!(Header, entering) == 424);
        assert!(size_of::<Enter>() == 16);
        assert!(size_of::<Config>() == 8192);
        assert!(size_of::<BucketLine>() == 128);
        assert!(size_of::<Label>() == 192);
        assert!(size_of::<SiteTable>() == 8 * 64 + SITES * 8);
        assert!(size_of::<Process>() == 192);
        assert!(DELAYS == bonsai_stats::BUCKETS);
        assert!(size_of::<DelayRow>() == 528);
        assert!(size_of::<ThreadPage>() == 4096);
        assert!(offset_of!(ThreadPage, counts) == 64);
        assert!(size_of::<WaitNote>() == 64);
        assert!(offset_of!(WaitNote, slept_ns) == 32);
        assert!(size_of::<Count>() == 32);
        assert!(offset_of!(Segment, configs) == 4096);
        assert!(offset_of!(Segment, lines) == 20_480);
        assert!(offset_of!(Segment, labels) == 28_672);
        assert!(offset_of!(Segment, sites) == 40_960);
        assert!(offset_of!(Segment, owners) == 49_280);
        assert!(offset_of!(Segment, processes) == 65_664);
        assert!(offset_of!(Segment, delays) == 114_816);
        assert!(size_of::<StreamLine>() == 64);
        assert!(FIXED_LEN <= 256 * 1024);
        assert!(FIXED_LEN.is_multiple_of(4096));
    };
}
