//! Tests of media through its public interface.

mod adapting;
mod mistakes;
mod sabre;
