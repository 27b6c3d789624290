//! `bonsai doctor` tells of each C library of the host whether its calls are seen, and does no harm by that.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::{Bonsai, Finished, GLIBC_LOADER, finish, skip};
use serde_json::Value;

use crate::fixture::{bonsai, compiler, scratch};
use crate::libcs::{disfigured, libcs, mapped};
use crate::probe::PATIENCE;

fn doctor(there: &Bonsai, args: &[&str]) -> (Finished, Value) {
    let args = [&["doctor", "--json"], args].concat();
    let finished = finish(&mut there.command(&args), PATIENCE).expect("doctor ends");
    let document = serde_json::from_str(&finished.stdout);
    let document = document.unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    (finished, document)
}

/// The libraries that a document tells of.
fn told(document: &Value) -> &[Value] {
    let libcs = document.get("libcs").or(document["machine"].get("libcs"));
    libcs.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[test]
fn each_libc_of_this_host_and_of_other_releases_is_tried_and_seen() {
    let test = "doctor-libcs";
    let (_, document) = doctor(&bonsai(), &[]);
    let all = told(&document);
    for libc in libcs(test) {
        let loader = libc.loader.canonicalize().expect("a loader");
        let of = |all: &[Value]| {
            let mut found = all
                .iter()
                .filter(|found| found["loader"] == *loader.to_string_lossy());
            let found = found.next().cloned();
            found.unwrap_or_else(|| panic!("{}: not in {all:?}", loader.display()))
        };
        let found = if libc.release.starts_with("own") {
            of(all)
        } else {
            let (finished, document) = doctor(&bonsai(), &["--libc", &loader.to_string_lossy()]);
            assert!(finished.status.success(), "{finished:?}");
            of(told(&document))
        };
        assert_eq!(
            (&found["state"], &found["by"]),
            (&"yes".into(), &"run".into()),
            "{found}"
        );
        assert_eq!(found["unseen"], Value::Array(Vec::new()), "{found}");
        assert_eq!(found["unseen_threads"], Value::Array(Vec::new()), "{found}");
        assert!(found["version"].is_string(), "{found}");
        assert!(
            found["verdict"]
                .as_str()
                .expect("text")
                .contains("(one thread, threads)"),
            "{found}"
        );
        // The folder is only read.
        let folder = loader
            .parent()
            .expect("a folder")
            .to_string_lossy()
            .into_owned();
        let (_, document) = doctor(&bonsai(), &["--libc", &folder]);
        let read = of(told(&document));
        assert_eq!(
            (&read["state"], &read["by"]),
            (&"yes".into(), &"code".into()),
            "{read}"
        );
    }
}

/// A folder with a loader and a libc.
fn folder(name: &str, loader: &Path, libc: &[u8]) -> PathBuf {
    let folder = scratch().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("libc.so.6"), libc).expect("a file");
    let _ = std::fs::remove_file(folder.join(GLIBC_LOADER));
    std::fs::copy(loader, folder.join(GLIBC_LOADER)).expect("a copy");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.join(GLIBC_LOADER), mode).expect("a mode");
    folder
}

#[test]
fn a_libc_whose_calls_are_not_seen_is_told_by_run_and_by_code() {
    let test = "doctor-libcs-unseen";
    let (Some(libc), Some(loader)) = (mapped("libc.so.6"), mapped(GLIBC_LOADER)) else {
        return skip(test, "the tests do not run with glibc");
    };
    let libc = std::fs::read(libc).expect("libc");
    // All of its calls, and those of `sendto` alone.
    for (name, number) in [("doctor-unseen", None), ("doctor-unseen-send", Some(44))] {
        let place = folder(name, &loader, &disfigured(&libc, number));
        for (path, by) in [(place.join(GLIBC_LOADER), "run"), (place, "code")] {
            let (finished, document) = doctor(&bonsai(), &["--libc", &path.to_string_lossy()]);
            let found = &told(&document)[0];
            assert_eq!(finished.status.code(), Some(1), "{finished:?}");
            assert_eq!(
                (&found["state"], &found["by"]),
                (&"part".into(), &by.into()),
                "{found}"
            );
            let unseen = found["unseen"].to_string();
            // A function that moves bytes is limited by its name, and seen all the same.
            if (number, by) == (Some(44), "code") {
                assert!(unseen.contains("sendto"), "{name} {by}: {found}");
            }
            assert_eq!(
                unseen.contains("read"),
                number.is_none(),
                "{name} {by}: {found}"
            );
        }
    }
}

