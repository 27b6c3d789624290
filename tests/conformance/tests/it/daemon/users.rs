//! Root's daemon, and the services of other users: what it governs, who sees and changes what,
//! and what somebody who means harm can do.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::fixture::RATE;
use super::machine::{ALICE, Machine, User, started};

/// What may be ahead in a window.
const AHEAD: u64 = RATE / 20 + 16 * 16_384;

const FILE: &str = "[capacity]\nread = \"20MB/s\"\n";

/// What some read in a while: together no more than that.
fn together_at_most(rate: u64, readers: &[(&User, &str)]) {
    let read = || -> u64 {
        let each = readers.iter().map(|(user, name)| user.bytes_read(name));
        each.sum()
    };
    let start = Instant::now();
    let before = read();
    std::thread::sleep(Duration::from_millis(800));
    let got = read() - before;
    let time = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
    let (got, most) = (got as f64, rate as f64 * time + AHEAD as f64);
    assert!(got <= most, "{got} bytes in {time} s");
}

#[test]
fn roots_daemon_governs_the_services_of_all_users() {
    let test = "roots_daemon_governs_the_services_of_all_users";
    let Some(machine) = Machine::started(test, FILE) else {
        return;
    };
    let _vod = machine.alice.reader("vod");
    machine.governs("54321:vod");
    // One who comes later, with a runtime directory in the other place.
    let bulk = machine.bob.reader("bulk");
    machine.governs("54322:bulk");
    let _own = machine.root.reader("own");
    machine.until("root's own is in the pool", |machine| {
        machine.root.of("own", "read")["enforced"] == "pool"
    });
    assert_eq!(machine.root.get("/v1/services/54321:vod")["uid"], ALICE);
    std::thread::sleep(Duration::from_millis(500));
    let all = [
        (&machine.alice, "vod"),
        (&machine.bob, "bulk"),
        (&machine.root, "own"),
    ];
    together_at_most(RATE, &all);
    let status = machine.alice.done(&["status", "vod"]);
    assert!(status.contains("read/system"), "{status}");
    // A bound that root sets holds, and can be taken back.
    let said = machine.root.done(&["set", "54321:vod", "read=2MB/s"]);
    assert_eq!(said, "54321:vod.read.max: nothing -> 2MB/s\n");
    together_at_most(2_000_000, &all[..1]);
    machine.root.done(&["set", "54321:vod", "open=7/s"]);
    assert!(machine.alice.done(&["status", "vod"]).contains("open"));
    machine.root.done(&["undo"]);
    assert!(!machine.alice.done(&["status", "vod"]).contains("open"));
    drop(bulk);
    machine.until("it is gone", |machine| {
        !machine.root.sees().contains(&"54322:bulk".to_owned())
    });
}

#[test]
fn the_unit_leaves_the_rights_that_these_tests_run_with() {
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/systemd/bonsai.service"
    );
    let unit = std::fs::read_to_string(unit).expect("a unit");
    let rights = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let rights = rights.expect("rights").split(' ').map(|right| {
        let right = right.strip_prefix("CAP_").expect("a right");
        format!("+{}", right.to_lowercase())
    });
    let rights: Vec<String> = rights.collect();
    assert_eq!(super::machine::RIGHTS, format!("-all,{}", rights.join(",")));
}

