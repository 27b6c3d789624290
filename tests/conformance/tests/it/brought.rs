//! Programs that come with their own C library, by its loader, in an AppImage, a snap or a container, or that are built in other ways:
//! limited, or named.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::{Bonsai, Compiler, Counters, Finished, GLIBC_LOADER, finish, skip};

use crate::fixture::{bonsai, compiler, installed, scratch};
use crate::libcs::{BURST, LENGTH, Libc, RATE, libcs};
use crate::probe::{PATIENCE, Seen};

/// Ways to read, and the entries that count them: musl's stdio reads by vectors.
const READS: [(&str, &[&str]); 2] = [
    ("read", &["read.file"]),
    ("fread", &["read.file", "readv.file"]),
];

/// Words that name a program on standard error.
const NAMED: [&str; 3] = ["not covered", "covered in part", "not limited in part"];

/// The file that is read, which no other test writes.
fn data(test: &str) -> String {
    let file = scratch().join(format!("{test}.data"));
    std::fs::write(&file, vec![1; LENGTH.try_into().expect("small")]).expect("a file");
    file.to_string_lossy().into_owned()
}

/// Runs a command as a service with a limit on reads.
fn limited(there: &Bonsai, program: &Path, args: &[&str]) -> Finished {
    let limit = format!("read={RATE}B/s:burst={BURST}B");
    let (_, mut command) = there.run(&["--json", "--limit", &limit], program, args);
    finish(&mut command, PATIENCE).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

/// Every byte was counted once, and none was faster than the limit.
fn assert_limited(what: &str, finished: Finished, entries: &[&str]) {
    let is_named = NAMED.iter().any(|words| finished.stderr.contains(words));
    assert!(!is_named, "{what}: {finished:?}");
    assert!(finished.status.success(), "{what}: {finished:?}");
    let counters = Counters::said(&finished.stderr);
    let counters = counters.unwrap_or_else(|error| panic!("{what}: {error}: {finished:?}"));
    let bytes: u64 = entries.iter().map(|entry| counters.of(entry).1).sum();
    // Reads of loaders and shells are counted, too: the libraries of a program, and a script.
    let most = LENGTH + 40_000;
    assert!(
        (LENGTH..most).contains(&bytes),
        "{what}: {bytes} B of {entries:?}"
    );
    let seen = Seen::new("patched", finished, counters);
    assert_eq!(seen.lines, [format!("moved {LENGTH}")], "{what}");
    seen.assert_shaped(LENGTH, RATE, BURST);
}

/// By the service itself, and by a shell in it.
#[test]
fn a_program_that_is_run_by_its_loader_is_limited_as_by_its_own_name() {
    let test = "brought-by-loader";
    let file = data(test);
    for libc in libcs(test) {
        let program = libc.program(test, "libcs/moves.c", &[]);
        let folder = libc.loader.parent().expect("a folder").to_string_lossy();
        for (how, entries) in READS {
            for thread in ["", "thread"] {
                let what = format!("{}: {how} {thread}", libc.release);
                let length = LENGTH.to_string();
                let mut args = vec!["--library-path", &folder];
                let program = program.to_string_lossy();
                args.extend([&*program, how, &file, &length]);
                args.extend((!thread.is_empty()).then_some(thread));
                if libc.release.starts_with("own") {
                    // As its cache has it.
                    args.drain(..2);
                }
                let finished = limited(&bonsai(), &libc.loader, &args);
                assert_limited(&what, finished, entries);
                let shell = format!("{} \"$0\" \"$@\"; exit $?", libc.loader.display());
                args.insert(0, &shell);
                args.insert(0, "-c");
                let finished = limited(&bonsai(), Path::new("/bin/sh"), &args);
                assert_limited(&format!("{what}, by a shell"), finished, entries);
            }
        }
    }
}

/// The newest glibc that was fetched, or this machine's own.
fn newest(test: &str) -> Option<Libc> {
    let glibcs = libcs(test).into_iter();
    let mut glibcs = glibcs.filter(|libc| libc.loader.ends_with(GLIBC_LOADER));
    let (sid, mut others): (Vec<Libc>, Vec<Libc>) =
        glibcs.by_ref().partition(|libc| libc.release == "sid");
    sid.into_iter().next().or_else(|| others.pop())
}

fn write_script(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// A folder like the mount of an AppImage, with its own libc and loader, which its `AppRun` calls.
#[test]
fn an_app_image_with_a_libc_of_its_own_is_limited() {
    let test = "brought-app-image";
    let (Some(libc), file) = (newest(test), data(test)) else {
        return;
    };
    let mount = tempfile::Builder::new()
        .prefix(".mount_")
        .tempdir()
        .expect("a folder");
    let (lib, bin) = (mount.path().join("lib"), mount.path().join("bin"));
    std::fs::create_dir(&lib).expect("a folder");
    std::fs::create_dir(&bin).expect("a folder");
    let program = libc.program(test, "libcs/moves.c", &[]);
    std::fs::copy(&program, bin.join("moves")).expect("a copy");
    let from = libc.loader.canonicalize().expect("a loader");
    std::fs::copy(&from, lib.join(GLIBC_LOADER)).expect("a copy");
    let libraries = from.parent().expect("a folder");
    std::fs::copy(libraries.join("libc.so.6"), lib.join("libc.so.6")).expect("a copy");
    let app_run = mount.path().join("AppRun");
    // Ways in use: the loader called by its path, and libraries found by the variable.
    for call in [
        "LD_LIBRARY_PATH=\"$here/lib\" exec \"$here/lib/ld-linux-x86-64.so.2\" \"$here/bin/moves\" \"$@\"",
        "exec \"$here/lib/ld-linux-x86-64.so.2\" --library-path \"$here/lib\" \"$here/bin/moves\" \"$@\"",
    ] {
        write_script(&app_run, &format!("#!/bin/sh\nhere=${{0%/*}}\n{call}\n"));
        for (how, entries) in READS {
            let args = [how, &*file, &LENGTH.to_string()];
            let finished = limited(&bonsai(), &app_run, &args);
            assert_limited(&format!("{call}: {how}"), finished, entries);
        }
    }
}

/// A root file system of another release, which only root can mount or enter.
fn root_of(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("BONSAI_HOSTS").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("hosts"),
        PathBuf::from,
    );
    let root = ["trixie", "sid"].map(|release| folder.join(release));
    let root = root
        .into_iter()
        .find(|root| root.join("mnt/bonsai").is_dir());
    match root {
        Some(_) if !rustix::process::geteuid().is_root() => {
            skip(test, "other root file systems are entered by root");
            None
        }
        None => {
            let reason = format!(
                "no newer root file system in {}: make hosts",
                folder.display()
            );
            skip(test, &reason);
            None
        }
        root => root,
    }
}

/// Digest of the data, by this machine's `md5sum`.
fn digest(file: &str) -> String {
    let mut command = Command::new("md5sum");
    let digest = finish(command.arg(file), PATIENCE).expect("md5sum");
    assert!(digest.status.success(), "{digest:?}");
    digest
        .stdout
        .split(' ')
        .next()
        .expect("a digest")
        .to_owned()
}

/// True where each byte of the data was counted; false where the program is named instead. Anything else is a failure.
fn is_counted(what: &str, file: &str, finished: &Finished) -> bool {
    assert!(finished.status.success(), "{what}: {finished:?}");
    assert!(
        finished.stdout.starts_with(&digest(file)),
        "{what}: {finished:?}"
    );
    let counters = Counters::said(&finished.stderr).expect("counters");
    let (_, bytes) = counters.of("read.file");
    let is_named = NAMED.iter().any(|words| finished.stderr.contains(words));
    assert!(
        bytes >= LENGTH || is_named,
        "{what}: {bytes} B, and not named: {finished:?}"
    );
    bytes >= LENGTH && !is_named
}

/// The root of another release at a place of this one, as snaps are; its program runs with its loader.
#[test]
fn a_program_of_a_mounted_root_is_limited_with_the_loader_of_that() {
    let test = "brought-snap";
    let Some(root) = root_of(test) else { return };
    let file = data(test);
    let snap = scratch().join("snap/core/1");
    std::fs::create_dir_all(&snap).expect("a folder");
    let (root, snap) = (root.display().to_string(), snap.display().to_string());
    let script = "mount --bind \"$0\" \"$1\" && mount -o remount,bind,ro \"$1\" || exit 77; \
        exec \"$1/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\" --library-path \"$1/usr/lib/x86_64-linux-gnu\" \"$1/usr/bin/md5sum\" \"$2\"";
    let args = ["--mount", "sh", "-c", script, &root, &snap, &file];
    let finished = limited(&bonsai(), Path::new("unshare"), &args);
    if finished.status.code() == Some(77) || finished.stderr.contains("unshare failed") {
        return skip(test, "mount namespaces cannot be made here");
    }
    assert!(is_counted(test, &file, &finished), "{finished:?}");
}

/// Containers: with the service's folder and the library in them, programs are limited; without, they are named.
#[test]
fn programs_in_containers_are_limited_or_named() {
    let test = "brought-containers";
    let (Some(root), Some(bwrap)) = (root_of(test), installed(test, "/usr/bin/bwrap")) else {
        return;
    };
    let file = data(test);
    let (there, root) = (bonsai(), root.display().to_string());
    let folder = std::env::var_os("BONSAI_BIN_DIR").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bonsai"),
        PathBuf::from,
    );
    let folder = folder
        .canonicalize()
        .expect("a folder")
        .display()
        .to_string();
    let services = there.services().display().to_string();
    let work = scratch().display().to_string();
    let basic = [
        "--bind", &root, "/", "--dev", "/dev", "--proc", "/proc", "--bind", &work, &work,
    ];
    let shared = [
        "--bind",
        &services,
        &services,
        "--ro-bind",
        &folder,
        &folder,
    ];
    let program = ["/usr/bin/md5sum", &file];
    let with = [&basic[..], &shared, &program].concat();
    let without = [&basic[..], &program].concat();
    let bare = finish(Command::new(&bwrap).args(&without), PATIENCE).expect("bwrap");
    if !bare.status.success() {
        return skip(
            test,
            &format!("bwrap makes no container here: {}", bare.stderr),
        );
    }
    let inside = limited(&there, &bwrap, &with);
    assert!(
        is_counted("with the library in it", &file, &inside),
        "{inside:?}"
    );
    let outside = limited(&there, &bwrap, &without);
    assert!(
        !is_counted("without the library in it", &file, &outside),
        "{outside:?}"
    );

    // A user namespace with a root of its own, as rootless engines make it.
    let args = [
        "-r",
        "--root",
        &root,
        "/usr/bin/cat",
        "/mnt/work-of-no-test",
    ];
    let bare = finish(Command::new("unshare").args(args), PATIENCE).expect("unshare");
    if bare.stderr.contains("unshare failed") {
        return skip(test, "user namespaces cannot be made here");
    }
    let within = ["-r", "--root", &root, "/usr/bin/md5sum", "/usr/bin/perl"];
    let rootless = limited(&there, Path::new("unshare"), &within);
    let is_named = NAMED.iter().any(|words| rootless.stderr.contains(words));
    assert!(rootless.status.success() && is_named, "{rootless:?}");
}

