//! Where bpf(2) is not allowed, by a filter of system calls as containers have them.
#![allow(
    unsafe_code,
    reason = "seccomp(2) has no safe wrapper, and holds before a program begins"
)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::{env, io};

use bonsai_link::{Plan, Share, Site, Terms, Wanted};

use crate::room::Room;

const MBIT: u64 = 125_000;
/// Set where the call is refused: the descriptor of the host's namespace.
const WITHIN: &str = "BONSAI_TEST_WITHOUT_BPF";
const ALL_OF_IT: &str = "all of it was made without bpf";

/// Refuses bpf(2) from now on, to this process and its children (seccomp(2)).
fn refuse() -> io::Result<()> {
    let number = u32::try_from(libc::SYS_bpf).unwrap_or(u32::MAX);
    let errno = u32::try_from(libc::EPERM).unwrap_or(1);
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // The number of the call; is it that one; no; yes.
        step(0x20, 0, 0, 0),
        step(0x15, 1, 0, number),
        step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the filter lives until the call returns, and the kernel copies it.
    let answer = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn wanted(room_v1: u32) -> Wanted {
    let terms = Terms {
        tx: Some(30 * MBIT),
        rx: Some(20 * MBIT),
        ..Terms::default()
    };
    Wanted {
        links: [(room_v1, terms)].into(),
        ..Wanted::default()
    }
}

#[test]
fn limits_are_taken_over_where_programs_are_not_allowed_any_more() {
    let Some(room) = Room::new("limits_are_taken_over_where_programs", 1) else {
        return;
    };
    let before = room.host("tc qdisc show");
    let wants = wanted(room.index("v1"));
    let mut site = room.site_by(Plan::Bpf);
    site.apply(&wants, &[]).expect("with programs");
    let host = room.host.as_fd().try_clone_to_owned().expect("another");
    rustix::io::fcntl_setfd(&host, rustix::io::FdFlags::empty()).expect("inherited");
    let mut command = Command::new(env::current_exe().expect("this test"));
    command
        .args(["--exact", "without::within", "--nocapture"])
        .env(WITHIN, host.as_raw_fd().to_string())
        .stderr(Stdio::inherit());
    // SAFETY: nothing but a call of the kernel, with what is on the stack.
    unsafe { command.pre_exec(refuse) };
    let output = command.output().expect("started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(ALL_OF_IT), "{said}");
    let filters = room.host("tc filter show dev v1 ingress");
    assert!(
        filters.contains("mirred") && !filters.contains("bpf"),
        "{filters}"
    );
    assert!(
        room.host("tc class show dev bonsai-ifb10")
            .contains("20Mbit")
    );

    // And where they are again, they are used.
    let mut site = room.site();
    assert_eq!(site.see().expect("seen").plan(), Plan::Bpf);
    assert!(site.apply(&wants, &[]).expect("again").steps > 0);
    assert!(
        room.host("tc filter show dev v1 ingress")
            .contains("bonsai-in")
    );
    site.apply(&Wanted::default(), &[]).expect("cleared");
    assert_eq!(room.host("tc qdisc show"), before);
}

/// The part of the test above that is made where the call is refused; nothing elsewhere.
#[test]
fn within() {
    let Some(number) = env::var(WITHIN).ok() else {
        return;
    };
    let host = File::open(format!("/proc/self/fd/{number}")).expect("it was inherited");
    let mut site = Site::open(Some(host.as_fd())).expect("a site");
    let links = site.links().expect("links");
    let index = |name: &str| bonsai_link::named(&links, name).expect(name).index;
    let wants = wanted(index("v1"));
    assert_eq!(site.see().expect("seen").plan(), Plan::U32);
    assert!(site.apply(&wants, &[]).expect("without programs").steps > 0);
    assert_eq!(site.apply(&wants, &[]).expect("again").steps, 0);
    let mut shared = wants;
    shared.links.insert(
        index("out"),
        Terms {
            tx: Some(40 * MBIT),
            ..Terms::default()
        },
    );
    let share = Share {
        uplink: index("out"),
        guarantee: None,
        ceiling: Some(MBIT),
        weight: 1,
    };
    shared
        .links
        .entry(index("v1"))
        .and_modify(|terms| terms.share = Some(share));
    let error = site.apply(&shared, &[]).expect_err("a share").to_string();
    assert!(
        error.contains("cls_bpf") && error.contains("bpf(2)"),
        "{error}"
    );
    let all = bonsai_link::abilities().expect("tried");
    let fault = |name: &str| {
        all.iter()
            .find(|one| one.name == name)
            .expect(name)
            .fault
            .is_some()
    };
    assert!(
        fault("cls_bpf") && !fault("u32") && !fault("link"),
        "{all:?}"
    );
    println!("{ALL_OF_IT}");
}
