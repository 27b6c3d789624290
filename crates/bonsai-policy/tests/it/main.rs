//! Tests of the policy through its public interface.

mod cases;
mod exact;
mod hysteresis;
mod invariants;
mod machine;
mod mistakes;
mod modes;
