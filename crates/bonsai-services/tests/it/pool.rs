//! The group of a daemon.

use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Ledger, MEMBERS, Part};
use bonsai_services::group::{self, DAEMON_POOL, Pool, Terms, Wishes, leave};
use bonsai_services::initial::join_out_of_pool;
use bonsai_services::service::Service;
use bonsai_units::Resource;

use crate::support::{service, within};

const SEND: (Resource, u64) = (Resource::Send, 100_000_000_000);
const CALLS: (Resource, u64) = (Resource::Calls, 5_000_000);

fn part(guarantee_milli: u64, ceiling_milli: u64, weight: u64) -> Part {
    Part {
        guarantee_milli,
        ceiling_milli,
        weight,
    }
}

/// What calls of the class draw on of the group.
fn grouped(ledger: &Ledger, call: bonsai_calls::CallId) -> u8 {
    ledger.with_config(|config| config.grouped(call)).1
}

#[test]
fn terms_are_written_once_and_together() {
    within("pool::terms_are_written_once_and_together", || {
        let pool = Pool::open_or_create("pool", &[SEND, CALLS]).expect("made");
        assert_eq!(pool.rates(), [SEND, CALLS]);
        let epoch = || pool.group().epoch();
        let (a, a_ledger) = service("a");
        let (b, b_ledger) = service("b");
        let own = part(40_000_000_000, 90_000_000_000, 3);
        let number = pool.join(&a, &a_ledger, &[(Resource::Send, own)]);
        let number = number.expect("it joins");
        let other = pool.join(&b, &b_ledger, &[]).expect("it joins");
        assert_eq!(pool.number_of(&a_ledger), Some(number));
        assert_eq!(grouped(&a_ledger, bonsai_calls::SENDTO).count_ones(), 2);
        assert_eq!(grouped(&a_ledger, bonsai_calls::OPEN).count_ones(), 1);
        let terms = |number, resource, part| Terms {
            number,
            resource,
            part,
        };
        let before = epoch();
        let same = [terms(number, Resource::Send, own)];
        assert!(!pool.set_terms(&same).expect("in force"));
        assert!(!pool.set(&[CALLS, SEND], &same).expect("in force"));
        assert_eq!(epoch(), before, "nothing is written that is in force");
        // All of it, in one change.
        let both = [
            terms(number, Resource::Send, part(70_000_000_000, 0, 5)),
            terms(other, Resource::Send, part(30_000_000_000, 0, 1)),
            terms(other, Resource::Calls, part(1_000_000, 2_000_000, 7)),
        ];
        assert!(pool.set_terms(&both).expect("they fit"));
        assert_eq!(epoch(), before + 1);
        let too_much = [terms(other, Resource::Send, part(30_000_000_001, 0, 1))];
        let refused = pool.set_terms(&too_much).expect_err("too much");
        assert!(refused.to_string().contains("come to more than it has"));
        assert_eq!(epoch(), before + 1, "nothing has changed");
        // Less of it, and less for everybody, in one change as well.
        let less = [
            terms(number, Resource::Send, part(10_000_000_000, 0, 5)),
            terms(other, Resource::Send, part(10_000_000_000, 0, 1)),
        ];
        let half = (Resource::Send, 50_000_000_000);
        assert!(pool.set(&[half, CALLS], &less).expect("they fit"));
        assert_eq!((epoch(), pool.rates()), (before + 2, vec![half, CALLS]));
        let members = pool.members();
        let seen: Vec<_> = members
            .iter()
            .map(|m| (&*m.service, m.alive, m.shares[2].map(|s| s.part)))
            .collect();
        let wanted = [
            ("a", true, Some(part(10_000_000_000, 0, 5))),
            ("b", true, Some(part(10_000_000_000, 0, 1))),
        ];
        assert_eq!(seen, wanted);
        assert!(pool.leave(&a_ledger).expect("left"));
        assert!(!pool.leave(&a_ledger).expect("is out"));
        assert_eq!(grouped(&a_ledger, bonsai_calls::SENDTO), 0);
        assert_eq!(pool.members().len(), 1);
        // Who is out is passed over.
        assert!(!pool.set_terms(&both[..1]).expect("no member"));
    });
}

#[test]
fn what_a_pool_shares_may_change_under_its_members() {
    within(
        "pool::what_a_pool_shares_may_change_under_its_members",
        || {
            let pool = Pool::open_or_create("pool", &[SEND]).expect("made");
            let (a, ledger) = service("a");
            pool.join(&a, &ledger, &[]).expect("it joins");
            assert_eq!(grouped(&ledger, bonsai_calls::OPEN), 0);
            assert!(pool.set_rates(&[SEND, CALLS]).expect("set"));
            assert_eq!(grouped(&ledger, bonsai_calls::OPEN).count_ones(), 1);
            let shares = &pool.members()[0].shares;
            assert_eq!(shares[4].map(|s| s.part), Some(Part::PLAIN));
            assert!(pool.set_rates(&[CALLS]).expect("set"));
            assert_eq!(grouped(&ledger, bonsai_calls::SENDTO).count_ones(), 1);
            assert!(pool.number_of(&ledger).is_some());
        },
    );
}

