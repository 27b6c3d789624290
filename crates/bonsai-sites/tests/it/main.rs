//! The search on hand-made bytes, on bytes that nobody wrote, and on the machine's own glibc.

mod empty;
mod glibc;
mod moved;
mod random;
mod table;
