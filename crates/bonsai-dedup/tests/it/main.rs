//! Tests of the crate: each state machine beside a naive model of it.

mod drive;
