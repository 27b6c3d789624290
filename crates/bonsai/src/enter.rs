//! `bonsai enter`: puts the engine into programs without a loader that processes of
//! a service are about to run. The keeper starts it when one asks; it stays for those that ask after that.

use std::os::fd::AsFd as _;

use bonsai_ledger::Ledger;
use bonsai_services::observe::moved_by;
use bonsai_supervisor::{Engine, EnterError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli::Enter;
use crate::library::ENGINE_LINK;

/// Enters the program of one process, or of each that asks while the keeper holds the other end of standard input.
///
/// # Errors
/// Why one was not; then it runs on, and the ledger says that it is not covered.
pub(crate) fn run(args: &Enter) -> anyhow::Result<u8> {
    let ledger = Ledger::open(&args.ledger)?;
    let engine = Engine::read(&args.ledger.with_file_name(ENGINE_LINK))?;
    let is_member = |pid| {
        matches!(
            bonsai_host::proc::has_mapped(pid, &args.ledger),
            Ok(Some(true))
        )
    };
    let entered = match args.number {
        Some(number) => bonsai_supervisor::enter(&ledger, number, &engine, is_member),
        None => bonsai_supervisor::stay(&ledger, &engine, is_member, is_left),
    };
    // Reads and writes of this process are no calls of a program, and the keeper is handed them.
    if let Some(own) = moved_by(std::process::id()) {
        ledger.count_overhead([own.read, own.written]);
    }
    match entered {
        Ok(()) | Err(EnterError::Cancelled | EnterError::Gone) => Ok(0),
        Err(error @ EnterError::Stranger(_)) => Err(error.into()),
        Err(error) => {
            Err(anyhow::Error::new(error).context("a static program runs without limits"))
        }
    }
}

/// True once the keeper has ended, or wants this to end: it has closed the pipe that is our standard input.
fn is_left() -> bool {
    let input = std::io::stdin();
    let mut fds = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut fds, Some(&at_once)) {
        Ok(_) => !fds[0].revents().is_empty(),
        Err(_) => false,
    }
}