#[test]
fn users_see_and_change_their_own() {
    let test = "users_see_and_change_their_own";
    let config = format!("{FILE}[api]\nread-group = \"daemon\"\nwrite-group = \"bin\"\n");
    let Some(machine) = Machine::started(test, &config) else {
        return;
    };
    let (alice, bob, root) = (&machine.alice, &machine.bob, &machine.root);
    let _vod = alice.reader("vod");
    let _bulk = bob.reader("bulk");
    let _own = root.reader("own");
    for id in ["54321:vod", "54322:bulk"] {
        machine.governs(id);
    }
    root.done(&["set", "54321:vod", "read=6MB/s"]);
    root.done(&["set", "54322:bulk", "read=9MB/s", "--reason", "secret"]);
    root.done(&["set", "54321:vod", "open=7/s"]);
    machine.until("a history", |machine| {
        machine
            .root
            .get("/v1/history/known")
            .as_array()
            .map(Vec::len)
            >= Some(3)
    });

    assert_eq!(alice.sees(), ["54321:vod"]);
    assert_eq!(bob.sees(), ["54322:bulk"]);
    assert_eq!(root.sees(), ["54321:vod", "54322:bulk", "own"]);
    assert_eq!(alice.get("/v1/status")["services"], 1);
    assert_eq!(
        alice.get("/v1/status")["problems"].as_array().map(Vec::len),
        Some(0)
    );
    assert_eq!(alice.get("/v1/services/vod")["id"], "54321:vod");
    alice.get("/v1/history?service=vod&resource=read");
    let report = "{\"service\":\"54322:bulk\",\"loss\":0}";
    let streams = "{\"service\":\"bulk\",\"resource\":\"read\",\"streams\":1,\"rate\":\"1MB/s\"}";
    for (method, path, body, status) in [
        ("GET", "/v1/services/54322:bulk", "", 404),
        ("GET", "/v1/services/bulk", "", 404),
        ("GET", "/v1/services/own", "", 404),
        ("GET", "/v1/services/root:own", "", 404),
        ("PATCH", "/v1/services/54322:bulk", "{}", 404),
        (
            "PATCH",
            "/v1/services/own",
            "{\"read\":{\"max\":\"1MB/s\"}}",
            404,
        ),
        ("GET", "/v1/config", "", 403),
        ("PATCH", "/v1/config", "{}", 403),
        ("POST", "/v1/undo", "{}", 403),
        ("POST", "/v1/capacity/probe", "{\"resource\":\"read\"}", 403),
        ("GET", "/v1/history", "", 403),
        ("GET", "/v1/history?service=54322:bulk", "", 404),
        ("GET", "/v1/history?service=root:own", "", 404),
        ("GET", "/v1/history/export?format=csv", "", 403),
        (
            "GET",
            "/v1/history/export?format=csv&service=54322:bulk",
            "",
            404,
        ),
        ("POST", "/v1/reports", report, 404),
        ("POST", "/v1/admit", streams, 403),
        ("GET", "/v1/tokens", "", 403),
        (
            "POST",
            "/v1/tokens",
            "{\"name\":\"x\",\"scope\":\"read\"}",
            403,
        ),
        // What root has set is not raised, nor lifted.
        (
            "PATCH",
            "/v1/services/vod",
            "{\"read\":{\"max\":\"7MB/s\"}}",
            403,
        ),
        (
            "PATCH",
            "/v1/services/vod",
            "{\"read\":{\"max\":null}}",
            403,
        ),
        (
            "PATCH",
            "/v1/services/vod",
            "{\"read\":{\"min\":\"1MB/s\"}}",
            403,
        ),
        (
            "PATCH",
            "/v1/services/vod",
            "{\"read\":{\"min\":\"99MB/s\"}}",
            403,
        ),
        (
            "PATCH",
            "/v1/services/vod",
            "{\"limits\":{\"open\":\"8/s\"}}",
            403,
        ),
        ("PATCH", "/v1/services/vod", "{\"limits\":null}", 403),
        ("PATCH", "/v1/services/vod", "{\"class\":\"default\"}", 403),
    ] {
        let (got, answer) = alice.ask(method, path, body);
        assert_eq!(got, status, "{method} {path} {body}: {answer}");
        assert!(
            !answer.contains("20 MB/s"),
            "the arithmetic of all: {answer}"
        );
    }
    // What is told of all: none of it is about others.
    let known = alice.get("/v1/history/known");
    assert_eq!(known.as_array().map(Vec::len), Some(1), "{known}");
    let (_, csv) = alice.ask("GET", "/v1/history/export?format=csv&service=vod", "");
    let (_, metrics) = alice.ask("GET", "/metrics", "");
    let (_, audit) = alice.ask("GET", "/v1/audit", "");
    let args = [
        "-sN",
        "--max-time",
        "3",
        "--unix-socket",
        "/run/bonsai/daemon.sock",
        "http://localhost/v1/events?interval=100ms",
    ];
    let events = std::thread::scope(|scope| {
        let events = scope.spawn(|| {
            let mut curl = alice.bare("/usr/bin/curl", &args);
            conformance::finish(&mut curl, crate::fixture::PATIENCE).expect("it ends")
        });
        std::thread::sleep(Duration::from_secs(1));
        root.done(&["set", "54322:bulk", "read=8MB/s"]);
        root.done(&["set", "54321:vod", "read=5MB/s"]);
        events.join().expect("events").stdout
    });
    for (what, text) in [
        ("csv", csv),
        ("metrics", metrics),
        ("audit", audit),
        ("events", events),
    ] {
        assert!(text.contains("54321:vod"), "{what}: {text}");
        for other in ["bulk", "own\"", "secret"] {
            assert!(!text.contains(other), "{what}, {other}: {text}");
        }
    }

    // By the command line: a name alone is one's own.
    let said = alice.done(&["set", "vod", "read=3MB/s"]);
    assert_eq!(said, "54321:vod.read.max: 5MB/s -> 3MB/s\n");
    together_at_most(3_000_000, &[(alice, "vod")]);
    assert!(alice.done(&["shares"]).contains("54321:vod"));
    assert!(alice.done(&["log"]).contains("5MB/s -> 3MB/s"));
    let undo = alice.say(&["undo"]);
    assert_eq!(undo.status.code(), Some(2), "{undo:?}");
    // It may be taken back up to what root has said, and no further.
    let higher = alice.say(&["set", "vod", "read=7MB/s"]);
    assert_eq!(higher.status.code(), Some(2), "{higher:?}");
    alice.done(&["set", "vod", "read=5MB/s"]);
    assert!(root.done(&["log"]).contains("uid 54321"));

    // The trail is everybody's: one alone does not fill it.
    let statuses: Vec<u16> = (0..32)
        .map(|i| {
            let patch = format!("{{\"read\":{{\"max\":\"{}kB/s\"}}}}", 3000 + i);
            alice.ask("PATCH", "/v1/services/vod", &patch).0
        })
        .collect();
    assert!(
        statuses.contains(&200) && statuses.contains(&429),
        "{statuses:?}"
    );
    assert_eq!(
        bob.ask(
            "PATCH",
            "/v1/services/bulk",
            "{\"read\":{\"max\":\"1MB/s\"}}"
        )
        .0,
        200
    );

    // A group may be given to read, another to write.
    let (reader, writer) = (machine.user(54323, 1), machine.user(54324, 2));
    assert_eq!(reader.sees(), ["54321:vod", "54322:bulk", "own"]);
    let patch = "{\"read\":{\"max\":\"2MB/s\"}}";
    assert_eq!(reader.ask("PATCH", "/v1/services/own", patch).0, 403);
    assert_eq!(reader.ask("POST", "/v1/undo", "{}").0, 403);
    assert_eq!(writer.ask("PATCH", "/v1/services/own", patch).0, 200);
    assert_eq!(writer.ask("POST", "/v1/undo", "{}").0, 200);
    // A token would go on after they are taken out of the group.
    let wished = "{\"name\":\"x\",\"scope\":\"write\"}";
    assert_eq!(root.ask("POST", "/v1/tokens", wished).0, 201);
    assert_eq!(writer.ask("POST", "/v1/tokens", wished).0, 403);
    assert_eq!(writer.ask("DELETE", "/v1/tokens/x", "").0, 403);
    assert_eq!(root.ask("DELETE", "/v1/tokens/x", "").0, 204);
    assert_eq!(machine.user(54325, 54325).sees(), Vec::<String>::new());
}

