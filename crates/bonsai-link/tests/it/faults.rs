//! What others do meanwhile, and what the kernel refuses.

use std::time::Duration;

use bonsai_link::{Plan, Terms, Wanted};

use crate::machine;
use crate::room::{PLANS, Room, block, greet, run, udp};

const MBIT: u64 = 125_000;

fn both(rate: u64) -> Terms {
    Terms {
        tx: Some(rate),
        rx: Some(rate),
        ..Terms::default()
    }
}

fn wanted(index: u32, terms: Terms) -> Wanted {
    Wanted {
        links: [(index, terms)].into(),
        ..Wanted::default()
    }
}

fn traces(room: &Room) -> String {
    let filters = room.host("tc filter show dev v1 ingress");
    room.host("tc qdisc show") + &room.interfaces() + &filters
}

#[test]
fn a_change_that_is_refused_half_way_changes_nothing() {
    let Some(room) = Room::new("a_change_that_is_refused_half_way", 1) else {
        return;
    };
    // Filters of others, of another kind, have both turns of ours: that is met after the rest is made.
    room.host("tc qdisc add dev v1 clsact");
    for turn in [1, 45146] {
        room.host(&format!(
            "tc filter add dev v1 ingress pref {turn} u32 match u32 0 0 classid 1:1"
        ));
    }
    let before = traces(&room);
    let mut site = room.site();
    let error = site
        .apply(&wanted(room.index("v1"), both(30 * MBIT)), &[])
        .expect_err("the turn is taken");
    let text = error.to_string();
    assert!(
        text.contains("the filter of what is received by v1: nothing was changed"),
        "{text}"
    );
    assert_eq!(traces(&room), before);
}

#[test]
fn what_others_change_is_seen_and_mended() {
    PLANS.into_iter().for_each(mended);
}

fn mended(plan: Plan) {
    let Some(room) = Room::new("what_others_change_is_seen", 1) else {
        return;
    };
    let before = traces(&room);
    let mut site = room.site_by(plan);
    let wants = wanted(room.index("v1"), both(30 * MBIT));
    site.apply(&wants, &[]).expect("applied");
    let queue = match room.host(&format!("tc qdisc show dev {}", block(plan))) {
        shown if shown.contains("fq_codel") => "fq_codel memory_limit 3000",
        shown if shown.contains("tbf") => "tbf rate 1000gbit burst 3000 limit 3000",
        _ => "bfifo limit 3000",
    };
    let queue = format!("tc qdisc change dev BLOCK parent b05a:10 handle 10: {queue}");
    // With the last program its table goes, too.
    let of_filter = match plan {
        Plan::Bpf => "of what v1 receives",
        Plan::U32 => "the filter of what is received by v1",
    };
    for (line, words) in [
        (
            "tc class change dev v1 classid b05a:2 parent b05a:1 htb rate 1mbit ceil 2mbit",
            "class b05a:2 of v1",
        ),
        ("tc qdisc del dev v1 root", "HTB at the root of v1"),
        (&queue, "class b05a:10 of BLOCK"),
        (
            "tc qdisc replace dev BLOCK parent b05a:10 handle 77: pfifo limit 5",
            "class b05a:10 of BLOCK",
        ),
        (
            "tc qdisc del dev BLOCK parent b05a:10",
            "class b05a:10 of BLOCK",
        ),
        (
            match plan {
                Plan::Bpf => "tc filter del dev v1 ingress pref 1",
                Plan::U32 => "tc filter del dev v1 ingress pref 2",
            },
            of_filter,
        ),
        ("tc qdisc del dev v1 clsact", of_filter),
        ("ip link del BLOCK", "received by v1"),
    ] {
        let (line, words) = (
            line.replace("BLOCK", block(plan)),
            words.replace("BLOCK", block(plan)),
        );
        room.host(&line);
        let seen = site.differs(&wants).expect("seen");
        let seen = seen.unwrap_or_else(|| panic!("{line} is not seen"));
        assert!(
            line.contains("ip link del") || seen.contains(&words),
            "{line}: {seen}"
        );
        let done = site.apply(&wants, &[]).expect("mended");
        assert!(done.steps > 0, "{line}");
        assert_eq!(site.differs(&wants).expect("seen"), None, "{line}");
    }
    // A new name is the same interface.
    room.host("ip link set v1 down");
    room.host("ip link set v1 name w1");
    room.host("ip link set w1 up");
    assert_eq!(site.apply(&wants, &[]).expect("there").steps, 0);
    room.host("ip link set w1 down");
    room.host("ip link set w1 name v1");
    room.host("ip link set v1 up");
    site.apply(&Wanted::default(), &[]).expect("cleared");
    assert_eq!(traces(&room), before);
}

