//! Which slots there are: a number for each call with a fast path of its own,
//! and shared pools for the rest.

use bonsai_calls as calls;

/// How a fast path treats its call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Body {
    /// Bytes in. `flags`: the register whose `MSG_PEEK`, `MSG_TRUNC` and
    /// `MSG_ERRQUEUE` bits send it the slow way.
    In {
        flags: Option<&'static str>,
        kinds: bool,
    },
    /// Bytes out. `len`: the register with their number; none for vectors.
    Out {
        len: Option<&'static str>,
        kinds: bool,
    },
    /// Calls only; the entry is in the site's record.
    Count,
    /// Likewise, and the result is a new descriptor.
    CountFd,
    /// `close`.
    Close,
    /// No fast path.
    Slow,
}

/// One pool of slots.
pub(crate) struct Pool {
    /// The entry it is for; `None` for a shared pool.
    pub(crate) call: Option<u8>,
    /// Its fast path.
    pub(crate) body: Body,
    /// Slots.
    pub(crate) count: usize,
}

/// A large lease is enough for a vectored call without adding its lengths up.
pub(crate) const VECTORS_FROM: u32 = 1 << 20;

const fn own(call: u8, body: Body, count: usize) -> Pool {
    Pool {
        call: Some(call),
        body,
        count,
    }
}

const fn shared(body: Body, count: usize) -> Pool {
    Pool {
        call: None,
        body,
        count,
    }
}

const fn input(kinds: bool) -> Body {
    Body::In { flags: None, kinds }
}

const fn output(len: &'static str, kinds: bool) -> Body {
    Body::Out {
        len: Some(len),
        kinds,
    }
}

const fn vectors(kinds: bool) -> Body {
    Body::Out { len: None, kinds }
}

/// Every pool, in the order of their slots. Debian's glibc 2.36 and its loader
/// have 174 sites of calls in the table; 2.31 and its libpthread have half as many again.
/// Calls that hardly any program makes often have no fast path.
pub(crate) const POOLS: &[Pool] = &[
    own(calls::READ_FILE, input(true), 12),
    own(calls::READV_FILE, input(true), 2),
    own(calls::PREAD64, input(false), 8),
    own(
        calls::RECVFROM,
        Body::In {
            flags: Some("r10d"),
            kinds: false,
        },
        8,
    ),
    own(
        calls::RECVMSG,
        Body::In {
            flags: Some("edx"),
            kinds: false,
        },
        4,
    ),
    own(calls::WRITE_FILE, output("rdx", true), 8),
    own(calls::WRITEV_FILE, vectors(true), 3),
    own(calls::PWRITE64, output("rdx", false), 4),
    own(calls::SENDTO, output("rdx", false), 8),
    own(calls::SENDMSG, vectors(false), 4),
    own(calls::SENDFILE_FILE, output("r10", true), 1),
    shared(Body::Close, 10),
    shared(Body::CountFd, 40),
    shared(Body::Slow, 60),
    shared(Body::Count, 140),
];

/// The fast path of an entry.
pub(crate) fn body_of(call: u8) -> Body {
    if let Some(pool) = POOLS.iter().find(|p| p.call == Some(call)) {
        return pool.body;
    }
    match call {
        calls::CLOSE => Body::Close,
        calls::OPEN | calls::OPENAT | calls::OPENAT2 | calls::CREAT | calls::SOCKET => {
            Body::CountFd
        }
        calls::ACCEPT | calls::ACCEPT4 | calls::DUP | calls::DUP2 | calls::DUP3 => Body::CountFd,
        calls::IO_URING_SETUP => Body::CountFd,
        calls::CLOSE_RANGE | calls::EXECVE | calls::EXECVEAT => Body::Slow,
        _ if calls::CALLS[usize::from(call)].moves_bytes() => Body::Slow,
        _ => Body::Count,
    }
}

/// The pools as a Rust table: first slot, slots, and for which entries.
pub(crate) fn rust_table() -> String {
    let counted = |p: &Pool| p.call.is_none() && p.body == Body::Count;
    let count_pool = POOLS.iter().position(counted).expect("a pool of its own");
    let mut text = format!(
        "/// The pool of calls without bytes.\npub(crate) const COUNT_POOL: u8 = {count_pool};\n\
         /// A large lease: vectored calls need not add their lengths up.\n\
         pub(crate) const VECTORS_FROM: u32 = {VECTORS_FROM};\n\
         /// How many slots each pool has.\n\
         pub(crate) static POOLS: [u8; {}] = {:?};\n\
         /// By first entry of a call: its pool.\n\
         pub(crate) static POOL_OF: [u8; {}] = [\n",
        POOLS.len(),
        POOLS.iter().map(|p| p.count).collect::<Vec<_>>(),
        calls::CALLS.len()
    );
    for call in 0..u8::try_from(calls::CALLS.len()).expect("the table is short") {
        let body = body_of(call);
        let pool = POOLS
            .iter()
            .position(|p| p.call == Some(call) || (p.call.is_none() && p.body == body));
        text += &format!("{},", pool.expect("every body has a pool"));
    }
    text + "];\n" + &facts()
}

/// The tables of calls and symbols without pointers: each of those would be
/// relocated at every start of a program.
fn facts() -> String {
    use bonsai_calls::symbols::SYMBOLS;
    use calls::signals::Interruption;
    use calls::{Class, Fd, Shape};
    let mut text = format!(
        "/// Bits of `fact`, by entry.\npub(crate) static FACTS: [u8; {}] = [",
        calls::CALLS.len()
    );
    for (id, call) in (0..).zip(calls::CALLS) {
        let shape = match call.shape {
            Shape::Count => 0,
            Shape::In => 1,
            Shape::Out => 2,
        };
        let kinds = u8::from(call.fd != Fd::Any) << 2;
        let send = u8::from(call.classes.contains(Class::Send)) << 3;
        let receives = call.classes.contains(Class::Recv) || call.classes.contains(Class::Accept);
        let interruption = calls::signals::interruption(id);
        let whole = u8::from(interruption == Interruption::Never) << 5;
        let ends = u8::from(interruption == Interruption::Ends) << 6;
        text += &format!(
            "{},",
            shape | kinds | send | u8::from(receives) << 4 | whole | ends
        );
    }
    // As in DT_GNU_HASH.
    let hash = |s: &bonsai_calls::symbols::Symbol| {
        let step = |h: u32, b: u8| h.wrapping_mul(33).wrapping_add(u32::from(b));
        s.name.bytes().fold(5381, step)
    };
    let hashes: Vec<u32> = SYMBOLS.iter().map(hash).collect();
    let distinct: std::collections::HashSet<u32> = hashes.iter().copied().collect();
    assert_eq!(distinct.len(), hashes.len(), "two names with one hash");
    text += &format!(
        "];\n/// The hashes of the symbols' names.\npub(crate) static HASHES: [u32; {}] = {hashes:?};\n",
        hashes.len()
    );
    let through: Vec<usize> = POOLS
        .iter()
        .filter_map(|p| Some(crate::symbols::named_as(p.call?)))
        .collect();
    text += &format!(
        "/// A symbol of each call with a path of its own, in the order of their pools.\n\
         pub(crate) static THROUGH: [u8; {}] = {through:?};\n",
        through.len()
    );
    text
}
