//! The shell scripts behind `make`, run in a small repository of their own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A folder with a copy of the scripts, and files of its own.
struct Repository {
    folder: TempDir,
}

impl Repository {
    fn new(files: &[(&str, &str)]) -> Self {
        let repository = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let scripts =
            Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../scripts");
        fs::create_dir(repository.folder.path().join("scripts")).unwrap();
        for entry in fs::read_dir(scripts).unwrap() {
            let from = entry.unwrap().path();
            if from.extension().is_some_and(|ext| ext == "sh") {
                let to = repository
                    .folder
                    .path()
                    .join("scripts")
                    .join(from.file_name().unwrap());
                fs::copy(&from, to).unwrap();
            }
        }
        for (path, text) in files {
            repository.write(path, text);
        }
        repository
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A program of the repository's own `bin`, which comes first in the search path.
    fn program(&self, name: &str, body: &str) {
        let path = format!("bin/{name}");
        self.write(&path, &format!("#!/bin/bash\n{body}\n"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.folder.path().join(path), mode).unwrap();
    }

    fn run(&self, script: &str, args: &[&str]) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new("bash")
            .arg(format!("scripts/{script}"))
            .args(args)
            .current_dir(self.folder.path())
            .env(
                "PATH",
                format!("{}/bin:{path}", self.folder.path().display()),
            )
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_FLAGS")
            .env_remove("BONSAI_BIN_DIR")
            .env_remove("BONSAI_SKIP_LOG")
            .env("CARGO", "cargo")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn has(&self, path: &str) -> bool {
        self.folder.path().join(path).exists()
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

const TWO_GOOD: &str = "\
test a ... ok
test slow ... ignored, needs a year
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

#[test]
fn passed_and_skipped_tests_are_added_up() {
    let repository = Repository::new(&[
        ("log", TWO_GOOD),
        ("skips", "net: no namespaces\n\nSKIP: go: no compiler\n"),
    ]);
    let output = repository.run("count-tests.sh", &["log", "0", "skips"]);
    let wanted = "SKIP: net: no namespaces\nSKIP: go: no compiler\nSKIP: slow: needs a year\n41 passed, 0 failed, 3 skipped\n";
    assert_eq!(stdout(&output), wanted);
    assert!(output.status.success());
}

#[test]
fn failed_tests_and_programs_that_died_are_failures() {
    let log = "\
---- of::one stdout ----

thread 'of::one' panicked at it.rs:1:2:
two are three

failures:
    of::one
    of::other

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
error: test failed, to rerun pass `-p a --lib`
error: test failed, to rerun pass `-p a --test it`
Caused by:
  process didn't exit successfully: `it` (signal: 11, SIGSEGV: invalid memory reference)
error: 2 targets failed:
    `-p a --lib`
    `-p a --test it`
";
    let repository = Repository::new(&[("log", log), ("skips", "")]);
    let output = repository.run("count-tests.sh", &["log", "101", "skips"]);
    let wanted = "\
FAIL: of::one
  thread 'of::one' panicked at it.rs:1:2:
  two are three
FAIL: of::other
FAIL: `-p a --lib`
FAIL: `-p a --test it`
1 passed, 3 failed, 0 skipped
";
    assert_eq!(stdout(&output), wanted);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn tests_that_do_not_build_are_a_failure() {
    let repository = Repository::new(&[("log", "error: could not compile `a`\n"), ("skips", "")]);
    let output = repository.run("count-tests.sh", &["log", "101", "skips"]);
    assert_eq!(stdout(&output), "0 passed, 1 failed, 0 skipped\n");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_suite_of_its_own_is_added() {
    let suite = "ok read\nSKIP: splice: old kernel\n20 passed, 0 failed, 1 skipped\n";
    let repository = Repository::new(&[
        ("log", TWO_GOOD),
        ("skips", ""),
        ("suite", suite),
        ("cut", "ok read\n"),
    ]);
    let output = repository.run("count-tests.sh", &["log", "0", "skips", "suite", "0"]);
    let wanted =
        "SKIP: slow: needs a year\nSKIP: splice: old kernel\n63 passed, 0 failed, 2 skipped\n";
    assert_eq!(stdout(&output), wanted);

    // There may be more of them.
    let output = repository.run(
        "count-tests.sh",
        &["log", "0", "skips", "suite", "0", "suite", "0"],
    );
    assert!(stdout(&output).ends_with("\n83 passed, 0 failed, 3 skipped\n"));

    // A suite that dies, or ends without its closing line, has failed.
    for (suite, exit) in [("suite", "1"), ("cut", "0"), ("cut", "139")] {
        let output = repository.run("count-tests.sh", &["log", "0", "skips", suite, exit]);
        assert!(
            stdout(&output).contains(" passed, 1 failed, "),
            "{suite} {exit}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn the_summary_closes_the_test_run() {
    let repository = Repository::new(&[]);
    repository.program(
        "cargo",
        "echo \"no /proc here\" >> \"$BONSAI_SKIP_LOG\"; [ -n \"$BONSAI_BIN_DIR\" ] || exit 3\n\
         echo 'test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'",
    );
    let output = repository.run("test.sh", &["-p", "a"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).ends_with("\nSKIP: no /proc here\n4 passed, 0 failed, 1 skipped\n"));
    let summary =
        fs::read_to_string(repository.folder.path().join("target/test-summary.txt")).unwrap();
    assert!(summary.ends_with("4 passed, 0 failed, 1 skipped\n"));

    repository.program("cargo", "echo \"it broke\"; exit 101");
    let output = repository.run("test.sh", &[]);
    assert!(
        stdout(&output).starts_with("it broke\n")
            && stdout(&output).ends_with("0 passed, 1 failed, 0 skipped\n")
    );
    assert_eq!(output.status.code(), Some(1));
}

/// A repository whose `dpkg-query` knows the packages `here` and `there`, and whose
/// `apt-get` leaves a trace.
fn with_packages() -> Repository {
    let repository = Repository::new(&[
        (
            "scripts/packages-test.txt",
            "# why\nhere\nother | there # either\n",
        ),
        (
            "scripts/packages-demo.txt",
            "here\nserver | big-server\nclient\nclient\n",
        ),
    ]);
    repository.program(
        "dpkg-query",
        "case ${@: -1} in here|there) echo -n installed ;; *) exit 1 ;; esac",
    );
    repository.program("apt-get", "touch apt-was-called");
    repository.program("id", "echo 1000");
    repository
}

#[test]
fn installed_packages_need_no_network() {
    let repository = with_packages();
    let output = repository.run("deps.sh", &["test"]);
    assert!(output.status.success());
    assert_eq!(
        (stdout(&output), stderr(&output)),
        (String::new(), String::new())
    );
    assert!(!repository.has("apt-was-called"));
}

#[test]
fn a_user_is_told_what_to_install() {
    let repository = with_packages();
    let output = repository.run("deps.sh", &["test", "demo"]);
    let wanted = "deps: not installed: server client\n\
                  deps: install them with: sudo apt-get install --no-install-recommends server client\n";
    assert_eq!(stderr(&output), wanted);
    assert_eq!(output.status.code(), Some(1));
    let optional = repository.run("deps.sh", &["--optional", "test", "demo"]);
    assert_eq!(stderr(&optional), wanted);
    assert!(optional.status.success());
    assert!(!repository.has("apt-was-called"));
}

#[test]
fn an_unknown_list_is_refused() {
    let output = with_packages().run("deps.sh", &["tests"]);
    assert!(stderr(&output).contains("packages-tests.txt"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn what_is_installed_is_removed_again() {
    let repository = Repository::new(&[
        ("built/bonsai", "program"),
        ("built/libbonsai_preload.so", "library"),
        ("built/libbonsai_engine.so", "engine"),
        ("built/libbonsai_extension.so", "extension"),
        ("man/bonsai.1", "page"),
        ("man/bonsai-run.1", "page"),
        ("completions/bash/bonsai.bash", "bash"),
        ("completions/zsh/_bonsai", "zsh"),
        ("completions/fish/bonsai.fish", "fish"),
        ("LICENSE-APACHE", "licence"),
        ("LICENSE-MIT", "licence"),
    ]);
    let early = repository.run("install.sh", &["built", "a prefix"]);
    assert!(
        stderr(&early).contains("make build"),
        "a program that cannot run was not built"
    );

    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(repository.folder.path().join("built/bonsai"), mode).unwrap();
    let output = repository.run("install.sh", &["built", "a prefix"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let installed = [
        "bin/bonsai",
        "lib/bonsai/libbonsai_preload.so",
        "lib/bonsai/libbonsai_engine.so",
        "lib/bonsai/libbonsai_extension.so",
        "share/man/man1/bonsai.1",
        "share/man/man1/bonsai-run.1",
        "share/bash-completion/completions/bonsai",
        "share/zsh/site-functions/_bonsai",
        "share/fish/vendor_completions.d/bonsai.fish",
        "share/doc/bonsai/LICENSE-MIT",
        "share/doc/bonsai/LICENSE-APACHE",
    ];
    for path in installed {
        assert!(
            repository.has(&format!("a prefix/{path}")),
            "{path} is not installed"
        );
    }
    assert!(
        repository
            .run("install.sh", &["--remove", "a prefix"])
            .status
            .success()
    );
    for path in installed {
        assert!(
            !repository.has(&format!("a prefix/{path}")),
            "{path} is left"
        );
    }
    assert!(!repository.has("a prefix/lib/bonsai") && repository.has("a prefix/bin"));
}

/// Whoever reads what remains of a run finds there what was wrong in it.
#[test]
fn a_test_of_the_page_that_failed_says_why() {
    let suite = "browser ok one\nbrowser not ok two\n  error: 'waited 5 s in vain'\nbrowser ok three\n\
                 2 passed, 1 failed, 0 skipped\n";
    let repository = Repository::new(&[("log", TWO_GOOD), ("skips", ""), ("suite", suite)]);
    let output = repository.run("count-tests.sh", &["log", "0", "skips", "suite", "1"]);
    let told = stdout(&output);
    assert!(
        told.contains("FAIL: browser not ok two\n  error: 'waited 5 s in vain'\n"),
        "{told}"
    );
    assert!(!told.contains("three"), "{told}");
}

#[test]
fn a_process_that_a_test_left_behind_holds_nothing_up_and_is_named() {
    let repository = Repository::new(&[]);
    repository.program(
        "cargo",
        "sleep 99 & echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'",
    );
    let output = repository.run("test.sh", &["-p", "a"]);
    let said = stdout(&output);
    assert!(output.status.success(), "{said}{}", stderr(&output));
    assert!(
        said.contains("was left behind by a test, and is ended: sleep 99"),
        "{said}"
    );
    assert_eq!(
        said.lines().next_back(),
        Some("1 passed, 0 failed, 0 skipped")
    );
}
