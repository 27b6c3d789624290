//! Programs in root file systems of other releases (`tests/hosts/roots.sh`), with the one build that is tested: each is limited, or named as
//! not covered.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

use conformance::{Finished, ProcessError, finish, skip};

use crate::fixture::{compiler, scratch};
use crate::probe::PATIENCE;

mod more;
mod servers;

const LENGTH: u64 = 3_000_000;
const RATE: u64 = 3_000_000;
const BURST: u64 = 65_536;
const FILE: &str = "/mnt/work/hosts.data";

/// Ways to the kernel, by programs made for this: heading, name of the program, and what it is called with before the file.
const CELLS: [(&str, &str, &[&str]); 9] = [
    ("one thread", "hosts-moves", &["read"]),
    ("threads", "hosts-moves", &["read", "thread"]),
    ("stdio", "hosts-moves", &["fread"]),
    ("stdio, threads", "hosts-moves", &["fread", "thread"]),
    ("aio", "hosts-moves", &["aio"]),
    ("static", "hosts-static", &["read"]),
    ("static, stdio", "hosts-static", &["fread"]),
    ("musl", "hosts-musl", &["fread"]),
    ("Go", "hosts-go", &[]),
];

/// Programs that read the whole file at least once: some read nothing where their output is `/dev/null`.
const PROGRAMS: [(&str, &str); 24] = [
    ("awk", "awk 'END { print NR }' \"$0\""),
    ("bash", "bash -c 'mapfile lines <\"$0\"' \"$0\""),
    ("bzip2", "bzip2 -1 -c \"$0\""),
    ("cat", "cat \"$0\""),
    ("cksum", "cksum \"$0\""),
    ("wc", "wc -l \"$0\""),
    ("cp", "cp \"$0\" /run/copy"),
    ("cpio", "echo \"$0\" | cpio -o"),
    ("curl", "curl -s \"file://$0\""),
    ("cut", "cut -c 1-3 \"$0\""),
    ("dd", "dd if=\"$0\" of=/dev/null bs=64k"),
    ("grep", "grep -vc nothing \"$0\" | cat"),
    ("gzip", "gzip -1 -c \"$0\""),
    ("head", "head -c 3000000 \"$0\""),
    ("md5sum", "md5sum \"$0\""),
    ("od", "od \"$0\""),
    ("openssl", "openssl dgst -sha256 \"$0\""),
    ("perl", "perl -ne '$n++; END { print $n }' \"$0\""),
    (
        "python3",
        "python3 -c 'import sys; print(len(open(sys.argv[1], \"rb\").read()))' \"$0\"",
    ),
    (
        "python3, thread",
        "python3 -c 'import os, sys, threading\ndef read():\n fd = os.open(sys.argv[1], 0)\n while os.read(fd, 65536): pass\n\
         t = threading.Thread(target=read)\nt.start()\nt.join()' \"$0\"",
    ),
    ("sed", "sed -n '$p' \"$0\""),
    ("sort", "sort \"$0\""),
    ("tar", "tar -cf - \"$0\" | cat"),
    ("zstd", "zstd -1 -c \"$0\""),
];

/// A root file system, and how a command is run in it.
struct Host {
    release: String,
    root: PathBuf,
}

/// The folder of `bonsai` and its libraries.
fn binaries() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bonsai");
    std::env::var_os("BONSAI_BIN_DIR").map_or(built, PathBuf::from)
}

impl Host {
    /// Runs a shell command bare, with namespaces of its own for mounts, network and processes: nothing that it starts outlives it.
    fn enter(&self, command: &str, args: &[&str]) -> Result<Finished, ProcessError> {
        const ENTER: &str = "mount --bind \"$1\" \"$0/mnt/bonsai\" && mount --bind \"$2\" \"$0/mnt/work\" && mount --rbind /dev \"$0/dev\" \
            && mount -t proc none \"$0/proc\" && mount -t tmpfs none \"$0/run\" && mkdir -m 700 \"$0/run/bonsai\" && ip link set lo up \
            && shift 2 && exec chroot \"$0\" \"$@\"";
        let mut enter = Command::new("unshare");
        enter.args(["--mount", "--propagation", "private", "--net"]);
        enter.args(["--pid", "--fork", "--kill-child", "sh", "-c", ENTER]);
        enter.args([&self.root, &binaries(), &scratch()]);
        enter.args(["sh", "-c", command]).args(args);
        enter.env("BONSAI_RUNTIME_DIR", "/run/bonsai");
        enter.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        enter.env("LC_ALL", "C").env("HOME", "/run");
        finish(&mut enter, PATIENCE)
    }

