//! `bonsai run --cpu`: a control group for the program, its part of the CPUs, and their end.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use bonsai_cgroup::{Cpu, Error, Hierarchies, OwnGroup};
use bonsai_services::refusal::Refusal;
use bonsai_units::{Change, CpuTerms};

use crate::cgroup::refused;
use crate::cpu;
use crate::output::say;

/// How often it is looked for new threads, which begin without a reserve.
const SWEEP: Duration = Duration::from_millis(100);

/// The part of the CPUs of a service that is about to be started, or runs.
#[derive(Debug)]
pub(super) struct Share {
    group: OwnGroup,
    cpu: Cpu,
    terms: CpuTerms,
}

impl Share {
    /// Makes the group, puts this process into it, and weight and quota into force; nothing where
    /// nothing is asked for. What is started from now on is in it.
    ///
    /// # Errors
    /// What is asked for cannot be had; nothing is left behind.
    pub(super) fn enter(terms: Option<&CpuTerms>, name: &str) -> anyhow::Result<Option<Self>> {
        let Some(terms) = terms else {
            return Ok(None);
        };
        let hierarchies = Hierarchies::read().map_err(refused)?;
        let cpu = cpu::open()?;
        if let Change::To(reserve) = terms.reserve {
            // Asked before anything is made: afterwards the program would have been started.
            cpu.check(reserve).map_err(refused)?;
        }
        let group = OwnGroup::enter(&hierarchies, name).map_err(refused)?;
        let share = Self {
            group,
            cpu,
            terms: *terms,
        };
        let at_once = CpuTerms {
            reserve: Change::Keep,
            ..*terms
        };
        if !at_once.is_empty()
            && let Err(error) = share.group.set(&share.cpu, &at_once)
        {
            share.end();
            return Err(refused(error));
        }
        Ok(Some(share))
    }

    /// Takes this process out of the group, and reserves time for what was started in it.
    ///
    /// # Errors
    /// There is no room for it: the program is to be ended.
    pub(super) fn started(&self) -> anyhow::Result<()> {
        self.group.leave().map_err(refused)?;
        let Change::To(_) = self.terms.reserve else {
            return Ok(());
        };
        let reserve = CpuTerms {
            reserve: self.terms.reserve,
            ..CpuTerms::default()
        };
        match self.group.set(&self.cpu, &reserve) {
            Ok(()) => {}
            // It has ended already.
            Err(Error::Vanished { .. }) => return Ok(()),
            Err(error) => return Err(refused(error)),
        }
        let mut sweeper = self.cpu.sweeper(&self.group.target()).map_err(refused)?;
        let sweep = move || {
            let mut said = false;
            loop {
                thread::sleep(SWEEP);
                match sweeper.again() {
                    Ok(_) => said = false,
                    Err(Error::NothingHeld { .. } | Error::NoGroup { .. }) => return,
                    Err(Error::Vanished { .. }) => return,
                    Err(error) if !said => {
                        said = true;
                        say!("bonsai: new threads have no time reserved: {error}");
                    }
                    Err(_) => {}
                }
            }
        };
        let thread = thread::Builder::new().name("reserve".to_owned());
        thread.spawn(sweep).context("no thread for reserves")?;
        Ok(())
    }

    /// Gives everything back. Who still runs in the group goes on in it, as before.
    pub(super) fn end(&self) {
        // This process is in it if the program could not be started.
        let _ = self.group.leave();
        match self.cpu.clear(&self.group.target()) {
            Ok(_) | Err(Error::NothingHeld { .. } | Error::NoGroup { .. }) => {}
            Err(error) => say!("bonsai: {error}"),
        }
        if let Err(error) = self.group.remove() {
            say!("bonsai: {error}");
        }
    }
}

/// Starts something between entering the group and leaving it again.
///
/// # Errors
/// What starting it says, or that its part of the CPUs cannot be had: then all is given back. A
/// program that has been started by then has to be ended by `stop`.
pub(super) fn within<T>(
    terms: Option<&CpuTerms>,
    name: &str,
    start: impl FnOnce() -> anyhow::Result<T>,
    stop: impl FnOnce(T),
) -> anyhow::Result<(T, Option<Share>)> {
    let share = Share::enter(terms, name)?;
    let started = match start() {
        Ok(started) => started,
        Err(error) => {
            if let Some(share) = &share {
                share.end();
            }
            return Err(error);
        }
    };
    if let Some(share) = &share
        && let Err(error) = share.started()
    {
        stop(started);
        share.end();
        return Err(Refusal::input(bonsai_host::sentence(error.as_ref())));
    }
    Ok((started, share))
}
