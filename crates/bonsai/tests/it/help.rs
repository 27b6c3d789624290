//! Help that a person can read.

use crate::support::Place;

const COMMANDS: [&str; 11] = [
    "run", "status", "top", "set", "disk", "cpu", "davvi", "trace", "stats", "audit", "doctor",
];

#[test]
fn every_command_has_help_with_examples() {
    let place = Place::bare();
    for command in COMMANDS {
        for flag in ["--help", "-h"] {
            let said = place.say(&[command, flag]);
            assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{command}");
            assert!(
                said.out.contains("Examples:\n  bonsai "),
                "{command} {flag}: {}",
                said.out
            );
            assert!(said.out.contains("Usage: bonsai "), "{command} {flag}");
            let long = said.out.lines().find(|line| line.chars().count() > 100);
            assert_eq!(long, None, "{command} {flag}");
            assert!(!said.out.contains('\u{1b}'), "colour without a terminal");
        }
    }
}

#[test]
fn the_help_of_run_names_every_class() {
    let said = Place::bare().say(&["run", "--help"]);
    for (_, name, about) in bonsai_calls::CLASSES {
        let line = said
            .out
            .lines()
            .find(|line| line.trim_start().starts_with(&format!("{name} ")));
        assert!(line.is_some(), "{name} ({about})\n{}", said.out);
    }
}

#[test]
fn help_and_version_are_no_errors_and_nothing_is_one() {
    let place = Place::bare();
    let help = place.say(&["--help"]);
    assert_eq!(help.code, Some(0));
    for command in COMMANDS {
        assert!(
            help.out.contains(&format!("\n  {command}")),
            "{command}: {}",
            help.out
        );
    }
    assert!(!help.out.contains("\n  gen"), "gen is for the makers");
    let version = place.say(&["--version"]);
    assert_eq!(
        version.out,
        format!("bonsai {}\n", env!("CARGO_PKG_VERSION"))
    );
    let nothing = place.say(&[] as &[&str]);
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(2), ""));
    assert!(nothing.err.contains("Usage: bonsai"));
}
