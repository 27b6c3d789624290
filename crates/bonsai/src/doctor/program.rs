//! What can be shaped of one program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use bonsai_host::elf::{self, Cover, LibcFlavour, Linkage, Sanitizer};
use bonsai_host::libs::{self as host, Site, find_libc, libc_sites, moved_sites};
use bonsai_host::lookup_program;
use bonsai_services::refusal::Refusal;
use serde::Serialize;

use crate::library;
use crate::output::{Ink, Paint, finish, table};
use crate::run::{is_wanted, is_worth_entering};

/// A program, as far as shaping is concerned.
#[derive(Debug, Serialize)]
pub(super) struct ProgramView {
    /// Whether its calls can be shaped.
    pub(super) ok: bool,
    /// The file that runs in the end.
    path: PathBuf,
    /// The scripts that lead to it.
    scripts: Vec<PathBuf>,
    /// The answer in one sentence.
    verdict: String,
    /// What it is built for.
    architecture: Option<String>,
    /// How it is linked.
    linkage: Option<&'static str>,
    /// Whether it was built by the Go toolchain.
    go: bool,
    /// The loader it names.
    loader: Option<PathBuf>,
    /// Libraries whose own system calls are looked for.
    libraries: Vec<LibraryView>,
    /// What else is to be known.
    notes: Vec<String>,
}

/// A library and what can be patched in it.
#[derive(Debug, Serialize)]
struct LibraryView {
    path: PathBuf,
    build_id: Option<String>,
    /// System calls of the table whose place in it is known.
    sites: usize,
    /// System calls of the table in it that cannot be replaced.
    missed: usize,
    /// Why there are none.
    error: Option<String>,
}

/// Looks at the program that `name` would start.
///
/// # Errors
/// It cannot be found (a refusal with code 127 or 126) or read.
pub(super) fn look_at(name: &OsStr) -> anyhow::Result<ProgramView> {
    let path = lookup_program(name, std::env::var_os("PATH").as_deref()).map_err(|error| {
        Refusal::code(
            error.exit_code(),
            format!("{:#}", anyhow::Error::from(error)),
        )
    })?;
    let program = elf::inspect(&path)?;
    let elf = program.elf.as_ref();
    let interpreter = elf.and_then(|elf| elf.interpreter.as_ref());
    let shell = program.cover == Cover::NotElf;
    let mut notes = Vec::new();
    if shell {
        notes.push("a text without `#!` is run by /bin/sh, as every shell does".to_owned());
    }
    if let Some(elf) = elf {
        notes.extend(elf_notes(elf));
    }
    let verdict = if shell {
        "it is run by /bin/sh, which can be shaped if it is not static".to_owned()
    } else {
        program.cover.to_string()
    };
    Ok(ProgramView {
        ok: program.cover.is_enterable() || shell || is_entered(&program.cover),
        scripts: program
            .scripts
            .iter()
            .map(|line| line.script.clone())
            .collect(),
        verdict,
        architecture: program
            .architecture
            .map(|architecture| architecture.to_string()),
        linkage: elf.map(|elf| linkage(elf.linkage)),
        go: elf.is_some_and(|elf| elf.go),
        loader: interpreter.map(|interpreter| interpreter.path.clone()),
        libraries: interpreter
            .filter(|interpreter| interpreter.exists)
            .map(|interpreter| libraries(&interpreter.path, &program.path))
            .unwrap_or_default(),
        notes,
        path: program.path,
    })
}

const fn linkage(linkage: Linkage) -> &'static str {
    match linkage {
        Linkage::Static => "static",
        Linkage::StaticPie => "static, position-independent",
        Linkage::Dynamic => "dynamic",
        Linkage::Loader => "a loader",
    }
}

