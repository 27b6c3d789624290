//! How many files may be open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files to so many, or as far as it goes; how many there may be then.
///
/// # Errors
/// What the system says.
pub(crate) fn allow(needed: u64) -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= needed {
        return Ok(soft);
    }
    // Root may raise the hard limit, too.
    setrlimit(Resource::RLIMIT_NOFILE, needed, hard.max(needed))
        .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard.min(needed), hard))?;
    getrlimit(Resource::RLIMIT_NOFILE).map(|(allowed, _)| allowed)
}
