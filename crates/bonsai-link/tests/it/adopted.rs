//! Disciplines of others at a root: each kind of discipline and filter that this kernel and tc(8) make comes back
//! exactly, or is not taken over.

use std::process::Command;

use bonsai_link::{Terms, Wanted, named, namespace};
use std::os::fd::AsFd;

use crate::room::{Room, greet, udp};

const MBIT: u64 = 125_000;

/// Disciplines, with their classes; `tc` and the device are left out. `?` stands for one that is not taken over.
const DISCIPLINES: &[(&str, &[&str])] = &[
    ("pfifo", &["qdisc root handle 7: pfifo limit 77"]),
    ("bfifo", &["qdisc root handle 7: bfifo limit 77777"]),
    (
        "pfifo_head_drop",
        &["qdisc root handle 7: pfifo_head_drop limit 77"],
    ),
    ("pfifo_fast", &["qdisc root handle 7: pfifo_fast"]),
    (
        "tbf",
        &["qdisc root handle 7: tbf rate 5mbit burst 20k latency 50ms"],
    ),
    (
        "tbf peakrate",
        &[
            "qdisc root handle 7: tbf rate 5mbit burst 20k limit 99k peakrate 8mbit mtu 1600 overhead 14 mpu 64",
        ],
    ),
    (
        "tbf fast",
        &["qdisc root handle 7: tbf rate 50gbit burst 1m limit 9m"],
    ),
    (
        "tbf with a child",
        &[
            "qdisc root handle 7: tbf rate 5mbit burst 20k latency 50ms",
            "qdisc parent 7:1 handle 70: pfifo limit 33",
        ],
    ),
    (
        "prio",
        &[
            "qdisc root handle 7: prio bands 4 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 3",
            "qdisc parent 7:1 handle 71: sfq perturb 10",
            "filter parent 7: protocol ip prio 3 u32 match ip dport 80 0xffff flowid 7:2",
        ],
    ),
    ("multiq", &["qdisc root handle 7: multiq"]),
    (
        "sfq",
        &["qdisc root handle 7: sfq perturb 10 quantum 3000 limit 100 divisor 512"],
    ),
    (
        "red",
        &[
            "qdisc root handle 7: red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 ecn adaptive bandwidth 10mbit",
        ],
    ),
    ("gred", &["qdisc root handle 7: gred setup DPs 4 default 1"]),
    (
        "choke",
        &["qdisc root handle 7: choke limit 1000 min 83 max 250 burst 180 bandwidth 10mbit"],
    ),
    (
        "codel",
        &["qdisc root handle 7: codel limit 500 target 4ms interval 80ms ecn"],
    ),
    (
        "fq_codel",
        &[
            "qdisc root handle 7: fq_codel limit 500 flows 512 target 4ms interval 80ms ce_threshold 1ms",
        ],
    ),
    (
        "fq",
        &["qdisc root handle 7: fq limit 2000 flow_limit 50 maxrate 40mbit"],
    ),
    (
        "fq_pie",
        &["qdisc root handle 7: fq_pie limit 2000 flows 256"],
    ),
    (
        "pie",
        &["qdisc root handle 7: pie limit 500 target 20ms ecn"],
    ),
    ("sfb", &["qdisc root handle 7: sfb limit 500"]),
    ("hhf", &["qdisc root handle 7: hhf limit 500"]),
    (
        "cake",
        &["qdisc root handle 7: cake bandwidth 20mbit besteffort nat"],
    ),
    ("dualpi2", &["qdisc root handle 7: dualpi2"]),
    ("skbprio", &["qdisc root handle 7: skbprio limit 99"]),
    (
        "etf",
        &["qdisc root handle 7: etf clockid CLOCK_TAI delta 300000"],
    ),
    (
        "cbs",
        &["qdisc root handle 7: cbs idleslope 98688 sendslope -901312 hicredit 153 locredit -1389"],
    ),
    (
        "netem",
        &[
            "qdisc root handle 7: netem delay 20ms 5ms 25% loss 1% duplicate 1% reorder 2% rate 9mbit limit 500",
        ],
    ),
    (
        "netem with a child",
        &[
            "qdisc root handle 7: netem delay 20ms",
            "qdisc parent 7:1 handle 70: tbf rate 5mbit burst 20k latency 50ms",
        ],
    ),
    (
        "ets",
        &["qdisc root handle 7: ets bands 4 strict 2 quanta 4000 3000"],
    ),
    (
        "drr",
        &[
            "qdisc root handle 7: drr",
            "class parent 7: classid 7:1 drr quantum 2000",
            "class parent 7: classid 7:2 drr",
            "qdisc parent 7:1 handle 71: pfifo limit 9",
            "filter parent 7: protocol all prio 1 matchall classid 7:2",
        ],
    ),
    (
        "qfq",
        &[
            "qdisc root handle 7: qfq",
            "class parent 7: classid 7:1 qfq weight 3 maxpkt 1600",
            "class parent 7: classid 7:2 qfq weight 9",
            "filter parent 7: protocol all prio 1 basic classid 7:2",
        ],
    ),
    (
        "hfsc",
        &[
            "qdisc root handle 7: hfsc default 2",
            "class parent 7: classid 7:1 hfsc sc umax 1500 dmax 10ms rate 3mbit ul rate 9mbit",
            "class parent 7:1 classid 7:2 hfsc rt m1 4mbit d 10ms m2 1mbit ls m2 2mbit",
            "filter parent 7: protocol ip prio 1 u32 match ip dport 80 0xffff flowid 7:1",
            "filter parent 7:1 protocol ip prio 1 u32 match ip dport 80 0xffff flowid 7:2",
        ],
    ),
    (
        "htb",
        &[
            "qdisc root handle 7: htb default 20 r2q 5 direct_qlen 99",
            "class parent 7: classid 7:1 htb rate 10mbit ceil 20mbit burst 9k cburst 8k prio 3 quantum 3000",
            "class parent 7:1 classid 7:20 htb rate 6gbit ceil 50gbit mpu 64 overhead 14",
            "class parent 7:1 classid 7:30 htb rate 1mbit linklayer atm overhead 10",
            "qdisc parent 7:20 handle 9: bfifo limit 100000",
        ],
    ),
];

