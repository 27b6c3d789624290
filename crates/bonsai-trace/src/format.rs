//! The format of `.btr` files: frames of volumes, fingerprints and requests, each compressed and checked.
//!
//! | part | is |
//! |---|---|
//! | header, 16 bytes | magic, version, checksum |
//! | frames | 24 bytes of header with checksums of itself and of what follows |
//! | last frame | how many of all there were: without it the file is cut off |
//!
//! The course has the layout byte by byte (`docs/17-traces.md`). A request takes a byte of flags, and as
//! many as their values need for its time, volume, offset, length and contents: at most 16 bytes, as long
//! as it comes within 268 ms of the one before, on a volume of at most 1 TB, and has one block.
#![expect(
    clippy::cast_possible_truncation,
    reason = "of lengths that are checked, or of the low bits alone"
)]

mod columns;
mod frame;
mod reader;
mod writer;

pub use columns::Batch;
pub use reader::{Accesses, Reader, is_trace};
pub use writer::{Writer, Written};
