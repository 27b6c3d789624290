//! Queues that keep themselves short, on kernels that have them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bonsai_link::{Plan, Terms, Wanted};

use crate::room::{PLANS, Room, block, greet, skip, udp};

const MBIT: u64 = 125_000;

fn limited(room: &Room, rate: u64) -> Wanted {
    let terms = Terms {
        tx: Some(rate),
        rx: Some(rate),
        ..Terms::default()
    };
    Wanted {
        links: [(room.index("v1"), terms)].into(),
        ..Wanted::default()
    }
}

/// `None`, with a printed reason, where there are no such queues.
fn room(test: &str) -> Option<Room> {
    let room = Room::new(test, 2)?;
    let all = bonsai_link::abilities().expect("root tries");
    let short = all.iter().find(|one| one.name == "fq_codel");
    if let Some(fault) = &short.expect("it is tried").fault {
        skip(test, &format!("this kernel has no fq_codel: {fault}"));
        return None;
    }
    Some(room)
}

#[test]
fn a_class_ends_in_a_queue_that_keeps_itself_short() {
    let Some(room) = room("a_class_ends_in_a_queue_that_keeps_itself_short") else {
        return;
    };
    let before = room.host("tc qdisc show") + &room.interfaces();
    let mut site = room.site();
    let of_v1 = || {
        let shown = room.host("tc qdisc show dev v1");
        let leaf = shown.lines().find(|line| line.contains("parent b05a:2 "));
        leaf.expect("a queue").to_owned()
    };
    for (rate, shown) in [
        (
            10 * MBIT,
            ["target 5ms", "interval 100ms", "memory_limit 268256b"],
        ),
        // 2,250 bytes take 18 ms.
        (
            MBIT,
            ["target 18ms", "interval 360ms", "memory_limit 268256b"],
        ),
        (
            500 * MBIT,
            ["target 5ms", "interval 100ms", "memory_limit 5000000b"],
        ),
    ] {
        let wants = limited(&room, rate);
        assert!(site.apply(&wants, &[]).expect("applied").steps > 0);
        // What the kernel shows is what was wanted, however it rounds.
        assert_eq!(site.apply(&wants, &[]).expect("again").steps, 0);
        let leaf = of_v1();
        assert!(
            leaf.contains("fq_codel 2:") && leaf.contains("flows 256"),
            "{leaf}"
        );
        for words in shown {
            assert!(leaf.contains(words), "{words}: {leaf}");
        }
    }
    assert!(
        room.host("tc qdisc show dev bonsai-ifb")
            .contains("fq_codel")
    );

    // One of another kind is taken for what it is, and replaced; one that was changed is put right.
    let wants = limited(&room, 10 * MBIT);
    site.apply(&wants, &[]).expect("applied");
    room.host("tc qdisc del dev v1 parent b05a:2");
    room.host("tc qdisc add dev v1 parent b05a:2 handle 2: bfifo limit 67064");
    let differs = site.differs(&wants).expect("seen");
    assert_eq!(differs.as_deref(), Some("changing class b05a:2 of v1"));
    site.apply(&wants, &[]).expect("mended");
    assert!(of_v1().contains("fq_codel"), "{}", of_v1());
    room.host("tc qdisc change dev v1 parent b05a:2 handle 2: fq_codel target 90ms");
    site.apply(&wants, &[]).expect("mended");
    assert!(of_v1().contains("target 5ms"), "{}", of_v1());

    site.apply(&Wanted::default(), &[]).expect("cleared");
    assert_eq!(room.host("tc qdisc show") + &room.interfaces(), before);
}

#[test]
fn a_flow_that_asks_for_little_loses_nothing_beside_a_flood_of_the_same_class() {
    for plan in PLANS {
        let Some(room) = room("a_flow_that_asks_for_little_loses_nothing") else {
            return;
        };
        beside_a_flood(&room, plan);
    }
}

fn beside_a_flood(room: &Room, plan: Plan) {
    const DATAGRAMS: u32 = 200;
    let mut site = room.site_by(plan);
    site.apply(&limited(room, 10 * MBIT), &[]).expect("applied");
    let little = [
        udp(&room.guests[0], "10.9.0.1:9000"),
        udp(&room.guests[1], "10.9.0.2:9000"),
    ];
    let flood = [
        udp(&room.guests[0], "10.9.0.1:9001"),
        udp(&room.guests[1], "10.9.0.2:9001"),
    ];
    greet(&little[0], &little[1]);
    greet(&flood[0], &flood[1]);
    little[1]
        .set_read_timeout(Some(Duration::from_secs(1)))
        .expect("set");
    let stop = AtomicBool::new(false);
    let came = std::thread::scope(|scope| {
        scope.spawn(|| {
            let target = flood[1].local_addr().expect("an address");
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..20 {
                    let _ = flood[0].send_to(&[0; 1_400], target);
                }
                // 45 Mbit/s, and time for others where there is one processor.
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let receiver = scope.spawn(|| {
            let mut came = HashSet::new();
            let mut number = [0; 4];
            while little[1].recv(&mut number).is_ok() {
                came.insert(u32::from_le_bytes(number));
            }
            came
        });
        let target = little[1].local_addr().expect("an address");
        std::thread::sleep(Duration::from_millis(300));
        for number in 0..DATAGRAMS {
            little[0]
                .send_to(&number.to_le_bytes(), target)
                .expect("sent");
            std::thread::sleep(Duration::from_millis(5));
        }
        let came = receiver.join().expect("received");
        stop.store(true, Ordering::Relaxed);
        came
    });
    assert_eq!(came.len(), DATAGRAMS as usize);
    let shown = room.host(&format!("tc -s qdisc show dev {}", block(plan)));
    let mut found = None;
    let each = |class| found = class;
    site.classes(room.index(block(plan)), each).expect("seen");
    let class = found.expect("a class");
    let drops = site.see().expect("seen").drops(&class);
    assert!(drops > 0, "there was no flood: {shown}");
}
