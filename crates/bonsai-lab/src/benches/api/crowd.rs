//! Many services, without their programs: a process that holds them and counts in their ledgers
//! what their threads would have done.

use std::time::{Duration, Instant};

use bonsai_calls::CallId;
use bonsai_ledger::sync::bump;
use bonsai_ledger::{Ledger, Owner, own_process};
use bonsai_services::limits::{Limit, apply};
use bonsai_services::service::{OwnService, Services, Wanted};
use bonsai_stats::SplitMix64;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::service::monotonic_ns;

/// What a server's threads do.
const USED: [CallId; 8] = [
    bonsai_calls::READ_FILE,
    bonsai_calls::WRITE_FILE,
    bonsai_calls::RECVFROM,
    bonsai_calls::SENDTO,
    bonsai_calls::OPEN,
    bonsai_calls::CLOSE,
    bonsai_calls::ACCEPT4,
    bonsai_calls::EPOLL_WAIT,
];

/// Limits that each of them has.
const LIMITS: [&str; 4] = [
    "read=10MB/s",
    "write=10MB/s",
    "send=80Mbit/s",
    "all=10000/s",
];

/// How often is counted.
const TURN: Duration = Duration::from_millis(20);

/// What the services do.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Crowd {
    /// One in ten does the same all the time, the others nothing.
    Quiet,
    /// Each does something else every period, between nothing and twice its mean, and one in ten
    /// is held back.
    Moving,
}

impl Crowd {
    pub(crate) const ALL: [Self; 2] = [Self::Quiet, Self::Moving];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Moving => "moving",
        }
    }

    /// So many calls of each kind a turn of a service's threads each. `epoch` counts tenths of a
    /// second.
    fn calls(self, service: u64, epoch: u64) -> u64 {
        match self {
            Self::Quiet => u64::from(service.is_multiple_of(10)),
            Self::Moving => SplitMix64::new(service << 32 | epoch).below(5),
        }
    }
}

/// What the process that holds the services does until its standard input ends: it says `ready`
/// once they are there.
///
/// # Errors
/// They cannot be made.
pub(crate) fn hold(crowd: Crowd, services: u64, threads: u32) -> anyhow::Result<()> {
    let all = make(services, threads)?;
    println!("ready");
    std::thread::spawn(move || count(crowd, &all, threads));
    let mut nothing = String::new();
    // Whoever started this ends it.
    while std::io::stdin().read_line(&mut nothing)? > 0 {}
    Ok(())
}

fn make(services: u64, threads: u32) -> anyhow::Result<Vec<(OwnService, Ledger)>> {
    let limits = LIMITS.map(Limit::parse);
    let limits: Vec<Limit> = limits.into_iter().collect::<Result<_, _>>()?;
    let process = own_process();
    let mut all = Vec::new();
    for i in 0..services {
        let name = name(i);
        let own = Services::open()?.make(&Wanted::Exactly(&name))?;
        let ledger = Ledger::create(&own.ledger_path(), &name)?;
        apply(&ledger, &limits, None, monotonic_ns())?;
        for tid in 1..=threads {
            ledger.claim_page(Owner::of(process, tid), |_| false, |_| true);
        }
        all.push((own, ledger));
    }
    Ok(all)
}

/// What the service of a number is called.
pub(crate) fn name(service: u64) -> String {
    format!("service-{service}")
}

fn count(crowd: Crowd, all: &[(OwnService, Ledger)], threads: u32) {
    let start = Instant::now();
    for turn in 0_u32.. {
        let epoch = u64::from(turn / 5);
        for (service, (_, ledger)) in (0..).zip(all) {
            let calls = crowd.calls(service, epoch);
            if calls == 0 {
                continue;
            }
            for page in ledger.threads.iter().take(threads as usize) {
                for call in USED {
                    let count = &page.counts[usize::from(call)];
                    bump(&count.calls, calls);
                    bump(&count.bytes, 1000 * calls);
                }
            }
            if crowd == Crowd::Moving && service.is_multiple_of(10) {
                let now = monotonic_ns();
                let note = &ledger.threads[0].wait;
                note.sleep(bonsai_calls::SENDTO, 1, 0, now, now);
                note.end();
                ledger.record_wait(bonsai_calls::SENDTO, 1, 1000);
            }
        }
        // Whoever is late does not catch up at once: that would be a burst.
        let due = start + TURN * (turn + 1);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowds_do_what_they_are_said_to() {
        let at_work =
            |crowd: Crowd, epoch| (0..1000).filter(|i| crowd.calls(*i, epoch) > 0).count();
        assert_eq!(at_work(Crowd::Quiet, 7), 100);
        let moved =
            |crowd: Crowd| (0..1000).filter(move |i| crowd.calls(*i, 1) != crowd.calls(*i, 2));
        assert_eq!(moved(Crowd::Quiet).count(), 0);
        assert!(moved(Crowd::Moving).count() > 700);
    }
}
