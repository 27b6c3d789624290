//! Groups under every order of memory accesses, by the model checker; see `loom.rs`.
#![cfg(loom)]

#[path = "loom/common.rs"]
mod common;

use bonsai_bucket::{Curve, Terms};
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{GroupSegment, model};
use common::{CURVE, S, SHUT, check};
use loom::thread;
use std::sync::Arc;

/// A group whose pool and whose first member have these terms.
fn group(pool: &Curve, guarantee: Option<&Curve>, grain: u64) -> Arc<GroupSegment> {
    let group = model::group();
    let terms = &group.terms[0];
    terms.pools[0].curve.store(pool, 1);
    for member in &terms.members {
        member[0].grain.store(grain, Ordering::Relaxed);
        if let Some(guarantee) = guarantee {
            member[0].guarantee.store(guarantee, 1);
        }
    }
    Arc::from(group)
}

/// Two threads of one member, which claim the same place, neither lose units nor get
/// them twice: what is granted is what was counted in the pool.
#[test]
fn what_a_group_grants_is_what_it_counts() {
    check(Some(1), || {
        // The terms do not change here: without their words there is less to look at.
        let group = group(&SHUT, None, 2);
        let now = S / 100;
        let terms = Terms {
            pool: CURVE,
            guarantee: None,
            ceiling: None,
            grain: 2,
        };
        let asks = move |group: &GroupSegment| {
            let seat = group.seat(0, 0).expect("a seat");
            let ticket = seat.ask(2);
            seat.serve(&terms, ticket, now, || 2).is_none()
        };
        let other = {
            let group = Arc::clone(&group);
            thread::spawn(move || asks(&group))
        };
        asks(&group);
        other.join().expect("no panic");
        let seat = group.seat(0, 0).expect("a seat");
        let pending = u64::from(seat.member.place.0.load(Ordering::Relaxed) != 0);
        let [granted, borrowed, issued, served] = [
            seat.member.granted,
            seat.member.borrowed,
            seat.pool.issued,
            seat.member.served,
        ]
        .map(|word| word.0.load(Ordering::Relaxed));
        // The idle pool was raised to its floor of 10 before the first place.
        assert_eq!(granted, borrowed);
        assert!(granted <= 20, "more than there was");
        assert_eq!(
            issued - 10,
            2 * served,
            "a unit in the line without a place"
        );
        if pending == 0 {
            assert_eq!(issued - 10, granted);
        }
    });
}

/// Members that use their guarantees at the same instant have both of them counted.
#[test]
fn guarantees_are_counted_once_each() {
    check(Some(2), || {
        let group = group(&SHUT, Some(&CURVE), 1);
        let now = S / 100;
        let asks = move |group: &GroupSegment, member: usize| {
            let seat = group.seat(member, 0).expect("a seat");
            let ticket = seat.ask(3);
            assert!(group.serve(member, 0, ticket, now).is_none(), "it waits");
        };
        let other = {
            let group = Arc::clone(&group);
            thread::spawn(move || asks(&group, 1))
        };
        asks(&group, 0);
        other.join().expect("no panic");
        let seat = group.seat(0, 0).expect("a seat");
        let granted: u64 = (0..2)
            .filter_map(|member| group.seat(member, 0))
            .map(|seat| seat.member.granted.0.load(Ordering::Relaxed))
            .sum();
        assert_eq!(seat.pool.guaranteed.0.load(Ordering::Relaxed), granted);
        assert_eq!(granted, 6);
    });
}

/// Two threads of a member that take leases of one credit never hold more than there was,
/// nor more than is booked.
#[test]
fn leases_are_part_of_the_credit() {
    check(Some(2), || {
        let group = group(&SHUT, None, 1);
        let terms = Terms {
            pool: Curve {
                rate_milli: 2_000_000,
                ..CURVE
            },
            guarantee: None,
            ceiling: None,
            grain: 1,
        };
        let seat = group.seat(0, 0).expect("a seat");
        seat.member.granted.0.store(7, Ordering::Relaxed);
        let leases = move |group: &GroupSegment| {
            let seat = group.seat(0, 0).expect("a seat");
            let lease = seat.lease(&terms, 2, 3, 1);
            lease.map_or((0, 0), |lease| (2, lease))
        };
        let other = {
            let group = Arc::clone(&group);
            thread::spawn(move || leases(&group))
        };
        let mine = leases(&group);
        let its = other.join().expect("no panic");
        let seat = group.seat(0, 0).expect("a seat");
        let [asked, leased] =
            [seat.member.asked, seat.member.leased].map(|word| word.0.load(Ordering::Relaxed));
        assert_eq!(asked, mine.0 + mine.1 + its.0 + its.1);
        assert!(asked <= 7, "more than there was: {asked}");
        assert_eq!(leased & 0xffff_ffff, mine.1 + its.1);
        assert!(mine.1 + its.1 <= terms.leases());
        assert!(mine.0 + its.0 > 0, "one of them gets what it needs");
    });
}
