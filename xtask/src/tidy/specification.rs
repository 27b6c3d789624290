//! Each promise in `SPECIFICATION.md` names the test or benchmark that holds it, each fault in
//! `docs/faults.md` the test that closes it, and these exist.
//!
//! A table whose last heading speaks of tests or benchmarks is a table of promises.
//! The last cell of each row names, in backticks, one or more of
//!
//! - `some_crate::module::test_name`: a function of that crate; `browser::test_name`: a test of the page in a browser;
//! - `tests/file`, `scripts/file` or `crates/name/tests/file`: a file, with `::name`
//!   behind it a name in that file (`tests/x` is looked for in every crate, too);
//! - `bench:NAME`: a benchmark of `bonsai-lab`;
//!
//! or says in plain words that the promise is `untested`.

use super::tree::Tree;
use super::{Finding, mask};

/// Pages with tables of promises.
const PAGES: [&str; 2] = ["SPECIFICATION.md", "docs/faults.md"];
/// The folder of tests in a browser.
const BROWSER: &str = "tests/browser/";
/// The folder whose sources name the benchmarks.
const BENCHMARKS: &str = "crates/bonsai-lab";
const RIGHT: &str = "name `crate::path::test`, `tests/file` or `bench:NAME`, or write untested";

/// Rows without a name, and names of nothing. A tree without a page has no findings about it.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let pages = PAGES.iter();
    pages.flat_map(|page| check_page(tree, page)).collect()
}

fn check_page(tree: &Tree, page: &'static str) -> Vec<Finding> {
    let Some(text) = tree.text(page) else {
        return Vec::new();
    };
    let rows = rows(text);
    if rows.is_empty() {
        return vec![Finding::new(
            page,
            1,
            "no table of promises",
            "write a table whose last heading is Test",
        )];
    }
    let mut findings = Vec::new();
    for (line, cell) in rows {
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if names.is_empty()
            && mask::words(&cell.to_lowercase(), "untested")
                .next()
                .is_none()
        {
            findings.push(Finding::new(page, line, "a promise without a test", RIGHT));
        }
        for name in names {
            if let Some(what) = missing(tree, name) {
                findings.push(Finding::new(page, line, what, RIGHT));
            }
        }
    }
    findings
}

/// The last cells of all rows in tables of promises, with their lines.
fn rows(text: &str) -> Vec<(usize, String)> {
    let mut rows = Vec::new();
    // Whether the table that the line belongs to counts; `None` outside of tables.
    let mut counts: Option<bool> = None;
    for (at, line) in text.lines().enumerate() {
        let Some(cell) = last_cell(line) else {
            counts = None;
            continue;
        };
        match counts {
            None => {
                let heading = cell.to_lowercase();
                counts = Some(
                    ["test", "bench", "held by"]
                        .iter()
                        .any(|word| heading.contains(word)),
                );
            }
            Some(true) if !cell.chars().all(|c| "-: ".contains(c)) || cell.is_empty() => {
                rows.push((at + 1, cell));
            }
            Some(_) => {}
        }
    }
    rows
}

/// The last cell of a table row; a `\|` divides nothing.
fn last_cell(line: &str) -> Option<String> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let row = row.replace("\\|", "\u{0}");
    let cell = row.rsplit('|').next()?.trim();
    Some(cell.replace('\u{0}', "|"))
}

/// Why `name` names nothing in the tree.
fn missing(tree: &Tree, name: &str) -> Option<String> {
    if let Some(bench) = name.strip_prefix("bench:") {
        let quoted = format!("\"{bench}\"");
        let found = !bench.is_empty()
            && tree
                .rust_below(BENCHMARKS)
                .any(|(_, text)| text.contains(&quoted));
        return (!found).then(|| format!("no benchmark {bench} in {BENCHMARKS}"));
    }
    let (place, within) = name
        .split_once("::")
        .map_or((name, None), |(place, rest)| (place, Some(rest)));
    let function = within.map(|path| path.rsplit("::").next().unwrap_or(path));
    if place.contains('/') {
        return missing_in_file(tree, place, function);
    }
    let Some(function) = function else {
        return Some(format!("{name} is neither a test, a file nor a benchmark"));
    };
    if place == "browser" {
        let quoted = format!("test(\"{function}\"");
        let mut texts = tree.texts();
        let found = texts.any(|(path, text)| path.starts_with(BROWSER) && text.contains(&quoted));
        return (!found).then(|| format!("no test {function} in {BROWSER}"));
    }
    let folder = match place {
        "xtask" => place.to_owned(),
        "conformance" => "tests/conformance".to_owned(),
        place => format!("crates/{}", place.replace('_', "-")),
    };
    let found = tree
        .rust_below(&folder)
        .any(|(_, text)| defines(text, function));
    (!found).then(|| format!("no function {function} in {folder}"))
}

