//! The enforcer against the kernel, in network namespaces.

mod apply;
mod room;
