//! What kind of program a file is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use bonsai_host::Error;
use bonsai_host::elf::{Cover, LibcFlavour, Linkage, Program, Sanitizer, inspect};
use rustix::io::Errno;
use tempfile::{TempDir, tempdir};

use crate::{compile, find_program, run, skip, write_program};

const MAIN: &str = "int main(void) { return 0; }\n";

fn look(path: &Path) -> Program {
    inspect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn elf(path: &Path) -> bonsai_host::elf::Elf {
    look(path).elf.expect("a program for this machine")
}

#[test]
fn ls_is_dynamic_and_enterable() {
    let ls = find_program("ls").expect("ls");
    let program = look(&ls);
    assert_eq!(program.cover, Cover::Enterable);
    assert!(program.cover.is_enterable());
    assert_eq!(
        program.architecture.map(|a| a.to_string()).as_deref(),
        Some("64-bit x86")
    );
    let elf = program.elf.expect("a program for this machine");
    let loader = elf.interpreter.expect("a loader");
    assert_eq!(
        (elf.linkage, loader.flavour),
        (Linkage::Dynamic, LibcFlavour::Glibc)
    );
    assert!(loader.exists && loader.path.exists());
    assert!(
        elf.needed.iter().any(|name| name == "libc.so.6"),
        "{:?}",
        elf.needed
    );
    assert!(elf.stripped && !elf.go && !elf.imports_pthread_cancel);
    assert_eq!(elf.sanitizer, None);
}

#[test]
fn static_programs() {
    let directory = tempdir().expect("a directory");
    for (argument, linkage) in [
        ("-static", Linkage::Static),
        ("-static-pie", Linkage::StaticPie),
    ] {
        match compile(directory.path(), MAIN, &[argument]) {
            Ok(path) => {
                let program = look(&path);
                assert_eq!(program.cover, Cover::Static { go: false }, "{argument}");
                let elf = program.elf.expect("a program");
                assert_eq!((elf.linkage, elf.interpreter), (linkage, None));
                assert!(elf.needed.is_empty() && !elf.stripped && !elf.imports_pthread_cancel);
            }
            Err(reason) => skip("static_programs", &reason),
        }
    }
}

#[test]
fn go_programs() {
    // The tool is built by itself.
    let Some(go) = find_program("go") else {
        return skip("go_programs", "there is no `go` in PATH");
    };
    let program = look(&go);
    let elf = program.elf.expect("a program");
    assert!(elf.go);
    if elf.linkage == Linkage::Static {
        assert_eq!(program.cover, Cover::Static { go: true });
        assert!(
            program.cover.to_string().contains("Go"),
            "{}",
            program.cover
        );
    }
}

#[test]
fn linked_libraries_and_symbols() {
    let directory = tempdir().expect("a directory");
    let source = "#include <pthread.h>\n\
                  int main(int argc, char **argv) { return argc > 1 && pthread_cancel(0); }\n";
    match compile(directory.path(), source, &["-O1"]) {
        Ok(path) => {
            assert!(elf(&path).imports_pthread_cancel);
            assert!(!elf(&path).stripped);
            // Without a section table nothing tells, so it may.
            let mut bytes = fs::read(&path).expect("readable");
            bytes[40..48].fill(0);
            bytes[58..64].fill(0);
            let bare = directory.path().join("bare");
            write_program(&bare, &bytes);
            assert!(
                run(&mut Command::new(&bare))
                    .expect("it runs")
                    .status
                    .success()
            );
            let elf = elf(&bare);
            assert!(elf.imports_pthread_cancel && elf.stripped);
            assert!(elf.needed.iter().any(|name| name == "libc.so.6"));
        }
        Err(reason) => skip("linked_libraries_and_symbols", &reason),
    }
    for (argument, sanitizer) in [
        ("-fsanitize=address", Sanitizer::Address),
        ("-fsanitize=thread", Sanitizer::Thread),
    ] {
        match compile(directory.path(), MAIN, &[argument]) {
            Ok(path) => assert_eq!(elf(&path).sanitizer, Some(sanitizer)),
            Err(reason) => skip("linked_libraries_and_symbols", &reason),
        }
    }
}

#[test]
fn a_loader_can_be_entered_and_a_missing_one_is_named() {
    let ls = find_program("ls").expect("ls");
    let loader = elf(&ls).interpreter.expect("a loader").path;
    let program = look(&loader);
    assert_eq!(program.cover, Cover::Enterable);
    assert_eq!(program.elf.map(|elf| elf.linkage), Some(Linkage::Loader));
    // A library without a name for others.
    let musl = Path::new("/lib/ld-musl-x86_64.so.1");
    match musl.exists() {
        true => assert_eq!(elf(musl).linkage, Linkage::Loader),
        false => skip("a_loader_can_be_entered", "musl is not installed"),
    }

    let directory = tempdir().expect("a directory");
    let missing = Path::new("/nonexistent/ld-linux.so");
    let argument = format!("-Wl,--dynamic-linker={}", missing.display());
    match compile(directory.path(), MAIN, &[&argument]) {
        Ok(path) => {
            let cover = look(&path).cover;
            assert_eq!(cover, Cover::NoInterp(missing.to_owned()));
            assert!(
                cover.to_string().contains("/nonexistent/ld-linux.so"),
                "{cover}"
            );
        }
        Err(reason) => skip("a_missing_loader", &reason),
    }
}

#[test]
fn object_files_are_no_programs() {
    let directory = tempdir().expect("a directory");
    match compile(directory.path(), MAIN, &["-c"]) {
        Ok(path) => assert_eq!(look(&path).cover, Cover::NotProgram),
        Err(reason) => skip("object_files_are_no_programs", &reason),
    }
}

/// The beginning of an ELF program.
fn header(class: u8, data: u8, machine: u16) -> Vec<u8> {
    let mut header = vec![0; 64];
    header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, data, 1]);
    let bytes = |number: u16| {
        if data == 2 {
            number.to_be_bytes()
        } else {
            number.to_le_bytes()
        }
    };
    header[16..18].copy_from_slice(&bytes(2));
    header[18..20].copy_from_slice(&bytes(machine));
    header
}

