//! The enforcer against the kernel, in network namespaces.

mod adopted;
mod apply;
mod faults;
mod groups;
mod machine;
mod others;
mod pacing;
mod queues;
mod room;
mod senders;
#[path = "../../../bonsai-cgroup/tests/it/uml.rs"]
mod uml;
mod ways;
mod without;
