//! The C compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// A C compiler and where its programs go.
#[derive(Clone, Debug)]
pub struct Compiler {
    command: String,
    sources: PathBuf,
    into: PathBuf,
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

    /// Where the programs are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.into
    }

    /// Compiles C files (paths below the folder of the sources) to a program or,
    /// with `-shared` among the options, a library.
    ///
    /// # Errors
    /// What the compiler says.
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
        let program = self.into.join(name);
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
            .arg(&program)
            .args(files.iter().map(|file| self.sources.join(file)))
            .args(options)
            .output()
            .map_err(|error| refused(error.to_string()))?;
        if !output.status.success() {
            return Err(refused(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            ));
        }
        Ok(program)
    }
}