#[test]
fn foreign_architectures_are_named() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("foreign");
    for (class, data, machine, name) in [
        (2, 1, 183, "64-bit ARM"),
        (1, 1, 40, "32-bit ARM"),
        (1, 1, 3, "32-bit x86"),
        (1, 1, 62, "x32"),
        (2, 1, 243, "64-bit RISC-V"),
        (2, 2, 22, "64-bit IBM Z"),
        (2, 2, 62, "64-bit x86"),
        (2, 1, 9999, "64-bit machine number 9999"),
    ] {
        write_program(&path, header(class, data, machine));
        let cover = look(&path).cover;
        assert_eq!(cover, Cover::ForeignArch(name.to_owned()));
        assert!(cover.to_string().contains(name), "{cover}");
        if machine != 3 {
            let error = Command::new(&path).output().expect_err("a foreign program");
            assert_eq!(Errno::from_io_error(&error), Some(Errno::NOEXEC), "{name}");
        }
    }
}

#[test]
fn truncated_and_damaged_programs() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("cut");
    let whole = fs::read(find_program("ls").expect("ls")).expect("readable");
    let half = whole.len() / 2;
    for len in [
        0,
        3,
        4,
        19,
        20,
        63,
        64,
        100,
        500,
        4096,
        half,
        whole.len() - 1,
    ] {
        write_program(&path, &whole[..len]);
        match inspect(&path) {
            Ok(program) if len < 4 => assert_eq!(program.cover, Cover::NotElf),
            // What is last in the file is only the section table, which the kernel does not need.
            Ok(program) => assert!(len > half && program.cover == Cover::Enterable, "{len}"),
            Err(Error::Damaged { what, .. }) => assert!(len >= 4 && !what.is_empty(), "{len}"),
            Err(other) => panic!("{len}: {other}"),
        }
    }
    for (at, value, what) in [(4, 9, "class 9"), (5, 0, "byte order 0")] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        write_program(&path, &bytes);
        let error = inspect(&path).expect_err("damaged").to_string();
        assert!(error.contains(what) && error.contains("cut"), "{error}");
    }
}

