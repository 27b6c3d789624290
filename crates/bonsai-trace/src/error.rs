//! What can be wrong with a trace.

use std::io;

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is below failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It begins otherwise.
    #[error("this is no .btr trace: it begins otherwise")]
    NoTrace,
    /// A version that is not known here.
    #[error("the trace is of version {found} of the format; version {known} is read here")]
    Version {
        /// That of the file.
        found: u16,
        /// The one that is known.
        known: u16,
    },
    /// Something was changed.
    #[error("the trace is damaged after record {record}, at byte {offset}: {what}")]
    Damaged {
        /// Requests before it.
        record: u64,
        /// Where the damaged part begins, bytes from the start of the file.
        offset: u64,
        /// What was found.
        what: &'static str,
    },
    /// It ends too early.
    #[error(
        "the trace is cut off after record {record}, at byte {offset}: its last part is missing"
    )]
    Truncated {
        /// Requests before it.
        record: u64,
        /// Where the part begins that is not whole, bytes.
        offset: u64,
    },
    /// A request that there cannot be.
    #[error("request {record} cannot be: {what}")]
    Request {
        /// Its number, from 1.
        record: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Numbers do not suffice.
    #[error("there are too many {what}; at most {most} are possible")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: u64,
    },
    /// A record of another format that is wrong.
    #[error("{0}")]
    Record(#[from] BadRecord),
}

/// A record of another format that cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("record {record} (byte {offset}): {what}; right would be {right}")]
pub struct BadRecord {
    /// Its number, from 1: lines, those without a request too.
    pub record: u64,
    /// Where it begins, bytes from the start of the input.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub right: String,
}
