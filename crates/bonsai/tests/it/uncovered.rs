//! Programs that cannot be entered run, and are named.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use bonsai_ledger::sync::AtomicU32;
use bonsai_ledger::{Futex, Ledger, ProcessId, own_process};

use crate::support::{Place, compiled, skip, static_program};

#[test]
fn static_programs_run_and_are_named() {
    let name = "static_programs_run_and_are_named";
    let Some(place) = Place::new(name) else {
        return;
    };
    let source = "int main(int n, char **v) { return n > 1 ? v[1][0] - '0' : 3; }";
    let Some(program) = static_program(name, &place, source) else {
        return;
    };
    let program = program.to_str().expect("a path");
    let said = place.say(&["run", "--no-patch", "--name", "x", "--", program]);
    assert_eq!(said.code, Some(3));
    let warning = format!(
        "bonsai: {program} is statically linked: it runs, but nothing of it is shaped (bonsai doctor {program})\n\
         bonsai: x: not covered: {program}, statically linked\n"
    );
    assert_eq!(said.err, warning);
    let strict = place.say(&["run", "--no-patch", "--strict", "--", program]);
    assert_eq!(
        (strict.code, strict.err.lines().count()),
        (Some(2), 1),
        "{strict:?}"
    );
    let child = place.say(&[
        "run",
        "--no-patch",
        "--name",
        "x",
        "--",
        "sh",
        "-c",
        &format!("{program} 0; {program} 0; true"),
    ]);
    assert!(
        child
            .err
            .contains("x: not covered: .static-program (2 times), statically linked"),
        "{child:?}"
    );
    let doctor = place.say(&["doctor", program]);
    assert_eq!(doctor.code, Some(0));
    assert!(doctor.out.contains("is statically linked"), "{doctor:?}");
    // Unless it is forbidden, it is entered.
    let entered = place.say(&["run", "--verbose", "--name", "x", "--", program]);
    assert_eq!(entered.code, Some(3));
    assert!(entered.err.contains("x: 1 process covered"), "{entered:?}");
}

/// libc looks for them along `PATH`, by calls that are not seen without patching.
#[test]
fn static_programs_that_libc_looks_for_are_named() {
    let name = "static_programs_that_libc_looks_for_are_named";
    let Some(place) = Place::new(name) else {
        return;
    };
    let Some(program) = static_program(name, &place, "int main(void) { return 3; }") else {
        return;
    };
    let source = "#include <spawn.h>\n#include <sys/wait.h>\nextern char **environ;\n\
                  int main(int n, char **v) { int pid, status; if (posix_spawnp(&pid, v[1], 0, 0, v + 1, environ)) return 126;\n\
                  waitpid(pid, &status, 0); return WEXITSTATUS(status); }";
    let Some(spawner) = compiled(name, &place, source, ".spawner", &[]) else {
        return;
    };
    let folder = program.parent().expect("a folder").display();
    // A folder of that name, and a file that may not be run, are passed over.
    for (first, mode) in [(".folder", None), (".file", Some(0o644))] {
        let other = place.path().join(first);
        std::fs::create_dir(&other).expect("a folder");
        let within = other.join(".static-program");
        match mode {
            None => std::fs::create_dir(&within).expect("a folder"),
            Some(mode) => {
                std::fs::write(&within, "#!/bin/true\n").expect("a file");
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(&within, mode).expect("set");
            }
        }
    }
    let own = place.path().display();
    let path = format!("PATH={own}/none:{own}/.folder:{own}/.file:{folder}:/usr/bin:/bin");
    let spawner = spawner.to_str().expect("a path");
    for by in [&["env", &path][..], &["env", &path, spawner]] {
        let begin = ["run", "--no-patch", "--name", "x"];
        let program = &[".static-program"][..];
        let said = place.say(&[&begin, &["--"][..], by, program].concat());
        let named =
            "bonsai: x: not covered: .static-program, statically linked: cannot be entered\n";
        assert_eq!((said.code, &*said.err), (Some(3), named), "{by:?}");
        let strict = place.say(&[&begin, &["--strict", "--"][..], by, program].concat());
        let refused = "nothing of it can be shaped, and --strict refuses that";
        assert_eq!(strict.code, Some(126), "{strict:?}");
        assert_eq!(strict.err.matches(refused).count(), 1, "{strict:?}");
        let none = place.say(&[&begin, &["--"][..], by, &[".no-such-program"][..]].concat());
        assert!(!none.err.contains("not covered"), "{none:?}");
    }
}

