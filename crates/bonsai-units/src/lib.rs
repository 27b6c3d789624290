//! Words for quantities: how much, how fast, how long, and the limit made of them.
//!
//! | type | written as | kept as |
//! |---|---|---|
//! | [`Rate`] | `10MB/s`, `10MiB/s`, `80Mbit/s`, `100/s` | thousandths of a byte or call per second |
//! | [`Bytes`] | `1MB`, `64KiB`, `1448B` | bytes |
//! | [`Burst`] | `10ms`, `1MB`, `20calls` | what was written |
//! | duration ([`parse_duration`]) | `10ms`, `1.5s`, `2min` | [`Duration`](core::time::Duration) |
//! | [`Resource`] | `read`, `write`, `send`, `recv`, `calls` | which |
//! | [`DiskTerms`] | `read=50MB/s write=1000/s` | what becomes of each of four limits |
//! | [`CpuTerms`] | `weight=200,quota=150%,reserve=1.9ms/10ms` | what becomes of each of three |
//! | [`LimitSpec`] | `write=5MB/s:burst=1MB`, `send=unlimited` | name and [`Setting`] |
//!
//! # Invariants
//! 1. Reading is exact: decimal arithmetic on integers, never a float. What
//!    cannot be kept exactly is refused, not rounded.
//! 2. `Display` is exact: [`FromStr`](core::str::FromStr) reads it back to the
//!    same value. What is rounded for people has another name:
//!    [`Rate::storage`], [`Rate::network`], [`Bytes::human`],
//!    [`format_duration_ns`].
//! 3. A unit is always written. A bare number is refused, because the reader
//!    who writes 10 may mean bytes, bits, calls or milliseconds.
//! 4. Every refusal is one sentence that names the text and what would be right.
//!
//! # Prefixes
//! `k`, `M`, `G`, `T` are powers of 1000, `Ki`, `Mi`, `Gi`, `Ti` powers of
//! 1024 (IEC 80000-13). `K` alone is refused: tools disagree on what it means.
//!
//! ```
//! use bonsai_units::{LimitSpec, Rate, Setting};
//!
//! let limit: LimitSpec = "send=80Mbit/s:burst=64KiB".parse()?;
//! let Setting::Rate { rate, burst } = limit.setting else { panic!() };
//! assert_eq!(rate, Rate::bytes_per_sec(10_000_000));
//! assert_eq!(rate.network(), "80 Mbit/s");
//! assert_eq!(burst.unwrap_or_default().units(rate)?, 65_536);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod burst;
mod bytes;
mod change;
mod cpu;
mod date;
mod disk;
mod duration;
mod error;
mod limit;
mod number;
mod print;
mod rate;
mod resource;
pub mod text;

pub use burst::{Burst, BurstError, DEFAULT_BURST};
pub use bytes::Bytes;
pub use change::Change;
pub use cpu::{CpuTerms, CpuTermsError, Quota, Reserve, SpanError};
pub use date::{format_date, format_utc};
pub use disk::{DiskTerms, DiskTermsError};
pub use duration::{format_duration_ns, parse_duration};
pub use error::{ParseError, Quantity};
pub use limit::{LimitError, LimitSpec, Setting, SettingError};
pub use rate::{Rate, Unit};
pub use resource::{Resource, ResourceError};
