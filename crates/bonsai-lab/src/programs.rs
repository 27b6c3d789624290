//! The measured programs: C sources in `bench/`, compiled when they are needed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

macro_rules! sources {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../bench/", $name)))),*]
    };
}

const SOURCES: [(&str, &str); 23] = sources! {
    "raw.h" "median.h" "asked.c" "calls.c" "spawn.c" "tiny.c" "threads.c" "flow.c" "sleepers.c" "streams.c" "fetch.c"
    "crowd.c" "loop.py" "loop.js" "launch.c" "member.c" "calls.go" "Server.java" "rtsp.py"
    "pour.c" "pour.rs" "trapped.c" "audience.c"
};

/// A web server and a client of Go's library, which the tests have as well.
const GO_WEB: (&str, &str) = (
    "web.go",
    include_str!("../../../tests/conformance/go/http/main.go"),
);

/// The programs of a run.
#[derive(Debug)]
pub(crate) struct Programs {
    folder: PathBuf,
    compiled: BTreeMap<&'static str, PathBuf>,
}

impl Programs {
    /// Puts the sources into `folder`.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn unpack(folder: PathBuf) -> anyhow::Result<Self> {
        for (name, text) in SOURCES.into_iter().chain([GO_WEB]) {
            let path = folder.join(name);
            fs::write(&path, text)
                .with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        Ok(Self {
            folder,
            compiled: BTreeMap::new(),
        })
    }

    /// The source `name`.
    pub(crate) fn source(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The program of the source `name.c`, compiled at its first use.
    ///
    /// # Errors
    /// There is no C compiler, or it refuses.
    pub(crate) fn get(&mut self, name: &'static str) -> anyhow::Result<PathBuf> {
        if let Some(path) = self.compiled.get(name) {
            return Ok(path.clone());
        }
        let program = self.folder.join(name);
        compile(&self.folder.join(format!("{name}.c")), &program)?;
        self.compiled.insert(name, program.clone());
        Ok(program)
    }
}

fn compile(source: &Path, program: &Path) -> anyhow::Result<()> {
    let output = Command::new("cc")
        .args(["-O2", "-Wall", "-pthread", "-o"])
        .arg(program)
        .arg(source)
        .output()
        .context("cc, the C compiler, cannot be started: install gcc and libc6-dev")?;
    anyhow::ensure!(
        output.status.success(),
        "cc refuses {}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_compiles_without_a_warning() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut programs = Programs::unpack(folder.path().to_owned()).expect("unpacked");
        for (name, _) in SOURCES {
            let Some(name) = name.strip_suffix(".c") else {
                continue;
            };
            let source = programs.source(&format!("{name}.c"));
            let output = Command::new("cc")
                .args([
                    "-O2",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-pthread",
                    "-fsyntax-only",
                ])
                .arg(source)
                .output()
                .expect("cc");
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(programs.get(name).expect(name).is_file());
        }
    }
}
