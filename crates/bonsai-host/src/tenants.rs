//! Tenants of the machine: who is behind a network interface, and what is needed to shape whom.
//!
//! [`Tenants::look`] makes one picture of the machine: network namespaces with their names, TUN and
//! TAP interfaces with the processes that hold them, containers, virtual machines, control groups.
//! From an interface to its tenant go [`Tenants::behind_tap`], [`Tenants::behind_macvtap`] and
//! [`Tenants::behind_netns`] (for the namespace that the other end of a veth is in, which netlink
//! tells); back, from what a user says, goes [`Tenants::find`].
//!
//! Everything is read from procfs, `/run` and the files of container engines, in one pass over the
//! processes; no daemon is asked and no program is run. Processes come and go meanwhile, so all of
//! this is how it was: who acts on it opens the namespace by [`Tenants::open_netns`], which makes
//! sure that it is the one that was seen. Names come from whoever runs a container or a machine:
//! any user can call theirs as they like. So a name that means two tenants is refused, and
//! [`Behind::describe`] is fit for a terminal whatever they are called.
//!
//! A thread of a process may be in another network namespace than its main thread; only the main
//! thread's counts here.
//!
//! Cost, in CPU time, on a virtual machine with 2 CPUs and Linux 6.18: 50 ms for 1,000 processes (40
//! to 60), and 4 us for each descriptor that one of them has open, so 90 to 110 ms if each has ten.
//! Nearly all of it is the kernel's. So look when an interface or a namespace comes or goes, or
//! somebody asks, and not many times a second; [`Tenants::look_without_taps`] saves the
//! descriptors. `examples/tenants.rs` measures it.

mod behind;
mod containers;
mod error;
mod find;
mod group_files;
mod groups;
mod ioctl;
mod look;
mod machines;
mod namespaces;
mod roots;
mod taps;
mod words;

pub use behind::{Behind, Kind};
pub use containers::{Container, Engine, Pod, of_monitor};
pub use error::TenantError;
pub use find::{Network, Target, Who};
pub use group_files::GroupFolder;
pub use groups::{Groups, Mark, mark, parse as parse_groups};
pub use look::{Seen, Tenants};
pub use machines::{Hypervisor, Machine, hypervisor, machine};
pub use namespaces::{
    Namespace, NsId, OpenNetns, open as open_netns, open_path as open_netns_path,
};
pub use roots::Roots;
pub use taps::{Tap, TapKind, interface};
pub use words::plain;

/// The fewest digits of a container's ID that are taken for it. Docker and Podman take any number
/// that is unambiguous; but a limit on the wrong container does more harm than a look at it.
const SHORTEST_ID: usize = 6;
