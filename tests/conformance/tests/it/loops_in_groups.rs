//! Event loops of services that share a rate: what is a wait in a thread is a refused call and
//! an event here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use conformance::{Bonsai, Counters, finish, for_each};

use crate::fixture::{assert_none, bonsai, compiler, scratch};
use crate::go::{GO_FORMS, go_programs};
use crate::groups::{MS, Notes, S, TRIES, assert_within, got, notes};
use crate::loops::{WAYS, assert_goes_on, cases, loops};
use crate::probe::{PATIENCE, Seen};

/// What the members of a pair have together: bytes sent a second.
const RATE: u64 = 16_000_000;

/// What a pair may be ahead: the burst of 20 ms, two turns of each member, what each of the
/// four connections of a loop was granted while it had no CPU, and a call of each member.
const AHEAD: u64 = RATE / 50 + 8 * RATE / 225 + 2 * 65_536;

/// A group that goes away with this.
struct Group {
    bonsai: Arc<Bonsai>,
    name: String,
}

impl Group {
    fn new(name: &str, limits: &[&str]) -> Self {
        let (bonsai, name) = (bonsai(), name.to_owned());
        let group = Self { bonsai, name };
        let limits = limits.iter().flat_map(|limit| ["--limit", limit]);
        let args: Vec<&str> = ["group", "create", &group.name]
            .into_iter()
            .chain(limits)
            .collect();
        group.say(&args);
        group
    }

    fn say(&self, args: &[&str]) {
        let said = finish(&mut self.bonsai.command(args), PATIENCE).expect("it ends");
        assert!(said.status.success(), "{args:?}: {}", said.stderr);
    }

    /// Runs a program as a member whose event loops are served, to its end.
    fn run(&self, options: &[&str], program: &Path, args: &[&str]) -> Seen {
        let options = [&["--group", &self.name, "--event-loops", "on"], options].concat();
        let (_, mut command) = self.bonsai.run(&options, program, args);
        ended(&mut command)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let args = ["group", "remove", &self.name];
        drop(self.bonsai.command(&args).output());
    }
}

fn ended(command: &mut Command) -> Seen {
    let finished = finish(command, PATIENCE).expect("it ends");
    Seen::new("in a group", finished, Counters::default())
}

/// A group for one run of a program that says what `loops.c` says.
fn goes_on(name: &str, limits: &[&str], options: &[&str], program: &Path, args: &[&str]) -> Seen {
    let seen = Group::new(name, limits).run(options, program, args);
    let what = format!("{} {}", program.display(), args.join(" "));
    assert_goes_on(&what, &seen, 200_000, 4000);
    seen
}

const SHARED: [&str; 2] = ["send=200kB/s:burst=4kB", "recv=200kB/s:burst=4kB"];

#[test]
fn every_way_of_waiting_goes_on_in_a_group() {
    let test = "loops-group";
    let mut all = Vec::new();
    if let Some(program) = loops(test, &[]) {
        all.extend(cases(&WAYS).into_iter().map(|case| (program.clone(), case)));
    }
    for (_, program) in go_programs("loops-group-go", "loop/main.go", &GO_FORMS[..1]) {
        all.extend(["out", "in"].map(|direction| (program.clone(), vec![direction])));
    }
    let complaints = for_each(&all, 4, |(program, case)| {
        let file = program.file_name().expect("a file").display();
        let name = format!("{file}-{}", case.join("-"));
        let tried = || drop(goes_on(&name, &SHARED, &[], program, case));
        std::panic::catch_unwind(tried).map_err(|_| name.clone())
    });
    assert_none(&complaints);
}

