//! The system call sites of the program's libraries and its loader, found before the
//! start, so that no process has to look for them.
//!
//! Looking through glibc takes 5 to 10 ms, so the answer is kept in the runtime
//! directory, under the identity of the file: a library that was replaced has
//! another inode or time of change.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bonsai_calls::{BY_NR, CLONE, FORK, NO_CALL, VFORK};
use bonsai_host::libs::{
    ANY, Site, find_libc, find_library, is_left_alone, libc_sites, libraries, moved_sites,
    open_sites,
};
use bonsai_ledger::Ledger;
use serde::{Deserialize, Serialize};

use super::program::STANDARD_LOADER;

const MUSL_LOADER: &str = "/lib/ld-musl-x86_64.so.1";

/// Number of mmap(2).
const MMAP: u16 = 9;

/// The folder in the runtime directory; no service has such a name.
const FOLDER: &str = ".sites";

/// Whether the interposer wants to be entered at a site of this number: a call of
/// the table, but not one that returns twice, which needs its stack as it is.
pub(crate) fn is_wanted(nr: u16) -> bool {
    BY_NR
        .get(usize::from(nr))
        .is_some_and(|call| !matches!(*call, NO_CALL | FORK | VFORK | CLONE))
}

/// Libraries that make I/O calls of their own, and that come by `dlopen` or to a
/// program's children, if not to the program itself.
const WELL_KNOWN: [&str; 3] = ["liburing.so.2", "liburing.so.1", "libaio.so.1"];

/// Whether a library other than libc has calls that are worth entering: one of the
/// table at least, by a number that is known.
pub(crate) fn is_worth_entering(sites: &[Site]) -> bool {
    sites.iter().any(|site| is_wanted(site.nr))
}

/// Who has looked; the number grows whenever the search finds something else.
const LOOKS: &str = concat!(env!("CARGO_PKG_VERSION"), "-9");

/// What is known of a library.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Found {
    /// The program that looked; another one may look better.
    bonsai: String,
    build_id: Vec<u8>,
    /// The sites to be entered, as in the ledger (`SiteTable::sites`).
    #[serde(rename = "entered")]
    sites: Vec<u64>,
}

/// How a library makes its system calls.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// As glibc and musl do.
    Libc,
    /// In any way, and only worth entering if one of them is known.
    Other,
    /// In any way.
    Program,
}

/// Stores the sites of the C library and of the loader itself, of `program` (a file with
/// machine code) and of the libraries that it needs. Where they cannot be found, the
/// processes enter by exported symbols and say so.
pub(crate) fn store(ledger: &Ledger, loader: &Path, program: Option<&Path>, runtime: &Path) {
    let Ok(libc) = find_libc(loader) else { return };
    let first = BTreeSet::from([libc.libc, libc.loader]);
    let folder = runtime.join(FOLDER);
    let others = program.into_iter().flat_map(libraries);
    let known = WELL_KNOWN.iter().filter_map(|name| find_library(name));
    // Programs of musl may be run by programs of glibc, and the other way round.
    let loaders = [STANDARD_LOADER, MUSL_LOADER].map(Path::new);
    let libcs = loaders
        .into_iter()
        .filter_map(|loader| find_libc(loader).ok());
    let known = known.chain(libcs.flat_map(|libc| [libc.libc, libc.loader]));
    let mut seen = first.clone();
    let others = others.chain(known).filter(|path| {
        let name = path.file_name().unwrap_or_default();
        !is_left_alone(name.as_encoded_bytes()) && seen.insert(path.clone())
    });
    let first = first.iter().map(|path| (path.clone(), Kind::Libc));
    // A libc beside the program's own is that of programs which it runs.
    let others = others.map(|path| {
        let kind = if is_libcs(&path) {
            Kind::Libc
        } else {
            Kind::Other
        };
        (path, kind)
    });
    let program = program.map(|path| (path.to_owned(), Kind::Program));
    for (library, kind) in first.chain(program).chain(others) {
        let Some(found) = known_or_looked_up(&library, kind, &folder) else {
            continue;
        };
        // A library without a build-id could not be told from another one.
        if !found.build_id.is_empty() {
            ledger.store_sites(&found.build_id, found.sites.iter().copied());
        }
    }
}

/// True for glibc's and musl's libraries and loaders, which the interposer knows by their names, too.
fn is_libcs(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().as_encoded_bytes();
    let names: [&[u8]; 4] = [b"libc.so", b"libc-2.", b"ld-linux", b"ld-musl"];
    names.iter().any(|of| name.starts_with(of))
}

fn known_or_looked_up(library: &Path, kind: Kind, folder: &Path) -> Option<Found> {
    let kept = kept_at(library, kind, folder)?;
    let known = || -> Option<Found> {
        let found: Found = serde_json::from_slice(&fs::read(&kept).ok()?).ok()?;
        (found.bonsai == LOOKS).then_some(found)
    };
    if let Some(found) = known() {
        return Some(found);
    }
    let found = look_up(library, kind)?;
    // Kept if possible; the next one looks again otherwise.
    let _ = keep(&found, &kept);
    Some(found)
}

