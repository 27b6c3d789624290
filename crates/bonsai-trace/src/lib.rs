//! Block traces: who read and wrote which blocks of which device when, and what they held.
//!
//! | type | is |
//! |---|---|
//! | [`Request`], [`Access`] | a request, and its part of one block of 4096 bytes |
//! | [`stat::Stat`] | what a trace is like; distances of reuse |
//! | [`twin::twin`] | a trace like another |
//! | [`import`] | traces in the formats of others |
//! | [`Merged`] | several traces as one, by their times |
//! | [`Reader`], [`Writer`] | traces in Bonsai's format, `.btr`; [`Interning`] numbers volumes and contents |
//!
//! Nothing here opens a file or reads a clock: bytes come from [`std::io::Read`] and go to
//! [`std::io::Write`], seeds are arguments.
//!
//! ```
//! use bonsai_trace::{Digest, Interning, Op, Reader, Request, Sink};
//!
//! let mut trace = Interning::new(Vec::new())?;
//! let volume = trace.volume("vda")?;
//! let content = trace.content(Digest([7; 16]))?;
//! let read = Request { time_ns: 1_000, volume, offset: 8_192, length: 4_096, op: Op::Read, contents: &[content] };
//! trace.request(&read)?;
//! let (file, _) = trace.finish()?;
//!
//! let mut reader = Reader::new(&file[..])?;
//! let access = reader.accesses().next().expect("one")?;
//! assert_eq!((access.block, access.content), (2, Some(content)));
//! # Ok::<(), bonsai_trace::Error>(())
//! ```
#![forbid(unsafe_code)]

mod error;
mod format;
pub mod import;
mod intern;
mod merge;
mod model;
pub mod stat;
pub mod twin;

pub use error::{BadRecord, Error};
pub use format::{Accesses, Batch, Reader, Writer, Written, is_trace};
pub use intern::{Contents, Interning};
pub use merge::{Merged, Which};
pub use model::{Access, BLOCK, Digest, MAX_END, MAX_LENGTH, Op, Request, Sink, Volume};
