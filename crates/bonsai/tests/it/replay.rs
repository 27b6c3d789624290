//! `bonsai trace replay`: against nbdkit, against the own server, and what is said of bad input.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::support::{PATIENCE, Place, Said, skip};

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn file(place: &Place, name: &str) -> String {
    place.path().join(name).display().to_string()
}

fn socket(place: &Place) -> PathBuf {
    place.path().join("nbd.sock")
}

/// nbdkit, listening; `None`, and the reason in the log, where it is not there.
fn nbdkit(test: &str, place: &Place, args: &[&str]) -> Option<Server> {
    let mut command = Command::new("nbdkit");
    command.args(["-f", "-U"]).arg(socket(place)).args(args);
    let Ok(child) = command.stderr(Stdio::null()).stdin(Stdio::null()).spawn() else {
        skip(test, "nbdkit is not installed");
        return None;
    };
    Some(listening(place, child))
}

fn listening(place: &Place, child: Child) -> Server {
    let server = Server(child);
    let end = Instant::now() + PATIENCE;
    while UnixStream::connect(socket(place)).is_err() {
        assert!(Instant::now() < end, "the server does not listen");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server
}

/// A trace of these lines of FIU's format.
fn imported(place: &Place, name: &str, lines: &str) -> String {
    let (text, trace) = (file(place, "t.fiu"), file(place, name));
    fs::write(&text, lines).expect("written");
    let said = place.say(&["trace", "import", &text, "-o", &trace]);
    assert_eq!(said.code, Some(0), "{said:?}");
    trace
}

/// A line: ns, block, R or W, minor number, content.
fn line((ns, block, op, minor, content): (u64, u64, char, u32, u32)) -> String {
    let mut text = format!("{ns} 1 x {} 8 {op} 6 {minor}", block * 8);
    if content > 0 {
        text += &format!(" {:032x}", content * 7919);
    }
    text + "\n"
}

fn lines(all: &[(u64, u64, char, u32, u32)]) -> String {
    all.iter().copied().map(line).collect()
}

fn uri(place: &Place, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket(place).display())
}

fn replay(place: &Place, trace: &str, args: &[&str]) -> Said {
    place.say(&[&["trace", "replay", trace], args].concat())
}

fn document(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("no JSON: {said:?}"))
}

