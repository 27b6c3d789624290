//! Kernels of other releases (`tests/hosts/kernels.sh`), each booted in an emulator with control groups of either version, locked down, and without
//! its types: whatever limits something there is measured by what has moved in which time, and `bonsai doctor` has to have said what does not.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use conformance::{finish, skip};
use serde_json::Value;

use crate::fixture::{compiler, scratch};

/// Longer than a kernel takes for all of it where it has to share its processors.
const PATIENCE: Duration = Duration::from_secs(540);

/// Booted at a time.
const MACHINES: usize = 2;

/// Ways to boot a kernel: the name in the table, and words of the command line.
const MODES: [(&str, &[&str]); 4] = [
    ("v2", &["kernels.groups=v2"]),
    (
        "hybrid, lockdown=integrity",
        &["kernels.groups=hybrid", "lockdown=integrity"],
    ),
    ("v1, no BTF", &["kernels.groups=v1", "kernels.btf=no"]),
    // Older kernels than 6.12 do not know the last one.
    (
        "v2, lockdown=confidentiality, proc_mem.force_override=never",
        &[
            "kernels.groups=v2",
            "lockdown=confidentiality",
            "proc_mem.force_override=never",
        ],
    ),
];

/// Limits that `tests/hosts/kernel-init` tries: the name, and the line of `bonsai doctor` that tells beforehand if it works.
const CELLS: [(&str, &str); 16] = [
    ("run", "covered"),
    ("threads", "covered"),
    ("static", "ptrace"),
    ("user", "covered"),
    ("set", "covered"),
    ("attach", "attach"),
    ("group", "covered"),
    ("enforced", "enforced mode"),
    ("enforced-user", "enforced mode"),
    ("link-tx", "interfaces"),
    ("link-rx", "interfaces"),
    ("disk-read", "cgroup_io"),
    ("disk-write", "cgroup_io"),
    ("recording", "recording of disks"),
    ("cpu", ""),
    ("reserve", ""),
];

/// A kernel and how it is booted.
struct Machine<'a> {
    release: &'a str,
    kernel: &'a Path,
    mode: &'a str,
    words: &'a [&'a str],
}

/// A row of the table, what stands below it, and what is wrong.
#[derive(Default)]
struct Row {
    cells: String,
    notes: Vec<String>,
    faults: Vec<String>,
}

/// Everything that a kernel has printed.
struct Console(String);

impl Console {
    fn lines(&self) -> impl Iterator<Item = &str> {
        self.0
            .lines()
            .filter_map(|line| line.split_once("kernels: ").map(|(_, words)| words.trim()))
    }

    /// The rest of the line that begins with some words.
    fn after<'a>(&'a self, words: &str) -> Option<&'a str> {
        self.lines().find_map(|line| line.strip_prefix(words))
    }

    /// States by `bonsai doctor --json`, with their names: `yes`, `no`, `part` or `unknown`.
    fn doctor(&self) -> Option<Vec<(String, String)>> {
        let text = self.0.split_once("doctor begins")?.1;
        let text = &text[text.find('{')?..];
        let mut documents = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let machine = documents.next()?.ok()?.get("machine")?.clone();
        let covered = match machine["trial"]["covered"].as_str() {
            Some("patched") => "yes",
            Some(_) => "part",
            None => "no",
        };
        let mut said = vec![("covered".to_owned(), covered.to_owned())];
        for found in machine["capabilities"].as_array()? {
            let word = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
            said.push((word("name"), word("state")));
        }
        Some(said)
    }
}