/// The file in which the sites of a library are kept.
fn kept_at(library: &Path, kind: Kind, folder: &Path) -> Option<PathBuf> {
    let file = fs::metadata(library).ok()?;
    let name = format!(
        "{kind:?}-{:x}-{:x}-{:x}-{:x}.{:09}.json",
        file.dev(),
        file.ino(),
        file.size(),
        file.ctime(),
        file.ctime_nsec()
    );
    Some(folder.join(name))
}

fn keep(found: &Found, path: &Path) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension(std::process::id().to_string());
    fs::write(&unfinished, serde_json::to_vec(found)?)?;
    fs::rename(&unfinished, path)
}

fn look_up(library: &Path, kind: Kind) -> Option<Found> {
    let found = match kind {
        Kind::Libc => libc_sites(library),
        Kind::Other | Kind::Program => moved_sites(library),
    };
    let mut found = found.ok()?;
    if matches!(kind, Kind::Other) && !is_worth_entering(&found.sites) {
        found.sites.clear();
    }
    // Calls that map files are of interest in programs without a loader.
    let maps = |site: &Site| matches!(kind, Kind::Program) && site.nr == MMAP;
    let wanted =
        |site: &&Site| is_wanted(site.nr) || site.is_moved() && (site.nr == ANY || maps(site));
    let word = |site: &Site, (form, back): (u64, u8)| {
        let number = u64::from(site.nr) << 32 | form << 48;
        u64::from(site.offset) | number | u64::from(back) << 50
    };
    let packed = found
        .sites
        .iter()
        .filter(wanted)
        .map(|site| match site.cmp {
            -4096 => word(site, (0, 0)),
            -4095 => word(site, (1, 0)),
            _ => word(site, (2, site.back)),
        });
    let mut sites: Vec<u64> = packed.collect();
    // musl's function has no comparison, and is found where it is needed.
    if matches!(kind, Kind::Libc) && !found.sites.iter().all(Site::is_moved) {
        let open = open_sites(library).ok()?.sites.into_iter();
        let movable = open.filter(|site| site.back > 0);
        sites.extend(movable.map(|site| word(&site, (3, site.back))));
    }
    Some(Found {
        bonsai: LOOKS.to_owned(),
        sites,
        build_id: found.build_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonsai_ledger::sync::Ordering;

    #[test]
    fn calls_that_return_twice_are_left_alone() {
        for (nr, wanted) in [
            (0, true),
            (1, true),
            (59, true),
            (322, true),
            (39, false),
            (1000, false),
        ] {
            assert_eq!(is_wanted(nr), wanted, "{nr}");
        }
        for nr in [56, 57, 58, 435] {
            assert!(!is_wanted(nr), "{nr}");
        }
    }

    #[test]
    fn the_machines_own_libc_has_sites() {
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = Ledger::create(&folder.path().join("ledger"), "a").expect("a ledger");
        store(&ledger, Path::new(STANDARD_LOADER), None, folder.path());
        let count = |i: usize| ledger.sites.libs[i].count.load(Ordering::Relaxed);
        assert!(count(0) + count(1) > 40, "{} {}", count(0), count(1));
    }

    /// It is entered where there is no symbol that could be.
    #[test]
    fn the_function_of_any_number_is_one_of_them() {
        let libc = find_libc(Path::new(STANDARD_LOADER)).expect("a libc").libc;
        let found = look_up(&libc, Kind::Libc).expect("sites");
        let form = |word: &&u64| **word >> 48 & 3 == 3;
        let open: Vec<&u64> = found.sites.iter().filter(form).collect();
        assert_eq!(open.len(), 1, "{open:x?}");
        assert_eq!(*open[0] >> 32 & 0xffff, u64::from(ANY));
    }

    #[test]
    fn what_is_kept_is_what_was_found_and_goes_with_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let libc = find_libc(Path::new(STANDARD_LOADER)).expect("a libc").libc;
        let copy = folder.path().join("libc");
        fs::copy(&libc, &copy).expect("a copy");
        let first = known_or_looked_up(&copy, Kind::Libc, folder.path()).expect("found");
        let kept = kept_at(&copy, Kind::Libc, folder.path()).expect("a name");
        assert!(kept.is_file());
        assert_eq!(
            known_or_looked_up(&copy, Kind::Libc, folder.path()),
            Some(first)
        );
        fs::write(&kept, "damaged").expect("written");
        // Another program may have it as a library of no special kind.
        known_or_looked_up(&copy, Kind::Other, folder.path()).expect("found");
        let again = known_or_looked_up(&copy, Kind::Libc, folder.path()).expect("found again");
        assert!(again.sites.len() > 40);
        fs::copy(&libc, folder.path().join("new")).expect("a copy");
        fs::rename(folder.path().join("new"), &copy).expect("replaced");
        assert_ne!(
            kept_at(&copy, Kind::Libc, folder.path()).expect("a name"),
            kept
        );
    }
}