    /// Runs a shell command under the limit on reads.
    fn limited(&self, command: &str, args: &[&str]) -> Result<Finished, ProcessError> {
        let run = format!(
            "exec /mnt/bonsai/bonsai run --json --limit read={RATE}B/s:burst={BURST}B -- sh -c \"$0\" \"$@\""
        );
        let args: Vec<&str> = [command].iter().chain(args).copied().collect();
        self.enter(&run, &args)
    }

    /// A link may lead to a path of that root.
    fn has(&self, path: &str) -> bool {
        self.root.join(path).symlink_metadata().is_ok()
    }

    fn has_program(&self, name: &str) -> bool {
        let folders = ["usr/bin", "bin", "usr/sbin", "sbin"];
        folders
            .iter()
            .any(|folder| self.has(&format!("{folder}/{name}")))
    }
}

/// True where the run said on standard error that the program is out of reach.
fn is_named(finished: &Finished) -> bool {
    let named = [
        "not covered",
        "covered in part",
        "cannot be entered",
        "files mapped into memory (mmap)",
    ];
    named.iter().any(|words| finished.stderr.contains(words))
}

/// Says how fast a program was, in parts of its limit: with its start, so that it may be less. A program that is faster has to be named.
#[expect(clippy::cast_precision_loss, reason = "some megabytes")]
fn verdict(what: &str, finished: &Finished, elapsed: Duration) -> String {
    assert!(finished.status.success(), "{what}: {finished:?}");
    let least = (LENGTH - BURST - 1) as f64 / RATE as f64;
    let rate = least / elapsed.as_secs_f64();
    if rate <= 1.02 {
        return format!("{rate:.2}");
    }
    assert!(
        is_named(finished),
        "{what}: {rate:.1} of its limit, and not named: {finished:?}"
    );
    "named".to_owned()
}

/// Time that a program has measured.
fn said(finished: &Finished) -> Option<Duration> {
    let line = finished
        .stderr
        .lines()
        .find(|line| line.starts_with("# elapsed"))?;
    let ms: f64 = line.split_whitespace().nth(2)?.parse().ok()?;
    Some(Duration::from_secs_f64(ms / 1e3))
}

/// Makes the programs of [`CELLS`]; those that cannot be made are left out.
fn make_programs(test: &str) -> bool {
    let Some(gcc) = compiler(test) else {
        return false;
    };
    // Programs that are linked with an older library run in all of the releases.
    let older = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/cc");
    let older = gcc.by(&older.to_string_lossy());
    let source = ["libcs/moves.c"];
    let made = |compiler: Option<&conformance::Compiler>, name: &str, options: &[&str]| {
        let made = compiler.map(|compiler| compiler.make(name, &source, options));
        if !matches!(made, Some(Ok(_))) {
            skip(test, &format!("{name}: {made:?}"));
        }
    };
    made(older.as_ref(), "hosts-moves", &["-lrt"]);
    made(Some(gcc), "hosts-static", &["-static", "-Wl,--build-id"]);
    made(gcc.by("musl-gcc").as_ref(), "hosts-musl", &[]);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go/moves/main.go");
    let mut go = Command::new("go");
    go.args(["build", "-o"])
        .arg(scratch().join("hosts-go"))
        .arg(source);
    go.envs([
        ("CGO_ENABLED", "0"),
        ("GOFLAGS", ""),
        ("GO111MODULE", "off"),
    ]);
    go.env("GOCACHE", scratch().join("go-cache"));
    if !go.output().is_ok_and(|output| output.status.success()) {
        skip(test, "hosts-go: no Go toolchain");
    }
    true
}

