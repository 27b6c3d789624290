//! `bonsai enter`: puts the engine into a program without a loader that a process of
//! a service is about to run. The keeper starts it when one asks.

use bonsai_ledger::Ledger;
use bonsai_supervisor::{Engine, EnterError};

use crate::cli::Enter;
use crate::library::ENGINE_LINK;

/// Enters the program.
///
/// # Errors
/// Why it was not; then it runs on, and the ledger says that it is not covered.
pub(crate) fn run(args: &Enter) -> anyhow::Result<u8> {
    let ledger = Ledger::open(&args.ledger)?;
    let engine = Engine::read(&args.ledger.with_file_name(ENGINE_LINK))?;
    let is_member = |pid| {
        matches!(
            bonsai_host::proc::has_mapped(pid, &args.ledger),
            Ok(Some(true))
        )
    };
    match bonsai_supervisor::enter(&ledger, args.number, &engine, is_member) {
        Ok(()) | Err(EnterError::Cancelled | EnterError::Gone) => Ok(0),
        Err(error @ EnterError::Stranger(_)) => Err(error.into()),
        Err(error) => {
            Err(anyhow::Error::new(error).context("a static program runs without limits"))
        }
    }
}