/// The group is asked when the limits of the service have given: neither is exceeded, and
/// which of them is the lower one makes no difference to the loop.
#[test]
fn limits_of_the_service_and_of_its_group_are_both_kept_in_a_loop() {
    let test = "loops-both";
    let Some(program) = loops(test, &[]) else {
        return;
    };
    let per_stream = [
        "--limit",
        "send/stream=200kB/s:burst=4kB",
        "--limit",
        "recv/stream=200kB/s:burst=4kB",
    ];
    let of_service = per_stream.map(|word| word.replace("/stream", ""));
    let of_service = of_service.each_ref().map(String::as_str);
    let mut all = Vec::new();
    for (rate, what) in [("140kB/s", "lower"), ("300kB/s", "higher")] {
        for (options, by) in [(per_stream, "stream"), (of_service, "service")] {
            for case in [["poll", "level", "out"], ["epoll_wait", "edge", "in"]] {
                all.push((rate, options, case, format!("both-{what}-{by}-{}", case[0])));
            }
        }
    }
    let complaints = for_each(&all, 4, |(rate, options, case, name)| {
        let limits = ["send", "recv"].map(|call| format!("{call}={rate}:burst=4kB"));
        let limits = limits.each_ref().map(String::as_str);
        let tried = || {
            let seen = goes_on(name, &limits, options, &program, case);
            if rate.starts_with("140") {
                seen.assert_shaped(120_000 - 8192, 140_000, 4000);
            }
        };
        std::panic::catch_unwind(tried).map_err(|_| name.clone())
    });
    assert_none(&complaints);
}

#[test]
fn limits_of_the_service_go_on_in_a_loop_where_its_group_shares_something_else() {
    let Some(program) = loops("loops-else", &[]) else {
        return;
    };
    let options = SHARED.map(|limit| ["--limit", limit]).concat();
    for case in [["poll", "level", "out"], ["epoll_wait", "edge", "in"]] {
        goes_on("else", &["write=100MB/s"], &options, &program, &case);
    }
}

#[test]
fn descriptors_come_and_go_while_a_group_withholds_them() {
    let source = ["transparency/withheld.c"];
    let Some(compiler) = compiler("withheld-group") else {
        return;
    };
    let program = compiler.make("withheld-group", &source, &[]);
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    let slow = "send=100kB/s:burst=1kB";
    let all: [(&str, &str, &[&str]); 6] = [
        (
            "close",
            slow,
            &[
                "closed: 0 events",
                "its number: 1 events at once",
                "its number: an event, sent",
            ],
        ),
        ("end", slow, &["the other end closed: EPIPE, few turns"]),
        (
            "fork",
            slow,
            &[
                "a child closed it: an event, sent",
                "a child goes on: 1 events",
                "a child goes on: an event, sent",
            ],
        ),
        ("threads", slow, &["another thread's call: 16 events"]),
        ("several", slow, &["in two sets: 6 sent"]),
        (
            "accept",
            "accept=50/s:burst=1calls",
            &["accepted 20, not in vain"],
        ),
    ];
    for (case, limit, lines) in all {
        let name = format!("withheld-{case}");
        let seen = Group::new(&name, &[limit]).run(&[], &program, &[case]);
        assert_eq!(seen.lines, lines, "{case}: {:?}", seen.finished);
        assert!(seen.finished.status.success(), "{:?}", seen.finished);
        if case == "accept" {
            seen.assert_shaped(20, 50, 1);
        }
    }
}

/// A member that sends as much as it can: `loop_member.c`.
struct Sender<'a> {
    how: &'a str,
    ms: &'a str,
    options: &'a [&'a str],
}

