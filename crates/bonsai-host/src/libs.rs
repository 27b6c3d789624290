//! The libraries of a program, and the system call sites in them.

mod cache;
mod needed;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

pub use bonsai_sites::{ANY, Site, is_left_alone};
use bonsai_sites::{
    build_id, cancelling, find_syscall, is_go, is_open, moved_at, musl_itself,
    reject_branch_targets, scan,
};
pub use needed::{find_library, libraries};
use object::elf::{self, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, ReadRef};

use crate::Error;

/// Where loaders look if nothing else says where (`ld.so(8)`), with the places of distributions
/// that put libraries of several architectures side by side.
const STANDARD_DIRECTORIES: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

const LIBC: &str = "libc.so.6";

/// An executable part of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// Offset in bytes from the load base, which is the lowest mapped page of the library.
    pub address: u32,
    /// Offset in bytes in the file.
    pub file_offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// The system call sites of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibSites {
    /// The build identifier, usually 20 bytes; empty if the library has none.
    pub build_id: Vec<u8>,
    /// Its executable segments; nearly all libraries have exactly one.
    pub text: Vec<Text>,
    /// The sites in ascending order; [`Site::offset`] counts from the load base.
    pub sites: Vec<Site>,
}

/// The loader and C library that a program would run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libc {
    /// The loader, with symbolic links resolved.
    pub loader: PathBuf,
    /// The C library, with symbolic links resolved; with musl, the same file.
    pub libc: PathBuf,
}

/// Finds the system call sites in the 64-bit x86 library `path` that a jump may replace.
///
/// Sites of glibc are those of its own form, and from 2.41 on those of its cancellation points. Of musl, those that libc calls by itself and that no
/// function makes which is decided on by its name; its cancellation point is among them, and cannot
/// be moved. Takes a few milliseconds for glibc.
///
/// # Errors
///
/// [`Error::Read`] if the file cannot be read, [`Error::Damaged`] if it is not an ELF file for
/// 64-bit x86 or is cut off.
pub fn libc_sites(path: &Path) -> Result<LibSites, Error> {
    let found = sites_by(path, |text| {
        let any = cancelling(text).into_iter().filter(Option::is_some);
        scan(text).map(Some).chain(any).collect()
    })?;
    if found.sites.iter().all(Site::is_moved) {
        return sites_by(path, musl_sites);
    }
    Ok(found)
}

fn musl_sites(text: &[u8]) -> Vec<Option<Site>> {
    let points = cancelling(text);
    let is_point = |at: usize| {
        let mut offsets = points.iter().flatten().map(|site| site.offset as usize);
        offsets.any(|offset| offset == at)
    };
    let mut sites = Vec::new();
    let others = moved(text).filter(|(at, _)| !is_point(*at));
    sites.extend(
        others
            .map(|(_, site)| musl_itself(text, site))
            .filter(Option::is_some),
    );
    if points[0].is_none() {
        return Vec::new();
    }
    sites.extend(points.into_iter().filter(Option::is_some));
    sites
}

/// Every system call instruction, with its offset.
fn moved(text: &[u8]) -> impl Iterator<Item = (usize, Site)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let found = find_syscall(text, at)?;
        at = found + 2;
        Some(moved_at(text, found).map(|site| (found, site)))
    })
    .flatten()
}

/// Finds the instruction of the C library's function `syscall`, whose number is whatever the caller
/// wants: its last argument, the seventh, comes from the stack. It is a moved one.
///
/// # Errors
///
/// As [`libc_sites`].
pub fn open_sites(path: &Path) -> Result<LibSites, Error> {
    sites_by(path, |text| {
        let is_it = |(at, site): &(usize, Site)| site.nr == ANY && is_open(text, *at);
        let found = moved(text).filter(is_it);
        found.map(|(_, site)| Some(site)).collect()
    })
}

/// Finds all system call instructions in a library that is not the C library, and what can be moved
/// before them ([`bonsai_sites::moved_at`]); none in what Go has made.
///
/// # Errors
///
/// As [`libc_sites`].
pub fn moved_sites(path: &Path) -> Result<LibSites, Error> {
    sites_by(path, |text| {
        moved(text).map(|(_, site)| Some(site)).collect()
    })
}

