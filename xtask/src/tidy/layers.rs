//! The layers between crates, as cargo sees the workspace.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::tree::Tree;
use super::{Finding, mask};

/// Layers of crates without clock, I/O, randomness and `unsafe`.
const PURE: std::ops::RangeInclusive<u8> = 0..=1;
/// Layers in which `unsafe` is allowed: the shared-memory ABI and the edges.
const UNSAFE: std::ops::RangeInclusive<u8> = 2..=3;
/// The layer of tools that stand above the product.
const HIGHEST: u8 = 7;

/// What `cargo metadata --no-deps` says, as far as it is needed here.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    #[serde(default)]
    metadata: Option<PackageMetadata>,
}

#[derive(Debug, Deserialize)]
struct PackageMetadata {
    bonsai: Option<BonsaiMetadata>,
}

#[derive(Debug, Deserialize)]
struct BonsaiMetadata {
    layer: Option<u8>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// `None` for a normal dependency, otherwise `"dev"` or `"build"`.
    kind: Option<String>,
    /// Set for a dependency on a folder.
    path: Option<PathBuf>,
}

/// A crate with its place in the tree.
#[derive(Debug)]
pub(super) struct Crate<'a> {
    /// The crate's name.
    pub(super) name: &'a str,
    /// Its folder, relative to the root, with `/`.
    pub(super) folder: String,
    /// Its layer, if the manifest names one.
    pub(super) layer: Option<u8>,
    dependencies: &'a [Dependency],
}

impl Crate<'_> {
    /// Whether the crate may know no clock, no I/O and no randomness.
    pub(super) fn is_pure(&self) -> bool {
        self.layer.is_some_and(|layer| PURE.contains(&layer))
    }

    fn may_be_unsafe(&self) -> bool {
        self.layer.is_some_and(|layer| UNSAFE.contains(&layer))
    }

    fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }
}

impl Metadata {
    /// The crates of the workspace.
    pub(super) fn crates(&self) -> impl Iterator<Item = Crate<'_>> {
        self.packages.iter().map(|package| {
            let manifest = package
                .manifest_path
                .strip_prefix(&self.workspace_root)
                .unwrap_or(&package.manifest_path);
            let folder = manifest.parent().unwrap_or(Path::new(""));
            let bonsai = package
                .metadata
                .as_ref()
                .and_then(|metadata| metadata.bonsai.as_ref());
            Crate {
                name: &package.name,
                folder: folder.to_string_lossy().into_owned(),
                layer: bonsai.and_then(|bonsai| bonsai.layer),
                dependencies: &package.dependencies,
            }
        })
    }
}

/// Layers, folders, the lints of the workspace, and where `unsafe` may stand.
pub(super) fn check(tree: &Tree, metadata: &Metadata) -> Vec<Finding> {
    let crates: Vec<Crate<'_>> = metadata.crates().collect();
    let mut findings = Vec::new();
    for this in &crates {
        findings.extend(check_manifest(tree, this));
        findings.extend(check_edges(tree, this, &crates));
        findings.extend(check_unsafe(tree, this));
    }
    findings
}

fn check_manifest(tree: &Tree, this: &Crate<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let manifest = this.manifest();
    if this.layer.is_none_or(|layer| layer > HIGHEST) {
        findings.push(Finding::new(
            &manifest,
            1,
            format!("{} has no layer", this.name),
            format!("write [package.metadata.bonsai] with layer = 0 to {HIGHEST} (ARCHITECTURE.md has the table)"),
        ));
    }
    let folder_name = this.folder.rsplit('/').next().unwrap_or_default();
    if folder_name != this.name {
        findings.push(Finding::new(
            &manifest,
            1,
            format!("crate {} lives in the folder {folder_name}", this.name),
            "folder and crate have the same name",
        ));
    }
    let text = tree.text(&manifest).unwrap_or_default();
    let mut lines = text
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[lints]");
    if lines.nth(1) != Some("workspace = true") {
        findings.push(Finding::new(
            &manifest,
            1,
            format!("{} does not take the lints of the workspace", this.name),
            "write [lints] and below it workspace = true",
        ));
    }
    findings
}

fn check_edges(tree: &Tree, this: &Crate<'_>, crates: &[Crate<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    // What only tests use builds no edge of the product.
    let edges = this
        .dependencies
        .iter()
        .filter(|d| d.path.is_some() && d.kind.as_deref() != Some("dev"));
    for edge in edges {
        let Some(target) = crates.iter().find(|other| other.name == edge.name) else {
            continue;
        };
        let (Some(from), Some(to)) = (this.layer, target.layer) else {
            continue;
        };
        if to >= from {
            let manifest = this.manifest();
            let line = tree
                .text(&manifest)
                .and_then(|text| {
                    text.lines()
                        .position(|line| line.trim_start().starts_with(&edge.name))
                })
                .map_or(1, |at| at + 1);
            findings.push(Finding::new(
                &manifest,
                line,
                format!(
                    "{} (layer {from}) depends on {} (layer {to})",
                    this.name, target.name
                ),
                "a crate depends on smaller layers only; move what both need down a layer",
            ));
        }
    }
    findings
}