/// A loader that does not end, one that cannot be run, and none.
#[test]
fn a_loader_that_does_not_work_is_given_up() {
    let test = "doctor-libcs-broken";
    let Some(gcc) = compiler(test) else { return };
    let source = scratch().join("doctor-sleeps.c");
    std::fs::write(
        &source,
        "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n",
    )
    .expect("a file");
    let sleeps = gcc.make("doctor-sleeps", &[&source], &["-static"]);
    let Ok(sleeps) = sleeps else {
        return skip(test, "no static C library to link with (libc.a)");
    };
    let place = folder("doctor-sleeps.d", &sleeps, b"no library");
    let (finished, document) = doctor(
        &bonsai(),
        &["--libc", &place.join(GLIBC_LOADER).to_string_lossy()],
    );
    let found = &told(&document)[0];
    assert_eq!(
        (finished.status.code(), &found["state"]),
        (Some(1), &"unknown".into()),
        "{found}"
    );
    assert!(
        found["verdict"]
            .as_str()
            .expect("text")
            .contains("did not end in 10 s"),
        "{found}"
    );
    assert!(finished.elapsed < Duration::from_secs(45), "{finished:?}");

    let text = scratch().join("doctor-text");
    std::fs::write(&text, "no loader").expect("a file");
    let place = folder("doctor-text.d", &text, b"no library");
    let (finished, document) = doctor(
        &bonsai(),
        &["--libc", &place.join(GLIBC_LOADER).to_string_lossy()],
    );
    assert_eq!(told(&document)[0]["state"], "unknown", "{finished:?}");

    let nothing = finish(
        &mut bonsai().command(&["doctor", "--libc", "/no/such/file"]),
        PATIENCE,
    );
    let nothing = nothing.expect("doctor ends");
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
}

/// Code of another root is read, and not run: its loader would leave a file.
#[test]
fn libcs_of_other_roots_are_found_and_not_run() {
    let test = "doctor-libcs-roots";
    let (Some(libc), Some(gcc)) = (mapped("libc.so.6"), compiler(test)) else {
        return skip(test, "the tests do not run with glibc");
    };
    let mark = scratch().join("doctor-was-here");
    let _ = std::fs::remove_file(&mark);
    let source = scratch().join("doctor-marks.c");
    let text = format!(
        "#include <fcntl.h>\n#include <unistd.h>\nint main(int n, char **v) {{ if (n > 1 && v[1][0] == 's') pause(); \
         return open(\"{}\", O_CREAT | O_WRONLY, 0600) < 0; }}\n",
        mark.display()
    );
    std::fs::write(&source, text).expect("a file");
    let Ok(marks) = gcc.make("doctor-marks", &[&source], &["-static"]) else {
        return skip(test, "no static C library to link with (libc.a)");
    };
    let root = scratch().join("doctor-root");
    let libc = std::fs::read(libc).expect("libc");
    folder("doctor-root/lib64", &marks, &libc);
    let program = Path::new("/lib64").join(GLIBC_LOADER);
    let mut command = Command::new("unshare");
    command
        .args(["-r", "--kill-child", "--fork", "--root"])
        .arg(&root)
        .arg(&program)
        .arg("sleeps");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("unshare");
    let mount = tempfile::Builder::new()
        .prefix(".mount_")
        .tempdir_in("/tmp")
        .expect("a folder");
    std::fs::create_dir(mount.path().join("lib")).expect("a folder");
    for file in ["libc.so.6", GLIBC_LOADER] {
        let from = root.join("lib64").join(file);
        std::fs::copy(from, mount.path().join("lib").join(file)).expect("a copy");
    }
    std::thread::sleep(Duration::from_millis(300));
    let is_running = child.try_wait().expect("ours").is_none();
    let (finished, document) = doctor(&bonsai(), &[]);
    child.kill().expect("ours");
    child.wait().expect("ours");
    if !is_running {
        return skip(test, "user namespaces cannot be made here");
    }
    let all = told(&document);
    let name = format!("the AppImage at {}", mount.path().display());
    let image = all.iter().find(|found| found["root"] == *name);
    assert!(image.is_some_and(|image| image["by"] == "code"), "{all:?}");
    let mut of_roots = all.iter().filter(|found| {
        let root = found["root"].as_str().unwrap_or_default();
        root.starts_with("process ") && root.contains("(ld-linux")
    });
    let found = of_roots
        .next()
        .unwrap_or_else(|| panic!("not found: {finished:?}"));
    assert_eq!(
        (&found["by"], &found["state"]),
        (&"code".into(), &"yes".into()),
        "{found}"
    );
    assert!(!mark.exists(), "its loader was run");
}