#[test]
fn a_pool_that_a_dead_daemon_has_left_goes_on() {
    within("pool::a_pool_that_a_dead_daemon_has_left_goes_on", || {
        let (a, a_ledger) = service("a");
        let (b, b_ledger) = service("b");
        let own = [(Resource::Send, part(80_000_000_000, 0, 3))];
        let number = {
            let pool = Pool::open_or_create("pool", &[SEND]).expect("made");
            pool.join(&b, &b_ledger, &[]).expect("it joins");
            pool.join(&a, &a_ledger, &own).expect("it joins")
        };
        let pool = Pool::open_or_create("pool", &[SEND]).expect("opened");
        assert_eq!(pool.number_of(&a_ledger), Some(number));
        let there = pool.tidy().expect("looked");
        assert_eq!(there.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(there["a"], number);
        // There is less than what was guaranteed.
        let less = (Resource::Send, 50_000_000_000);
        let pool = Pool::open_or_create("pool", &[less]).expect("opened");
        assert_eq!(pool.rates(), [less]);
        assert_eq!(pool.members().len(), 2);
        // What is no group any more is made anew, and its members join again.
        std::fs::write(pool.group().path(), "nothing").expect("written");
        let pool = Pool::open_or_create("pool", &[SEND]).expect("made anew");
        assert_eq!(pool.number_of(&a_ledger), None);
        assert_eq!(pool.members().len(), 0);
        pool.join(&a, &a_ledger, &own).expect("it joins again");
        assert!(leave(&b_ledger).expect("left").is_some());
    });
}

/// Of who has ended without a word, the number is free; of who goes on without its keeper,
/// it is not.
#[test]
fn numbers_of_who_has_ended_are_free() {
    within("pool::numbers_of_who_has_ended_are_free", || {
        let pool = Pool::open_or_create("pool", &[SEND]).expect("made");
        let (a, ledger) = service("a");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .env("BONSAI_LEDGER", a.ledger_path())
            .spawn()
            .expect("sleep");
        // Its keeper is a process that has died.
        let dead = std::process::Command::new("true").spawn();
        let mut dead = dead.expect("true");
        let number = pool.join(&a, &ledger, &[]).expect("it joins");
        pool.group().members[0]
            .pid
            .store(dead.id(), Ordering::Relaxed);
        dead.wait().expect("ended");
        assert!(!pool.members()[0].alive);
        let left = Service {
            name: "a".to_owned(),
            folder: a.folder.clone(),
        };
        drop(a);
        // The kernel lets the parent of a new program go on before it has closed what the program
        // is not to have: the lock, too.
        let began = std::time::Instant::now();
        while left.has_keeper().expect("asked") {
            assert!(began.elapsed().as_secs() < 10, "its keeper has let go");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let there = pool.tidy().expect("looked");
        assert_eq!(there.get("a"), Some(&number));
        assert!(pool.members()[0].alive, "it belongs to the child now");
        child.kill().expect("killed");
        child.wait().expect("ended");
        let owner = pool.group().reports().remove(0).who;
        assert!(!pool.members()[0].alive, "{owner:?}, not {}", child.id());
        assert!(pool.tidy().expect("looked").is_empty());
        assert_eq!((pool.members().len(), pool.free()), (0, MEMBERS));
    });
}

#[test]
fn a_full_pool_refuses_one_more() {
    within("pool::a_full_pool_refuses_one_more", || {
        let pool = Pool::open_or_create("pool", &[SEND]).expect("made");
        let all: Vec<_> = (0..MEMBERS).map(|i| service(&format!("s{i}"))).collect();
        for (own, ledger) in &all {
            pool.join(own, ledger, &[]).expect("it joins");
        }
        assert_eq!(pool.free(), 0);
        let (one, ledger) = service("one-more");
        let refused = pool.join(&one, &ledger, &[]).expect_err("full");
        assert!(
            refused.to_string().contains("members are in use"),
            "{refused}"
        );
        assert!(ledger.membership().is_none());
        pool.leave(&all[7].1).expect("left");
        pool.join(&one, &ledger, &[]).expect("it joins");
    });
}

#[test]
fn a_group_is_joined_while_a_daemon_takes_the_service_into_its_pool() {
    let test = "pool::a_group_is_joined_while_a_daemon_takes_the_service_into_its_pool";
    within(test, || {
        let pool = Pool::open_or_create(DAEMON_POOL, &[SEND]).expect("made");
        let chosen = Pool::open_or_create("chosen", &[SEND]).expect("made");
        let (a, ledger) = service("a");
        let into_chosen = || group::join(&a, &ledger, chosen.group(), &Wishes::default());
        // The daemon looks before it, at the last moment, or not at all.
        for look in ["before", "between", "never"] {
            if look == "before" {
                pool.join(&a, &ledger, &[]).expect("it joins");
            }
            let number = join_out_of_pool("a", &ledger, || {
                if look == "between" {
                    pool.join(&a, &ledger, &[]).expect("it joins");
                }
                into_chosen()
            });
            let number = number.expect("written").0.expect("it joins");
            assert_eq!(chosen.number_of(&ledger), Some(number), "{look}");
            assert_eq!(grouped(&ledger, bonsai_calls::SENDTO).count_ones(), 1);
            assert!(pool.members().is_empty(), "{look}");
            let refused = pool.join(&a, &ledger, &[]).expect_err("it is elsewhere");
            assert!(refused.to_string().contains("the group chosen already"));
            leave(&ledger).expect("left");
        }
        // A joining that fails leaves it where it is.
        pool.join(&a, &ledger, &[]).expect("it joins");
        let wishes = Wishes::parse(&["read=1MB/s".to_owned()], &[], None).expect("wishes");
        let joined = join_out_of_pool("a", &ledger, || {
            group::join(&a, &ledger, chosen.group(), &wishes)
        });
        joined.expect("written").0.expect_err("it shares no reads");
        assert!(pool.number_of(&ledger).is_some());
    });
}