fn sites_by(path: &Path, scan: impl Fn(&[u8]) -> Vec<Option<Site>>) -> Result<LibSites, Error> {
    let file = File::open(path).map_err(|source| Error::read(path, source))?;
    let data = ReadCache::new(&file);
    let damaged = |error: object::Error| Error::damaged(path, error.to_string());
    let endian = LittleEndian;
    let header = FileHeader64::<LittleEndian>::parse(&data).map_err(damaged)?;
    if header.e_machine(endian) != elf::EM_X86_64 {
        return Err(Error::damaged(path, "it is not for 64-bit x86"));
    }
    let segments = header.program_headers(endian, &data).map_err(damaged)?;
    let loaded =
        |segment: &&elf::ProgramHeader64<LittleEndian>| segment.p_type(endian) == elf::PT_LOAD;
    let lowest = segments
        .iter()
        .filter(loaded)
        .map(|segment| segment.p_vaddr(endian))
        .min();
    let base = lowest.unwrap_or(0) & !0xfff;

    let mut found = LibSites {
        build_id: Vec::new(),
        text: Vec::new(),
        sites: Vec::new(),
    };
    let mut go = false;
    for segment in segments {
        let (file_offset, len) = segment.file_range(endian);
        let bytes = data
            .read_bytes_at(file_offset, len)
            .map_err(|()| Error::damaged(path, "it is cut off within a segment"))?;
        if segment.p_type(endian) == elf::PT_NOTE {
            go |= is_go(bytes);
            if found.build_id.is_empty() {
                found.build_id = build_id(bytes).unwrap_or_default().to_vec();
            }
        }
        if !loaded(&segment) || !segment.p_flags(endian).contains(elf::PF_X) {
            continue;
        }
        let address = u32::try_from(segment.p_vaddr(endian) - base);
        let (Ok(address), Ok(len)) = (address, u32::try_from(len)) else {
            return Err(Error::damaged(
                path,
                "its code lies 4 GiB behind its beginning",
            ));
        };
        found.sites.extend(sites(bytes, address, scan(bytes)));
        found.text.push(Text {
            address,
            file_offset,
            len,
        });
    }
    if go {
        found.sites.clear();
    }
    found.sites.sort_by_key(|site| site.offset);
    Ok(found)
}

fn sites(text: &[u8], address: u32, mut sites: Vec<Option<Site>>) -> impl Iterator<Item = Site> {
    reject_branch_targets(text, &mut sites);
    sites.into_iter().flatten().filter_map(move |site| {
        let offset = site.offset.checked_add(address)?;
        Some(Site { offset, ..site })
    })
}

/// Finds the C library that programs with the loader `interpreter` (their `PT_INTERP`) get.
///
/// Looks beside the loader first, as distributions install the two together and a loader in an
/// unusual place has its library there; then in the loader's cache, `/etc/ld.so.cache`; then in the
/// standard directories. What `LD_LIBRARY_PATH`, a run path, or variants for single processors
/// (`glibc-hwcaps`) would change is not considered: compare build identifiers where it matters.
///
/// # Errors
///
/// [`Error::Read`] if the loader does not exist, [`Error::NoLibc`] if no library is found.
pub fn find_libc(interpreter: &Path) -> Result<Libc, Error> {
    let resolve = |path: &Path| fs::canonicalize(path);
    let loader = resolve(interpreter).map_err(|source| Error::read(interpreter, source))?;
    let is_musl = [interpreter, &loader].iter().any(|path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("ld-musl")
    });
    if is_musl {
        return Ok(Libc {
            libc: loader.clone(),
            loader,
        });
    }
    let beside = loader.parent().map(|directory| directory.join(LIBC));
    let standard = STANDARD_DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(LIBC));
    let libc = beside
        .into_iter()
        .chain(cache::lookup(LIBC))
        .chain(standard)
        .find_map(|path| resolve(&path).ok());
    match libc {
        Some(libc) => Ok(Libc { loader, libc }),
        None => Err(Error::NoLibc { loader }),
    }
}
