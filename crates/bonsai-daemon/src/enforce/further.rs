//! Further limits of services, as they are configured.

use std::collections::BTreeMap;

use bonsai_ledger::Ledger;

/// Puts the further limits of a service into force, as far as they differ from those of
/// `before`.
pub(crate) fn put_further(
    id: &str,
    ledger: &Ledger,
    configured: &BTreeMap<String, String>,
    before: &BTreeMap<String, String>,
    now_ns: u64,
) -> anyhow::Result<()> {
    if configured == before {
        return Ok(());
    }
    let mut change = configured.clone();
    change.retain(|name, setting| before.get(name) != Some(setting));
    for name in before.keys().filter(|name| !configured.contains_key(*name)) {
        change.insert(name.clone(), "unlimited".to_owned());
    }
    let limits = crate::plan::further(id, &change).map_err(anyhow::Error::msg)?;
    bonsai_services::limits::apply(ledger, &limits, None, now_ns)?;
    Ok(())
}