#[test]
fn a_live_static_program_is_shown_as_not_covered() {
    let name = "a_live_static_program_is_shown_as_not_covered";
    let Some(place) = Place::new(name) else {
        return;
    };
    let source = "#include <unistd.h>\nint main(void) { char c; return (int) read(0, &c, 1); }";
    let Some(program) = static_program(name, &place, source) else {
        return;
    };
    let script = format!("exec 3<&0; {} <&3; true", program.display());
    let running = place.start("x", &["--no-patch", "--", "sh", "-c", &script]);
    let service = place.until("x", |service| service["uncovered"][0].is_object());
    let uncovered = &service["uncovered"][0];
    assert_eq!(uncovered["program"], ".static-program");
    assert_eq!(uncovered["ended"], false);
    assert!(
        uncovered["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("static")),
        "{uncovered}"
    );
    let text = place.say(&["status", "x", "--interval", "10ms"]).out;
    assert!(text.contains("not covered: .static-program ("), "{text}");
    running.end();
}

#[test]
fn set_user_id_programs_run_and_are_named() {
    let name = "set_user_id_programs_run_and_are_named";
    let Some(place) = Place::new(name) else {
        return;
    };
    if !is_root() {
        return skip(name, "only root can make a program of another user");
    }
    let program = place.path().join(".setuid");
    std::fs::copy("/bin/true", &program).expect("a copy");
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).expect("changed");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("set");
    let said = place.say(&["run", "--", program.to_str().expect("a path")]);
    assert_eq!(said.code, Some(0));
    assert!(
        said.err
            .contains("is set-user-ID or set-group-ID: it runs, but nothing of it is shaped"),
        "{said:?}"
    );
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whoever writes the ledger may write any number there: only members are traced.
#[test]
fn nobody_outside_of_a_service_is_entered() {
    /// Gives up after some sleeps.
    struct Patience(u32);

    impl Futex for Patience {
        fn wait(&mut self, _: &AtomicU32, _: u32) -> bool {
            std::thread::sleep(Duration::from_millis(100));
            self.0 = self.0.saturating_sub(1);
            self.0 > 0
        }

        fn wake(&mut self, _: &AtomicU32) {}

        fn is_dead(&mut self, _: ProcessId) -> bool {
            false
        }
    }

    let Some(place) = Place::new("nobody_outside_of_a_service_is_entered") else {
        return;
    };
    let running = place.start("x", &["--", "cat"]);
    place.until("x", |service| service["processes"][0].is_object());
    let ledger = Ledger::open(&place.path().join("x/ledger")).expect("its ledger");
    let mut stranger = Command::new("sleep").arg("30").spawn().expect("sleep");
    // Nobody is woken by this: whoever answers looks once a second.
    let pid = stranger.id();
    let asker = ProcessId {
        pid,
        ..own_process()
    };
    let held = ledger.ask_to_enter(asker, &mut Patience(30), |_| ());
    let status = std::fs::read_to_string(format!("/proc/{}/status", stranger.id()));
    stranger.kill().expect("ours");
    stranger.wait().expect("ours");
    assert_eq!(held, None);
    assert!(status.expect("it lives").contains("TracerPid:\t0"));
    let said = running.end();
    assert!(
        said.err.contains("does not belong to the service"),
        "{said:?}"
    );
}