/// The row of a release, and the one of its programs.
fn rows(host: &Host) -> (String, String) {
    let mut cells = format!("| {} |", host.release);
    for (heading, program, args) in CELLS {
        let is_there = scratch().join(program).exists();
        let runs = is_there && (program != "hosts-musl" || host.has("lib/ld-musl-x86_64.so.1"));
        if !runs {
            cells.push_str(" - |");
            continue;
        }
        // The file comes second, the length third.
        let (how, rest) = args.split_at(args.len().min(1));
        let length = LENGTH.to_string();
        let length = if args.is_empty() {
            None
        } else {
            Some(&*length)
        };
        let args: Vec<&str> = how
            .iter()
            .chain([&FILE])
            .copied()
            .chain(length)
            .chain(rest.iter().copied())
            .collect();
        let command = format!("/mnt/work/{program} \"$0\" \"$@\" >&2");
        let what = format!("{}: {heading}", host.release);
        let finished = host.limited(&command, &args);
        let finished = finished.unwrap_or_else(|error| panic!("{what}: {error}"));
        let elapsed = said(&finished).unwrap_or_else(|| panic!("{what}: {finished:?}"));
        write!(cells, " {} |", verdict(&what, &finished, elapsed)).expect("a string");
    }
    let mut programs = format!("{}:", host.release);
    for (name, command) in PROGRAMS {
        let word = name.split(',').next().unwrap_or(name);
        if !host.has_program(word) {
            continue;
        }
        let what = format!("{}: {name}", host.release);
        let finished = host.limited(&format!("{command} >/dev/null"), &[FILE]);
        let finished = finished.unwrap_or_else(|error| panic!("{what}: {error}"));
        let verdict = verdict(&what, &finished, finished.elapsed);
        write!(programs, " {name} {verdict},").expect("a string");
    }
    (cells, programs)
}

/// The root file systems in a folder, by name. None is a skip of `test`, and so is a user that cannot enter them.
fn hosts_in(test: &str, folder: &Path) -> Vec<Host> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let roots = entries.filter(|entry| entry.path().join("mnt/bonsai").is_dir());
    let mut hosts: Vec<Host> = roots
        .map(|entry| Host {
            release: entry.file_name().to_string_lossy().into_owned(),
            root: entry.path(),
        })
        .collect();
    hosts.sort_by(|a, b| a.release.cmp(&b.release));
    if hosts.is_empty() {
        let reason = format!("no root file systems in {}: make hosts", folder.display());
        skip(test, &reason);
    } else if !rustix::process::geteuid().is_root() {
        skip(test, "other root file systems are entered by root");
        return Vec::new();
    }
    hosts
}

/// The larger root file systems, and the data beside them. None of them is a skip of `test`.
fn larger_hosts(test: &str) -> Option<Vec<Host>> {
    let Some(folder) = std::env::var_os("BONSAI_HOSTS_MORE").map(PathBuf::from) else {
        let reason = "takes root file systems of 1 GB each: make test-hosts";
        skip(test, reason);
        return None;
    };
    let hosts = hosts_in(test, &folder);
    write_data();
    Some(hosts)
}

/// The file that programs read, once for all tests: others read it at the time.
fn write_data() {
    static WRITTEN: Once = Once::new();
    WRITTEN.call_once(|| {
        let contents = "a line of thirty bytes or so.\n".repeat(100_000);
        std::fs::write(scratch().join("hosts.data"), contents).expect("a file");
    });
}

/// Findings in each root; all roots are looked at together.
fn in_each<T: Send>(hosts: &[Host], look: impl Fn(&Host) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let look = &look;
        let running: Vec<_> = hosts
            .iter()
            .map(|host| scope.spawn(move || look(host)))
            .collect();
        let ended = running
            .into_iter()
            .map(|thread| thread.join().expect("no failure"));
        ended.collect()
    })
}

/// Prints a table, and adds it to the file that is named.
fn print_table(lines: &[String]) {
    let table = lines.join("\n") + "\n";
    println!("{table}");
    if let Some(path) = std::env::var_os("BONSAI_HOSTS_TABLE") {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .expect("a file");
        writeln!(file, "{table}").expect("room for a table");
    }
}

#[test]
fn programs_of_other_releases_are_limited_or_named() {
    let test = "hosts";
    let folder = std::env::var_os("BONSAI_HOSTS").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("hosts"),
        PathBuf::from,
    );
    let hosts = hosts_in(test, &folder);
    write_data();
    if hosts.is_empty() || !make_programs(test) {
        return;
    }
    let rows = in_each(&hosts, rows);
    let headings: Vec<&str> = CELLS.iter().map(|(heading, ..)| *heading).collect();
    let mut lines = vec![format!("| release | {} |", headings.join(" | "))];
    lines.push(format!("|---|{}", "---|".repeat(CELLS.len())));
    lines.extend(rows.iter().map(|(cells, _)| cells.clone()));
    for (_, programs) in &rows {
        lines.push(String::new());
        lines.push(programs.trim_end_matches(',').to_owned());
    }
    print_table(&lines);
}