/// A number of a line such as `amount=7 ms=8`.
fn number(line: &str, name: &str) -> Option<f64> {
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

/// Speed in parts of the limit.
fn speed(line: &str) -> Option<f64> {
    let number = |name| number(line, name);
    // Clocks that are read from outside count hundredths of a second.
    let seconds = (number("ms")? + 10.0) / 1e3;
    Some((number("amount")? - number("burst")?) / number("limit")? / seconds)
}

/// Judges what a kernel has printed of one cell.
fn judge(name: &str, doctor: &str, line: Option<&str>) -> Result<(String, Option<String>), String> {
    let Some(line) = line else {
        return Err(format!("{name}: nothing was printed"));
    };
    if let Some(words) = line.strip_prefix("refused ") {
        // On a kernel that lacks it, and in words.
        let is_said = matches!(doctor, "no" | "part") || (doctor.is_empty() && name != "cpu");
        if !is_said {
            return Err(format!(
                "{name}: refused, and doctor says {doctor:?}: {words}"
            ));
        }
        return Ok(("refused".to_owned(), Some(format!("{name}: {words}"))));
    }
    if doctor == "no" {
        return Err(format!(
            "{name}: doctor says it cannot be, and it is: {line}"
        ));
    }
    if let (Some(seen), Some(of)) = (number(line, "seen"), number(line, "of")) {
        let is_whole = seen >= of;
        return if is_whole {
            Ok(("whole".to_owned(), None))
        } else {
            Err(format!("{name}: {line}"))
        };
    }
    let Some(speed) = speed(line) else {
        return Err(format!("{name}: {line}"));
    };
    // One that is slower has lost its way, also on an emulated processor. A waiter that does not hear of its new limit is at 0.15.
    let least = if name == "set" { 0.2 } else { 0.1 };
    if !(least..=1.02).contains(&speed) {
        return Err(format!("{name}: {speed:.2} of its limit: {line}"));
    }
    Ok((format!("{speed:.2}"), None))
}

impl Machine<'_> {
    /// Boots it, and waits until it is off.
    fn boot(&self, programs: &Path) -> Result<Console, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hosts/boot-kernel.sh");
        let folder = tempfile::Builder::new()
            .prefix("kernel-")
            .tempdir_in(scratch())
            .map_err(|error| error.to_string())?;
        let mut boot = Command::new(script);
        boot.args([self.kernel, programs, folder.path()])
            .args(self.words);
        let finished = finish(&mut boot, PATIENCE).map_err(|error| error.to_string())?;
        let console = std::fs::read(folder.path().join("console")).unwrap_or_default();
        let console = Console(String::from_utf8_lossy(&console).into_owned());
        if finished.status.code() == Some(77) {
            return Err(finished.stdout);
        }
        if console.after("end").is_none() {
            let last: Vec<&str> = console.0.lines().rev().take(5).collect();
            return Err(format!(
                "it did not come to its end: {finished:?}: {last:?}"
            ));
        }
        Ok(console)
    }

    fn row(&self, programs: &Path) -> Row {
        let mut row = Row::default();
        let console = match self.boot(programs) {
            Ok(console) => console,
            Err(error) => {
                row.faults.push(error);
                return row;
            }
        };
        let version = console.after("uname ").unwrap_or(self.release);
        let version = version.split('-').next().unwrap_or(version);
        write!(row.cells, "| {version} | {} |", self.mode).expect("a string");
        let Some(doctor) = console.doctor() else {
            row.faults.push("doctor has said nothing".to_owned());
            return row;
        };
        // Words that have no effect would try nothing.
        for word in self
            .words
            .iter()
            .filter_map(|word| word.strip_prefix("lockdown="))
        {
            let locked = console.after("lockdown ").unwrap_or_default();
            if !locked.contains(&format!("[{word}]")) {
                row.faults.push(format!("lockdown={word}: {locked}"));
            }
        }
        for (name, ability) in CELLS {
            let said = doctor.iter().find(|(name, _)| name == ability);
            let said = match said.map_or("", |(_, state)| state) {
                // In part: as another user alone.
                "part" if name == "enforced-user" => "yes",
                said => said,
            };
            let prefix = format!("cell {name} ");
            match judge(name, said, console.after(&prefix)) {
                Ok((cell, note)) => {
                    write!(row.cells, " {cell} |").expect("a string");
                    row.notes.extend(note);
                }
                Err(fault) => {
                    row.cells.push_str(" FAULT |");
                    row.faults.push(fault);
                }
            }
        }
        let lacks = doctor.iter().filter(|(_, state)| state == "no");
        let lacks: Vec<&str> = lacks.map(|(name, _)| &**name).collect();
        row.notes.push(format!("doctor: not {}", lacks.join(", ")));
        row.faults.extend(
            console
                .lines()
                .filter(|line| line.starts_with("kernel "))
                .map(str::to_owned),
        );
        row
    }
}

/// The folder of what is tried: the program, its libraries, and those that move bytes. `None` where it cannot be made, which is said.
fn programs(test: &str) -> Option<tempfile::TempDir> {
    let binaries = std::env::var_os("BONSAI_BIN_DIR").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bonsai"),
        PathBuf::from,
    );
    let gcc = compiler(test)?;
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    for (name, options) in [
        ("hosts-moves", &["-lrt"][..]),
        ("hosts-static", &["-static", "-Wl,--build-id"]),
    ] {
        let made = gcc.make(name, &["libcs/moves.c"], options);
        let made = made.unwrap_or_else(|error| panic!("{name}: {error}"));
        std::fs::copy(made, folder.path().join(name)).expect("a program");
    }
    for name in [
        "bonsai",
        "libbonsai_preload.so",
        "libbonsai_engine.so",
        "libbonsai_extension.so",
    ] {
        std::fs::copy(binaries.join(name), folder.path().join(name)).expect("a program");
    }
    Some(folder)
}

/// The releases that are there, and their kernels; oldest first.
fn kernels(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let there = entries.filter(|entry| entry.path().join("release").is_file());
    let mut found: Vec<(String, PathBuf)> = there
        .map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            )
        })
        .collect();
    let version = |path: &Path| -> Vec<u32> {
        let release = std::fs::read_to_string(path.join("release")).unwrap_or_default();
        let numbers = release.split(|c: char| !c.is_ascii_digit());
        numbers.map_while(|number| number.parse().ok()).collect()
    };
    found.sort_by_key(|(_, path)| version(path));
    found
}