#[test]
fn whoever_means_harm_loses_sight_of_their_own_only() {
    let test = "whoever_means_harm_loses_sight_of_their_own_only";
    let Some(machine) = Machine::started(test, FILE) else {
        return;
    };
    let (alice, bob, root) = (&machine.alice, &machine.bob, &machine.root);
    let _bulk = bob.reader("bulk");
    machine.governs("54322:bulk");
    // Folders that are no services: links to others' and what keeps waiting.
    let home = machine.path("/run/user/54321/bonsai");
    let made = alice.reader("vod");
    machine.governs("54321:vod");
    let shell = |text: &str| {
        let mut command = alice.bare("/bin/sh", &["-c", text]);
        let said = conformance::finish(&mut command, crate::fixture::PATIENCE).expect("it ends");
        assert!(said.status.success(), "{text}: {}", said.stderr);
    };
    shell(
        "cd /run/user/54321/bonsai && ln -s /dev/shm/bonsai-54322/bulk link && mkdir other fifo && \
         ln -s /dev/shm/bonsai-54322/bulk/ledger other/ledger && mkfifo fifo/ledger \
         fifo/enforced.json",
    );
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(root.sees(), ["54321:vod", "54322:bulk"]);
    assert_eq!(alice.sees(), ["54321:vod"]);
    // A lock that is never given back: what cannot be written is said, and nobody waits.
    let mut lock = alice.bare(
        "/usr/bin/flock",
        &["-F", "/run/user/54321/bonsai/vod/ledger", "sleep", "60"],
    );
    let lock = super::fixture::Ends(lock.spawn().expect("it starts"));
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    root.ask(
        "PATCH",
        "/v1/services/54321:vod",
        "{\"read\":{\"max\":\"1MB/s\"}}",
    );
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "it waited for the lock"
    );
    machine.until("it is said", |machine| {
        let vod = machine.root.get("/v1/services/54321:vod");
        vod["problems"].to_string().contains("its lock is held")
    });
    let patch = "{\"read\":{\"max\":\"4MB/s\"}}";
    assert_eq!(root.ask("PATCH", "/v1/services/54322:bulk", patch).0, 200);
    together_at_most(4_000_000, &[(bob, "bulk")]);
    drop(lock);
    machine.governs("54321:vod");
    together_at_most(1_000_000, &[(alice, "vod")]);
    // A ledger that its owner cuts short under the daemon's mapping.
    std::fs::OpenOptions::new()
        .write(true)
        .open(home.join("vod/ledger"))
        .and_then(|file| file.set_len(0))
        .expect("shorter");
    machine.until("it is said", |machine| {
        let problems = machine.root.get("/v1/status")["problems"].to_string();
        problems.contains("54321") && problems.contains("cut short")
    });
    assert_eq!(alice.sees(), Vec::<String>::new());
    assert_eq!(bob.sees(), ["54322:bulk"]);
    together_at_most(4_000_000, &[(bob, "bulk")]);
    drop(made);
}