#[test]
fn an_interface_that_vanishes_is_named() {
    PLANS.into_iter().for_each(vanishes);
}

fn vanishes(plan: Plan) {
    let Some(room) = Room::new("an_interface_that_vanishes", 1) else {
        return;
    };
    let mut site = room.site_by(plan);
    let index = room.index("v1");
    site.apply(&wanted(index, both(30 * MBIT)), &[])
        .expect("applied");
    room.host("ip link del v1");
    let error = site
        .apply(&wanted(index, both(20 * MBIT)), &[])
        .expect_err("gone");
    assert_eq!(error.to_string(), format!("interface {index} is gone"));
    // What it left behind goes.
    site.apply(&Wanted::default(), &[]).expect("cleared");
    assert!(!room.host("ip -o link show").contains("bonsai-ifb"));
}

#[test]
fn an_interface_that_moves_away_takes_no_limit_along() {
    let Some(room) = Room::new("an_interface_that_moves_away", 1) else {
        return;
    };
    let mut site = room.site();
    let index = room.index("v1");
    let wants = wanted(index, both(30 * MBIT));
    site.apply(&wants, &[]).expect("applied");
    room.move_out("v1");
    let error = site.apply(&wants, &[]).expect_err("it is elsewhere");
    assert_eq!(error.to_string(), format!("interface {index} is gone"));
    let there = run(&room.outside, "tc qdisc show dev v1");
    assert!(!there.contains("b05a"), "{there}");
    site.apply(&Wanted::default(), &[]).expect("cleared");
    assert!(!room.host("ip -o link show").contains("bonsai-ifb"));
}

#[test]
fn a_block_whose_name_is_taken_is_said() {
    PLANS.into_iter().for_each(taken);
}

fn taken(plan: Plan) {
    let Some(room) = Room::new("a_block_whose_name_is_taken", 1) else {
        return;
    };
    room.host(&format!("ip link add {} type bridge", block(plan)));
    let before = traces(&room);
    let mut site = room.site_by(plan);
    let error = site
        .apply(&wanted(room.index("v1"), both(30 * MBIT)), &[])
        .expect_err("somebody has it");
    let words = format!("an ifb with the name {0}, and there is bridge", block(plan));
    assert!(error.to_string().contains(&words), "{error}");
    assert_eq!(traces(&room), before);
}

/// On a kernel of one's own: there, nobody else needs its modules.
#[test]
fn a_module_that_is_missing_is_said() {
    if std::env::var_os(machine::INSIDE).is_none() {
        return;
    }
    for (module, words) in [
        ("net/sched/sch_htb", "Specified qdisc kind is unknown"),
        ("drivers/net/ifb", "Unknown device type"),
    ] {
        let Some(room) = Room::new("a_module_that_is_missing", 1) else {
            return;
        };
        let before = traces(&room);
        let name = module.rsplit_once('/').expect("a path").1;
        // What earlier tests have made goes away a moment after them.
        let without =
            format!("for n in $(seq 100); do busybox rmmod {name} && exit; sleep 0.1; done");
        room.sh(&format!("{without}; false"));
        let wants = wanted(room.index("v1"), both(30 * MBIT));
        let error = room.site().apply(&wants, &[]).expect_err("it is missing");
        let why = std::error::Error::source(&error).expect("the kernel said why");
        let text = format!("{error}: {why}");
        room.sh(&format!("busybox insmod {}/{module}.ko", machine::MODULES));
        assert!(text.contains("nothing was changed"), "{text}");
        assert!(text.contains(words), "{text}");
        assert!(text.contains("no module of it is installed"), "{text}");
        assert_eq!(traces(&room), before);
        room.site().apply(&wants, &[]).expect("it is there again");
    }
}

