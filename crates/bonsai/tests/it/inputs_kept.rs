//! What a command reads is there afterwards.

use std::fs;
use std::os::unix::fs::symlink;

use crate::outputs::{file, small};
use crate::support::Place;

/// What a command reads is not what it writes, by any name.
#[test]
fn no_output_takes_the_place_of_an_input() {
    let place = Place::bare();
    let trace = small(&place);
    let text = file(&place, "small.txt");
    let link = file(&place, "link");
    symlink("small.btr", &link).expect("a link");
    let twin = file(&place, "twin");
    fs::hard_link(&trace, &twin).expect("a second name");
    let before = [&trace, &text].map(|path| fs::read(path).expect("a file"));
    let new = file(&place, "new.btr");
    let commands: [&[&str]; 10] = [
        &["trace", "import", &text, "-o", &text],
        &["trace", "export", &trace, "--to", "csv", "-o", &trace],
        &["trace", "stat", &trace, "--html", &link],
        &["trace", "stat", &link, "--html", &trace],
        &["trace", "gen", "--like", &trace, "-o", &twin],
        &[
            "trace",
            "gen",
            "--like",
            &trace,
            "-o",
            &new,
            "--content",
            &trace,
        ],
        &["sim", "run", &trace, "--cache", "1MiB", "--html", &twin],
        &["sim", "curve", &trace, "--html", &trace],
        &["sim", "curve", &trace, "--figure", &link],
        &["sim", "table", &trace, "--figure", &trace],
    ];
    for command in commands {
        let said = place.say(command);
        assert_eq!(said.code, Some(2), "{command:?}: {said:?}");
        assert!(
            said.err
                .contains("it is an input of this command; name a file"),
            "{command:?}: {said:?}"
        );
        let after = [&trace, &text].map(|path| fs::read(path).expect("a file"));
        assert!(before == after, "{command:?}");
    }
}

#[test]
fn no_output_takes_the_place_of_another() {
    let place = Place::bare();
    let trace = small(&place);
    let [plot, link] = ["plot", "link"].map(|name| file(&place, name));
    symlink("plot", &link).expect("a link");
    let command = ["sim", "curve", &trace, "--html", &plot, "--figure", &link];
    let said = place.say(&command);
    assert_eq!(said.code, Some(2), "{said:?}");
    let why = "it is another output of this command; name a file";
    assert!(said.err.contains(why), "{said:?}");
    let page = fs::read_to_string(&plot).expect("the page");
    assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
}
