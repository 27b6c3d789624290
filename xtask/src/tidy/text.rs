//! Form of the files: length, unfinished work, blanks, the last line, and words
//! that belong to one machine.

use super::tree::{Tree, extension, is_rust};
use super::{Finding, mask};

/// A source longer than this is refused, lines.
const LONGEST: usize = 600;
/// A source longer than this is noted, lines.
const LONG: usize = 400;

/// Files that a program writes, or others: their form is not ours, and nobody edits them.
const WRITTEN: [&str; 9] = [
    "Cargo.lock",
    "completions/",
    "crates/bonsai-web/page/vendor/hls.min.mjs",
    "docs/reference/calls.md",
    "docs/reference/coverage.md",
    "docs/reference/cli.md",
    "man/",
    "web/vendor/uPlot.iife.min.js",
    "web/vendor/uPlot.min.css",
];

/// Marks of unfinished work in code.
const UNFINISHED_CODE: [&str; 4] = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
/// Marks of unfinished work in any text. Put together here, so that this file is not found.
const UNFINISHED_TEXT: [&str; 2] = [concat!("FIX", "ME"), concat!("TO", "DO")];

/// Folders of one machine.
const MACHINE_FOLDERS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
/// Hosts that a build reaches through its tools and that no file needs to name.
const HOSTS: [&str; 4] = [
    concat!("crates", ".io/api"),
    concat!("index.", "crates.io"),
    concat!("py", "pi.org"),
    concat!("deb.", "debian.org"),
];

/// Sources that are long, without being too long.
pub(super) fn long_files(tree: &Tree) -> Vec<String> {
    let long = |lines: &usize| (LONG + 1..=LONGEST).contains(lines);
    tree.texts()
        .filter(|(path, _)| is_source(path) && !is_written(path))
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| long(lines))
        .map(|(path, lines)| format!("{path} has {lines} lines; is it still one thing?"))
        .collect()
}

/// Every rule of form.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        if !is_written(path) {
            findings.extend(check_length(path, text));
            findings.extend(check_unfinished(path, text));
            findings.extend(check_blanks(path, text));
        }
        findings.extend(check_machine(path, text));
    }
    findings
}

fn is_source(path: &str) -> bool {
    matches!(
        extension(path),
        Some("rs" | "c" | "h" | "py" | "sh" | "js" | "css" | "html")
    )
}

fn is_written(path: &str) -> bool {
    WRITTEN
        .iter()
        .any(|written| path == *written || (written.ends_with('/') && path.starts_with(written)))
}

fn check_length(path: &str, text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    (is_source(path) && lines > LONGEST).then(|| {
        Finding::new(
            path,
            LONGEST + 1,
            format!("{lines} lines"),
            format!("split it: at most {LONGEST} lines, better {LONG}"),
        )
    })
}

fn check_unfinished(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let finding = |line: usize, mark: &str| {
        Finding::new(
            path,
            line,
            format!("{mark} marks unfinished work"),
            "finish it",
        )
    };
    if is_rust(path) {
        let code = mask::code(text);
        for mark in UNFINISHED_CODE {
            let name = mark.trim_matches(['#', '[', '!']);
            let found = code.match_indices(mark).map(|(at, _)| at);
            let whole = |at: &usize| {
                let start = at + mark.find(name).unwrap_or(0);
                mask::words(&code[*at..], name).next() == Some(start - at)
                    && !ends_in_word(&code[..*at])
            };
            findings.extend(
                found
                    .filter(whole)
                    .map(|at| finding(mask::line_of(&code, at), mark)),
            );
        }
    }
    for mark in UNFINISHED_TEXT {
        findings.extend(mask::words(text, mark).map(|at| finding(mask::line_of(text, at), mark)));
    }
    findings
}

