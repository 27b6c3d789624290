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