/// Puts a runtime directory in the place of the one before, again and again: in each is a ledger
/// that keeps whoever opens it waiting, by a lease.
const SWAPS: &str = r#"
    $SIG{IO} = "IGNORE";
    $| = 1;
    chdir "/run/user/54321" or die;
    for my $i (1..5) {
        mkdir "next", 0700 or die;
        mkdir "next/trap", 0700 or die;
        open($held[$i], ">", "next/trap/ledger") or die;
        fcntl($held[$i], 1024, 1) or die "no lease: $!";
        rename "bonsai", "before$i" or die;
        rename "next", "bonsai" or die;
        select undef, undef, undef, 1.3;
    }
    print "swapped\n";
    sleep 60;
"#;

#[test]
fn a_user_who_changes_directories_has_one_thread() {
    let test = "a_user_who_changes_directories_has_one_thread";
    if !std::path::Path::new("/usr/bin/perl").exists() {
        return conformance::skip(test, "perl is not installed");
    }
    let Some(machine) = Machine::started(test, FILE) else {
        return;
    };
    let (alice, bob, root) = (&machine.alice, &machine.bob, &machine.root);
    let of_alice = || {
        let threads = machine.threads();
        threads.iter().filter(|name| *name == "user 54321").count()
    };
    let vod = alice.reader("vod");
    let _bulk = bob.reader("bulk");
    machine.governs("54321:vod");
    machine.governs("54322:bulk");
    assert_eq!(of_alice(), 1);
    // A lock that is held all the while.
    let mut lock = alice.bare(
        "/usr/bin/flock",
        &["-F", "/run/user/54321/bonsai/vod/ledger", "sleep", "60"],
    );
    let lock = super::fixture::Ends(lock.spawn().expect("it starts"));
    let mut swaps = alice.bare("/usr/bin/perl", &["-e", SWAPS]);
    let swaps = super::machine::started(&mut swaps);
    // One waits for the lease, and has no company.
    assert_eq!(of_alice(), 1, "{:?}", machine.threads());
    machine.until("it is said", |machine| {
        let problems = machine.root.get("/v1/status")["problems"].to_string();
        problems.contains("services of 54321") && problems.contains("has come back")
    });
    // All others are governed as before.
    assert_eq!(root.sees(), ["54322:bulk"]);
    let patch = "{\"read\":{\"max\":\"4MB/s\"}}";
    assert_eq!(root.ask("PATCH", "/v1/services/54322:bulk", patch).0, 200);
    together_at_most(4_000_000, &[(bob, "bulk")]);
    // With the lease goes what kept the thread.
    drop(lock);
    drop(vod);
    drop(swaps);
    let _again = alice.reader("again");
    machine.governs("54321:again");
    assert_eq!(of_alice(), 1);
}

