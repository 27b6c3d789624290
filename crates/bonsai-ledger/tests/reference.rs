//! The ledger's line and curve are the bucket of `bonsai-bucket`: the same
//! history gives the same instants.
#![cfg(all(feature = "std", not(any(loom, miri))))]

mod common;

use bonsai_bucket::{Bucket, Ticket};
use bonsai_calls::WRITE_FILE;
use bonsai_ledger::Tickets;
use common::{S, Scratch};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Take(u64),
    /// Gives back a share of the last ticket, in 1/256.
    Refund(u8),
    /// Takes a ticket, waits for it and for a number of ns beyond, and books it as a lease.
    Lease(u64, u64),
    /// Ends the lease after a share of it was used, in 1/256.
    EndLease(u8),
    /// A new rate in thousandths of a unit per second, and a new burst.
    Retune(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rate = prop_oneof![0..3_u64, 1..10_000_000_u64, 1..100_000_000_000_000_u64];
    let step = prop_oneof![
        3 => (0..2 * S).prop_map(Step::Wait),
        4 => (1..5_000_u64).prop_map(Step::Take),
        2 => any::<u8>().prop_map(Step::Refund),
        2 => (1..2_000_u64, 0..2_000_000_000_u64).prop_map(|(units, late)| Step::Lease(units, late)),
        2 => any::<u8>().prop_map(Step::EndLease),
        2 => (rate, 1..4_000_u64).prop_map(|(r, b)| Step::Retune(r, b)),
    ];
    prop::collection::vec(step, 1..60)
}

fn share(of: u64, part: u8) -> u64 {
    of * u64::from(part) / 256
}

/// A bucket and a limit of a ledger, side by side.
#[derive(Debug)]
struct Pair {
    scratch: Scratch,
    bucket: Bucket,
    mask: u64,
    epoch: u32,
    now: u64,
    /// Every ticket of both, and its units that were not given back.
    tickets: Vec<(Tickets, Ticket, u64)>,
    /// Units of the lease, none if 0.
    lease: u64,
}

impl Pair {
    fn new(rate_milli: u64, burst: u64, now: u64) -> Self {
        let mut pair = Self {
            scratch: Scratch::new(),
            bucket: Bucket::new(rate_milli, burst, now),
            mask: 0,
            epoch: 0,
            now,
            tickets: Vec::new(),
            lease: 0,
        };
        pair.set(rate_milli, burst);
        pair.mask = pair.scratch.ledger.mask(WRITE_FILE).1;
        pair
    }

    fn set(&mut self, rate_milli: u64, burst: u64) {
        let mut editor = self.scratch.ledger.edit(self.now).unwrap();
        let write = common::select("write");
        editor.set("write", write, true, rate_milli, burst).unwrap();
        self.epoch = editor.commit();
    }

    /// Takes a ticket in both and returns when it is due.
    fn take(&mut self, units: u64) -> u64 {
        let ledger = &self.scratch.ledger;
        let tickets = ledger
            .take(self.mask, self.mask, units, 1, self.now)
            .unwrap();
        let ticket = self.bucket.take(units, self.now);
        self.tickets.push((tickets, ticket, units));
        ledger.due(&tickets, self.now)
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Wait(ns) => self.now += ns,
            Step::Take(units) => {
                self.take(units);
            }
            Step::Refund(part) => {
                if let Some((tickets, _, units)) = self.tickets.last_mut() {
                    let unused = share(*units, part);
                    *units -= unused;
                    self.scratch.ledger.refund(tickets, unused, 0);
                    self.bucket.refund(unused);
                }
            }
            Step::Lease(..) if self.lease > 0 => {}
            Step::Lease(units, late) => {
                let due = self.take(units);
                if due == u64::MAX {
                    return Ok(());
                }
                self.now = due.saturating_add(late);
                let ledger = &self.scratch.ledger;
                let (tickets, ticket, _) = self.tickets.pop().unwrap();
                let (fresh, _) = ledger.fresh(&tickets, (units, 0), self.now);
                let (got, _) = ledger.lease(self.mask, self.mask, fresh, 0, self.epoch);
                ledger.refund(&tickets, fresh - got, 0);
                prop_assert_eq!(got, self.bucket.lease(ticket, units, self.now));
                self.lease = got;
            }
            Step::EndLease(part) => {
                let unused = share(self.lease, part);
                let ledger = &self.scratch.ledger;
                ledger.end_lease(self.mask, self.mask, self.lease, 0, self.epoch);
                ledger.refund_mask(self.mask, self.mask, unused, 0);
                self.bucket.end_lease(self.lease, unused);
                self.lease = 0;
            }
            Step::Retune(rate_milli, burst) => {
                // A much lower rate starts a new line, which the bucket does not know.
                let rate_milli = rate_milli.max(self.bucket.curve().rate_milli.div_ceil(2));
                let ledger = &self.scratch.ledger;
                ledger.refund_mask(self.mask, self.mask, self.lease, 0);
                self.bucket.retune(rate_milli, burst, self.lease, self.now);
                self.lease = 0;
                self.set(rate_milli, burst);
            }
        }
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let ledger = &self.scratch.ledger;
        for (tickets, ticket, _) in &self.tickets {
            let due = self.bucket.due(*ticket, self.now);
            prop_assert_eq!(ledger.due(tickets, self.now), due);
        }
        let limits = ledger.limits(self.now);
        prop_assert_eq!(limits[0].level, self.bucket.level(self.now));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn the_ledger_and_the_bucket_agree(
        steps in steps(),
        rate_milli in 1..10_000_000_u64,
        burst in 1..4_000_u64,
        start in 0..1_u64 << 60,
    ) {
        let mut pair = Pair::new(rate_milli, burst, start);
        for step in &steps {
            pair.step(step)?;
            pair.compare()?;
        }
    }
}