fn check_unsafe(tree: &Tree, this: &Crate<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !this.may_be_unsafe() {
        for (path, text) in tree.rust_below(&this.folder) {
            let code = mask::code(text);
            findings.extend(mask::words(&code, "unsafe").map(|at| {
                Finding::new(
                    path,
                    mask::line_of(&code, at),
                    format!("unsafe in {}", this.name),
                    "unsafe stands in layers 2 and 3 only; give the edge crate a safe function for it",
                )
            }));
        }
    }
    if this.is_pure() {
        let lib = format!("{}/src/lib.rs", this.folder);
        if !tree
            .text(&lib)
            .is_some_and(|text| mask::code(text).contains("#![forbid(unsafe_code)]"))
        {
            findings.push(Finding::new(
                &lib,
                1,
                format!("{} is pure and does not forbid unsafe code", this.name),
                "write #![forbid(unsafe_code)] below the documentation of the crate",
            ));
        }
    }
    findings
}

/// A dependency in the tests of the rules: name and kind.
#[cfg(test)]
type Edge<'a> = (&'a str, Option<&'a str>);

/// A workspace for the tests of the rules: name, folder, layer and dependencies of each crate.
#[cfg(test)]
pub(super) fn workspace(crates: &[(&str, &str, Option<u8>, &[Edge<'_>])]) -> Metadata {
    let packages = crates
        .iter()
        .map(|(name, folder, layer, dependencies)| Package {
            name: (*name).to_owned(),
            manifest_path: Path::new("/src").join(folder).join("Cargo.toml"),
            dependencies: dependencies
                .iter()
                .map(|(name, kind)| Dependency {
                    name: (*name).to_owned(),
                    kind: kind.map(str::to_owned),
                    path: Some(PathBuf::from("/src/crates").join(name)),
                })
                .collect(),
            metadata: Some(PackageMetadata {
                bonsai: Some(BonsaiMetadata { layer: *layer }),
            }),
        });
    Metadata {
        packages: packages.collect(),
        workspace_root: PathBuf::from("/src"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    fn whats(findings: &[Finding]) -> Vec<&str> {
        findings
            .iter()
            .map(|finding| finding.what.as_str())
            .collect()
    }

    #[test]
    fn dependencies_go_to_smaller_layers() {
        let metadata = workspace(&[
            ("low", "crates/low", Some(2), &[("high", Some("dev"))]),
            ("peer", "crates/peer", Some(3), &[("low", None)]),
            (
                "high",
                "crates/high",
                Some(3),
                &[("low", None), ("peer", Some("build")), ("elsewhere", None)],
            ),
        ]);
        let manifest = "[package]\n[build-dependencies]\npeer = 1\n[lints]\nworkspace = true\n";
        let tree = Tree::of(&[
            ("crates/low/Cargo.toml", LINTS),
            ("crates/peer/Cargo.toml", LINTS),
            ("crates/high/Cargo.toml", manifest),
        ]);
        let findings = check(&tree, &metadata);
        assert_eq!(
            whats(&findings),
            ["high (layer 3) depends on peer (layer 3)"]
        );
        assert_eq!(
            (findings[0].path.as_str(), findings[0].line),
            ("crates/high/Cargo.toml", 3)
        );
    }

    #[test]
    fn a_crate_has_a_layer_its_own_folder_and_the_lints() {
        let metadata = workspace(&[
            ("a", "crates/b", None, &[]),
            ("c", "crates/c", Some(HIGHEST + 1), &[]),
            ("xtask", "xtask", Some(HIGHEST), &[]),
        ]);
        let tree = Tree::of(&[
            ("crates/b/Cargo.toml", "[package]\n"),
            ("crates/c/Cargo.toml", LINTS),
            ("xtask/Cargo.toml", LINTS),
        ]);
        assert_eq!(
            whats(&check(&tree, &metadata)),
            [
                "a has no layer",
                "crate a lives in the folder b",
                "a does not take the lints of the workspace",
                "c has no layer",
            ]
        );
    }

    #[test]
    fn unsafe_stands_at_the_edges_only() {
        let metadata = workspace(&[
            ("abi", "crates/abi", Some(2), &[]),
            ("pure", "crates/pure", Some(1), &[]),
            ("app", "crates/app", Some(5), &[]),
        ]);
        let tree = Tree::of(&[
            ("crates/abi/Cargo.toml", LINTS),
            ("crates/pure/Cargo.toml", LINTS),
            ("crates/app/Cargo.toml", LINTS),
            ("crates/abi/src/lib.rs", "unsafe fn a() {}\n"),
            (
                "crates/pure/src/lib.rs",
                "//! #![forbid(unsafe_code)]\n#![deny(unsafe_code)]\n",
            ),
            (
                "crates/app/src/main.rs",
                "// unsafe\nfn main() {\n    unsafe { a() }\n}\n",
            ),
        ]);
        let findings = check(&tree, &metadata);
        assert_eq!(
            whats(&findings),
            [
                "pure is pure and does not forbid unsafe code",
                "unsafe in app"
            ]
        );
        assert_eq!(findings[1].line, 3);
    }

    #[test]
    fn the_answer_of_cargo_is_understood() {
        let answer = r#"{"packages":[
            {"name":"a","manifest_path":"/w/crates/a/Cargo.toml","metadata":{"bonsai":{"layer":1}},
             "dependencies":[{"name":"b","kind":null,"path":"/w/crates/b"},{"name":"serde","kind":"dev"}]},
            {"name":"b","manifest_path":"/w/crates/b/Cargo.toml","metadata":null,"dependencies":[]}],
            "workspace_root":"/w","version":1}"#;
        let metadata: Metadata = serde_json::from_str(answer).unwrap();
        let crates: Vec<_> = metadata
            .crates()
            .map(|c| (c.folder.clone(), c.layer))
            .collect();
        assert_eq!(
            crates,
            [
                ("crates/a".to_owned(), Some(1)),
                ("crates/b".to_owned(), None)
            ]
        );
    }
}
