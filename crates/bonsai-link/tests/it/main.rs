//! The enforcer against the kernel, in network namespaces.

mod apply;
mod faults;
mod groups;
mod pacing;
mod room;
mod without;
