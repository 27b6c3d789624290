//! `cargo xtask gen`: files that the program itself writes.
//!
//! The manual page, the completions and the references come from the command line
//! definition and the table of calls. `bonsai gen FOLDER` writes them; here they are
//! put into the tree, or compared with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde::Deserialize;

/// Folders that hold nothing but generated files: a file there that the program does
/// not write is left over.
const OWNED: [&str; 3] = ["api", "completions", "man"];

/// What to do with the generated files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Put them into the tree.
    Write,
    /// Compare them with the tree.
    Check,
}

/// How the tree differs from what the program writes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    Missing(PathBuf),
    Changed { path: PathBuf, line: usize },
    LeftOver(PathBuf),
}

/// Builds `bonsai` unless it is there as `built`, lets it write its files, and puts them into the tree
/// at `root` or compares them. `Ok(false)` when the comparison found a difference.
///
/// # Errors
///
/// When `bonsai` cannot be built or run, or a file cannot be read or written.
pub(crate) fn run(root: &Path, mode: Mode, built: Option<&Path>) -> anyhow::Result<bool> {
    let program = match built {
        Some(built) => built.to_path_buf(),
        None => build(root)?,
    };
    let folder = Scratch::new()?;
    write_generated(&program, &folder.path)?;
    let wanted = read_all(&folder.path)?;
    ensure!(
        !wanted.is_empty(),
        "{} gen wrote no file",
        program.display()
    );
    let differences = compare(root, &wanted)?;
    match mode {
        Mode::Write => {
            apply(root, &wanted, &differences)?;
            println!("gen: {} files, {} changed", wanted.len(), differences.len());
            Ok(true)
        }
        Mode::Check => {
            for difference in &differences {
                println!("{}", describe(difference));
            }
            if differences.is_empty() {
                println!("gen: {} files are as the program writes them", wanted.len());
            }
            Ok(differences.is_empty())
        }
    }
}

fn describe(difference: &Difference) -> String {
    let (path, line, what) = match difference {
        Difference::Missing(path) => (path, 1, "is generated and not there"),
        Difference::Changed { path, line } => (path, *line, "differs from what the program writes"),
        Difference::LeftOver(path) => (path, 1, "is in a generated folder and no longer written"),
    };
    format!("{}:{line}: {what}; run `cargo xtask gen`", path.display())
}

/// A line of `cargo build --message-format=json`, as far as it is needed here.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds the program and returns its path.
fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--package", "bonsai", "--bin", "bonsai"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root);
    let messages = crate::output_of(&mut command)?;
    executable(&messages).context("cargo built no program named bonsai")
}

/// The path of the program in cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    messages
        .filter(|message: &Message| {
            message
                .target
                .as_ref()
                .is_some_and(|target| target.name == "bonsai")
        })
        .find_map(|message| message.executable)
}

/// Runs `bonsai gen` so that its output is the same in every terminal and language.
fn write_generated(program: &Path, folder: &Path) -> anyhow::Result<()> {
    let output = Command::new(program)
        .arg("gen")
        .arg(folder)
        .env("COLUMNS", "100")
        .env("LC_ALL", "C")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} gen failed ({}): {}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// A temporary folder that goes away with the value.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("bonsai-gen-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("xtask: cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Every file below `root` with its content, by relative path.
fn read_all(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                let bytes =
                    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                files.insert(path.strip_prefix(root)?.to_path_buf(), bytes);
            }
        }
    }
    Ok(files)
}