#[test]
fn what_was_written_is_read_again_from_nbdkit() {
    let place = Place::bare();
    let test = "what_was_written_is_read_again_from_nbdkit";
    let Some(_server) = nbdkit(test, &place, &["memory", "1M"]) else {
        return;
    };
    // Written and read at once: order is kept where blocks are the same.
    let mut all = Vec::new();
    for n in 0..200_u32 {
        let block = u64::from(n % 50);
        all.push((u64::from(n), block, 'W', 0, n % 30 + 1));
        all.push((u64::from(n), block, 'R', 0, n % 30 + 1));
    }
    let trace = imported(&place, "t.btr", &lines(&all));
    let to = uri(&place, "");
    let args = ["--to", &to, "--check", "--json", "--speed", "max"];
    let said = replay(&place, &trace, &args);
    let found = document(&said);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(found["requests"]["read"], 200);
    assert_eq!(found["requests"]["write"], 200);
    assert_eq!(found["bytes"]["written"], 200 * 4096);
    assert_eq!(found["blocks"]["checked"], 200);
    assert_eq!(found["blocks"]["wrong"], 0);
    assert_eq!(found["lateness_us"], Value::Null);

    // Without the writes, nothing is as it was before them; the server has what was written last.
    let reads = lines(&[(0, 0, 'R', 0, 1), (0, 1, 'R', 0, 5), (0, 60, 'R', 0, 1)]);
    let trace = imported(&place, "other.btr", &reads);
    let said = replay(&place, &trace, &["--to", &to, "--check", "--json"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let found = document(&said);
    assert_eq!(found["blocks"]["checked"], 3);
    assert_eq!(found["blocks"]["wrong"], 2);
    // Of two that are under way at once, either comes first.
    let first = found["first_wrong"]["offset"].as_u64();
    assert!([Some(4096), Some(60 * 4096)].contains(&first), "{found}");
    assert!(found["lateness_us"]["max"].is_number());
}

#[test]
fn requests_of_one_instant_are_one() {
    let place = Place::bare();
    let Some(_server) = nbdkit(
        "requests_of_one_instant_are_one",
        &place,
        &["memory", "64M"],
    ) else {
        return;
    };
    let mut all = Vec::new();
    // 40 MiB of one instant are more than a server takes at once, and then some apart.
    for block in 0..10_240 {
        all.push((5, block, 'R', 0, 0));
    }
    for n in 0..10 {
        all.push((1_000 + n, 100 + n, 'R', 0, 0));
    }
    let trace = imported(&place, "t.btr", &lines(&all));
    let to = uri(&place, "");
    for (more, requests) in [(&[][..], 10_250), (&["--merge"], 12)] {
        let said = replay(&place, &trace, &[&["--to", &to, "--json"], more].concat());
        let found = document(&said);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(found["requests"]["read"], requests);
        assert_eq!(found["trace_requests"], 10_250);
        assert_eq!(found["bytes"]["read"], 10_250 * 4096);
    }
}

#[test]
fn our_server_answers_as_the_images_say() {
    let place = Place::bare();
    // Two devices with the same contents in different blocks; some are written, others read after that.
    let mut all = Vec::new();
    for n in 0..300_u32 {
        let op = if n % 7 == 6 { 'W' } else { 'R' };
        all.push((
            u64::from(n) * 1_000,
            u64::from(n % 40),
            op,
            n % 2,
            n % 20 + 1,
        ));
    }
    let trace = imported(&place, "t.btr", &lines(&all));
    // Exports are services, whose folders have their names in the runtime directory.
    fs::create_dir(place.path().join("images")).expect("a folder");
    let (twin, images) = (file(&place, "twin.btr"), file(&place, "images/disk"));
    let make = || {
        let like = ["trace", "gen", "--like", &trace, "--shuffle", "1"];
        let said = place.say(&[&like[..], &["-o", &twin, "--content", &images]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
    };
    make();
    let paths = ["6_0", "6_1"].map(|device| format!("{images}.{device}"));
    for path in &paths {
        // Blocks that are only written are behind the end otherwise.
        let image = fs::File::options()
            .write(true)
            .open(path)
            .expect("an image");
        image.set_len(1 << 20).expect("longer");
    }
    let serve = |more: &[&str]| {
        let mut command = place.bonsai(&["drive", "serve", "--socket"]);
        command.arg(socket(&place)).args(&paths).args(more);
        listening(
            &place,
            command.stderr(Stdio::null()).spawn().expect("bonsai"),
        )
    };
    let to = uri(&place, "disk.{device}");
    let mut server = serve(&["--group", "g", "--scan", "--verify"]);
    let args = ["--to", &to, "--check", "--json", "--speed", "100x"];
    let said = replay(&place, &twin, &[&args[..], &["--reads-only"]].concat());
    let found = document(&said);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(found["left_out"], 42);
    assert_eq!(found["requests"]["write"], 0);
    let unwritten = found["blocks"]["checked"].as_u64().expect("a number");
    assert!(unwritten > 100, "{found}");
    let said = replay(&place, &twin, &args);
    let found = document(&said);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(found["requests"]["write"], 42);
    assert_eq!(found["blocks"]["checked"], 258);
    assert_eq!(found["blocks"]["unchecked"], 0);
    crate::support::signal(server.0.id(), "TERM");
    server.0.wait().expect("ended");

    // A byte that is another: found, and named.
    make();
    let image = fs::File::options()
        .read(true)
        .write(true)
        .open(&paths[0])
        .expect("an image");
    let mut byte = [0];
    image.read_exact_at(&mut byte, 2 * 4096 + 77).expect("read");
    image
        .write_all_at(&[byte[0] ^ 1], 2 * 4096 + 77)
        .expect("written");
    image.set_len(1 << 20).expect("longer");
    drop(server);
    let _server = serve(&["--plain", "--read-only"]);
    let first = place.say(&["trace", "head", "-n", "1", "--json", &twin]);
    assert!(first.out.contains("6:0"), "{first:?}");
    let said = replay(&place, &twin, &[&args[..], &["--reads-only"]].concat());
    let found = document(&said);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(found["blocks"]["wrong"].as_u64() > Some(0), "{found}");
    assert_eq!(found["first_wrong"]["device"], "6:0");
    assert_eq!(found["first_wrong"]["offset"], 2 * 4096);
    let text = replay(
        &place,
        &twin,
        &["--to", &to, "--check", "--reads-only", "--speed", "max"],
    );
    assert!(
        text.out.contains("first wrong 6:0 at 8192: begins with "),
        "{text:?}"
    );
    assert!(text.out.contains("answered after, us"), "{text:?}");

    // It takes no writes.
    let said = replay(&place, &twin, &args);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("it is read-only, and "), "{said:?}");
}

#[test]
fn errors_are_counted_and_a_server_that_goes_is_told() {
    let place = Place::bare();
    let test = "errors_are_counted_and_a_server_that_goes_is_told";
    let failing = [
        "--filter=error",
        "memory",
        "1M",
        "error=EIO",
        "error-pread-rate=100%",
    ];
    let Some(server) = nbdkit(test, &place, &failing) else {
        return;
    };
    let some = lines(&[(0, 0, 'W', 0, 1), (0, 1, 'R', 0, 2), (0, 2, 'R', 0, 2)]);
    let trace = imported(&place, "t.btr", &some);
    let to = uri(&place, "");
    let said = replay(&place, &trace, &["--to", &to, "--json", "--check"]);
    let found = document(&said);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!(found["errors"]["EIO"], 2);
    assert_eq!(found["requests"]["write"], 1);
    assert_eq!(found["bytes"]["read"], 0);
    // Both are under way together.
    let first = found["first_error"].as_str().expect("words");
    assert!(
        first.starts_with("read of 4096 bytes at ") && first.ends_with(" on 6:0: EIO"),
        "{first}"
    );
    drop(server);
    let _ = fs::remove_file(socket(&place));

    // It goes between two requests that are a day apart.
    let log = file(&place, "log");
    let logged = ["--filter=log", "memory", "1M", &format!("logfile={log}")];
    let Some(server) = nbdkit(test, &place, &logged) else {
        return;
    };
    let apart = lines(&[(0, 0, 'R', 0, 2), (86_400_000_000_000, 2, 'R', 0, 2)]);
    let trace = imported(&place, "apart.btr", &apart);
    let mut command = place.bonsai(&["trace", "replay", &trace, "--to", &to]);
    let child = command
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bonsai");
    let end = Instant::now() + PATIENCE;
    while !fs::read_to_string(&log)
        .unwrap_or_default()
        .contains(" Read id=")
    {
        assert!(Instant::now() < end, "nothing is read");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(server);
    let said: Said = child.wait_with_output().expect("ended").into();
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.err.contains("the server has closed the connection"),
        "{said:?}"
    );
    let _ = fs::remove_file(socket(&place));
    let said = replay(&place, &trace, &["--to", &to]);
    assert_eq!(said.code, Some(1), "nobody listens: {said:?}");
}

#[test]
fn bad_input_has_its_sentence() {
    let place = Place::bare();
    let Some(_server) = nbdkit("bad_input_has_its_sentence", &place, &["memory", "64K"]) else {
        return;
    };
    let to = uri(&place, "");
    let known = imported(
        &place,
        "known.btr",
        &lines(&[(0, 1, 'R', 0, 1), (9, 2, 'W', 0, 2)]),
    );
    let unknown = imported(
        &place,
        "unknown.btr",
        &lines(&[(0, 1, 'R', 0, 0), (9, 2, 'W', 0, 0)]),
    );
    let far = imported(&place, "far.btr", &lines(&[(0, 16, 'R', 0, 1)]));
    let two = imported(
        &place,
        "two.btr",
        &lines(&[(0, 1, 'R', 0, 1), (0, 1, 'R', 1, 1)]),
    );
    let cut = file(&place, "cut.btr");
    let whole = fs::read(&known).expect("a trace");
    fs::write(&cut, &whole[..whole.len() - 5]).expect("written");
    let vda = format!("vda={to}");
    let cases: [(&str, &[&str], &str); 11] = [
        (
            &known,
            &["--to", "http://localhost/"],
            "is of no server of NBD",
        ),
        (&known, &["--to", "vda"], "is no URI"),
        (
            &known,
            &["--to", &vda],
            "the trace has no such device; it has 6:0",
        ),
        (
            &known,
            &["--to", &to, "--speed", "fast"],
            "write 1x, 10x, 0.5x or max",
        ),
        (&known, &["--to", &to, "--depth", "0"], "--depth"),
        (
            &unknown,
            &["--to", &to],
            "does not say what 1 of its writes to 6:0 write",
        ),
        (
            &unknown,
            &["--to", &to, "--fill", "--check"],
            "there is nothing to check",
        ),
        (&far, &["--to", &to], "it has 65536 bytes, and "),
        (
            &two,
            &["--to", &to],
            "write --to DEVICE=URI for each, or {device} in one",
        ),
        (&cut, &["--to", &to], "cut"),
        (&to, &["--to", &to], "No such file"),
    ];
    for (trace, args, why) in cases {
        let said = replay(&place, trace, args);
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert!(said.err.contains(why), "{why}: {said:?}");
        assert_eq!(said.out, "", "{said:?}");
    }
    let said = replay(&place, &unknown, &["--to", &to, "--fill", "--json"]);
    assert_eq!(document(&said)["requests"]["write"], 1, "{said:?}");
    // Of two devices, each has its own.
    let first = format!("6:0={to}");
    let said = replay(&place, &two, &["--to", &first]);
    assert!(said.err.contains("add --to 6:1=URI"), "{said:?}");
}