fn ends_in_word(text: &str) -> bool {
    text.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn check_blanks(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tabs_mean_something = path.ends_with("Makefile")
        || matches!(extension(path), Some("go" | "mk" | "tsv" | "patch"));
    // Not `lines()`, which takes the carriage return away.
    for (at, line) in text.split('\n').enumerate() {
        if line.contains('\t') && !tabs_mean_something {
            findings.push(Finding::new(path, at + 1, "a tab", "indent with blanks"));
        }
        if line.ends_with([' ', '\t', '\r']) && extension(path) != Some("patch") {
            findings.push(Finding::new(
                path,
                at + 1,
                "blanks at the end of the line",
                "remove them",
            ));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        let last = text.lines().count();
        findings.push(Finding::new(
            path,
            last,
            "the last line is not closed",
            "end the file with a newline",
        ));
    }
    findings
}

fn check_machine(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in MACHINE_FOLDERS {
        // Only where the path begins: `$TMP` followed by the same letters is a folder of anyone.
        let begins = |before: &str| {
            !before.ends_with(|c: char| c.is_alphanumeric() || "_-.})>*~".contains(c))
        };
        findings.extend(
            text.match_indices(folder)
                .filter(|(at, _)| begins(&text[..*at]))
                .map(|(at, _)| {
                    Finding::new(
                        path,
                        mask::line_of(text, at),
                        format!("{folder} is a folder of one machine"),
                        "use a relative path, $HOME or a temporary folder",
                    )
                }),
        );
    }
    for host in HOSTS {
        findings.extend(text.match_indices(host).map(|(at, _)| {
            Finding::new(
                path,
                mask::line_of(text, at),
                format!("{host} names a package registry"),
                "leave that to cargo and apt",
            )
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)]))
            .iter()
            .map(|finding| format!("{} {}", finding.line, finding.what))
            .collect()
    }

    #[test]
    fn long_sources_are_noted_and_refused() {
        let lines = |n: usize| "x\n".repeat(n);
        let tree = |n| {
            Tree::of(&[
                ("a.rs", lines(n).as_str()),
                ("a.md", lines(2 * LONGEST).as_str()),
            ])
        };
        assert!(long_files(&tree(LONG)).is_empty());
        assert_eq!(long_files(&tree(LONG + 1)).len(), 1);
        assert_eq!(long_files(&tree(LONGEST + 1)).len(), 0);
        assert_eq!(check(&tree(LONGEST)), []);
        assert_eq!(check(&tree(LONGEST + 1)).len(), 1);
    }

    #[test]
    fn unfinished_work_is_found_in_code_only() {
        let marks = [
            "todo!()",
            "unimplemented!(\"x\")",
            "dbg!(x)",
            "#[ignore = \"slow\"]",
            "#[ignore]",
        ];
        for mark in marks {
            let code = format!(
                "// {mark}\nfn a() {{ \"{}\"; {mark} }}\n",
                mark.replace('"', "")
            );
            let lines: Vec<_> = found("a.rs", &code)
                .iter()
                .map(|f| f[..1].to_owned())
                .collect();
            assert_eq!(lines, ["2"], "{mark}");
        }
        assert_eq!(
            found("a.rs", "my_todo!(); #[ignored] x!(dbg)\n"),
            Vec::<String>::new()
        );
        for mark in UNFINISHED_TEXT {
            assert_eq!(found("a.c", &format!("/* {mark}: x */\n")).len(), 1);
            assert_eq!(found("a.c", &format!("/* {mark}_X */\n")).len(), 0);
        }
    }

    #[test]
    fn tabs_and_blanks_at_the_end_are_refused() {
        assert_eq!(found("a.sh", "\tx\n"), ["1 a tab"]);
        assert_eq!(found("Makefile", "a:\n\tx\n"), Vec::<String>::new());
        assert_eq!(
            found("a.md", "a\nb \n"),
            ["2 blanks at the end of the line"]
        );
        assert_eq!(found("a.md", "a\r\n"), ["1 blanks at the end of the line"]);
    }

    #[test]
    fn a_text_ends_with_a_newline() {
        assert_eq!(found("a.toml", "a\nb"), ["2 the last line is not closed"]);
        assert_eq!(found("a.toml", ""), Vec::<String>::new());
    }

    #[test]
    fn what_a_program_writes_has_its_own_form_but_no_machine_in_it() {
        let path = "completions/zsh/_bonsai";
        assert_eq!(found(path, "\tx "), Vec::<String>::new());
        assert_eq!(found(path, &format!("x {}y", MACHINE_FOLDERS[0])).len(), 1);
        assert_eq!(found("manual.txt", "x").len(), 1);
    }

    #[test]
    fn folders_and_hosts_of_one_machine_are_refused() {
        for folder in MACHINE_FOLDERS {
            assert_eq!(found("a.md", &format!("a\nin {folder}x\n")).len(), 1);
            assert_eq!(
                found("a.md", &format!("in $DIR{folder}x and a{folder}x\n")).len(),
                0
            );
        }
        for host in HOSTS {
            assert_eq!(found("a.sh", &format!("curl https://{host}/x\n")).len(), 1);
        }
    }
}
