//! What this kernel and this machine allow, found out by trying where trying does no harm.

mod cgroup;
mod kernel;
mod memory;
mod places;
mod tracing;

pub use kernel::{KernelRelease, kernel_release};

/// Whether something is possible here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// It could not be found out.
    Unknown,
}

/// An ability of the machine, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// A short, stable name, such as `futex_waitv`.
    pub name: &'static str,
    /// Whether it is there.
    pub state: State,
    /// What was found, and what follows from it, in a few words.
    pub detail: String,
}

impl Capability {
    fn new(name: &'static str, state: State, detail: impl Into<String>) -> Self {
        Self {
            name,
            state,
            detail: detail.into(),
        }
    }
}

/// Looks at everything, in the order in which it is to be shown.
///
/// Maps two pages of memory for a moment; creates and changes nothing else.
#[must_use]
pub fn capabilities() -> Vec<Capability> {
    vec![
        kernel::release(),
        kernel::futex_waitv(),
        memory::populate_write(),
        memory::wipe_on_fork(),
        memory::text_write(),
        tracing::ptrace(),
        tracing::attach(),
        tracing::other_users(),
        tracing::unfiltered(),
        cgroup::controllers(),
        places::shared_memory(),
        places::runtime_dir(),
        places::clock_source(),
        places::cpus(),
    ]
}