#[test]
fn no_change_of_bytes_makes_it_panic() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("changed");
    let whole = fs::read(find_program("true").expect("true")).expect("readable");
    // Headers, section table and dynamic section are where a change has an effect.
    let table = usize::try_from(u64::from_le_bytes(
        whole[40..48].try_into().expect("8 bytes"),
    ));
    let table = table.expect("small");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % below as u64).expect("small")
    };
    let mut damaged = 0;
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..=next(4) {
            let at = match next(3) {
                0 => next(1024),
                1 => table + next(whole.len() - table),
                _ => next(whole.len()),
            };
            bytes[at] = u8::try_from(next(256)).expect("a byte");
        }
        fs::write(&path, &bytes).expect("writable");
        damaged += u32::from(inspect(&path).is_err());
    }
    assert!((1..2000).contains(&damaged), "{damaged} were refused");
}

#[test]
fn scripts_lead_to_their_interpreter() {
    let directory = tempdir().expect("a directory");
    let script = directory.path().join("script");
    write_program(&script, "#! /bin/sh -e\nexit 0\n");
    let program = look(&script);
    assert_eq!(program.cover, Cover::Enterable);
    assert_eq!(program.path, Path::new("/bin/sh"));
    assert_eq!(program.scripts.len(), 1);
    let step = &program.scripts[0];
    assert_eq!(
        (&*step.script, &*step.interpreter),
        (&*script, Path::new("/bin/sh"))
    );
    assert_eq!(step.argument.as_deref(), Some("-e".as_ref()));

    let text = directory.path().join("text");
    write_program(&text, "echo\n");
    assert_eq!(look(&text).cover, Cover::NotElf);
    write_program(&script, "#!/nonexistent/shell\n");
    let cover = look(&script).cover;
    assert!(
        matches!(&cover, Cover::Script(why) if why.contains("/nonexistent/shell")),
        "{cover}"
    );
    write_program(&script, "#!\n");
    assert!(matches!(look(&script).cover, Cover::Script(_)));
}

#[test]
fn as_many_scripts_are_followed_as_the_kernel_follows() {
    let directory = tempdir().expect("a directory");
    let path = |i: u32| directory.path().join(format!("script{i}"));
    symlink("/bin/true", path(0)).expect("a link");
    let mut agreed = [0, 0];
    for i in 1..10 {
        write_program(&path(i), format!("#!{}\n", path(i - 1).display()));
        let runs = match run(&mut Command::new(path(i))) {
            Ok(done) => done.status.success(),
            Err(error) => {
                assert_eq!(Errno::from_io_error(&error), Some(Errno::LOOP));
                false
            }
        };
        let cover = look(&path(i)).cover;
        assert_eq!(cover.is_enterable(), runs, "{i} scripts: {cover}");
        agreed[usize::from(runs)] += 1;
    }
    assert!(agreed[0] > 0 && agreed[1] >= 4, "{agreed:?}");
    // One that names itself
    write_program(&path(10), format!("#!{}\n", path(10).display()));
    assert!(matches!(look(&path(10)).cover, Cover::Script(_)));
}

#[test]
fn what_is_no_file_is_an_error() {
    let directory: TempDir = tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
    for path in [directory.path(), &pipe, Path::new("/dev/null")] {
        assert!(
            matches!(inspect(path), Err(Error::NotAFile { .. })),
            "{}",
            path.display()
        );
    }
    let missing = directory.path().join("missing");
    let error = inspect(&missing).expect_err("missing");
    assert_eq!(
        error.to_string(),
        format!("cannot read `{}`", missing.display())
    );
    let source = std::error::Error::source(&error)
        .expect("a source")
        .to_string();
    assert!(source.contains("No such file"), "{source}");
}
