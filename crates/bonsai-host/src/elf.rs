//! What kind of program a file is, and whether the preload library can enter it.

mod cover;
mod image;
mod privilege;
mod script;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

pub use cover::Cover;
pub use image::{Architecture, Class, Elf, Interpreter, LibcFlavour, Linkage, Sanitizer};
pub use privilege::{Caller, Privilege};
pub use script::Shebang;

use crate::Error;
use image::Format;
use script::Script;

/// How many times the kernel replaces a script by its interpreter before it gives up with `ELOOP`
/// (`exec_binprm` in `fs/exec.c`).
const MAX_SCRIPTS: usize = 5;

/// What is known about a program before it is started.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file that the kernel will map: `path` of the question or, for a script, its interpreter.
    pub path: PathBuf,
    /// The `#!` lines that lead to it, first the one of the file asked for.
    pub scripts: Vec<Shebang>,
    /// What the file is built for, if it is an ELF file.
    pub architecture: Option<Architecture>,
    /// How it is linked, if it is a program for this machine.
    pub elf: Option<Elf>,
    /// Set-id bits and file capabilities of `path`.
    pub privilege: Privilege,
    /// Whether the preload library can enter it.
    pub cover: Cover,
}

/// Looks at the program in the file `path`, as this process would start it.
///
/// Scripts are followed to their interpreter. A file that no kernel would run is not an error: its
/// [`Cover`] says so.
///
/// # Errors
///
/// [`Error::Read`] or [`Error::NotAFile`] if the file or an interpreter cannot be read,
/// [`Error::Damaged`] if it is an ELF file that is cut off or contradicts itself.
pub fn inspect(path: &Path) -> Result<Program, Error> {
    inspect_for(path, &Caller::current())
}

/// Like [`inspect`], for a program that `caller` would start.
///
/// # Errors
///
/// As [`inspect`].
pub fn inspect_for(path: &Path, caller: &Caller) -> Result<Program, Error> {
    let mut path = path.to_owned();
    let mut scripts = Vec::new();
    loop {
        let mut file = open(&path)?;
        match script::parse(&head(&path, &mut file)?) {
            Script::No => return look_at(path, &file, scripts, caller),
            Script::Broken(why) => return unrunnable(path, &file, scripts, why.to_owned()),
            Script::Yes {
                interpreter,
                argument,
            } => {
                let problem = if scripts.len() == MAX_SCRIPTS {
                    Some("more scripts name each other as interpreter than the kernel follows")
                } else if interpreter.exists() {
                    None
                } else {
                    Some("the interpreter in its `#!` line does not exist")
                };
                if let Some(problem) = problem {
                    let name = interpreter.to_string_lossy();
                    let mut why = format!("{problem}: `{}`", name.trim_end_matches('\r'));
                    if name.ends_with('\r') {
                        why += " and a carriage return: end its lines as Linux does (dos2unix)";
                    }
                    return unrunnable(path, &file, scripts, why);
                }
                scripts.push(Shebang {
                    script: path,
                    interpreter: interpreter.clone(),
                    argument,
                });
                path = interpreter;
            }
        }
    }
}

fn open(path: &Path) -> Result<File, Error> {
    // Asked first, because opening a pipe waits for its other end.
    let metadata = fs::metadata(path).map_err(|source| Error::read(path, source))?;
    if !metadata.is_file() {
        return Err(Error::NotAFile {
            path: path.to_owned(),
        });
    }
    File::open(path).map_err(|source| Error::read(path, source))
}

/// As much of the file as the kernel looks at to tell what it is.
fn head(path: &Path, file: &mut File) -> Result<Vec<u8>, Error> {
    let mut head = Vec::with_capacity(script::HEAD_LEN);
    file.take(script::HEAD_LEN as u64)
        .read_to_end(&mut head)
        .map_err(|source| Error::read(path, source))?;
    Ok(head)
}

fn look_at(
    path: PathBuf,
    file: &File,
    scripts: Vec<Shebang>,
    caller: &Caller,
) -> Result<Program, Error> {
    let privilege = privilege::read(&path, file)?;
    let (architecture, elf, cover) = match image::read(&path, file)? {
        Format::NotElf => (None, None, Cover::NotElf),
        Format::NotProgram(architecture) => (Some(architecture), None, Cover::NotProgram),
        Format::Foreign(architecture) => {
            let cover = Cover::ForeignArch(architecture.to_string());
            (Some(architecture), None, cover)
        }
        Format::Native(architecture, elf) => {
            let cover = cover::of(&elf, &privilege, caller);
            (Some(architecture), Some(elf), cover)
        }
    };
    Ok(Program {
        path,
        scripts,
        architecture,
        elf,
        privilege,
        cover,
    })
}

fn unrunnable(
    path: PathBuf,
    file: &File,
    scripts: Vec<Shebang>,
    why: String,
) -> Result<Program, Error> {
    Ok(Program {
        privilege: privilege::read(&path, file)?,
        path,
        scripts,
        architecture: None,
        elf: None,
        cover: Cover::Script(why),
    })
}
