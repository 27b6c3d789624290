//! What services did, second by second, and who changed what: kept in SQLite files that
//! never grow beyond their bounds.
//!
//! | file | what is in it | written |
//! |---|---|---|
//! | `history.sqlite` | points of 1 s, 1 min and 1 h | once a second, WAL, `synchronous=NORMAL` |
//! | `audit.sqlite` | the audit trail, learned state, the overlay | at each change, WAL, `synchronous=FULL` |
//! | `audit.jsonl` | the audit trail once more, for other programs | appended, fsync'd, rotated |
//! | `history.lock` | who writes | held as long as it writes |
//!
//! Two databases, because what they hold differs: points are many and may lose their last
//! second, changes are few and may not; and a damaged one does not take the other with it.
//!
//! # Story of a point
//! A [`Tick`] is one row of `open_second`, all services in it, one transaction. When its minute
//! has passed, or 20 of its seconds wait, their rows become a block for each service (table
//! `second`) or are added to it, and to one row of `open_minute` with least, sum and most of each
//! value. When its hour has passed,
//! those become blocks of the table `minute` and a row of `open_hour`; a day later, `hour`.
//! `codec` says what is in the bytes.
//!
//! # Invariants
//! 1. Each second that was observed is in exactly one of: a block of `second` and the tiers
//!    above it, or the row of `open_second`. So nothing is counted twice, whatever the
//!    clock does.
//! 2. A second that was written is never overwritten: the first that comes is kept.
//! 3. What was not observed is not there. It is not zero.
//! 4. `history.sqlite` and its WAL are together at most [`Options::points_bytes`], `audit.sqlite`
//!    and its WAL at most [`Options::audit_bytes`] and [`Options::state_bytes`] and 2 MB.
//! 5. Work per tick is bounded by the number of services.
//! 6. No fault of the disk or of the files stops the caller: what cannot be written is
//!    counted, and [`State`] says why in a sentence.
#![forbid(unsafe_code)]

mod audit;
mod codec;
mod database;
mod error;
mod export;
mod history;
mod jsonl;
mod lock;
mod model;
mod options;
mod points;
mod query;
mod reader;
mod records;
mod writer;

pub use audit::{Actor, AuditEntry, AuditFilter, AuditRow, Difference, Via};
pub use codec::{DecodeError, Level};
pub use error::Error;
pub use export::{COLUMNS, Column, Export, Exported, Format};
pub use history::{Counters, History, State, Status};
pub use jsonl::AuditLog;
pub use model::{Point, Sample, Tick};
pub use options::Options;
pub use query::{Query, Series, Slot, Stat, Which};
pub use reader::{KnownService, Reader};
pub use records::Blob;
pub use writer::Writer;

#[doc(hidden)]
pub mod fuzz;
