//! What Bonsai reads from the machine it runs on.
//!
//! - [`elf`]: what kind of program a file is, and whether the preload library can enter it;
//! - [`lookup_program`]: which file a command name means;
//! - [`libs`]: the C library of a program, and the system call sites in it; [`libcs`]: those of a whole root file system;
//! - [`proc`]: processes, their family, counters and mappings;
//! - [`threads`]: what threads use, wait for and do; [`pressure`]: how long all of them had to wait;
//!   [`sockets`]: what lies in the queues of connections;
//! - [`inherit_sigpipe`]: a signal that programs get from our own caller;
//! - [`one_arena`]: what the allocator keeps for itself;
//! - [`bus`]: ledgers that are cut short while they are mapped;
//! - [`tenants`]: network namespaces, containers, virtual machines and control groups, and who is
//!   behind an interface;
//! - [`sys`]: what this kernel and this machine allow;
//! - [`sentence`]: an error with its causes;
//! - [`Output`]: files that users name for results;
//! - [`runtime_dir`]: the private directory that holds the services of a user; [`state_dir`]: the one for what
//!   outlives a restart.
//!
//! Everything here looks at the present moment: a process may be gone and a file may have changed
//! when the answer arrives.

pub mod bus;
pub mod elf;
mod error;
pub mod faults;
mod file_size;
mod heap;
pub mod libcs;
pub mod libs;
mod lookup;
mod mapped;
mod output;
pub mod pressure;
pub mod proc;
mod runtime;
mod sentence;
mod sigpipe;
pub mod sockets;
mod state;
pub mod sys;
pub mod tenants;
pub mod threads;

pub use error::Error;
pub use file_size::ignore_file_size_signal;
pub use heap::one_arena;
pub use lookup::{LookupError, lookup_program};
pub use output::{Output, OutputError, note_input, write_output};
pub use runtime::{
    RuntimeDirError, choose_runtime_dir, is_runtime_dir_chosen, private_dir, runtime_dir,
    runtime_dir_path,
};
pub use sentence::sentence;
pub use sigpipe::inherit_sigpipe;
pub use state::{state_dir, state_dir_path};
