//! Traces as others meet them: written, read, damaged, imported, described and made anew.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "of numbers that a test makes small"
)]

mod binary;
mod data;
mod foreign;
mod format;
mod import;
mod merge;
mod stat;
mod tools;
mod twin;