/// Members of a group at a time: what they said, and when they had sent how much.
fn together(group: &Group, senders: &[Sender<'_>]) -> Option<Vec<(Seen, Notes)>> {
    let program: PathBuf = compiler(&group.name)?
        .make(
            &format!("loop_member-{}", group.name),
            &["transparency/loop_member.c"],
            &[],
        )
        .unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let ends = std::thread::scope(|scope| {
        let mut started = Vec::new();
        for (i, sender) in senders.iter().enumerate() {
            let (file, program) = (folder.path().join(i.to_string()), program.clone());
            std::fs::write(&file, "").expect("a file");
            started.push(scope.spawn(move || {
                let path = file.display().to_string();
                let args = [path.as_str(), sender.how, sender.ms];
                let seen = group.run(sender.options, &program, &args);
                assert!(seen.finished.status.success(), "{:?}", seen.finished);
                (seen, notes(&file))
            }));
        }
        let ended = started.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.collect::<Result<Vec<_>, _>>()
    });
    Some(ends.unwrap_or_else(|_| panic!("a member failed")))
}

/// Its timer is heard of, its calls return, and it does not turn for nothing.
fn assert_lively(seen: &Seen, what: &str) {
    let note = |name: &str| seen.notes[name];
    let (elapsed, calls) = (note("elapsed"), note("calls"));
    let notes = &seen.notes;
    assert!(note("refused") >= 5.0, "{what}: never refused: {notes:?}");
    assert!(note("ticks") * 10.0 >= elapsed, "{what} stands: {notes:?}");
    assert!(
        note("slow") <= calls / 20.0 + 2.0,
        "{what} stands: {notes:?}"
    );
    let turns = note("ticks") + 2.0 * calls + 20.0;
    assert!(note("turns") <= turns, "{what} spins: {notes:?}");
    let cpu = 60.0 + elapsed / 4.0;
    assert!(note("cpu") <= cpu, "{what} spins: {notes:?}");
}

#[test]
fn a_loop_has_its_part_beside_a_greedy_member_and_goes_on() {
    let limit = format!("send={RATE}B/s");
    for how in ["poll", "epoll"] {
        let group = Group::new(&format!("loop-beside-{how}"), &[&limit]);
        let mut parts = Vec::new();
        for _ in 0..TRIES {
            let sender = |how| Sender {
                how,
                ms: "1500",
                options: &[],
            };
            let Some(ends) = together(&group, &[sender(how), sender("block")]) else {
                return;
            };
            let [(seen, mine), (_, others)] = &ends[..] else {
                panic!("two members")
            };
            assert_within(&[mine, others], RATE, AHEAD, how);
            assert_lively(seen, how);
            let [a, b] = [mine, others].map(|notes| notes.last().map_or(0, |n| n.1) as f64);
            // Half of it is its own; whoever gets no CPU gets less.
            if a / (a + b) > 0.25 {
                parts.clear();
                break;
            }
            parts.push(a / (a + b));
        }
        assert!(parts.is_empty(), "parts of a loop, for 0.5: {parts:?}");
    }
}

#[test]
fn what_others_leave_comes_to_a_loop_that_waits() {
    let limit = format!("send={RATE}B/s");
    let group = Group::new("loop-left", &[&limit]);
    let greedy = Sender {
        how: "block",
        ms: "700",
        options: &["--weight", "1000"],
    };
    let looping = Sender {
        how: "epoll",
        ms: "2000",
        options: &["--weight", "1"],
    };
    let Some(ends) = together(&group, &[greedy, looping]) else {
        return;
    };
    let [(_, greedy), (seen, mine)] = &ends[..] else {
        panic!("two members")
    };
    assert_within(&[greedy, mine], RATE, AHEAD, "both");
    assert_lively(seen, "the one that stays");
    let left = greedy.last().expect("notes").0;
    let to = mine.last().expect("notes").0;
    // By weight it would get a thousandth: this is no judgement of speed.
    let part = RATE as f64 / 1001.0 * (to - left) as f64 / S as f64;
    let alone = got(mine, left, to) as f64;
    assert!(to > left + 200 * MS, "the other one took too long");
    assert!(alone > 20.0 * part, "{alone} bytes alone, {part} by weight");
}

#[test]
fn a_loop_that_waits_hears_of_other_terms() {
    let group = Group::new("loop-terms", &["send=10kB/s"]);
    let fast = format!("send={RATE}B/s");
    let ends = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(700));
            group.say(&["group", "set", &group.name, &fast]);
        });
        let sender = Sender {
            how: "epoll",
            ms: "2500",
            options: &[],
        };
        together(&group, &[sender])
    });
    let Some(ends) = ends else {
        return;
    };
    let (seen, notes) = &ends[0];
    assert_within(&[notes], RATE, AHEAD, "afterwards");
    assert_lively(seen, "the member");
    // What it waited for takes 0.4 s each, and 25 kB are all that it would have sent.
    assert!(seen.notes["sent"] > 500_000.0, "{:?}", seen.notes);
}