/// Filters, likewise, with what they hang at, and what is not shown in full.
const FILTERS: &[(&str, &[&str])] = &[
    (
        "filters of classes",
        &[
            "qdisc root handle 7: htb default 20",
            "class parent 7: classid 7:1 htb rate 10mbit",
            "class parent 7:1 classid 7:20 htb rate 5mbit",
            "filter parent 7: protocol all prio 1 u32 match u32 0 0 flowid 7:1",
            "filter parent 7:1 protocol ip prio 4 u32 match ip dport 80 0xffff flowid 7:20",
        ],
    ),
    (
        "chains",
        &[
            "qdisc root handle 7: htb default 20",
            "class parent 7: classid 7:10 htb rate 5mbit",
            "class parent 7: classid 7:20 htb rate 50mbit",
            "filter parent 7: chain 7 protocol ip prio 5 u32 match ip dport 80 0xffff flowid 7:10",
            "filter parent 7: chain 0 protocol ip prio 6 u32 match ip dport 81 0xffff flowid 7:10",
        ],
    ),
    (
        "one turn in two chains",
        &[
            "qdisc root handle 7: htb default 20",
            "class parent 7: classid 7:10 htb rate 5mbit",
            "filter parent 7: chain 7 protocol ip prio 5 u32 match ip dport 80 0xffff flowid 7:10",
            "filter parent 7: protocol ip prio 5 u32 match ip dport 81 0xffff flowid 7:10",
        ],
    ),
    (
        "?a chain with a template",
        &[
            "qdisc root handle 7: htb default 20",
            "chain parent 7: chain 3 proto ip flower dst_ip 0.0.0.0/16",
        ],
    ),
    (
        "?an empty chain",
        &[
            "qdisc root handle 7: htb default 20",
            "chain parent 7: chain 3",
        ],
    ),
    (
        "tables of u32",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 5 handle 5: u32 divisor 16",
            "filter parent 7: protocol ip prio 5 u32 ht 5:3: match ip dport 80 0xffff flowid 7:1",
            "filter parent 7: protocol ip prio 5 u32 link 5: hashkey mask 0xff at 16 match ip protocol 6 0xff",
        ],
    ),
    (
        "fw",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 handle 6 fw classid 7:1",
            "filter parent 7: protocol ip prio 2 handle 0x10/0xf0 fw classid 7:2",
        ],
    ),
    (
        "?fw without options",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 fw",
        ],
    ),
    (
        "flower",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 flower dst_ip 10.9.0.0/24 ip_proto tcp dst_port 80 classid 7:1",
        ],
    ),
    (
        "matchall",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 matchall classid 7:1",
        ],
    ),
    (
        "basic",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 basic match 'u32(u16 0x1000 0xf000 at nexthdr+12)' classid 7:1",
        ],
    ),
    (
        "cgroup",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 handle 1: cgroup",
        ],
    ),
    (
        "flow",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 handle 1 flow hash keys src,dst divisor 16 baseclass 7:1",
        ],
    ),
    (
        "route",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 100 route to 10 classid 7:1",
        ],
    ),
    (
        "bpf",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 bpf bytecode '1,6 0 0 0,' classid 7:1",
        ],
    ),
    (
        "actions",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 u32 match u32 0 0 action drop",
        ],
    ),
    (
        "police",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 u32 match u32 0 0 police rate 1mbit burst 10k drop flowid 7:1",
        ],
    ),
    (
        "goto chain",
        &[
            "qdisc root handle 7: htb default 1",
            "filter parent 7: protocol ip prio 1 u32 match u32 0 0 action goto chain 5",
        ],
    ),
    (
        "sizes that follow from heads",
        &["qdisc root handle 7: stab overhead 20 linklayer ethernet htb default 1"],
    ),
    (
        "?a table of sizes",
        &["qdisc root handle 7: stab overhead 20 linklayer atm mtu 2048 htb default 1"],
    ),
    (
        "?an estimator",
        &["qdisc root handle 7: estimator 250ms 1s tbf rate 5mbit burst 20k latency 50ms"],
    ),
    (
        "?an estimator of a class",
        &[
            "qdisc root handle 7: htb default 1",
            "class parent 7: estimator 250ms 1s classid 7:1 htb rate 5mbit",
        ],
    ),
];

