//! Schemes: what becomes of each read and write of a trace, in a cache of some size.
//!
//! | scheme | a read looks for | a write |
//! |---|---|---|
//! | plain | the block | puts the block into the cache, and goes to the disk |
//! | IODEDUP | the block, and then its content in a second cache (ARC), which is part of the memory | puts both there |
//! | DRIVE | the leader of its content ([`DriveMap`](crate::drive::DriveMap)) | puts the block there, which leads then |
//! | ideal | its content: a cache without duplicates | puts the content there |
//!
//! All caches allocate on read and on write, and write through. Reads are *saved* when the disk is not
//! asked; hits of writes say what the cache had, and save nothing.

mod drive;
mod iodedup;
mod latency;
mod name;
mod outcome;
mod simple;

pub use drive::{NotAStream, check_stream, redirected};
pub use latency::Latency;
pub use name::BadScheme;
pub use outcome::Outcome;
pub use simple::contents_of;

use crate::cache::Policy;
use crate::stream::Stream;

/// What is done about equal contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Nothing.
    Plain,
    /// A second cache, by content.
    Iodedup {
        /// Its part of the memory, thousandths.
        share: u32,
        /// What a write does to what is known of a block.
        on_write: OnWrite,
    },
    /// Reads go to the leader of their content.
    Drive(Drive),
    /// One cache by content alone.
    Ideal,
}

/// How DRIVE works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drive {
    /// What a write does to what is known of a block.
    pub on_write: OnWrite,
    /// Whether contents are known before the first request, as far as the trace tells them.
    pub scan: bool,
    /// Whether contents are shared inside of a volume only.
    pub intra: bool,
    /// Bytes that the map may take; as much as it wants without.
    pub max_bytes: Option<usize>,
}

impl Drive {
    /// As the thesis has it: known by use, updated on write, shared among all.
    pub const DEFAULT: Self = Self {
        on_write: OnWrite::Update,
        scan: false,
        intra: false,
        max_bytes: None,
    };
}

/// What a write does to what is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnWrite {
    /// The new content is known ("MeU").
    Update,
    /// Nothing is known until the block is read from the disk ("MeNU").
    Invalidate,
}

/// Runs a trace: `blocks` is all memory, in blocks; `policy` is that of the cache of blocks, and of contents for the
/// ideal.
#[must_use]
pub fn run(stream: &Stream, scheme: Scheme, policy: Policy, blocks: u32) -> Outcome {
    match scheme {
        Scheme::Plain => simple::plain(stream, policy, blocks),
        Scheme::Ideal => simple::ideal(stream, policy, blocks),
        Scheme::Iodedup { share, on_write } => {
            iodedup::run(stream, policy, blocks, share, on_write)
        }
        Scheme::Drive(how) => drive::run(stream, policy, blocks, how),
    }
}
