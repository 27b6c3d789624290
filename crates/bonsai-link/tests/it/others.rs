//! Filters and programs of others: what takes packets past a limit is found and named, or has no effect.
#![allow(
    unsafe_code,
    reason = "bpf(2) has no safe wrapper, and a program of another is what is tested"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use bonsai_link::{Compared, Seen, Share, Terms, Wanted, namespace};

use crate::room::{PLANS, Room, greet, skip, udp};

const MBIT: u64 = 125_000;
const PAYLOAD: usize = 1_000;
const DATAGRAMS: u64 = 400;

fn limited(room: &Room) -> Wanted {
    let terms = Terms {
        rx: Some(100 * MBIT),
        ..Terms::default()
    };
    Wanted {
        links: [(room.index("v1"), terms)].into(),
        ..Wanted::default()
    }
}

/// Sends datagrams from the guest, which come in by v1, one after the other.
fn send(room: &Room) {
    let from = udp(&room.guests[0], "10.9.0.1:9000");
    let to = udp(&room.outside, "10.9.0.100:9000");
    greet(&from, &to);
    let mut buffer = [0; PAYLOAD];
    for _ in 0..DATAGRAMS {
        let target = to.local_addr().expect("an address");
        from.send_to(&[0; PAYLOAD], target).expect("sent");
        // None is lost: what is compared was all let out.
        let _ = to.recv(&mut buffer);
    }
}

/// What comparing bytes says of what comes in by v1 while datagrams come.
fn compared(room: &Room, wants: &Wanted) -> (Compared, Seen) {
    let mut site = room.site();
    let seen = site.see().expect("seen");
    let limits = seen.limits(wants);
    assert_eq!(limits.len(), 1);
    let before = site.passages(&limits).expect("read");
    send(room);
    let after = site.passages(&limits).expect("read");
    let found = before[&limits[0]].compare(&after[&limits[0]]);
    (found, site.see().expect("seen"))
}

#[test]
fn a_filter_of_others_is_asked_after_ours_or_named() {
    let name = "a_filter_of_others_is_asked_after_ours_or_named";
    let accept = "bpf bytecode 1,6,0,0,0 direct-action";
    // Filters of others, whether they come before the limit, and what is said of them.
    for (filter, comes_first, named) in [
        ("pref 1 bpf", true, None),
        ("pref 1 bpf", false, Some("bpf")),
        ("pref 7 bpf", true, None),
        ("pref 7 bpf", false, None),
        ("pref 7 u32", true, None),
        ("pref 1 u32", true, Some("u32")),
        ("pref 1 protocol ip u32", true, Some("u32")),
        ("chain 3 pref 1 u32", true, None),
    ] {
        for plan in PLANS {
            let Some(room) = Room::new(name, 1) else {
                return;
            };
            let filter = match filter.strip_suffix("bpf") {
                Some(place) => format!("{place}{accept}"),
                None => format!("{filter} match u32 0 0 classid 1:1"),
            };
            let what = format!("{plan}, {filter}, first: {comes_first}");
            let filter = format!("tc filter add dev v1 ingress {filter}");
            let filter = filter.replace("1,6,0,0,0", "'1,6 0 0 0,'");
            let wants = limited(&room);
            let mut site = room.site_by(plan);
            room.host("tc qdisc add dev v1 clsact");
            if comes_first {
                room.sh(&filter);
            }
            site.apply(&wants, &[]).expect("applied");
            if !comes_first {
                room.sh(&filter);
            }
            let (found, seen) = compared(&room, &wants);
            let said = seen.doubt(&wants, room.index("v1"));
            match &said {
                None => assert_eq!(found, Compared::Through, "{what}"),
                Some(text) => {
                    assert!(matches!(found, Compared::Around(..)), "{what}: {found:?}");
                    assert!(named.is_none_or(|named| text.contains(named)), "{text}");
                }
            }
            // By which means does not matter but for a plain filter of ours, which has the second turn.
            if plan == bonsai_link::Plan::Bpf {
                assert_eq!(said.is_some(), named.is_some(), "{what}: {said:?}");
            }
        }
    }
}