/// All that tc(8) shows of a device, without counters.
fn shown(room: &Room) -> String {
    // In one go: on an emulated kernel each program takes its time. What has no filters has no place for them.
    let whole = room.sh("tc -d qdisc show dev v1; tc -d class show dev v1
        for parent in $({ tc qdisc show dev v1; tc class show dev v1; } | awk '{ print $3 }'); do
          tc -d filter show dev v1 parent $parent; tc -d chain show dev v1 parent $parent
        done 2>/dev/null; true");
    let counts = [
        "refcnt",
        "direct_packets_stat",
        "hit",
        "success",
        "(success",
        "avgpkt",
    ];
    let mut before = "";
    let words = whole
        .split_whitespace()
        .filter(|word| !counts.contains(&std::mem::replace(&mut before, word)));
    words.collect::<Vec<_>>().join(" ")
}

/// Makes it; `false` where this kernel or this tc(8) has it not.
fn make(room: &Room, lines: &[&str]) -> bool {
    let lines = lines.iter().map(|line| {
        let (object, rest) = line.split_once(' ').expect("an object and the rest");
        format!("tc {object} add dev v1 {rest}")
    });
    let script = lines.collect::<Vec<_>>().join(" && ");
    let done = namespace::inside(room.host.as_fd(), || {
        Command::new("sh").args(["-c", &script]).output()
    });
    done.expect("entered").expect("started").status.success()
}

#[test]
fn each_kind_that_tc_makes_comes_back_exactly_or_is_not_taken_over() {
    if let Some(back) = come_back("each_kind_that_tc_makes_comes_back", DISCIPLINES) {
        // All kernels and tools that this runs on have these.
        assert!(back.contains(&"tbf") && back.contains(&"htb"), "{back:?}");
    }
}

#[test]
fn each_kind_of_filter_comes_back_exactly_or_is_not_taken_over() {
    if let Some(back) = come_back("each_kind_of_filter_comes_back", FILTERS) {
        for name in ["chains", "filters of classes", "tables of u32"] {
            assert!(back.contains(&name), "{name}: {back:?}");
        }
    }
}

/// Takes over all that can be made, and gives it back; which came back. `None` where there is no room.
fn come_back(test: &str, kinds: &[(&'static str, &[&str])]) -> Option<Vec<&'static str>> {
    let room = Room::new(test, 1)?;
    let index = room.index("v1");
    let terms = Terms {
        tx: Some(30 * MBIT),
        ..Terms::default()
    };
    let wants = Wanted {
        links: [(index, terms)].into(),
        ..Wanted::default()
    };
    let (mut back, mut refused, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for (name, lines) in kinds {
        let clear = || room.sh("tc qdisc del dev v1 root 2>/dev/null || true");
        clear();
        if !make(&room, lines) {
            clear();
            absent.push(*name);
            continue;
        }
        let before = shown(&room);
        let mut site = room.site();
        let links = site.links().expect("links");
        match site.save(named(&links, "v1").expect("v1")) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("exactly as it is"), "{name}: {text}");
                println!("{text}");
                refused.push(*name);
            }
            Ok(saved) => {
                assert!(!name.starts_with('?'), "{name} is taken over");
                // As it is kept on disk.
                let text = serde_json::to_string(&saved).expect("JSON");
                let saved = serde_json::from_str(&text).expect("what was written");
                site.apply(&wants, &[index]).expect("adopted");
                assert!(shown(&room).contains("rate 30Mbit"), "{name}");
                site.apply(&Wanted::default(), &[]).expect("cleared");
                site.bring_back(index, &saved).expect("brought back");
                back.push(*name);
            }
        }
        assert_eq!(shown(&room), before, "{name}");
        println!("{name}");
    }
    println!("came back: {back:?}\nnot taken over: {refused:?}\nnot on this machine: {absent:?}");
    Some(back)
}

#[test]
fn a_filter_of_a_chain_moves_no_packet_after_it_came_back() {
    let Some(room) = Room::new("a_filter_of_a_chain_moves_no_packet", 1) else {
        return;
    };
    for line in [
        "qdisc add dev v1 root handle 7: htb default 20",
        "class add dev v1 parent 7: classid 7:10 htb rate 500mbit",
        "class add dev v1 parent 7: classid 7:20 htb rate 500mbit",
        "filter add dev v1 parent 7: chain 7 protocol ip prio 5 u32 match u32 0 0 flowid 7:10",
    ] {
        room.host(&format!("tc {line}"));
    }
    let mut site = room.site();
    let links = site.links().expect("links");
    let link = named(&links, "v1").expect("v1");
    let saved = site.save(link).expect("it can be brought back");
    let terms = Terms {
        tx: Some(30 * MBIT),
        ..Terms::default()
    };
    let wants = Wanted {
        links: [(link.index, terms)].into(),
        ..Wanted::default()
    };
    site.apply(&wants, &[link.index]).expect("adopted");
    site.apply(&Wanted::default(), &[]).expect("cleared");
    site.bring_back(link.index, &saved).expect("brought back");
    greet(
        &udp(&room.outside, "10.9.0.100:9000"),
        &udp(&room.guests[0], "10.9.0.1:9000"),
    );
    let classes = room.host("tc -s class show dev v1");
    let sent = |class: &str| {
        let at = classes.find(class).expect("a class");
        let text = &classes[at..];
        let at = text.find("Sent ").expect("a counter") + 5;
        text[at..].split(' ').next().expect("a number").to_owned()
    };
    // Nothing goes to that chain, so that all is in the other class.
    assert_eq!(sent("7:10"), "0", "{classes}");
    assert_ne!(sent("7:20"), "0", "{classes}");
}
