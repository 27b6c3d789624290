//! What is wanted is in force, and is gone without a trace.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bonsai_link::{Plan, Share, Terms, Wanted};

use crate::room::{PLANS, Room, block, flood, flood_while, greet, udp};

/// For how long a limit may be exceeded, where nothing is said of it.
const BURST_S: f64 = bonsai_link::rules::BURST_NS as f64 / 1e9;
const MBIT: u64 = 125_000;

fn traces(room: &Room) -> String {
    room.host("tc qdisc show") + &room.interfaces()
}

fn wanted(links: &[(u32, Terms)]) -> Wanted {
    Wanted {
        links: links.iter().cloned().collect(),
        ..Wanted::default()
    }
}

#[test]
fn limits_hold_in_both_directions_and_are_gone_without_a_trace() {
    PLANS.into_iter().for_each(hold_and_go);
}

fn hold_and_go(plan: Plan) {
    let Some(room) = Room::new("limits_hold_in_both_directions", 2) else {
        return;
    };
    let before = traces(&room);
    let mut site = room.site_by(plan);
    let terms = Terms {
        tx: Some(30 * MBIT),
        rx: Some(20 * MBIT),
        ..Terms::default()
    };
    let wants = wanted(&[(room.index("v1"), terms)]);
    let done = site.apply(&wants, &[]).expect("applied");
    assert!(done.steps > 0);
    assert_eq!(
        site.apply(&wants, &[]).expect("again").steps,
        0,
        "nothing to do"
    );
    assert_eq!(site.differs(&wants).expect("seen"), None);
    // tc sees what we see.
    let classes = room.host("tc class show dev v1");
    assert!(classes.contains("rate 30Mbit ceil 30Mbit"), "{classes}");
    assert!(
        room.host(&format!("tc class show dev {}", block(plan)))
            .contains("rate 20Mbit")
    );

    let (one, two) = (
        udp(&room.guests[0], "10.9.0.1:9000"),
        udp(&room.guests[1], "10.9.0.2:9000"),
    );
    for (from, to, rate) in [(&one, &two, 20 * MBIT), (&two, &one, 30 * MBIT)] {
        let (bytes, took) = flood(from, to, Duration::from_millis(1500));
        let allowed = rate as f64 * (took + BURST_S) + 3000.0;
        assert!(
            bytes as f64 <= allowed,
            "{bytes} B in {took} s, {allowed} allowed"
        );
        assert!(
            bytes as f64 > 0.2 * allowed,
            "{bytes} B in {took} s is far less than {allowed}"
        );
    }

    site.apply(&Wanted::default(), &[]).expect("cleared");
    assert_eq!(traces(&room), before);
    let (bytes, took) = flood(&one, &two, Duration::from_millis(200));
    assert!(
        bytes as f64 > took * 40.0 * MBIT as f64,
        "{bytes} B in {took} s without a limit"
    );
}