/// How the tree at `root` differs from the `wanted` files, in the order of paths.
fn compare(root: &Path, wanted: &BTreeMap<PathBuf, Vec<u8>>) -> anyhow::Result<Vec<Difference>> {
    let mut differences = Vec::new();
    for (path, bytes) in wanted {
        match fs::read(root.join(path)) {
            Ok(found) if found == *bytes => {}
            Ok(found) => differences.push(Difference::Changed {
                path: path.clone(),
                line: first_difference(&found, bytes),
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                differences.push(Difference::Missing(path.clone()));
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        }
    }
    for owned in OWNED.iter().filter(|owned| root.join(owned).is_dir()) {
        let there = read_all(&root.join(owned))?
            .into_keys()
            .map(|path| Path::new(owned).join(path));
        differences.extend(
            there
                .filter(|path| !wanted.contains_key(path))
                .map(Difference::LeftOver),
        );
    }
    differences.sort();
    Ok(differences)
}

/// The first line, counted from 1, in which two texts differ.
fn first_difference(a: &[u8], b: &[u8]) -> usize {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    1 + a[..same].iter().filter(|byte| **byte == b'\n').count()
}

/// Makes the tree equal to the `wanted` files.
fn apply(
    root: &Path,
    wanted: &BTreeMap<PathBuf, Vec<u8>>,
    differences: &[Difference],
) -> anyhow::Result<()> {
    for difference in differences {
        match difference {
            Difference::Missing(path) | Difference::Changed { path, .. } => {
                let full = root.join(path);
                if let Some(folder) = full.parent() {
                    fs::create_dir_all(folder)
                        .with_context(|| format!("cannot make {}", folder.display()))?;
                }
                fs::write(&full, &wanted[path])
                    .with_context(|| format!("cannot write {}", full.display()))?;
                println!("gen: wrote {}", path.display());
            }
            Difference::LeftOver(path) => {
                fs::remove_file(root.join(path))
                    .with_context(|| format!("cannot remove {}", path.display()))?;
                println!("gen: removed {}", path.display());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> BTreeMap<PathBuf, Vec<u8>> {
        list.iter()
            .map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn the_program_is_found_in_the_messages_of_cargo() {
        let messages = "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"bonsai-units\"},\"executable\":null}\n\
                        not json\n\
                        {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"bonsai\"},\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"bonsai\"},\"executable\":\"/t/bonsai\"}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/bonsai")));
        assert_eq!(executable("{}\n"), None);
    }

    #[test]
    fn differences_are_found_described_and_mended() {
        let root = tempfile::tempdir().unwrap();
        let wanted = files(&[
            ("man/a.1", "one\ntwo\n"),
            ("docs/reference/cli.md", "x\n"),
            ("completions/zsh/_a", "z\n"),
        ]);
        fs::create_dir_all(root.path().join("man")).unwrap();
        fs::create_dir_all(root.path().join("docs/reference")).unwrap();
        fs::write(root.path().join("man/a.1"), "one\nthree\n").unwrap();
        fs::write(root.path().join("man/old.1"), "x").unwrap();
        fs::write(root.path().join("docs/reference/cli.md"), "x\n").unwrap();
        fs::write(root.path().join("docs/reference/by-hand.md"), "x\n").unwrap();

        let differences = compare(root.path(), &wanted).unwrap();
        let lines: Vec<_> = differences.iter().map(describe).collect();
        assert_eq!(
            lines,
            [
                "completions/zsh/_a:1: is generated and not there; run `cargo xtask gen`",
                "man/a.1:2: differs from what the program writes; run `cargo xtask gen`",
                "man/old.1:1: is in a generated folder and no longer written; run `cargo xtask gen`",
            ]
        );
        apply(root.path(), &wanted, &differences).unwrap();
        assert_eq!(compare(root.path(), &wanted).unwrap(), []);
        assert!(!root.path().join("man/old.1").exists());
        assert!(root.path().join("docs/reference/by-hand.md").exists());
    }

    #[test]
    fn a_program_that_fails_is_an_error_with_its_own_words() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("bonsai");
        fs::write(&program, "#!/bin/sh\necho no gen here >&2\nexit 2\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, mode).unwrap();
        let error = write_generated(&program, folder.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("no gen here"), "{error}");
    }

    #[test]
    fn what_a_program_writes_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("bonsai");
        fs::write(
            &program,
            "#!/bin/sh\nmkdir -p \"$2/man\" && echo \"$COLUMNS\" > \"$2/man/b.1\"\n",
        )
        .unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, mode).unwrap();
        let out = folder.path().join("out");
        write_generated(&program, &out).unwrap();
        assert_eq!(read_all(&out).unwrap(), files(&[("man/b.1", "100\n")]));
    }
}
