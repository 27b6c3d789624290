//! What becomes of calls that cannot be patched, and what that costs here.

use std::time::Duration;

use bonsai_supervisor::{TrapPrice, trap_price};
use bonsai_units::format_duration_ns;

use crate::refusal::Refusal;

/// A time as it is shown.
fn shown(time: Duration) -> String {
    format_duration_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// What the trap costs.
pub(crate) fn price_of(price: &TrapPrice) -> String {
    format!(
        "+{} for each call that is trapped, and +{} for every other call of such a process",
        shown(price.trapped),
        shown(price.other)
    )
}

/// Says on standard error what the trap costs here, before anything is started.
///
/// # Errors
/// There is no seccomp here.
pub(super) fn say_price() -> anyhow::Result<()> {
    let price = trap_price().map_err(|error| {
        Refusal::input(format!(
            "calls that cannot be patched cannot be trapped here: no seccomp filters ({error})"
        ))
    })?;
    eprintln!(
        "bonsai: what cannot be patched is trapped: {}, which gains no new privileges any more",
        price_of(&price)
    );
    Ok(())
}
