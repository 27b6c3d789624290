//! Tests of the policy through its public interface.

mod adaptive;
mod admission;
mod cases;
mod exact;
mod hysteresis;
mod invariants;
mod machine;
mod mistakes;
mod modes;
mod owners;
mod pool;
mod qos;