/// Frame pointers, marks of control-flow enforcement and the layout of segments change the code around a call.
#[test]
fn programs_of_other_builds_are_limited() {
    let test = "brought-builds";
    let Some(gcc) = compiler(test) else { return };
    let file = data(test);
    let full = [
        "-fcf-protection=full",
        "-fno-omit-frame-pointer",
        "-mno-omit-leaf-frame-pointer",
    ];
    let least = ["-fcf-protection=none", "-fomit-frame-pointer"];
    let compilers: Vec<(&str, Compiler)> =
        [("glibc", Some(gcc.clone())), ("musl", gcc.by("musl-gcc"))]
            .into_iter()
            .filter_map(|(name, compiler)| Some((name, compiler?)))
            .collect();
    for (name, compiler) in compilers {
        for (frames, code) in [("frames", &full[..]), ("no frames", &least)] {
            for separate in ["separate-code", "noseparate-code"] {
                for kind in [&[][..], &["-static", "-Wl,--build-id"]] {
                    let layout = ["-z", separate];
                    let options = [code, &layout, kind].concat();
                    let what = format!("{name}, {frames}, {separate}, {kind:?}");
                    let program =
                        format!("{test}-{}", what.replace([',', ' ', '"', '[', ']'], "-"));
                    let program = compiler.make(&program, &["libcs/moves.c"], &options);
                    let program = program.unwrap_or_else(|error| panic!("{what}: {error}"));
                    for (how, entries) in READS {
                        let args = [how, &*file, &LENGTH.to_string(), "thread"];
                        let finished = limited(&bonsai(), &program, &args);
                        assert_limited(&format!("{what}: {how}"), finished, entries);
                    }
                }
            }
        }
    }
}
