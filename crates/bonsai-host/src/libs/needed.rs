//! Which libraries a program gets.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{STANDARD_DIRECTORIES, cache};
use crate::elf;

/// A program with more than this many has the others left out.
const MOST: usize = 256;

/// The library that a loader finds under the name `name`, with symbolic links resolved: in its
/// cache, then in the standard directories. Run paths and `LD_LIBRARY_PATH` are not considered:
/// compare build identifiers where it matters.
#[must_use]
pub fn find_library(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return fs::canonicalize(name).ok();
    }
    let standard = STANDARD_DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(name));
    cache::lookup(name)
        .into_iter()
        .chain(standard)
        .find_map(|path| fs::canonicalize(path).ok())
}

/// The libraries that `program` names, and those that they name, each once, as far as they can be
/// found and read; `program` is not among them.
#[must_use]
pub fn libraries(program: &Path) -> Vec<PathBuf> {
    let mut names = BTreeSet::new();
    let mut found: Vec<PathBuf> = Vec::new();
    let mut next = Some(program.to_owned());
    let mut looked_at = 0;
    while let Some(path) = next {
        let needed = elf::inspect(&path).ok().and_then(|file| file.elf);
        for name in needed.into_iter().flat_map(|elf| elf.needed) {
            if found.len() < MOST
                && names.insert(name.clone())
                && let Some(library) = find_library(&name)
                && !found.contains(&library)
            {
                found.push(library);
            }
        }
        next = found.get(looked_at).cloned();
        looked_at += 1;
    }
    found
}
