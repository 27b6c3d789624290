//! The enforcer against the kernel, in network namespaces.

mod apply;
mod faults;
mod pacing;
mod room;
