//! The files that belong to the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

/// One file of the repository.
#[derive(Debug)]
pub(super) struct File {
    /// Relative to the root, with `/`.
    pub(super) path: String,
    /// The content; `None` for a file that is not text (not UTF-8, or with a NUL byte).
    pub(super) text: Option<String>,
}

/// All files of the repository, without what git ignores.
#[derive(Debug)]
pub(super) struct Tree {
    /// Sorted by path.
    pub(super) files: Vec<File>,
    /// Every file and every folder that holds one.
    places: BTreeSet<String>,
}

impl Tree {
    /// Reads the repository at `root`.
    ///
    /// # Errors
    ///
    /// When a folder or a file cannot be read.
    pub(super) fn load(root: &Path) -> anyhow::Result<Self> {
        let paths = match paths_by_git(root) {
            Some(paths) => paths,
            None => paths_by_walk(root)?,
        };
        let mut files = Vec::new();
        for path in paths {
            let full = root.join(&path);
            // A file that was removed but is still in git's index is none; a symbolic link has no text of its own.
            let Ok(kind) = fs::symlink_metadata(&full) else {
                continue;
            };
            let text = if kind.is_file() {
                let bytes =
                    fs::read(&full).with_context(|| format!("cannot read {}", full.display()))?;
                String::from_utf8(bytes)
                    .ok()
                    .filter(|text| !text.contains('\0'))
            } else {
                None
            };
            files.push(File { path, text });
        }
        Ok(Self::new(files))
    }

    fn new(mut files: Vec<File>) -> Self {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let mut places = BTreeSet::new();
        for file in &files {
            let mut place = file.path.as_str();
            places.insert(place.to_owned());
            while let Some((folder, _)) = place.rsplit_once('/') {
                places.insert(folder.to_owned());
                place = folder;
            }
        }
        Self { files, places }
    }

    /// A tree of the given paths and texts, for the tests of the rules.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        Self::new(
            files
                .iter()
                .map(|(path, text)| File {
                    path: (*path).to_owned(),
                    text: Some((*text).to_owned()),
                })
                .collect(),
        )
    }

    /// The text files, as (path, text).
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter_map(|file| Some((file.path.as_str(), file.text.as_deref()?)))
    }

    /// The text files below `folder` (relative, without a closing `/`) that end in `.rs`.
    pub(super) fn rust_below<'a>(
        &'a self,
        folder: &str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let start = format!("{folder}/");
        self.texts()
            .filter(move |(path, _)| path.starts_with(&start) && is_rust(path))
    }

    /// The text of the file at `path`, if there is one.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        let at = self
            .files
            .binary_search_by(|file| file.path.as_str().cmp(path))
            .ok()?;
        self.files[at].text.as_deref()
    }

    /// Whether there is a file or folder at `path`.
    pub(super) fn has(&self, path: &str) -> bool {
        path.is_empty() || self.places.contains(path)
    }
}

/// Whether `path` names a Rust source.
pub(super) fn is_rust(path: &str) -> bool {
    extension(path) == Some("rs")
}

/// What follows the last dot of the file name.
pub(super) fn extension(path: &str) -> Option<&str> {
    Path::new(path).extension()?.to_str()
}

/// What git tracks or would track; `None` outside a work tree (a source archive) or without git.
fn paths_by_git(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let listing = String::from_utf8(output.stdout).ok()?;
    let paths: BTreeSet<String> = listing
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect();
    Some(paths.into_iter().collect())
}

/// Every file below `root`, without build folders and git's own.
fn paths_by_walk(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                if name != ".git" && name != "target" {
                    folders.push(entry.path());
                }
            } else if let Some(path) = entry.path().strip_prefix(root)?.to_str() {
                paths.push(path.to_owned());
            }
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(root: &Path) {
        for folder in ["src", "target", ".git"] {
            fs::create_dir(root.join(folder)).unwrap();
            fs::write(root.join(folder).join("a.rs"), "fn a() {}\n").unwrap();
        }
        fs::write(root.join("picture.png"), b"\x89PNG\0").unwrap();
    }

    #[test]
    fn a_folder_without_git_is_walked() {
        let root = tempfile::tempdir().unwrap();
        fill(root.path());
        // The `.git` here is no repository, so git refuses it and the walk takes over.
        let tree = Tree::load(root.path()).unwrap();
        let paths: Vec<_> = tree.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["picture.png", "src/a.rs"]);
        assert_eq!(
            tree.texts().count(),
            1,
            "a file with a NUL byte is not text"
        );
        assert!(tree.has("src") && tree.has("src/a.rs") && !tree.has("src/b.rs"));
        assert_eq!(tree.text("src/a.rs"), Some("fn a() {}\n"));
        assert_eq!(tree.text("picture.png"), None);
    }

    #[test]
    fn in_a_work_tree_git_says_what_is_ignored_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| {
            let done = Command::new("git")
                .args(args)
                .current_dir(root.path())
                .output();
            assert!(done.unwrap().status.success(), "git {args:?}");
        };
        git(&["init", "-q"]);
        fs::write(root.path().join(".gitignore"), "raw\n").unwrap();
        fs::write(root.path().join("raw"), "1\n").unwrap();
        fs::write(root.path().join("kept"), "1\n").unwrap();
        fs::write(root.path().join("gone"), "1\n").unwrap();
        git(&["add", "gone"]);
        fs::remove_file(root.path().join("gone")).unwrap();
        let tree = Tree::load(root.path()).unwrap();
        let paths: Vec<_> = tree.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, [".gitignore", "kept"]);
    }
}