#[test]
fn what_a_kernel_has_is_limited_and_what_it_lacks_is_said() {
    let test = "kernels";
    // A part of a kernel's name and how it is booted, to try that alone: each takes a minute and more.
    let only = std::env::var("BONSAI_KERNELS_ONLY").unwrap_or_default();
    let kernels = std::env::var_os("BONSAI_KERNELS").map(|folder| kernels(Path::new(&folder)));
    let Some(kernels) = kernels.filter(|kernels| !kernels.is_empty()) else {
        return skip(
            test,
            "kernels of other releases are booted by make test-kernels",
        );
    };
    let Some(programs) = programs(test) else {
        return;
    };
    let machines: Vec<Machine<'_>> = kernels
        .iter()
        .flat_map(|(release, kernel)| {
            MODES.iter().map(move |(mode, words)| Machine {
                release,
                kernel,
                mode,
                words,
            })
        })
        .filter(|machine| format!("{}, {}", machine.release, machine.mode).contains(&only))
        .collect();
    let rows: Vec<Mutex<Row>> = machines.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..MACHINES {
            scope.spawn(|| {
                let taken = || next.fetch_add(1, Ordering::Relaxed);
                while let Some((machine, row)) = {
                    let at = taken();
                    machines.get(at).zip(rows.get(at))
                } {
                    let done = machine.row(programs.path());
                    *row.lock().unwrap_or_else(PoisonError::into_inner) = done;
                }
            });
        }
    });
    report(&machines, rows);
}

/// AppArmor keeps the library, then the ledger, from a program: each is said with the rules that are missing, and with these the program is
/// covered.
#[test]
fn a_profile_that_keeps_the_library_out_is_named_with_its_rules() {
    let test = "kernels, confined";
    let kernel = std::env::var_os("BONSAI_KERNELS").map(|at| Path::new(&at).join("bookworm"));
    let Some(kernel) = kernel.filter(|kernel| kernel.join("release").is_file()) else {
        return skip(
            test,
            "kernels of other releases are booted by make test-kernels",
        );
    };
    let named = std::env::var_os("BONSAI_APPARMOR_PARSER").map(PathBuf::from);
    let usual = ["/sbin/apparmor_parser", "/usr/sbin/apparmor_parser"].map(PathBuf::from);
    let mut parsers = named.into_iter().chain(usual);
    let Some(parser) = parsers.find(|parser| parser.is_file()) else {
        return skip(
            test,
            "apparmor_parser is not installed (apparmor), nor named by BONSAI_APPARMOR_PARSER",
        );
    };
    let Some(programs) = programs(test) else {
        return;
    };
    std::fs::copy(parser, programs.path().join("apparmor_parser")).expect("a program");
    let machine = Machine {
        release: "bookworm",
        kernel: &kernel,
        mode: "AppArmor",
        words: &[
            "kernels.groups=v2",
            "kernels.confined=yes",
            "apparmor=1",
            "security=apparmor",
        ],
    };
    let console = machine
        .boot(programs.path())
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(console.after("apparmor "), Some("Y"), "{}", console.0);
    let said = |name: &str| {
        let prefix = format!("confined {name} ");
        let lines = console
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix));
        lines.collect::<Vec<_>>().join("\n")
    };
    let rules = "has to allow: /bonsai/libbonsai_*.so mr, /run/bonsai/*/ledger rw,";
    let profile = format!("confined by the AppArmor profile around, which {rules}");
    for name in ["nothing", "named"] {
        let text = said(name);
        assert!(text.contains(&profile), "{name}: status: {text}");
        assert!(
            text.contains(&format!("confines a program, it {rules}")),
            "{name}: end: {text}"
        );
    }
    let text = said("named");
    assert!(
        text.contains("permission denied (confined as around (enforce), which has to allow: "),
        "{text}"
    );
    let text = said("all");
    assert!(
        !text.contains("not covered") && text.contains("hosts-moves"),
        "{text}"
    );
}

/// Prints the table, and fails where something is wrong.
fn report(machines: &[Machine<'_>], rows: Vec<Mutex<Row>>) {
    let headings: Vec<&str> = CELLS.iter().map(|(name, _)| *name).collect();
    let mut table = format!("| kernel | booted with | {} |\n", headings.join(" | "));
    writeln!(table, "|---|---|{}", "---|".repeat(CELLS.len())).expect("a string");
    let (mut notes, mut faults) = (String::new(), String::new());
    for (machine, row) in machines.iter().zip(rows) {
        let row = row.into_inner().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{}, {}", machine.release, machine.mode);
        if !row.cells.is_empty() {
            writeln!(table, "{}", row.cells).expect("a string");
        }
        for note in row.notes {
            writeln!(notes, "{name}: {note}").expect("a string");
        }
        for fault in row.faults {
            writeln!(faults, "{name}: {fault}").expect("a string");
        }
    }
    println!("{table}\n{notes}");
    if let Some(path) = std::env::var_os("BONSAI_KERNELS_TABLE") {
        std::fs::write(path, format!("{table}\n{notes}")).expect("a file");
    }
    assert!(faults.is_empty(), "{faults}");
}