/// A file system of somebody's own in the place of their directory, which answers nobody.
const SILENT: &str = r#"
    $| = 1;
    mkdir "/run/user/54323" or die;
    chown 54323, 54323, "/run/user/54323" or die;
    sysopen($fuse, "/dev/fuse", 2) or die "no FUSE";
    my $how = "fd=" . fileno($fuse) . ",rootmode=40700,user_id=54323,group_id=54323,allow_other";
    my ($name, $at) = ("fuse", "/run/user/54323");
    syscall(SYS_MOUNT, $name, $at, $name, 0, $how) == 0 or die "not mounted";
    print "mounted\n";
    sleep 60;
"#;

#[test]
fn a_directory_that_keeps_whoever_opens_it_waiting_holds_no_period() {
    let test = "a_directory_that_keeps_whoever_opens_it_waiting_holds_no_period";
    let perl = std::path::Path::new("/usr/bin/perl").exists();
    if !perl || !std::path::Path::new("/dev/fuse").exists() {
        return conformance::skip(test, "perl is not installed, or there is no FUSE");
    }
    let Some(machine) = Machine::started(test, FILE) else {
        return;
    };
    let (bob, root) = (&machine.bob, &machine.root);
    let _bulk = bob.reader("bulk");
    machine.governs("54322:bulk");
    let number = if cfg!(target_arch = "x86_64") {
        "165"
    } else {
        "40"
    };
    let program = SILENT.replace("SYS_MOUNT", number);
    let mut silent = root.bare("/usr/bin/perl", &["-e", &program]);
    let silent = super::machine::started(&mut silent);
    machine.until("it is said", |machine| {
        let problems = machine.root.get("/v1/status")["problems"].to_string();
        problems.contains("which users have services is not known")
    });
    // Those who are known are governed as before.
    let patch = "{\"read\":{\"max\":\"4MB/s\"}}";
    assert_eq!(root.ask("PATCH", "/v1/services/54322:bulk", patch).0, 200);
    together_at_most(4_000_000, &[(bob, "bulk")]);
    // With whoever was to answer goes what kept it waiting.
    drop(silent);
    let _vod = machine.alice.reader("vod");
    machine.governs("54321:vod");
}

