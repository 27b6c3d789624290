//! `cargo xtask tidy`: rules of the repository that no compiler checks.
//!
//! Each rule is a function from the files of the tree (and, for the layers, from
//! what cargo says about the workspace) to findings. A finding is one line:
//! `path:line: what is wrong; what would be right`.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

mod claim;
mod layers;
mod links;
mod mask;
mod pure;
mod specification;
mod text;
mod tree;

use layers::Metadata;
use tree::Tree;

/// One departure from a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// File, relative to the root of the repository.
    path: String,
    /// Line, counted from 1; 1 where the whole file is meant.
    line: usize,
    /// What is wrong.
    what: String,
    /// What would be right.
    right: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>, right: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
            right: right.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}; {}",
            self.path, self.line, self.what, self.right
        )
    }
}

/// Checks the repository at `root` and prints the findings. `Ok(true)` when there are none.
///
/// # Errors
///
/// When cargo cannot describe the workspace or a file cannot be read.
pub(crate) fn run(root: &Path) -> anyhow::Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root);
    let metadata: Metadata = serde_json::from_str(&crate::output_of(&mut command)?)
        .context("cannot read the answer of cargo metadata")?;
    let tree = Tree::load(root)?;

    for note in text::long_files(&tree) {
        println!("note: {note}");
    }
    let findings = check(&tree, &metadata);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => println!("tidy: {} files, nothing to correct", tree.files.len()),
        n => println!("tidy: {n} to correct"),
    }
    Ok(findings.is_empty())
}

/// Every rule on one tree, in the order of files and lines.
fn check(tree: &Tree, metadata: &Metadata) -> Vec<Finding> {
    let mut findings = layers::check(tree, metadata);
    findings.extend(pure::check(tree, metadata));
    findings.extend(text::check(tree));
    findings.extend(links::check(tree));
    findings.extend(specification::check(tree));
    findings.extend(claim::check(tree));
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line() {
        let finding = Finding::new("a/b.rs", 3, "wrong", "right");
        assert_eq!(finding.to_string(), "a/b.rs:3: wrong; right");
    }

    #[test]
    fn findings_of_all_rules_come_together_in_order() {
        let tree = Tree::of(&[("b.md", "[x](nowhere.md)\n"), ("a.sh", "echo \n")]);
        let found = check(&tree, &Metadata::default());
        let places: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(places, [("a.sh", 1), ("b.md", 1)]);
    }
}
