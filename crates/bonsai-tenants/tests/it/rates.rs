//! Rates that move many times a second, without a round of the keeper.

use std::collections::BTreeMap;
use std::time::Instant;

use bonsai_api::LinkState;
use bonsai_link::Events;
use bonsai_tenants::{Book, Keeper, Tuned, Wish};
use tempfile::tempdir;

use crate::support::{apart, run};

type Wishes = BTreeMap<String, Wish>;

fn wish(target: &str) -> Wish {
    Wish {
        target: target.parse().expect("a target"),
        tx: None,
        rx: None,
        guarantee: None,
        ceiling: None,
        weight: 1,
        uplink: None,
        burst_ns: None,
        adopt: false,
        of_service: true,
    }
}

/// An uplink of 80 Mbit/s, `v1` with a part of it, and `v2` with plain limits.
fn wishes() -> Wishes {
    let line = Wish {
        tx: Some(10_000_000),
        of_service: false,
        ..wish("line")
    };
    let v1 = Wish {
        guarantee: Some(5_000_000),
        uplink: Some("line".to_owned()),
        ..wish("v1")
    };
    let v2 = Wish {
        tx: Some(1_000_000),
        rx: Some(2_000_000),
        ..wish("v2")
    };
    [("line", line), ("v1", v1), ("v2", v2)]
        .map(|(name, wish)| (name.to_owned(), wish))
        .into()
}

fn has(device: &str, rate: &str) -> bool {
    run(&format!("tc class show dev {device}")).contains(&format!("rate {rate} "))
}

#[test]
fn rates_move_without_a_round_and_the_next_one_finds_them_as_they_are() {
    let name = "rates_move_without_a_round_and_the_next_one_finds_them_as_they_are";
    if !apart("rates", name) {
        return;
    }
    for end in ["line", "v1", "v2"] {
        run(&format!("ip link add {end} type veth peer name p-{end}"));
        run(&format!("ip link set {end} up"));
    }
    let folder = tempdir().expect("a folder");
    let mut keeper = Keeper::new(folder.path().to_owned());
    let mut wanted = wishes();
    let round = keeper.round(&wanted, Instant::now()).expect("a round");
    let in_force = |of: &bonsai_tenants::Granted| of.state == LinkState::InForce;
    assert!(round.granted.values().all(in_force), "{:?}", round.granted);
    // What is named itself is the machine's end: what the service sends, that receives.
    assert!(has("line", "40Mbit") && has("bonsai-ifb", "8Mbit") && has("v2", "16Mbit"));
    let mut events = Events::open(None).expect("it listens");
    events.leave_out(Some(keeper.port().expect("a way")));
    let get = |of: &mut Wishes, name: &str, change: &dyn Fn(&mut Wish)| {
        change(of.get_mut(name).expect("it is wanted"));
    };
    for mbit in (10..40).step_by(5) {
        let rate = mbit * 125_000;
        get(&mut wanted, "v1", &|wish| wish.guarantee = Some(rate));
        get(&mut wanted, "v2", &|wish| {
            (wish.tx, wish.rx) = (Some(rate), Some(2 * rate));
        });
        assert_eq!(keeper.tune(&wanted).expect("tuned"), Tuned::Done);
        let (one, two) = (format!("{mbit}Mbit"), format!("{}Mbit", 2 * mbit));
        assert!(
            has("line", &one) && has("bonsai-ifb", &one) && has("v2", &two),
            "{mbit}"
        );
    }
    let heard = events.heard().expect("it listens");
    assert!(
        !heard.control && !heard.links,
        "it is our own doing: {heard:?}"
    );
    // The book is behind until it is noted, and the next round has nothing to do.
    let noted = || {
        let book = Book::read(folder.path()).expect("the book");
        let links = book.rooms().values().flat_map(|room| room.links.values());
        let v2 = links
            .into_iter()
            .find(|entry| entry.name == "v2")
            .expect("v2");
        v2.terms.rx
    };
    assert!(keeper.is_behind());
    assert_eq!(noted(), Some(1_000_000));
    keeper.note().expect("noted");
    assert_eq!((noted(), keeper.is_behind()), (Some(35 * 125_000), false));
    let round = keeper.round(&wanted, Instant::now()).expect("a round");
    assert_eq!((round.steps, round.repairs), (0, 0));
    // While somebody else changes something, nothing moves.
    let other = Book::lock(folder.path()).expect("the lock");
    get(&mut wanted, "v2", &|wish| wish.tx = Some(3_000_000));
    assert_eq!(keeper.tune(&wanted).expect("tuned"), Tuned::Later);
    assert!(has("bonsai-ifb", "35Mbit"));
    drop(other);
    assert_eq!(keeper.tune(&wanted).expect("tuned"), Tuned::Done);
    assert!(has("bonsai-ifb", "24Mbit"));
    // Somebody else's changes are heard all the same.
    run("tc qdisc replace dev lo root pfifo limit 7");
    assert!(events.heard().expect("it listens").control);
}

#[test]
fn more_than_rates_waits_for_a_round() {
    let name = "more_than_rates_waits_for_a_round";
    if !apart("rates", name) {
        return;
    }
    for end in ["line", "v1", "v2"] {
        run(&format!("ip link add {end} type veth peer name p-{end}"));
    }
    let folder = tempdir().expect("a folder");
    let mut keeper = Keeper::new(folder.path().to_owned());
    let before = wishes();
    keeper.round(&before, Instant::now()).expect("a round");
    let shown = || ["line", "v2", "bonsai-ifb"].map(|of| run(&format!("tc class show dev {of}")));
    let there = shown();
    let changes: [&dyn Fn(&mut Wishes); 5] = [
        &|of| drop(of.remove("v2")),
        &|of| drop(of.insert("v3".to_owned(), wish("v3"))),
        &|of| of.get_mut("v2").expect("it").rx = None,
        &|of| of.get_mut("v1").expect("it").uplink = None,
        // More than the uplink has: who cannot have it is found out by a round.
        &|of| of.get_mut("v1").expect("it").guarantee = Some(11_000_000),
    ];
    for (turn, change) in changes.into_iter().enumerate() {
        let mut wanted = before.clone();
        change(&mut wanted);
        assert_eq!(keeper.tune(&wanted).expect("tuned"), Tuned::Round, "{turn}");
        assert_eq!(shown(), there, "{turn}");
    }
    // Who is not there has nothing that could move.
    let mut wanted = before.clone();
    wanted.insert(
        "later".to_owned(),
        Wish {
            rx: Some(1_000_000),
            ..wish("later")
        },
    );
    let round = keeper.round(&wanted, Instant::now()).expect("a round");
    assert_eq!(round.granted["later"].state, LinkState::Waiting);
    wanted.get_mut("later").expect("it").rx = Some(2_000_000);
    assert_eq!(keeper.tune(&wanted).expect("tuned"), Tuned::Later);
    assert_eq!(
        keeper.tune(&wanted).expect("tuned"),
        Tuned::Done,
        "it is known"
    );
}