#[test]
fn of_two_daemons_the_lower_limit_binds() {
    let test = "of_two_daemons_the_lower_limit_binds";
    let Some(mut machine) = Machine::started(test, FILE) else {
        return;
    };
    let mut command = machine.alice.command(&["daemon"]);
    let _theirs = started(&mut command);
    let _vod = machine.alice.reader("vod");
    machine.governs("54321:vod");
    // Alice's commands go to her own, root's to root's.
    let said = machine.alice.done(&["set", "vod", "read=5MB/s"]);
    assert!(
        said.starts_with("vod.read.max: nothing -> 5MB/s\nnote: root's daemon"),
        "{said}"
    );
    together_at_most(5_000_000, &[(&machine.alice, "vod")]);
    machine.root.done(&["set", "54321:vod", "read=2MB/s"]);
    together_at_most(2_000_000, &[(&machine.alice, "vod")]);
    // One that does nothing therefore is said to.
    let set_higher = |machine: &Machine| {
        let said = machine.alice.say(&["set", "vod", "read=9MB/s"]);
        let held = "note: vod: read=2 MB/s, set by root's daemon, still holds for read\n";
        assert!(
            said.status.code() == Some(1) && said.stdout.ends_with(held),
            "{said:?}"
        );
    };
    set_higher(&machine);
    together_at_most(2_000_000, &[(&machine.alice, "vod")]);
    machine.alice.done(&["set", "vod", "read=1MB/s"]);
    together_at_most(1_000_000, &[(&machine.alice, "vod")]);
    // It is said which one is above.
    let status = machine.alice.done(&["status", "vod"]);
    assert!(
        status.contains("read/system") && status.contains("read/daemon"),
        "{status}"
    );
    // Root's ends: what it has set stays, and the other one goes on.
    machine.end(Signal::KILL);
    together_at_most(1_000_000, &[(&machine.alice, "vod")]);
    set_higher(&machine);
    together_at_most(2_000_000, &[(&machine.alice, "vod")]);
}

#[test]
fn an_enforced_service_of_a_user_keeps_what_root_has_set() {
    let test = "an_enforced_service_of_a_user_keeps_what_root_has_set";
    if !crate::enforced::can_enforce(test) {
        return;
    }
    let Some(machine) = Machine::started(test, FILE) else {
        return;
    };
    let (alice, root) = (&machine.alice, &machine.root);
    let mut command = alice.command(&["run", "--enforce", "--name", "vod"]);
    command.args([
        "-l",
        "read=unlimited",
        "--",
        "/bin/dd",
        "if=/dev/zero",
        "of=/dev/null",
        "bs=16k",
    ]);
    let said = conformance::finish(
        &mut alice.command(&[
            "run",
            "--enforce",
            "-l",
            "read=unlimited",
            "--",
            "/bin/true",
        ]),
        crate::fixture::PATIENCE,
    );
    let said = said.expect("it ends");
    if !said.status.success() {
        return conformance::skip(test, said.stderr.trim());
    }
    let _vod = super::fixture::Ends(command.spawn().expect("it starts"));
    machine.governs("54321:vod");
    root.done(&["set", "54321:vod", "read=2MB/s"]);
    // The window may begin with what was ahead of the old limit: 256 KiB of the service.
    std::thread::sleep(Duration::from_millis(300));
    together_at_most(2_000_000, &[(alice, "vod")]);
    let patch = "{\"read\":{\"max\":\"3MB/s\"}}";
    assert_eq!(alice.ask("PATCH", "/v1/services/vod", patch).0, 403);
    let said = alice.say(&["set", "vod", "read=3MB/s"]);
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    // A limit of one's own is one more.
    alice.done(&["set", "--direct", "vod", "read=9MB/s"]);
    together_at_most(2_000_000, &[(alice, "vod")]);
    let status = alice.done(&["status", "vod"]);
    assert!(status.contains("read/system"), "{status}");
}
