//! The service that a server runs in, and the rate that it is allotted there.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use bonsai_ledger::Ledger;
use bonsai_services::allotted;
use bonsai_services::observe::monotonic_ns;
use bonsai_stream::serve::Allotted;

use crate::run::own_ledger;

/// How often the ledger is looked into.
const LOOKS: Duration = Duration::from_millis(250);

/// The service that this process is of.
pub(super) struct Own {
    pub(super) name: String,
    path: PathBuf,
}

impl Own {
    /// `None` outside of a service, and in one whose ledger is kept from its processes.
    pub(super) fn find() -> Option<Self> {
        let path = own_ledger()?;
        let name = path.parent()?.file_name()?.to_string_lossy().into_owned();
        Some(Self { name, path })
    }

    /// Tells from now on what it is allotted.
    ///
    /// # Errors
    /// The ledger cannot be opened, or there is no thread for it.
    pub(super) fn follow(&self, allotted: Arc<Allotted>) -> anyhow::Result<()> {
        let mut looker = allotted::Allotted::new(Ledger::open(&self.path)?);
        allotted.set(looker.look(monotonic_ns()));
        let follow = move || {
            loop {
                thread::sleep(LOOKS);
                allotted.set(looker.look(monotonic_ns()));
            }
        };
        let thread = thread::Builder::new().name("allotted".to_owned());
        thread.spawn(follow).context("no thread for the ledger")?;
        Ok(())
    }
}