fn elf_notes(elf: &elf::Elf) -> Vec<String> {
    let mut notes = Vec::new();
    if elf
        .interpreter
        .as_ref()
        .is_some_and(|i| i.flavour == LibcFlavour::Musl)
    {
        notes.push(
            "its C library is musl: entered through exported symbols; inside libc, what can be cancelled goes unseen: the resolver, and from musl 1.2.5 on what stdio reads"
                .to_owned(),
        );
    }
    match elf.sanitizer {
        Some(Sanitizer::Address) => {
            notes.push(
                "uses AddressSanitizer: bonsai run sets verify_asan_link_order=0 for it".to_owned(),
            );
        }
        Some(Sanitizer::Thread) => {
            notes.push("uses ThreadSanitizer, which sees less of calls that are shaped".to_owned());
        }
        None => {}
    }
    if elf.go && elf.linkage == Linkage::Dynamic {
        notes.push(
            "is a Go program with a loader: its own system calls are entered by the engine, libc's \
             by the library"
                .to_owned(),
        );
    }
    if elf
        .needed
        .iter()
        .any(|library| library.starts_with("liburing"))
    {
        notes.push(
            "uses io_uring: calls that are queued there are not shaped by their bytes".to_owned(),
        );
    }
    notes
}

/// The C library and the loader, and whatever else makes I/O calls of its own.
fn libraries(loader: &Path, program: &Path) -> Vec<LibraryView> {
    let found = match find_libc(loader) {
        Ok(found) => found,
        Err(error) => return vec![unread(loader.to_owned(), error)],
    };
    let mut paths = vec![found.libc, found.loader];
    paths.dedup();
    let mut others = host::libraries(program);
    others.retain(|path| {
        let name = path.file_name().unwrap_or_default();
        !paths.contains(path) && !host::is_left_alone(name.as_encoded_bytes())
    });
    let first = paths.into_iter().map(|path| match libc_sites(&path) {
        Ok(found) => library(path, &found),
        Err(error) => unread(path, error),
    });
    let others = others.into_iter().filter_map(|path| {
        let found = moved_sites(&path).ok()?;
        is_worth_entering(&found.sites).then(|| library(path, &found))
    });
    first.chain(others).collect()
}

fn library(path: PathBuf, found: &host::LibSites) -> LibraryView {
    let wanted = |site: &&Site| is_wanted(site.nr);
    let stays = |site: &&Site| site.is_moved() && site.back == 0;
    let all = found.sites.iter().filter(wanted);
    let missed = all.clone().filter(stays).count();
    let id = found.build_id.iter();
    LibraryView {
        path,
        build_id: (!found.build_id.is_empty()).then(|| id.map(|b| format!("{b:02x}")).collect()),
        sites: all.count() - missed,
        missed,
        error: None,
    }
}

fn unread(path: PathBuf, error: bonsai_host::Error) -> LibraryView {
    LibraryView {
        path,
        build_id: None,
        sites: 0,
        missed: 0,
        error: Some(format!("{:#}", anyhow::Error::from(error))),
    }
}

/// The program as text.
pub(super) fn text(program: &ProgramView, paint: Paint) -> String {
    let mut text = format!(
        "{}\n",
        paint.ink(
            Ink::Bold,
            &format!("{} {}", program.path.display(), program.verdict)
        )
    );
    let mut rows = table(&["", ""], &[]);
    let mut add = |name: &str, value: String| {
        rows.add_row([name.to_owned(), value]);
    };
    for script in &program.scripts {
        add("script", script.display().to_string());
    }
    if let Some(architecture) = &program.architecture {
        add("built for", architecture.clone());
    }
    if let Some(linkage) = program.linkage {
        add(
            "linked",
            if program.go {
                format!("{linkage}, by Go")
            } else {
                linkage.to_owned()
            },
        );
    }
    if let Some(loader) = &program.loader {
        add("loader", loader.display().to_string());
    }
    for library in &program.libraries {
        let found = match &library.error {
            Some(error) => error.clone(),
            None => {
                let missed = match library.missed {
                    0 => String::new(),
                    n => format!(", {n} cannot"),
                };
                let path = library.path.display();
                format!(
                    "{path}: {} system calls can be patched{missed}",
                    library.sites
                )
            }
        };
        add("library", found);
    }
    for note in &program.notes {
        add("note", note.clone());
    }
    // Without its empty header.
    text.extend(finish(&rows).split_inclusive('\n').skip(1));
    text
}

/// Whether a program is entered from outside.
fn is_entered(cover: &Cover) -> bool {
    let engine = library::find()
        .ok()
        .and_then(|path| library::engine_of(&path));
    matches!(cover, Cover::Static { .. }) && engine.is_some()
}
