//! Programs with the C libraries of other releases (`tests/hosts/libcs.sh`): what is limited depends on how a library makes its system
//! calls, which each release may change.

use std::path::{Path, PathBuf};

use conformance::{Compiler, GLIBC_LOADER, MUSL_LOADER, finish, skip};

use crate::fixture::{bonsai, compiler, scratch};
use crate::probe::{PATIENCE, Probe};

/// A C library, and a compiler that links programs with it.
pub(crate) struct Libc {
    pub(crate) release: String,
    compiler: Compiler,
    /// Loader of programs with it.
    pub(crate) loader: PathBuf,
}

/// C libraries of this machine, and those in `BONSAI_LIBCS` or in the folder of `make libcs`: its release and newer ones, as programs for
/// a newer library do not run with an older one. An empty folder is a skip of `test`.
pub(crate) fn libcs(test: &str) -> Vec<Libc> {
    let Some(compiler) = compiler(test) else {
        return Vec::new();
    };
    let musl = compiler.by("musl-gcc");
    let folder = std::env::var_os("BONSAI_LIBCS").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("libcs"),
        PathBuf::from,
    );
    let with = |path: PathBuf| {
        let (glibc, musls) = (path.join(GLIBC_LOADER), path.join(MUSL_LOADER));
        let (compiler, loader) = if glibc.exists() {
            (Some(compiler), glibc)
        } else if musls.exists() {
            (musl.as_ref(), musls)
        } else {
            (None, musls)
        };
        let name = path.file_name().unwrap_or_default();
        Some(Libc {
            release: name.to_string_lossy().into_owned(),
            compiler: compiler?.with_libc(&path),
            loader,
        })
    };
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut found: Vec<Libc> = entries.filter_map(|entry| with(entry.path())).collect();
    found.sort_by(|a, b| a.release.cmp(&b.release));
    if found.is_empty() {
        let reason = format!("no other C libraries in {}: make libcs", folder.display());
        skip(test, &reason);
    }
    let own = [
        (
            "own",
            Some(compiler),
            Path::new("/lib64").join(GLIBC_LOADER),
        ),
        (
            "own-musl",
            musl.as_ref(),
            Path::new("/lib").join(MUSL_LOADER),
        ),
    ];
    found.extend(own.into_iter().filter_map(|(release, compiler, loader)| {
        Some(Libc {
            release: release.to_owned(),
            compiler: compiler?.clone(),
            loader,
        })
    }));
    found
}

impl Libc {
    fn probe(&self, test: &str, source: &str, args: &[&str]) -> Probe {
        Probe::of(self.program(test, source, &[]), args)
    }