#[test]
fn a_filter_goes_to_the_first_turn_when_others_leave_it() {
    for plan in PLANS {
        let Some(room) = Room::new("a_filter_goes_to_the_first_turn", 1) else {
            return;
        };
        let wants = limited(&room);
        let mut site = room.site_by(plan);
        room.host("tc qdisc add dev v1 clsact");
        for turn in [1, 2] {
            room.host(&format!(
                "tc filter add dev v1 ingress protocol ip pref {turn} u32 match u32 0 0 classid 1:1"
            ));
        }
        site.apply(&wants, &[]).expect("applied");
        let index = room.index("v1");
        let said = site.see().expect("seen").doubt(&wants, index);
        assert!(said.is_some_and(|text| text.contains("u32 with priority 1")));
        for turn in [1, 2] {
            room.host(&format!(
                "tc filter del dev v1 ingress protocol ip pref {turn}"
            ));
        }
        assert!(site.differs(&wants).expect("seen").is_some());
        site.apply(&wants, &[]).expect("moved");
        assert_eq!(site.differs(&wants).expect("seen"), None);
        let seen = site.see().expect("seen");
        assert_eq!(seen.doubt(&wants, index), None);
        let filters = room.host("tc filter show dev v1 ingress");
        assert!(!filters.contains("pref 4514"), "{filters}");
        assert_eq!(compared(&room, &wants).0, Compared::Through);
        site.apply(&Wanted::default(), &[]).expect("cleared");
    }
}

#[test]
fn a_filter_before_that_of_an_uplink_is_named_for_all_that_share_it() {
    let Some(room) = Room::new("a_filter_before_that_of_an_uplink", 1) else {
        return;
    };
    let uplink = room.index("out");
    let line = Terms {
        tx: Some(100 * MBIT),
        ..Terms::default()
    };
    let shared = Terms {
        share: Some(Share {
            uplink,
            guarantee: Some(10 * MBIT),
            ceiling: None,
            weight: 1,
        }),
        ..Terms::default()
    };
    let wants = Wanted {
        links: [(uplink, line), (room.index("v1"), shared)].into(),
        ..Wanted::default()
    };
    let mut site = room.site();
    site.apply(&wants, &[]).expect("applied");
    let said = |site: &mut bonsai_link::Site, of| site.see().expect("seen").doubt(&wants, of);
    assert_eq!(said(&mut site, room.index("v1")), None);
    room.sh("tc filter add dev out egress pref 1 bpf bytecode '1,6 0 0 0,' direct-action");
    for of in [room.index("v1"), uplink] {
        let text = said(&mut site, of).expect("named");
        assert!(text.contains("at out"), "{text}");
    }
}

/// bpf(2) with a command and what it takes, as far as that is used.
fn bpf(command: libc::c_int, attr: &mut [u8; 128]) -> io::Result<libc::c_int> {
    // SAFETY: the union is as long as is said, and what it points to lives as long as the caller.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), attr.len()) };
    match i32::try_from(answer) {
        Ok(answer) if answer >= 0 => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A program that accepts all (`BPF_PROG_TYPE_SCHED_CLS`, `BPF_PROG_TYPE_XDP`), attached at tcx of v1, or by ip(8).
fn accepting() -> OwnedFd {
    // w0 = 0 (TC_ACT_OK), exit.
    let code: [u64; 2] = [0xb4, 0x95];
    let license = *b"GPL\0";
    let mut attr = [0; 128];
    let mut put = |at: usize, bytes: &[u8]| attr[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &3_u32.to_ne_bytes());
    put(4, &2_u32.to_ne_bytes());
    put(8, &(code.as_ptr().expose_provenance() as u64).to_ne_bytes());
    put(
        16,
        &(license.as_ptr().expose_provenance() as u64).to_ne_bytes(),
    );
    put(48, b"of_another");
    let fd = bpf(5, &mut attr).expect("loaded");
    // SAFETY: the kernel has just made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[test]
fn a_program_at_tcx_is_named() {
    let name = "a_program_at_tcx_is_named";
    let Some(room) = Room::new(name, 1) else {
        return;
    };
    let wants = limited(&room);
    let mut site = room.site();
    site.apply(&wants, &[]).expect("applied");
    assert_eq!(compared(&room, &wants).0, Compared::Through);
    let index = room.index("v1");
    let attached = namespace::inside(room.host.as_fd(), || {
        let program = accepting();
        let mut attr = [0; 128];
        // target_ifindex, attach_bpf_fd, attach_type BPF_TCX_INGRESS.
        for (at, value) in [
            (0, index),
            (4, program.as_raw_fd().cast_unsigned()),
            (8, 46),
        ] {
            attr[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bpf(8, &mut attr)
    });
    if let Err(error) = attached.expect("entered") {
        return skip(name, &format!("this kernel has no tcx: {error}"));
    }
    let (found, seen) = compared(&room, &wants);
    assert!(matches!(found, Compared::Around(..)), "{found:?}");
    let said = seen.doubt(&wants, index).expect("named");
    assert!(said.contains("of_another"), "{said}");
    let limits = seen.limits(&wants);
    let before = site.programs_before(&limits).expect("asked");
    assert!(before[&(index, true)].contains("of_another"), "{before:?}");
}
