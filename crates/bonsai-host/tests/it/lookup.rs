//! Command names, each also given to the system's own execvp.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use bonsai_host::{LookupError, lookup_program};
use rustix::io::Errno;
use tempfile::tempdir;

use crate::{run, set_mode, write_program};

#[test]
fn agrees_with_execvp() {
    let directory = tempdir().expect("a directory");
    let sub = |name: &str| directory.path().join(name);
    for name in ["one", "two", "three/dir"] {
        fs::create_dir_all(sub(name)).expect("a directory");
    }
    write_program(&sub("two/run"), "#!/bin/sh\nexit 0\n");
    write_program(&sub("one/locked"), "#!/bin/sh\nexit 0\n");
    set_mode(&sub("one/locked"), 0o644);
    write_program(&sub("two/locked"), "#!/bin/sh\nexit 0\n");
    write_program(&sub("one/mine"), "#!/bin/sh\nexit 0\n");
    set_mode(&sub("one/mine"), 0o644);
    let path = |parts: &[&str]| {
        let parts: Vec<String> = parts.iter().map(|p| sub(p).display().to_string()).collect();
        parts.join(":")
    };
    let all = path(&["none", "one", "two/run", "three", "two"]);
    let cases: [(&str, &str, Result<&str, u8>); 11] = [
        ("run", &all, Ok("two/run")),
        ("locked", &all, Ok("two/locked")),
        ("locked", &path(&["one"]), Err(126)),
        ("mine", &all, Err(126)),
        ("dir", &all, Err(126)),
        ("missing", &all, Err(127)),
        ("run", &path(&["one"]), Err(127)),
        ("run", "", Err(127)),
        ("", &all, Err(127)),
        ("/nonexistent/run", &all, Err(127)),
        ("/", &all, Err(126)),
    ];
    for (name, path_env, expected) in cases {
        let found = lookup_program(OsStr::new(name), Some(OsStr::new(path_env)));
        match (&found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(*found, sub(expected), "{name}"),
            (Err(error), Err(code)) => assert_eq!(error.exit_code(), code, "{name}: {error}"),
            _ => panic!("{name}: {found:?}, but expected {expected:?}"),
        }
        let real = run(Command::new(name)
            .env("PATH", path_env)
            .current_dir(directory.path()));
        let real = real.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => 127,
            _ => 126,
        });
        let code = found.map_err(|error| error.exit_code()).err();
        assert_eq!(real.err(), code, "{name}: execvp says otherwise");
    }
}

#[test]
fn paths_and_the_working_directory() {
    let directory = tempdir().expect("a directory");
    let program = directory.path().join("run");
    write_program(&program, "#!/bin/sh\n");
    let found = lookup_program(program.as_os_str(), None).expect("executable");
    assert_eq!(found, program, "a path is not looked for in PATH");
    let below = program.join("x");
    let error = lookup_program(below.as_os_str(), None).expect_err("below a file");
    assert!(
        matches!(error, LookupError::NotExecutable { .. }),
        "{error}"
    );

    let shell = lookup_program(OsStr::new("sh"), None).expect("the default path has a shell");
    assert_eq!(shell, Path::new("/bin/sh"));
    // Tests run in the folder of their crate.
    let here = lookup_program(OsStr::new("Cargo.toml"), Some(OsStr::new(":/nonexistent")));
    match here.expect_err("a text file") {
        LookupError::NotExecutable { path, source } => {
            assert_eq!(path, Path::new("./Cargo.toml"));
            assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
        }
        other @ LookupError::NotFound { .. } => panic!("{other}"),
    }
}
