//! Each export is a service: it has a ledger, by which it is limited, and seen.

use std::path::Path;
use std::sync::Arc;

use bonsai_ledger::Ledger;
use bonsai_nbd::throttle::{self, Throttle};
use bonsai_services::limits::{self, Limit};
use bonsai_services::observe::monotonic_ns;
use bonsai_services::service::{OwnService, Services, Wanted, check_name, name_like};

use super::escape::say;
use crate::run::{begin_with_limits, lift_without_daemon};

/// The services of a server; they go with this.
#[derive(Debug, Default)]
pub(super) struct Made(Vec<OwnService>);

impl Drop for Made {
    fn drop(&mut self) {
        for service in self.0.drain(..) {
            // What is left is removed by whoever looks next.
            let _ = service.remove();
        }
    }
}

impl Made {
    /// Makes the service of an export. It has its name, unless that is no name of a service, or in use by another
    /// one: then it is told which it has. Whoever limits an export means that name and no other.
    ///
    /// # Errors
    /// The name is in use, and limits are asked for; limits that cannot be held; no room.
    pub(super) fn make(&mut self, export: &str, limits: &[Limit]) -> anyhow::Result<Throttle> {
        let like = name_like(Path::new(export));
        let wanted = match check_name(export) {
            Ok(()) if !limits.is_empty() => Wanted::Exactly(export),
            _ => Wanted::Like(&like),
        };
        let service = Services::open()?.make(&wanted)?;
        let (path, name) = (service.ledger_path(), service.name.clone());
        self.0.push(service);
        let ledger = Ledger::create(&path, &name)?;
        throttle::declare(&ledger);
        limits::apply(&ledger, limits, None, monotonic_ns())?;
        let provisional = begin_with_limits(&name, &ledger);
        if !provisional.is_empty() {
            lift_without_daemon(provisional, Arc::new(Ledger::open(&path)?));
        }
        if name != export {
            say!("bonsai: the export {export} is the service {name}");
        }
        Ok(Throttle::new(ledger))
    }
}