    /// A program that is linked with it.
    pub(crate) fn program(&self, test: &str, source: &str, options: &[&str]) -> PathBuf {
        let name = format!("{test}-{}", self.release);
        let made = self.compiler.make(&name, &[source], options);
        made.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A rate at which [`LENGTH`] takes 0.2 s, with a burst of a call.
pub(crate) const LENGTH: u64 = 200_000;
pub(crate) const RATE: u64 = 1_000_000;
pub(crate) const BURST: u64 = 4096;

/// Said of a libc that fails the proof at a start.
const UNSEEN: &str = "calls inside this libc are not seen";

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
                    assert!(
                        !seen.finished.stderr.contains(UNSEEN),
                        "{what}: {:?}",
                        seen.finished
                    );
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

/// Changes what libc compares the results of its calls with, so that its instructions have a form that no release has, and its build-id.
/// `of`: calls of that number only, where it stands shortly before them.
pub(crate) fn disfigured(libc: &[u8], of: Option<u32>) -> Vec<u8> {
    const CALL: [u8; 8] = [0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff];
    const BUILD_ID: [u8; 16] = *b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let mut libc = libc.to_vec();
    let places = |libc: &[u8], of: &[u8]| {
        let windows = libc.windows(of.len()).enumerate();
        let found = windows.filter(|(_, bytes)| *bytes == of);
        found.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let before = |at: usize| &libc[at.saturating_sub(24)..at];
    let has_number = |at: &usize| {
        of.is_none_or(|nr| {
            before(*at)
                .windows(4)
                .any(|bytes| bytes == nr.to_le_bytes())
        })
    };
    let calls = places(&libc, &CALL).into_iter().filter(has_number);
    let calls: Vec<usize> = calls.collect();
    assert!(!calls.is_empty(), "libc has no calls of the usual form");
    for at in calls {
        // cmp $-4094
        libc[at + 4] = 2;
    }
    for at in places(&libc, &BUILD_ID) {
        libc[at + BUILD_ID.len()] ^= 0xff;
    }
    libc
}

/// The file that this process has mapped by that name.
pub(crate) fn mapped(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let mut named = paths.map(Path::new).filter(|path| path.ends_with(name));
    named.next().map(Path::to_owned)
}

#[test]
fn a_libc_whose_calls_are_not_seen_is_named_and_its_functions_are_limited() {
    let test = "libcs-unseen";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let (Some(libc), Some(loader)) = (mapped("libc.so.6"), mapped(GLIBC_LOADER)) else {
        return skip(test, "the tests do not run with glibc");
    };
    let libc = std::fs::read(libc).expect("libc");
    let flavour = |name: &str, of| {
        let folder = scratch().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("libc.so.6"), disfigured(&libc, of)).expect("a file");
        std::fs::copy(&loader, folder.join(GLIBC_LOADER)).expect("a copy");
        Libc {
            release: name.to_owned(),
            compiler: compiler.with_libc(&folder),
            loader: folder.join(GLIBC_LOADER),
        }
    };
    let unseen = flavour("libc-unseen", None);
    // Calls of `read` are seen there, and each is charged once all the same.
    const OPENAT: u32 = 257;
    let partly = flavour("libc-partly-unseen", Some(OPENAT));
    let file = scratch().join("libcs-unseen.data");
    std::fs::write(&file, vec![1; LENGTH.try_into().expect("small")]).expect("a file");
    let (file, length) = (file.to_string_lossy(), LENGTH.to_string());
    let limit = format!("read={RATE}B/s:burst={BURST}B");
    for thread in [None, Some("thread")] {
        let args = |how| {
            let all = [how, &*file, &*length];
            all.into_iter().chain(thread).collect::<Vec<_>>()
        };
        let by_name = unseen.probe(test, "libcs/moves.c", &args("read"));
        let once = partly.probe(test, "libcs/moves.c", &args("read"));
        let within = unseen.probe(test, "libcs/moves.c", &args("fread"));
        let bare = by_name.bare();
        assert_eq!(within.bare().lines, bare.lines);

        for probe in [&by_name, &once] {
            let seen = probe.through(("patched", &[]), &[&limit]);
            assert_eq!(seen.lines, bare.lines, "{:?}", seen.finished);
            assert!(seen.finished.stderr.contains(UNSEEN), "{:?}", seen.finished);
            seen.assert_shaped(LENGTH, RATE, BURST);
            assert_eq!(seen.counters.of("read.file").1, LENGTH);
        }

        // The trap needs no form.
        let trap = ("trapped", &["--unpatched", "trap"][..]);
        for probe in [&by_name, &within] {
            let seen = probe.through(trap, &[&limit]);
            assert_eq!(seen.lines, bare.lines, "{:?}", seen.finished);
            assert!(
                !seen.finished.stderr.contains(UNSEEN),
                "{:?}",
                seen.finished
            );
            seen.assert_shaped(LENGTH, RATE, BURST);
        }

        // Refused before its first instruction.
        let options = ["--strict", "--limit", &limit];
        let (_, mut command) = bonsai().run(&options, &within.program, &[] as &[&str]);
        let finished = finish(&mut command, PATIENCE).expect("it ends");
        assert_eq!(finished.status.code(), Some(126), "{finished:?}");
        assert!(finished.stderr.contains(UNSEEN), "{finished:?}");
    }
}
