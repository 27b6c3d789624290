//! Services that are not a `bonsai run`, on the real kernel: interfaces and namespaces with traffic,
//! processes in control groups of whatever version is mounted. `machine` runs what is about groups
//! again on a kernel that has version 2.

mod conflicts;
mod counted;
mod groups;
mod machine;
#[path = "../../../bonsai-cgroup/tests/it/manager.rs"]
mod manager;
mod newcomers;
mod rates;
mod support;
#[path = "../../../bonsai-cgroup/tests/it/uml.rs"]
mod uml;
mod units;
#[path = "../../../bonsai-cgroup/tests/it/version_two.rs"]
mod version_two;
mod whose;