#[test]
fn filters_of_others_stay_where_they_are() {
    PLANS.into_iter().for_each(stay);
}

fn stay(plan: Plan) {
    let Some(room) = Room::new("filters_of_others_stay", 1) else {
        return;
    };
    room.host("tc qdisc add dev v1 clsact");
    for turn in [7, 2 + u32::from(plan == Plan::U32)] {
        room.host(&format!(
            "tc filter add dev v1 ingress pref {turn} u32 match u32 0 0 classid 1:1"
        ));
    }
    let before = traces(&room);
    let mut site = room.site_by(plan);
    site.apply(&wanted(room.index("v1"), both(30 * MBIT)), &[])
        .expect("applied");
    site.apply(&Wanted::default(), &[]).expect("cleared");
    assert_eq!(traces(&room), before);
}

#[test]
fn changes_lose_and_reorder_nothing_that_is_under_its_limit() {
    PLANS.into_iter().for_each(change_without_loss);
}

fn change_without_loss(plan: Plan) {
    let Some(room) = Room::new("changes_lose_nothing", 2) else {
        return;
    };
    const PACKETS: u32 = 2000;
    let mut site = room.site_by(plan);
    let index = room.index("v1");
    site.apply(&wanted(index, both(100 * MBIT)), &[])
        .expect("applied");
    let from = udp(&room.guests[0], "10.9.0.1:9000");
    let to = udp(&room.guests[1], "10.9.0.2:9000");
    to.set_read_timeout(Some(Duration::from_secs(2)))
        .expect("set");
    greet(&from, &to);
    to.set_read_timeout(Some(Duration::from_secs(2)))
        .expect("set");
    let target = to.local_addr().expect("an address");
    let (came, changes) = std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            for number in 0..PACKETS {
                // At most 4 Mbit/s: under each of the limits.
                from.send_to(&[&number.to_ne_bytes()[..], &[0; 996]].concat(), target)
                    .expect("sent");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let receiver = scope.spawn(move || {
            let mut came = Vec::new();
            let mut buffer = [0; 2048];
            while came.len() < PACKETS as usize && to.recv(&mut buffer).is_ok() {
                let [a, b, c, d, ..] = buffer;
                came.push(u32::from_ne_bytes([a, b, c, d]));
            }
            came
        });
        let mut changes = 0;
        while !sender.is_finished() {
            // Up and down, and both directions' limits away and back.
            let terms = match changes % 4 {
                0 => both(20 * MBIT),
                1 => both(500 * MBIT),
                2 => Terms {
                    rx: Some(30 * MBIT),
                    ..Terms::default()
                },
                _ => Terms {
                    tx: Some(40 * MBIT),
                    ..both(60 * MBIT)
                },
            };
            site.apply(&wanted(index, terms), &[]).expect("changed");
            changes += 1;
        }
        (receiver.join().expect("received"), changes)
    });
    assert!(changes > 100, "{changes} changes");
    let lost = PACKETS as usize - came.len();
    assert_eq!(lost, 0, "lost by {changes} changes");
    let late = came.windows(2).find(|two| two[1] <= two[0]);
    assert_eq!(late, None, "reordered by {changes} changes");
}

#[test]
fn what_the_kernel_offers_is_tried_where_nobody_is() {
    let Some(room) = Room::new("what_the_kernel_offers", 0) else {
        return;
    };
    let before = room.host("tc qdisc show");
    let all = bonsai_link::abilities().expect("root tries");
    for needed in ["ifb", "htb", "cls_bpf", "link"] {
        let found = all.iter().find(|one| one.name == needed).expect(needed);
        assert!(found.fault.is_none(), "{found:?}");
    }
    assert_eq!(room.host("tc qdisc show"), before);
}
