//! The program to be started: where it is, and whether it can be covered.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bonsai_host::elf::{self, Cover, Linkage};
use bonsai_host::lookup_program;
use bonsai_services::refusal::Refusal;

/// The exit code for a program that is there and cannot be executed.
pub(super) const CANNOT_EXECUTE: u8 = 126;

/// The loader of programs that do not name one of their own.
pub(crate) const STANDARD_LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// A program that the kernel is expected to run.
#[derive(Debug)]
pub(super) struct Program {
    /// Its file.
    pub(super) path: PathBuf,
    /// Its arguments, first its name as it was given.
    pub(super) argv: Vec<OsString>,
    /// Why nothing of it will be covered, as a sentence.
    pub(super) warning: Option<String>,
    /// What kind of file it is; `None` if that is not known.
    pub(super) cover: Option<Cover>,
    /// It has no loader, and is entered from outside.
    pub(super) is_entered: bool,
    loader: Option<PathBuf>,
    /// The file with its machine code, where that can be entered: of a script, its
    /// interpreter.
    file: Option<PathBuf>,
}

impl Program {
    /// Finds the program that `argv` starts. `enters`: static ones are entered from
    /// outside.
    ///
    /// # Errors
    /// A refusal with code 127 or 126.
    pub(super) fn find(argv: &[OsString], enters: bool) -> anyhow::Result<Self> {
        let Some(name) = argv.first() else {
            return Err(Refusal::input(
                "there is no program to run: bonsai run [OPTIONS] -- PROGRAM",
            ));
        };
        let path = lookup_program(name, std::env::var_os("PATH").as_deref())
            .map_err(|error| Refusal::code(error.exit_code(), bonsai_host::sentence(&error)))?;
        let found = |loader, warning, cover, file| Self {
            is_entered: false,
            file,
            path: path.clone(),
            argv: argv.to_vec(),
            warning,
            cover,
            loader,
        };
        let program = match elf::inspect(&path) {
            Ok(program) => program,
            // May be executable without being readable; the kernel has the last word.
            Err(error) => {
                let warning = format!(
                    "whether its calls can be shaped is not known: {}",
                    bonsai_host::sentence(&error)
                );
                return Ok(found(None, Some(warning), None, None));
            }
        };
        let cannot =
            |cover: &Cover| Refusal::code(CANNOT_EXECUTE, format!("{} {cover}", path.display()));
        let is_loader = |elf: &elf::Elf| elf.linkage == Linkage::Loader;
        if program.elf.as_ref().is_some_and(is_loader) && program.cover == Cover::Enterable {
            // Programs that it loads get the library that belongs to it.
            return Ok(found(Some(program.path), None, Some(program.cover), None));
        }
        let loader = program
            .elf
            .and_then(|elf| elf.interpreter)
            .map(|interpreter| interpreter.path);
        match program.cover {
            // Text without an interpreter line is run by the shell.
            cover @ (Cover::Enterable | Cover::NotElf) => {
                Ok(found(loader, None, Some(cover), Some(program.path)))
            }
            cover @ Cover::Static { .. } if enters => Ok(Self {
                is_entered: true,
                ..found(loader, None, Some(cover), None)
            }),
            ref cover @ (Cover::NoInterp(_) | Cover::Script(_) | Cover::NotProgram) => {
                Err(cannot(cover))
            }
            cover => {
                let warning = format!(
                    "{} {}: it runs, but nothing of it is shaped (bonsai doctor {})",
                    program.path.display(),
                    fact(&cover),
                    path.display()
                );
                Ok(found(loader, Some(warning), Some(cover), None))
            }
        }
    }

    /// The same with another loader than the one that it names.
    pub(super) fn with_loader(self, loader: &Path) -> Self {
        Self {
            loader: Some(loader.to_owned()),
            ..self
        }
    }

    /// The loader whose C library the program gets.
    pub(super) fn loader(&self) -> &Path {
        self.loader.as_deref().unwrap_or(Path::new(STANDARD_LOADER))
    }

    /// The file with its machine code, if that can be entered.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// True for a program in which the library or the engine is expected.
    pub(super) fn is_expected(&self) -> bool {
        let cover = self.cover.as_ref();
        self.is_entered || cover.is_some_and(Cover::is_enterable)
    }

    /// Why nothing of it was covered, in a few words.
    pub(super) fn uncovered(&self) -> Option<String> {
        let cover = self.cover.as_ref()?;
        let coverable = cover.is_enterable() || *cover == Cover::NotElf || self.is_entered;
        (!coverable).then(|| fact(cover).trim_start_matches("is ").to_owned())
    }

    /// Its name as it was given.
    pub(super) fn shown(&self) -> String {
        self.argv
            .first()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

/// `is statically linked`: the part of a cover's sentence before its consequence.
fn fact(cover: &Cover) -> String {
    let sentence = cover.to_string();
    let fact = sentence.split(':').next();
    fact.unwrap_or_default().to_owned()
}
