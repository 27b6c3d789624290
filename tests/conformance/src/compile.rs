//! The C compiler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Programs that were begun.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Why a program could not be made.
#[derive(Debug)]
pub enum CompileError {
    /// There is no C compiler.
    NoCompiler,
    /// The compiler refused it.
    Refused {
        /// The program.
        program: String,
        /// What the compiler said.
        message: String,
    },
}

impl std::fmt::Display for CompileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoCompiler => f.write_str("no C compiler: install gcc, or name one in CC"),
            Self::Refused { program, message } => {
                write!(f, "{program} does not compile:\n{message}")
            }
        }
    }
}

impl std::error::Error for CompileError {}

/// File name of glibc's loader.
pub const GLIBC_LOADER: &str = "ld-linux-x86-64.so.2";

/// File name of musl's loader, which is its library, too.
pub const MUSL_LOADER: &str = "ld-musl-x86_64.so.1";

/// A C compiler and where its programs go.
#[derive(Clone, Debug)]
pub struct Compiler {
    command: String,
    sources: PathBuf,
    into: PathBuf,
    /// A folder with the C library and loader that programs run with, if not the machine's own.
    libc: Option<PathBuf>,
}

impl Compiler {
    /// The compiler that `CC` names, otherwise gcc. `sources` holds the C files,
    /// `into` takes the programs.
    ///
    /// # Errors
    /// There is none, or `into` cannot be made.
    pub fn find(sources: &Path, into: &Path) -> Result<Self, CompileError> {
        let command = std::env::var("CC").unwrap_or_else(|_| "gcc".to_owned());
        let works = Command::new(&command).arg("--version").output();
        if !works.is_ok_and(|output| output.status.success()) {
            return Err(CompileError::NoCompiler);
        }
        std::fs::create_dir_all(into).map_err(|error| CompileError::Refused {
            program: into.display().to_string(),
            message: error.to_string(),
        })?;
        Ok(Self {
            command,
            sources: sources.to_owned(),
            into: into.to_owned(),
            libc: std::env::var_os("BONSAI_TEST_LIBC").map(PathBuf::from),
        })
    }

    /// The same with another compiler, if that is installed.
    #[must_use]
    pub fn by(&self, command: &str) -> Option<Self> {
        let works = Command::new(command).arg("--version").output();
        works
            .is_ok_and(|output| output.status.success())
            .then(|| Self {
                command: command.to_owned(),
                ..self.clone()
            })
    }

    /// Returns a compiler that links dynamic programs with the libc in `folder`. The variable `BONSAI_TEST_LIBC` does the same for all
    /// compilers of that libc's kind.
    #[must_use]
    pub fn with_libc(&self, folder: &Path) -> Self {
        Self {
            libc: Some(folder.to_owned()),
            ..self.clone()
        }
    }

    /// Where the C files are.
    #[must_use]
    pub fn sources(&self) -> &Path {
        &self.sources
    }

    /// Where the programs are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.into
    }

    /// Linker options for another libc.
    fn libc(&self, options: &[&str]) -> Vec<String> {
        let has_own = |option: &&str| ["-static", "-static-pie", "-shared"].contains(option);
        let loader = if self.command.contains("musl") {
            MUSL_LOADER
        } else {
            GLIBC_LOADER
        };
        let folder = self.libc.as_ref();
        let folder = folder.filter(|at| at.join(loader).exists() && !options.iter().any(has_own));
        folder.map_or_else(Vec::new, |folder| {
            let folder = folder.display();
            vec![
                format!("-Wl,--dynamic-linker={folder}/{loader}"),
                format!("-Wl,-rpath,{folder}"),
            ]
        })
    }

    /// Compiles C files (paths below the folder of the sources) to a program or,
    /// with `-shared` among the options, a library.
    ///
    /// # Errors
    /// What the compiler says.
    ///
    /// # Panics
    /// A file is not there: its test would be skipped as one that does not compile here.
    pub fn make(
        &self,
        name: &str,
        files: &[impl AsRef<Path>],
        options: &[&str],
    ) -> Result<PathBuf, CompileError> {
        let refused = |message: String| CompileError::Refused {
            program: name.to_owned(),
            message,
        };
        for file in files {
            let file = self.sources.join(file);
            assert!(file.exists(), "there is no {}", file.display());
        }
        let program = self.into.join(name);
        // Under a name of its own up to its end: another test may make the same program, and run it, at this moment.
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.into.join(format!(".{}-{number}", std::process::id()));
        let output = Command::new(&self.command)
            .args([
                "-std=gnu17",
                "-O2",
                "-g",
                "-Wall",
                "-Wextra",
                "-fno-builtin",
            ])
            // Nobody knows a program without one, so that its own instructions stay unseen.
            .arg("-Wl,--build-id=none")
            // Distributions that fortify by default would have us call other symbols.
            .args(["-U_FORTIFY_SOURCE", "-pthread", "-o"])
            .arg(&unfinished)
            .args(files.iter().map(|file| self.sources.join(file)))
            .args(options)
            .args(self.libc(options))
            .output()
            .map_err(|error| refused(error.to_string()))?;
        if !output.status.success() {
            return Err(refused(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            ));
        }
        std::fs::rename(&unfinished, &program).map_err(|error| refused(error.to_string()))?;
        Ok(program)
    }
}
