//! Programs with the C libraries of other releases (`tests/hosts/libcs.sh`): what is limited depends on how a library makes its system
//! calls, which each release may change.

use std::path::{Path, PathBuf};

use conformance::{Compiler, GLIBC_LOADER, MUSL_LOADER, skip};

use crate::fixture::{compiler, scratch};
use crate::probe::Probe;

/// A C library, and a compiler that links programs with it.
struct Libc {
    release: String,
    compiler: Compiler,
}

/// C libraries of this machine, and those in `BONSAI_LIBCS` or in the folder of `make libcs`: its release and newer ones, as programs for
/// a newer library do not run with an older one. An empty folder is a skip of `test`.
fn libcs(test: &str) -> Vec<Libc> {
    let Some(compiler) = compiler(test) else {
        return Vec::new();
    };
    let musl = compiler.by("musl-gcc");
    let folder = std::env::var_os("BONSAI_LIBCS").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("libcs"),
        PathBuf::from,
    );
    let with = |path: PathBuf| {
        let compiler = if path.join(GLIBC_LOADER).exists() {
            Some(compiler)
        } else if path.join(MUSL_LOADER).exists() {
            musl.as_ref()
        } else {
            None
        };
        let name = path.file_name().unwrap_or_default();
        Some(Libc {
            release: name.to_string_lossy().into_owned(),
            compiler: compiler?.with_libc(&path),
        })
    };
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut found: Vec<Libc> = entries.filter_map(|entry| with(entry.path())).collect();
    found.sort_by(|a, b| a.release.cmp(&b.release));
    if found.is_empty() {
        let reason = format!("no other C libraries in {}: make libcs", folder.display());
        skip(test, &reason);
    }
    let own = [("own", Some(compiler)), ("own-musl", musl.as_ref())];
    found.extend(own.into_iter().filter_map(|(release, compiler)| {
        Some(Libc {
            release: release.to_owned(),
            compiler: compiler?.clone(),
        })
    }));
    found
}

impl Libc {
    fn probe(&self, test: &str, source: &str, args: &[&str]) -> Probe {
        let name = format!("{test}-{}", self.release);
        let program = self
            .compiler
            .make(&name, &[source], &[])
            .unwrap_or_else(|error| panic!("{error}"));
        Probe::of(program, args)
    }
}

/// A rate at which [`LENGTH`] takes 0.2 s, with a burst of a call.
const LENGTH: u64 = 200_000;
const RATE: u64 = 1_000_000;
const BURST: u64 = 4096;

/// Modes that limit what stdio reads and writes.
const MODES: [(&str, &[&str]); 2] = [
    ("patched", &[]),
    ("trapped where not patched", &["--unpatched", "trap"]),
];

#[test]
fn each_way_to_the_kernel_is_limited_on_one_thread_and_after_a_second() {
    let test = "libcs";
    for libc in libcs(test) {
        let file = scratch().join(format!("libcs-{}.data", libc.release));
        let contents = vec![1; LENGTH.try_into().expect("small")];
        let (file, length) = (file.to_string_lossy(), LENGTH.to_string());
        for (how, limit, entries) in [
            ("read", "read", &["read.file"][..]),
            // musl's stdio moves bytes by vectors.
            ("fread", "read", &["read.file", "readv.file"]),
            ("write", "write", &["write.file"]),
            ("fwrite", "write", &["write.file", "writev.file"]),
            ("send", "send", &["sendto"]),
        ] {
            for thread in [None, Some("thread")] {
                let mut args = vec![how, &file, &length];
                args.extend(thread);
                let probe = libc.probe(test, "libcs/moves.c", &args);
                std::fs::write(&*file, &contents).expect("a file");
                let what = format!("{}: {how} {thread:?}", libc.release);
                let limit = format!("{limit}={RATE}B/s:burst={BURST}B");
                let bare = probe.bare();
                for (mode, options) in MODES {
                    let seen = probe.through((mode, options), &[&limit]);
                    assert_eq!(seen.lines, bare.lines, "{what}: {:?}", seen.finished);
                    seen.assert_shaped(LENGTH, RATE, BURST);
                    let bytes_of = |entry: &&str| seen.counters.of(entry).1;
                    let bytes: u64 = entries.iter().map(bytes_of).sum();
                    // The loader and the program's own words are read and written, too.
                    let most = LENGTH + 4096;
                    assert!(
                        (LENGTH..most).contains(&bytes),
                        "{what}, {mode}: {bytes} B of {entries:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn threads_are_cancelled_in_calls_and_in_waits_for_limits() {
    let test = "libcs-cancel";
    for libc in libcs(test) {
        let probe = libc.probe(test, "transparency/cancel.c", &["limited"]);
        let lines = ["write", "send"].map(|call| format!("limited {call}: cancelled, cleanup ran"));
        let lines = lines.each_ref().map(String::as_str);
        for seen in probe.prints(&["write=10kB/s:burst=1kB", "send=10kB/s:burst=1kB"], &lines) {
            for (what, ms) in &seen.notes {
                // The wait itself would take 3 s.
                assert!(
                    *ms < 2500.0,
                    "{}: {}: {what} took {ms} ms",
                    libc.release,
                    seen.door
                );
            }
        }
        let probe = libc.probe(test, "transparency/cancel.c", &[]);
        probe.same(&[]);
        probe.same(&["all=10GB/s"]);
    }
}
