//! What all tests use: the compiled programs, Bonsai, and the bare results.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use conformance::{
    Bonsai, Case, CompileError, Compiler, Finished, Outcome, finish, for_each, skip,
};

/// Longer than any case takes, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs at a time of programs that mostly sleep.
pub(crate) const SLEEPERS: usize = 16;

/// Runs at a time of programs that do not.
pub(crate) const WORKERS: usize = 4;

/// The program with the cases, and their list.
#[derive(Debug)]
pub(crate) struct Cases {
    pub(crate) program: PathBuf,
    pub(crate) cases: Vec<Case>,
}

/// Debian's own: a version manager's `python3` is a shell script around it.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// A program, if it is there; otherwise a skip of `test`.
pub(crate) fn installed(test: &str, program: &str) -> Option<PathBuf> {
    let path = PathBuf::from(program);
    if path.exists() {
        return Some(path);
    }
    skip(test, &format!("{program} is not installed"));
    None
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}

/// The compiler; `None` where there is none, which is noted as a skip of `test`.
pub(crate) fn compiler(test: &str) -> Option<&'static Compiler> {
    static COMPILER: OnceLock<Result<Compiler, CompileError>> = OnceLock::new();
    let found = COMPILER.get_or_init(|| Compiler::find(&sources(), &scratch()));
    match found {
        Ok(compiler) => Some(compiler),
        Err(CompileError::NoCompiler) => {
            skip(test, &CompileError::NoCompiler.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Where cases make their folders.
pub(crate) fn scratch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance");
    // The first one that comes makes it; whoever uses it says what is wrong.
    let _ = std::fs::create_dir_all(&folder);
    folder
}

/// The sources of the cases.
fn files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(sources())
        .expect("the sources are there")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    files.sort();
    files
}

/// The same cases in a static program; `None` where none can be linked, which is noted
/// as a skip of `test`.
pub(crate) fn static_cases(test: &str) -> Option<&'static Cases> {
    static CASES: OnceLock<Option<Cases>> = OnceLock::new();
    let (compiler, cases) = (compiler(test)?, cases(test)?);
    let found = CASES.get_or_init(|| {
        let made = compiler.make("calls-static", &files(), &["-static", "-lrt"]);
        Some(Cases {
            program: made.ok()?,
            cases: cases.cases.clone(),
        })
    });
    if found.is_none() {
        skip(test, "no static C library to link with (libc.a)");
    }
    found.as_ref()
}

/// The program with the cases.
pub(crate) fn cases(test: &str) -> Option<&'static Cases> {
    static CASES: OnceLock<Cases> = OnceLock::new();
    let compiler = compiler(test)?;
    Some(CASES.get_or_init(|| {
        let program = compiler
            .make("calls", &files(), &["-lrt"])
            .unwrap_or_else(|error| panic!("{error}"));
        let listing = finish(Command::new(&program).arg("--list"), PATIENCE)
            .unwrap_or_else(|error| panic!("{error}"));
        let cases = listing
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).expect("each line is a case"))
            .collect();
        Cases { program, cases }
    }))
}

/// Bonsai, as `make build` has built it. All tests that run at a time share one
/// runtime directory; the last of them takes it away.
///
/// A command has the directory's path only: a test that keeps nothing but the command would otherwise
/// lose the directory with the last other test, while its program runs.
pub(crate) fn bonsai() -> Arc<Bonsai> {
    static BONSAI: Mutex<Weak<Bonsai>> = Mutex::new(Weak::new());
    thread_local! {
        /// Share of this test, which has a thread of its own.
        static HELD: RefCell<Option<Arc<Bonsai>>> = const { RefCell::new(None) };
    }
    let mut shared = BONSAI.lock().unwrap_or_else(PoisonError::into_inner);
    let bonsai = shared.upgrade().unwrap_or_else(|| {
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bonsai");
        let fresh = Bonsai::find(&built).unwrap_or_else(|error| panic!("{error}"));
        let fresh = Arc::new(fresh);
        *shared = Arc::downgrade(&fresh);
        fresh
    });
    HELD.set(Some(Arc::clone(&bonsai)));
    bonsai
}

/// What a run of a case printed.
pub(crate) fn outcome(case: &Case, finished: &Finished) -> Result<Outcome, String> {
    let line = finished.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| {
        format!(
            "{}: {}, no result ({error}); it said {:?} {:?}",
            case.name,
            finished.ending(),
            finished.stdout,
            finished.stderr
        )
    })
}

/// Runs a case bare.
pub(crate) fn bare_run(cases: &Cases, case: &Case, args: &[&str]) -> Result<Outcome, String> {
    let mut command = Command::new(&cases.program);
    command.arg(&case.name).args(args);
    command.env("TMPDIR", scratch());
    let finished =
        finish(&mut command, PATIENCE).map_err(|error| format!("{}: {error}", case.name))?;
    outcome(case, &finished)
}

/// The bare results of all cases on one thread, by name.
pub(crate) fn bare(cases: &'static Cases) -> &'static HashMap<String, Outcome> {
    static BARE: OnceLock<HashMap<String, Outcome>> = OnceLock::new();
    BARE.get_or_init(|| {
        let found = Mutex::new(HashMap::new());
        let complaints = for_each(&cases.cases, WORKERS, |case| {
            let outcome = bare_run(cases, case, &[])?;
            found
                .lock()
                .map_err(|e| e.to_string())?
                .insert(case.name.clone(), outcome);
            Ok(())
        });
        assert_none(&complaints);
        found.into_inner().unwrap_or_default()
    })
}

/// Fails with all complaints.
pub(crate) fn assert_none(complaints: &[String]) {
    assert!(
        complaints.is_empty(),
        "{} differ:\n  {}",
        complaints.len(),
        complaints.join("\n  ")
    );
}
