//! What is known of calls, symbols and sites: tables without pointers.

include!(concat!(env!("OUT_DIR"), "/pools.rs"));

/// What a fast path knows of its symbol or site.
#[repr(C)]
pub(crate) struct Site {
    /// The system call number.
    pub(crate) nr: u32,
    /// 32 * the first entry of its call: where that stands in `Own` and `ThreadPage`.
    pub(crate) offset: u16,
    /// Bits of [`flag`].
    pub(crate) flags: u8,
    /// The number of the symbol.
    pub(crate) symbol: u8,
}

impl Site {
    /// The first entry of its call.
    #[expect(clippy::cast_possible_truncation, reason = "there are 121 entries")]
    pub(crate) const fn call(&self) -> u8 {
        (self.offset / 32) as u8
    }
}

const _: () = assert!(size_of::<Site>() == 8);

pub(crate) mod flag {
    /// `preadv2`: libc's fifth argument is the system call's sixth.
    pub(crate) const FLAGS_LAST: u8 = 1;
    /// libc's function is a cancellation point.
    pub(crate) const CANCELLABLE: u8 = 2;
    /// A slot of a patched site, not a symbol.
    pub(crate) const SLOT: u8 = 4;
    /// The symbol is hand-written.
    pub(crate) const OWN: u8 = 8;
    /// libc's own function runs after the decision.
    pub(crate) const TAIL: u8 = 16;
    /// The symbol is no more than its system call, and has a fast path.
    pub(crate) const PLAIN: u8 = 32;
    /// Slot of a libc's cancellation point: its calls are made by the point's own instruction.
    pub(crate) const IN_PLACE: u8 = 64;
    /// Slot of a libc: its call may have any number.
    pub(crate) const ANY: u8 = 8;
    /// glibc makes the call by its cancellation point, where it has one.
    pub(crate) const POINT: u8 = 128;
}

/// How many symbols there are.
pub(crate) const SYMBOLS: usize = HASHES.len();

/// What [`FACTS`] says of an entry.
pub(crate) mod fact {
    /// Bytes come in.
    pub(crate) const IN: u8 = 1;
    /// Bytes go out.
    pub(crate) const OUT: u8 = 2;
    /// There is an entry for each kind of descriptor.
    pub(crate) const KINDS: u8 = 4;
    /// It sends on a socket.
    pub(crate) const SENDS: u8 = 8;
    /// It receives or accepts on a socket.
    pub(crate) const RECEIVES: u8 = 16;
    /// The kernel does not let signals interrupt it.
    pub(crate) const WHOLE: u8 = 32;
    /// A signal handler ends it, with `SA_RESTART` as well.
    pub(crate) const ENDS: u8 = 64;
}

/// What is known of an entry; nothing of one that does not exist.
pub(crate) fn facts(call: u8) -> u8 {
    FACTS.get(usize::from(call)).copied().unwrap_or(0)
}