#[test]
fn a_share_of_an_uplink_is_kept_beside_others() {
    let Some(room) = Room::new("a_share_of_an_uplink", 2) else {
        return;
    };
    let before = traces(&room);
    let mut site = room.site();
    let uplink = room.index("out");
    let share = |guarantee| Terms {
        share: Some(Share {
            uplink,
            guarantee: Some(guarantee),
            ceiling: None,
            weight: 1,
        }),
        ..Terms::default()
    };
    let line = Terms {
        tx: Some(40 * MBIT),
        ..Terms::default()
    };
    let wants = wanted(&[
        (uplink, line.clone()),
        (room.index("v1"), share(30 * MBIT)),
        (room.index("v2"), share(10 * MBIT)),
    ]);
    site.apply(&wants, &[]).expect("applied");
    let receive = [
        udp(&room.outside, "10.9.0.100:9001"),
        udp(&room.outside, "10.9.0.100:9002"),
    ];
    let send = [
        udp(&room.guests[0], "0.0.0.0:0"),
        udp(&room.guests[1], "0.0.0.0:0"),
    ];
    let rates: Vec<f64> = std::thread::scope(|scope| {
        let flows = send
            .iter()
            .zip(&receive)
            .map(|(from, to)| scope.spawn(|| flood(from, to, Duration::from_millis(2000))));
        let flows: Vec<_> = flows.collect();
        let rate = |(bytes, took): (u64, f64)| bytes as f64 / took;
        flows
            .into_iter()
            .map(|flow| rate(flow.join().expect("done")))
            .collect()
    });
    // Each wants all of it, and gets what it is guaranteed; not more, as nothing is left.
    for (rate, guarantee) in rates.iter().zip([30.0, 10.0]) {
        let part = rate / MBIT as f64 / guarantee;
        // Less only where the machine has no time to send.
        assert!((0.5..1.15).contains(&part), "{rates:?}");
    }

    let mut more = wants.clone();
    more.links
        .insert(room.index("v2"), share(10 * MBIT + 2_000));
    let error = site.apply(&more, &[]).expect_err("too much");
    assert!(error.to_string().contains("16kbit/s more than"), "{error}");
    let mut none = wants.clone();
    none.links.remove(&uplink);
    let error = site.apply(&none, &[]).expect_err("no uplink");
    assert!(error.to_string().contains("no tx limit"), "{error}");
    assert_eq!(
        site.differs(&wants).expect("seen"),
        None,
        "nothing was changed"
    );
    // Without shares the tree of the uplink stays as it is.
    site.apply(&wanted(&[(uplink, line)]), &[])
        .expect("without shares");
    site.apply(&Wanted::default(), &[]).expect("cleared");
    assert_eq!(traces(&room), before);
}

#[test]
fn what_others_have_made_is_adopted_only_when_told_and_comes_back() {
    let Some(room) = Room::new("what_others_have_made_is_adopted", 1) else {
        return;
    };
    for foreign in [
        vec!["tc qdisc add dev v1 root handle 7: tbf rate 5mbit burst 20k latency 50ms"],
        vec![
            "tc qdisc add dev v1 root handle 8: htb default 20",
            "tc class add dev v1 parent 8: classid 8:1 htb rate 10mbit",
            "tc class add dev v1 parent 8:1 classid 8:20 htb rate 6gbit ceil 50gbit",
            "tc qdisc add dev v1 parent 8:20 handle 9: bfifo limit 100000",
            "tc filter add dev v1 parent 8: protocol ip prio 3 u32 match ip dst 10.9.0.100 flowid 8:20",
        ],
    ] {
        for line in &foreign {
            room.host(line);
        }
        let trace = || {
            let shown =
                ["qdisc", "class", "filter"].map(|of| room.host(&format!("tc {of} show dev v1")));
            // Whoever looks at a discipline is counted, and so is what passes it by itself.
            let counts = ["refcnt", "direct_packets_stat"];
            let whole = shown.concat();
            let mut before = "";
            let mut kept = Vec::new();
            for word in whole.split_whitespace() {
                if !counts.contains(&std::mem::replace(&mut before, word)) {
                    kept.push(word);
                }
            }
            kept.join(" ")
        };
        let before = trace();
        let mut site = room.site();
        let terms = Terms {
            tx: Some(30 * MBIT),
            ..Terms::default()
        };
        let index = room.index("v1");
        let wants = wanted(&[(index, terms)]);
        let error = site.apply(&wants, &[]).expect_err("somebody else's");
        assert!(error.to_string().contains("--adopt"), "{error}");
        assert_eq!(trace(), before);
        let links = site.links().expect("links");
        let link = bonsai_link::named(&links, "v1").expect("v1");
        let saved = site.save(link).expect("it can be brought back");
        site.apply(&wants, &[index]).expect("adopted");
        assert!(trace().contains("rate 30Mbit"));
        site.apply(&Wanted::default(), &[]).expect("cleared");
        site.bring_back(index, &saved).expect("brought back");
        assert_eq!(trace(), before);
        room.host("tc qdisc del dev v1 root");
    }
}

