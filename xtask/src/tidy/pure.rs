//! What the code of a pure crate may not name: clocks, files, the environment, the
//! network, processes and randomness. They come in as arguments.

use std::collections::BTreeSet;

use super::layers::{Crate, Metadata};
use super::tree::Tree;
use super::{Finding, mask};

/// What a pure crate may not name, and what to do instead.
const BANNED: [(&str, &str); 7] = [
    ("std::time::Instant", "take `now` as an argument"),
    ("std::time::SystemTime", "take `now` as an argument"),
    ("std::fs", "take the bytes as an argument"),
    ("std::env", "take the value as an argument"),
    ("std::net", "take the bytes as an argument"),
    ("std::process", "leave processes to the edge crates"),
    ("rand", "take the seed as an argument"),
];

/// Every mention in code that is not compiled for tests only.
pub(super) fn check(tree: &Tree, metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for this in metadata.crates().filter(Crate::is_pure) {
        let source = format!("{}/src", this.folder);
        let sources: Vec<(&str, String)> = tree
            .rust_below(&source)
            .map(|(path, text)| (path, mask::code(text)))
            .collect();
        let parts: Vec<_> = sources
            .iter()
            .map(|(path, code)| (*path, mask::without_tests(code)))
            .collect();
        let tests: BTreeSet<String> = parts
            .iter()
            .flat_map(|(path, (_, modules))| {
                modules.iter().flat_map(|name| module_files(path, name))
            })
            .collect();
        for (path, (code, _)) in &parts {
            if !tests.contains(*path) {
                findings.extend(mentions(path, code));
            }
        }
    }
    findings
}

/// The files that may hold the module `name` declared in the file `path`.
fn module_files(path: &str, name: &str) -> [String; 2] {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let folder = match stem {
        "lib" | "main" | "mod" => folder.to_owned(),
        _ => format!("{folder}/{stem}"),
    };
    [
        format!("{folder}/{name}.rs"),
        format!("{folder}/{name}/mod.rs"),
    ]
}

fn mentions(path: &str, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let finding = |at: usize, named: &str, right: &str| {
        Finding::new(
            path,
            mask::line_of(code, at),
            format!("a pure crate names {named}"),
            right,
        )
    };
    for (at, tree) in uses(code) {
        for named in expand(tree) {
            if let Some(right) = banned(&named) {
                findings.push(finding(at, &named, right));
            }
        }
    }
    for (name, right) in BANNED {
        // A crate is named by its path, a bare `rand` may be anything.
        let inline = if name.contains("::") {
            name.to_owned()
        } else {
            format!("{name}::")
        };
        for at in code.match_indices(&inline).map(|(at, _)| at) {
            let whole = mask::words(&code[at..], name).next() == Some(0);
            let alone = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let in_use =
                uses(code).any(|(start, tree)| (start..start + 4 + tree.len()).contains(&at));
            if whole && alone && !in_use {
                findings.push(finding(at, name, right));
            }
        }
    }
    findings
}

/// The `use` declarations of `code`, as (offset, what stands between `use` and `;`).
fn uses(code: &str) -> impl Iterator<Item = (usize, &str)> {
    mask::words(code, "use").filter_map(|at| {
        let rest = &code[at + 3..];
        // `use<'a>` in a type is no declaration.
        let end = rest.find(';')?;
        (!rest.trim_start().starts_with('<')).then_some((at, &rest[..end]))
    })
}

/// The paths that a `use` tree names: `std::{fs, io::{self, Read}}` gives
/// `std::fs`, `std::io` and `std::io::Read`.
fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split_whitespace().next().unwrap_or_default();
        let path = path.trim_start_matches("::");
        let path = path
            .strip_suffix("::*")
            .or(path.strip_suffix("::self"))
            .unwrap_or(path);
        return vec![path.to_owned()];
    };
    let prefix = tree[..open].trim().trim_start_matches("::");
    let inner = tree[open + 1..]
        .strip_suffix('}')
        .unwrap_or(&tree[open + 1..]);
    let mut paths = Vec::new();
    let mut depth = 0_usize;
    let mut start = 0;
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                let part = inner[start..at].trim();
                start = at + 1;
                if part == "self" {
                    paths.push(prefix.trim_end_matches("::").to_owned());
                } else if !part.is_empty() {
                    paths.extend(expand(&format!("{prefix}{part}")));
                }
            }
            _ => {}
        }
    }
    paths
}

/// What to do instead of importing `path`, when it is banned, lies in a banned
/// module, or is a module through which a banned name could be reached.
fn banned(path: &str) -> Option<&'static str> {
    let starts = |long: &str, short: &str| {
        long.strip_prefix(short)
            .is_some_and(|tail| tail.is_empty() || tail.starts_with("::"))
    };
    BANNED
        .iter()
        .find(|(name, _)| starts(path, name) || starts(name, path))
        .map(|(_, right)| *right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::layers::workspace;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let metadata = workspace(&[
            ("p", "crates/p", Some(1), &[]),
            ("edge", "crates/edge", Some(3), &[]),
        ]);
        check(&Tree::of(files), &metadata)
            .iter()
            .map(|finding| format!("{}:{} {}", finding.path, finding.line, finding.what))
            .collect()
    }

    #[test]
    fn use_trees_are_expanded() {
        assert_eq!(
            expand(" std::{fs, io::{self, Read as R}, time::*}"),
            ["std::fs", "std::io", "std::io::Read", "std::time"]
        );
        assert_eq!(expand("::std::env::var"), ["std::env::var"]);
        assert_eq!(expand("{core::fmt, a}"), ["core::fmt", "a"]);
    }

    #[test]
    fn clocks_files_and_randomness_are_refused() {
        let cases = [
            ("use std::time::Instant;", "std::time::Instant"),
            (
                "use std::{time::{Duration, SystemTime}};",
                "std::time::SystemTime",
            ),
            ("use std::time;", "std::time"),
            ("use std::*;", "std"),
            ("use std::fs::File;", "std::fs::File"),
            ("fn a() { std::env::var(x) }", "std::env"),
            ("fn a() -> ::std::net::IpAddr {}", "std::net"),
            ("fn a() { rand::random() }", "rand"),
            ("use rand::Rng;", "rand::Rng"),
        ];
        for (source, named) in cases {
            let wanted = format!("crates/p/src/a.rs:1 a pure crate names {named}");
            assert_eq!(
                found(&[("crates/p/src/a.rs", source)]),
                [wanted],
                "{source}"
            );
        }
    }

    #[test]
    fn words_that_only_look_alike_pass() {
        let source = "//! std::fs\nuse std::time::Duration;\nuse std::io::Read;\nuse core::fmt;\n\
                      fn a(s: &str) { let x = \"std::env\"; operand::b(); std::fsync(); rand(); }\n\
                      fn b<'a>() -> impl Iterator + use<'a> {}\n";
        assert_eq!(
            found(&[("crates/p/src/a.rs", source)]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn tests_and_edge_crates_may_use_them() {
        let files = [
            (
                "crates/p/src/lib.rs",
                "#[cfg(test)]\nmod tests { use std::fs; }\n#[cfg(test)]\nmod fixture;\n",
            ),
            ("crates/p/src/fixture.rs", "use std::fs;\n"),
            ("crates/p/src/deep.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/p/src/deep/tests.rs", "use std::env;\n"),
            ("crates/p/tests/it.rs", "use std::process;\n"),
            ("crates/edge/src/lib.rs", "use std::fs;\n"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }
}