fn missing_in_file(tree: &Tree, place: &str, function: Option<&str>) -> Option<String> {
    let of_crate = |path: &str| {
        let inside = path
            .strip_prefix("crates/")
            .and_then(|rest| rest.split_once('/'))
            .map(|(_, inside)| inside);
        place.starts_with("tests/") && inside == Some(place)
    };
    let folder = place.strip_suffix('/').unwrap_or(place);
    let mut files = tree
        .texts()
        .filter(|(path, _)| *path == place || of_crate(path))
        .peekable();
    let Some(function) = function else {
        return (files.peek().is_none() && !tree.has(folder)).then(|| format!("no file {place}"));
    };
    let found = files.any(|(path, text)| {
        if super::tree::is_rust(path) {
            defines(text, function)
        } else {
            mask::words(text, function).next().is_some()
        }
    });
    (!found).then(|| format!("no {function} in {place}"))
}

/// Whether the Rust source has a function of that name, or a macro makes one from it.
fn defines(text: &str, function: &str) -> bool {
    let code = mask::code(text);
    mask::words(&code, function).any(|at| {
        let before = code[..at].trim_end();
        before.ends_with("fn") || before.ends_with(['(', '{', ','])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# Promises\n\n| promise | number | test |\n|---|--:|---|\n";

    fn found(rows: &str) -> Vec<String> {
        let page = format!("{HEAD}{rows}");
        let tree = Tree::of(&[
            (PAGES[0], &page),
            (
                "crates/bonsai-bucket/src/lib.rs",
                "// fn gone() {}\nproptest! {\n    fn never_over() {}\n}\nfn user() { other() }\n",
            ),
            (
                "crates/bonsai-bucket/tests/it.rs",
                "cases! {\n    of_a_macro,\n}\n",
            ),
            (
                "crates/bonsai-lab/src/lib.rs",
                "const NAME: &str = \"call-cost\";\n",
            ),
            ("tests/conformance/tests/it/a.rs", "fn as_bare() {}\n"),
            (
                "tests/browser/page/a.test.mjs",
                "test(\"it_plays\", () => {});\n",
            ),
            ("scripts/conformance.sh", "check read_short\n"),
        ]);
        check(&tree)
            .iter()
            .map(|finding| format!("{} {}", finding.line, finding.what))
            .collect()
    }

    #[test]
    fn names_that_exist_pass() {
        let rows = "| a | 1 | `bonsai_bucket::tests::never_over` |\n\
                    | b \\| c | 1 | `bonsai_bucket::of_a_macro`, `bench:call-cost` |\n\
                    | d | 1 | `tests/it.rs` and `tests/it.rs::of_a_macro` |\n\
                    | e | 1 | `scripts/conformance.sh::read_short` |\n\
                    | g | 1 | `conformance::as_bare`, `browser::it_plays` |\n\
                    | f | 1 | untested: needs two sockets |\n";
        assert_eq!(found(rows), Vec::<String>::new());
    }

    #[test]
    fn names_of_nothing_are_refused() {
        let cases = [
            (
                "`bonsai_bucket::gone`",
                "no function gone in crates/bonsai-bucket",
            ),
            ("`bonsai_bucket::other`", ""),
            (
                "`nowhere::never_over`",
                "no function never_over in crates/nowhere",
            ),
            ("`browser::it`", "no test it in tests/browser/"),
            ("`tests/gone.rs`", "no file tests/gone.rs"),
            ("`tests/it.rs::gone`", "no gone in tests/it.rs"),
            (
                "`scripts/conformance.sh::write`",
                "no write in scripts/conformance.sh",
            ),
            ("`bench:gone`", "no benchmark gone in crates/bonsai-lab"),
            ("`gone`", "gone is neither a test, a file nor a benchmark"),
            ("by hand", "a promise without a test"),
            ("", "a promise without a test"),
        ];
        for (cell, wanted) in cases {
            let wanted: Vec<String> = (!wanted.is_empty())
                .then(|| format!("5 {wanted}"))
                .into_iter()
                .collect();
            assert_eq!(found(&format!("| a | 1 | {cell} |\n")), wanted, "{cell}");
        }
    }

    #[test]
    fn other_tables_and_other_pages_have_no_promises() {
        let page = "| word | meaning |\n|---|---|\n| rate | bytes |\n";
        let whats = |tree: &Tree| check(tree).into_iter().map(|f| f.what).collect::<Vec<_>>();
        assert_eq!(
            whats(&Tree::of(&[(PAGES[0], page)])),
            ["no table of promises"]
        );
        assert_eq!(
            whats(&Tree::of(&[("README.md", page)])),
            Vec::<String>::new()
        );
    }
}