#[test]
fn one_plan_takes_the_place_of_the_other_without_a_moment_free() {
    let Some(room) = Room::new("one_plan_takes_the_place", 2) else {
        return;
    };
    let before = traces(&room);
    const RATE: u64 = 20 * MBIT;
    let terms = Terms {
        tx: Some(RATE),
        rx: Some(RATE),
        ..Terms::default()
    };
    let wants = wanted(&[(room.index("v1"), terms.clone()), (room.index("v2"), terms)]);
    let mut sites = PLANS.map(|plan| room.site_by(plan));
    sites[0].apply(&wants, &[]).expect("applied");
    let (from, to) = (
        udp(&room.guests[0], "10.9.0.1:9000"),
        udp(&room.outside, "10.9.0.100:9000"),
    );
    greet(&from, &to);
    let mut changes = 0_u32;
    // As many changes as are wanted, however long a busy machine takes; who fails here is not waited for.
    let (going, start) = (AtomicBool::new(true), Instant::now());
    let more = || going.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(60);
    let (bytes, took) = std::thread::scope(|scope| {
        let flow = scope.spawn(|| flood_while(&from, &to, more));
        while changes < 12 {
            changes += 1;
            let site = &mut sites[changes as usize % 2];
            assert!(site.differs(&wants).expect("seen").is_some());
            assert!(site.apply(&wants, &[]).expect("replaced").steps > 0);
            assert_eq!(site.differs(&wants).expect("seen"), None);
            std::thread::sleep(Duration::from_millis(50));
        }
        going.store(false, Ordering::Relaxed);
        flow.join().expect("done")
    });
    // Each has a burst of its own: what may be ahead, and a packet; and its last packet goes on credit, which ends with it.
    let bursts = f64::from(changes + 1) * (BURST_S * RATE as f64 + 2.0 * 1514.0);
    let allowed = RATE as f64 * took + bursts;
    assert!(
        bytes as f64 <= allowed,
        "{bytes} B in {took} s and {changes} changes, {allowed} allowed"
    );
    // What one has made, the other takes away.
    sites[1].apply(&wants, &[]).expect("plain");
    assert!(!room.host("tc filter show dev v1 ingress").contains("bpf"));
    assert!(room.host("ip -o link show").contains("bonsai-ifb11"));
    sites[0].apply(&Wanted::default(), &[]).expect("cleared");
    assert_eq!(traces(&room), before);
}

#[test]
fn what_takes_programs_is_refused_without_them() {
    let Some(room) = Room::new("what_takes_programs", 1) else {
        return;
    };
    let before = traces(&room);
    let uplink = room.index("out");
    let line = Terms {
        tx: Some(40 * MBIT),
        ..Terms::default()
    };
    let share = Share {
        uplink,
        guarantee: Some(MBIT),
        ceiling: None,
        weight: 1,
    };
    let shared = Terms {
        share: Some(share.clone()),
        ..Terms::default()
    };
    let mut site = room.site_by(Plan::U32);
    let wants = wanted(&[(uplink, line.clone()), (room.index("v1"), shared)]);
    let error = site.apply(&wants, &[]).expect_err("a share").to_string();
    assert!(
        error.contains("v1: shares") && error.contains("cls_bpf"),
        "{error}"
    );
    let mut wants = wanted(&[(uplink, line)]);
    let group = bonsai_link::Group {
        share,
        burst_ns: None,
        class: None,
    };
    wants.groups.insert("/a".into(), group);
    let error = site.apply(&wants, &[]).expect_err("a group").to_string();
    assert!(
        error.contains("/a: shares") && error.contains("bpf(2)"),
        "{error}"
    );
    assert_eq!(traces(&room), before);
}
