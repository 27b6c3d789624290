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
    let pid = ledger.asked(args.number).map(|asked| asked.pid());
    // Whoever can write the ledger can write any number there; we may have more rights.
    let is_member = |pid| bonsai_host::proc::has_mapped(pid, &args.ledger);
    if let Some(stranger) = pid.filter(|pid| !matches!(is_member(*pid), Ok(Some(true)))) {
        anyhow::bail!("process {stranger} asks to be entered, and does not belong to the service");
    }
    match bonsai_supervisor::enter(&ledger, args.number, &engine) {
        Ok(()) | Err(EnterError::Cancelled | EnterError::Gone) => Ok(0),
        Err(error) => {
            if let Some(pid) = pid {
                bonsai_supervisor::not_covered(&ledger, pid);
            }
            Err(anyhow::Error::new(error).context("a static program runs without limits"))
        }
    }
}
