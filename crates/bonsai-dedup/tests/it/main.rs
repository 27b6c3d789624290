//! Tests of the crate: each state machine beside a naive model of it.

mod cache;
mod curve;
mod data;
mod drive;
mod golden;
mod room;
mod sample;
mod savings;
