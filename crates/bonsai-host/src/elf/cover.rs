use std::fmt;
use std::path::PathBuf;

use super::{Caller, Elf, Linkage, Privilege};

/// Whether the preload library can enter a program, and if not, why.
///
/// `Display` gives the reason as one sentence whose subject is the program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cover {
    /// It can.
    Enterable,
    /// The program loads no libraries.
    Static {
        /// It is a Go program.
        go: bool,
    },
    /// A set-user-ID or set-group-ID bit changes who runs it.
    SetId,
    /// File capabilities raise its rights.
    FileCaps,
    /// It is built for another architecture, named here.
    ForeignArch(String),
    /// Its loader does not exist, so it cannot start.
    NoInterp(PathBuf),
    /// It is a script that the kernel will not run; the text says why.
    Script(String),
    /// It is neither an ELF file nor a script.
    NotElf,
    /// It is an ELF file, but not a program.
    NotProgram,
}

impl Cover {
    /// Whether the preload library can enter the program.
    #[must_use]
    pub fn is_enterable(&self) -> bool {
        *self == Self::Enterable
    }
}

impl fmt::Display for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enterable => f.write_str("is dynamically linked: its calls can be shaped"),
            Self::Static { go: true } => f.write_str(
                "is a static Go program: its calls can be shaped where it may be entered from \
                 outside",
            ),
            Self::Static { go: false } => f.write_str(
                "is statically linked: its calls can be shaped where it may be entered from outside",
            ),
            Self::SetId => f.write_str(
                "is set-user-ID or set-group-ID: the loader ignores preloaded libraries, so its \
                 calls are not shaped",
            ),
            Self::FileCaps => f.write_str(
                "has file capabilities: the loader ignores preloaded libraries, so its calls are \
                 not shaped",
            ),
            Self::ForeignArch(name) => write!(
                f,
                "is built for {name}: only programs for 64-bit x86 can be shaped"
            ),
            Self::NoInterp(path) => write!(
                f,
                "cannot start on this machine: its loader `{}` does not exist",
                path.display()
            ),
            Self::Script(why) => write!(f, "is a script that cannot be run: {why}"),
            Self::NotElf => f.write_str(
                "is neither an ELF program nor a script that starts with `#!`: the kernel does \
                 not run it",
            ),
            Self::NotProgram => f.write_str(
                "is an ELF file, but an object file or a core dump: the kernel does not run it",
            ),
        }
    }
}

pub(super) fn of(elf: &Elf, privilege: &Privilege, caller: &Caller) -> Cover {
    if privilege.changes_id(caller) {
        return Cover::SetId;
    }
    if privilege.raises_capabilities(caller) {
        return Cover::FileCaps;
    }
    match (&elf.interpreter, elf.linkage) {
        (_, Linkage::Static | Linkage::StaticPie) => Cover::Static { go: elf.go },
        (Some(loader), Linkage::Dynamic) if !loader.exists => Cover::NoInterp(loader.path.clone()),
        (_, Linkage::Dynamic | Linkage::Loader) => Cover::Enterable,
    }
}
