//! When a lease has to be booked before its ticket is taken.

mod common;

use bonsai_calls::WRITE_FILE;
use common::{S, Scratch};

#[test]
fn leases_are_booked_beforehand_for_a_while_after_one_was_refused() {
    let scratch = Scratch::new();
    scratch.set_bytes("write", 1_000_000, 20_000, S);
    let ledger = &scratch.ledger;
    let (_, mask, _) = ledger.mask(WRITE_FILE);
    assert!(!ledger.leases_are_short(mask, S), "none was refused");

    ledger.refuse_lease(mask, 2 * S);
    assert!(
        ledger.leases_are_short(mask, 2 * S),
        "one was refused just now"
    );
    assert!(ledger.leases_are_short(mask, 31 * S));
    assert!(!ledger.leases_are_short(mask, 33 * S), "that is long ago");
}

#[test]
fn of_a_ticket_that_is_looked_at_late_less_becomes_a_lease() {
    let scratch = Scratch::new();
    scratch.set_bytes("write", 1_000_000, 20_000, S);
    let ledger = &scratch.ledger;
    let (_, mask, bytes) = ledger.mask(WRITE_FILE);
    let tickets = ledger.take(mask, bytes, 6_000, 0, S).expect("a ticket");
    let due = ledger.due(&tickets, S);
    let fresh = |ms: u64| ledger.fresh(&tickets, (5_000, 0), due + ms * 1_000_000).0;
    // Half of the burst is the bucket's: 10 ms.
    assert_eq!(fresh(0), 5_000, "in time");
    assert_eq!(fresh(5), 5_000, "as late as may be");
    assert_eq!(fresh(8), 2_000, "three milliseconds' worth is lost");
    assert_eq!(fresh(10), 0);
    assert_eq!(fresh(1_000), 0, "long ago");
}
