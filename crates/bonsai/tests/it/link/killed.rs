//! `bonsai link` that is killed, or hears errors of its socket, at each of its calls to the kernel, by strace(1).

use std::process::Command;

use super::Room;
use crate::support::{Said, skip};

/// More calls than a command makes.
const MOST: usize = 400;

/// `None`, with a printed reason, where calls cannot be tampered with.
fn room(test: &str) -> Option<Room> {
    let mut strace = Command::new("strace");
    strace.args(["-qq", "-o", "/dev/null", "true"]);
    if !strace.status().is_ok_and(|status| status.success()) {
        skip(test, "strace is not installed, or may not trace");
        return None;
    }
    Room::new(test, 2)
}

/// Runs `bonsai LINE` such that something happens at a call of a kind: `how` is as strace's `--inject` has it.
fn tampered(room: &Room, line: &str, how: &str) -> Said {
    let bonsai = room.place.bonsai::<&str>(&[]);
    let mut command = Command::new("strace");
    let call = how.split(':').next().unwrap_or_default();
    command
        .args(["-qq", "-f", "-o", "/dev/null", "-e"])
        .arg(format!("trace={call}"))
        .args(["-e", &format!("inject={how}")])
        .arg(bonsai.get_program())
        .args(line.split_whitespace());
    for (name, value) in bonsai.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    room.inside(command)
}

/// Kills `bonsai LINE` before each of its calls of some kinds, one run after the other; `check` is called after each, with
/// what was done to it.
fn killed(room: &Room, prepare: &str, line: &str, check: &dyn Fn(&str)) {
    let mut kills = 0;
    for call in ["sendto", "rename", "fsync", "flock"] {
        for number in 1..MOST {
            room.works(prepare);
            let how = format!("{call}:signal=KILL:when={number}");
            let said = tampered(room, line, &how);
            if said.code == Some(0) {
                break;
            }
            kills += 1;
            check(&how);
        }
    }
    assert!(kills > 10, "{line} was killed {kills} times");
}

#[test]
fn what_others_had_comes_back_whenever_a_command_is_killed() {
    let Some(room) = room("what_others_had_comes_back_whenever_a_command_is_killed") else {
        return;
    };
    room.sh("tc qdisc add dev v1 root handle 7: tbf rate 30mbit burst 20kb limit 90kb");
    let before = room.traces();
    let set = "link set v1 tx=10Mbit/s rx=10Mbit/s --adopt";
    // It is completed by a command that is about another interface, and by the same one.
    for line in ["link set v1 tx=unlimited rx=unlimited", "link clear v1"] {
        killed(&room, set, line, &|how| {
            room.works("link set v0 tx=15Mbit/s");
            room.works("link clear --all");
            assert_eq!(room.traces(), before, "{line}, {how}");
        });
        killed(&room, set, line, &|how| {
            room.works(line);
            assert_eq!(room.traces(), before, "{line}, {how}");
        });
    }
}

#[test]
fn after_an_error_of_the_socket_all_is_as_it_was_before() {
    let Some(room) = room("after_an_error_of_the_socket_all_is_as_it_was_before") else {
        return;
    };
    let shown = || {
        let state = room.traces() + &room.sh("tc class show dev v1; tc filter show dev v1 ingress");
        // Numbers of programs, and of blocks that were made and taken away.
        let words = state
            .split_whitespace()
            .map(|word| word.trim_end_matches(':'));
        let words = words.filter(|word| !word.chars().all(|c| c.is_ascii_digit()));
        words.collect::<Vec<_>>().join(" ")
    };
    for (prepare, line) in [
        ("link clear --all", "link set v1 tx=10Mbit/s rx=10Mbit/s"),
        (
            "link set v1 tx=10Mbit/s rx=10Mbit/s",
            "link set v1 tx=20Mbit/s rx=unlimited",
        ),
    ] {
        let mut errors = 0;
        for number in 1..MOST {
            room.works(prepare);
            let before = shown();
            let said = tampered(
                &room,
                line,
                &format!("recvfrom:error=ENOBUFS:when={number}"),
            );
            if said.code == Some(0) {
                break;
            }
            errors += 1;
            assert!(
                !said.err.contains("taking back failed"),
                "{number}: {said:?}"
            );
            assert_eq!(shown(), before, "{line}, {number}: {said:?}");
        }
        assert!(errors > 5, "{line} failed {errors} times");
    }
    room.works("link clear --all");
}
