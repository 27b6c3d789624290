//! What of which program is limited, and how: the claim that the README makes, for a
//! machine without restrictions and for this one. Every cell is tried out by
//! `tests/conformance/tests/it/covered.rs`.

use bonsai_host::sys::{Capability, State};
use serde::Serialize;

use crate::output::{finish, table};

/// How a program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Program {
    Glibc,
    Musl,
    StaticGlibc,
    StaticMusl,
    StaticGo,
    GoWithLoader,
    SetUserId,
    Foreign,
}

const PROGRAMS: [(Program, &str); 8] = [
    (Program::Glibc, "glibc"),
    (Program::Musl, "musl"),
    (Program::StaticGlibc, "static, glibc"),
    (Program::StaticMusl, "static, musl (C, Rust)"),
    (Program::StaticGo, "static Go"),
    (Program::GoWithLoader, "Go with a loader (cgo)"),
    (Program::SetUserId, "set-user-ID"),
    (Program::Foreign, "32-bit x86"),
];

/// What makes the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Calls {
    Libc,
    Inside,
    Library,
    Own,
    Ring,
    Aio,
    Mapped,
}

const CALLS: [(Calls, &str, &str); 7] = [
    (Calls::Libc, "libc", "functions of libc: read, send, ..."),
    (
        Calls::Inside,
        "inside",
        "libc by itself: stdio, the resolver, ...",
    ),
    (
        Calls::Library,
        "library",
        "instructions of a library: liburing, ...",
    ),
    (Calls::Own, "own", "instructions of the program itself"),
    (Calls::Ring, "io_uring", "bytes that are queued in a ring"),
    (Calls::Aio, "aio", "bytes that io_submit queues"),
    (Calls::Mapped, "mmap", "bytes that move by page faults"),
];

/// How the program gets under limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// `bonsai run`.
    Run,
}

const MODES: [(Mode, &str); 1] = [(Mode::Run, "bonsai run")];

/// What becomes of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Counted and limited.
    Limited,
    /// Neither, and the program is named for it.
    Named,
    /// Neither; the kernel's own counters show it.
    Audited,
    /// Not limited; what comes in that way is told, at least.
    Measured,
    /// There is no such thing.
    Nothing,
}

impl Answer {
    const fn word(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::Named => "named",
            Self::Audited => "audit",
            Self::Measured => "measured",
            Self::Nothing => "",
        }
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Cell {
    mode: Mode,
    program: Program,
    calls: Calls,
    answer: Answer,
}

/// What this machine allows of what is needed.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    /// libc's instructions may be replaced.
    patching: bool,
    /// Programs may be entered from outside.
    tracing: bool,
}

impl Allowed {
    fn of(capabilities: &[Capability]) -> Self {
        let has = |name| {
            let mut named = capabilities.iter().filter(|found| found.name == name);
            named.all(|found| found.state != State::No)
        };
        Self {
            patching: has("text_write"),
            tracing: has("ptrace"),
        }
    }
}

/// The table for a machine with these capabilities.
pub(super) fn cells(capabilities: &[Capability]) -> Vec<Cell> {
    let allowed = Allowed::of(capabilities);
    let mut cells = Vec::new();
    for (mode, _) in MODES {
        for (program, _) in PROGRAMS {
            for (calls, ..) in CALLS {
                let answer = run(program, calls, allowed);
                cells.push(Cell {
                    mode,
                    program,
                    calls,
                    answer,
                });
            }
        }
    }
    cells
}

/// Under `bonsai run`.
fn run(program: Program, calls: Calls, allowed: Allowed) -> Answer {
    use Answer::{Audited, Limited, Measured, Named, Nothing};
    let if_patched = if allowed.patching { Limited } else { Audited };
    let if_entered = if allowed.patching && allowed.tracing {
        Limited
    } else {
        Named
    };
    match (program, calls) {
        (Program::SetUserId | Program::Foreign, Calls::Library) => Nothing,
        (Program::SetUserId | Program::Foreign, _) => Named,
        (Program::StaticGo, Calls::Libc | Calls::Inside)
        | (Program::StaticGlibc | Program::StaticMusl | Program::StaticGo, Calls::Library) => {
            Nothing
        }
        (_, Calls::Mapped) => Measured,
        // Rings and queues are entered by `syscall`.
        (Program::Glibc | Program::Musl, Calls::Libc | Calls::Ring | Calls::Aio) => Limited,
        (Program::Musl, Calls::Library) => Audited,
        (Program::Glibc | Program::Musl, _) => if_patched,
        (Program::GoWithLoader, Calls::Own) => if_entered,
        (Program::GoWithLoader, _) => if_patched,
        (Program::StaticGlibc | Program::StaticMusl | Program::StaticGo, _) => if_entered,
    }
}

fn word(cells: &[Cell], mode: Mode, program: Program, calls: Calls) -> &'static str {
    let wanted = (mode, program, calls);
    let mut found = cells
        .iter()
        .filter(|cell| (cell.mode, cell.program, cell.calls) == wanted);
    found.next().map_or("", |cell| cell.answer.word())
}

/// The table for people: a row for each kind of program.
pub(super) fn text(cells: &[Cell]) -> String {
    let mut text = String::new();
    for (mode, title) in MODES {
        let mut head = vec![title];
        head.extend(CALLS.iter().map(|(_, name, _)| *name));
        let mut rows = table(&head, &[]);
        for (program, name) in PROGRAMS {
            let mut row = vec![name.to_owned()];
            let words = CALLS
                .iter()
                .map(|(calls, ..)| word(cells, mode, program, *calls));
            row.extend(words.map(str::to_owned));
            rows.add_row(row);
        }
        text += &finish(&rows);
        text.push('\n');
    }
    text
}

/// What the words of the table mean.
pub(super) fn legend() -> String {
    let calls: Vec<String> = CALLS
        .iter()
        .map(|(_, name, what)| format!("{name}: {what}"))
        .collect();
    format!("{WORDS} Columns are {}.\n", calls.join("; "))
}

const WORDS: &str = "limited: counted, and never faster than the limit. named: it runs, \
     unlimited, and `run` and `status` say so. audit: it is not seen; `bonsai audit` shows how \
     many bytes that were. measured: it is not limited; `run`, `status` and `audit` say how many \
     bytes came in at least.";

/// `docs/reference/coverage.md`: the table for a machine without restrictions.
pub(crate) fn page() -> String {
    let mut text = String::from(
        "# Coverage\n\nWritten by `cargo xtask gen` from the table that `bonsai doctor` prints, \
         for a machine that restricts nothing; `bonsai doctor` has it for yours.\n\n",
    );
    let cells = cells(&[]);
    for (mode, title) in MODES {
        let names: Vec<&str> = CALLS.iter().map(|(_, name, _)| *name).collect();
        text += &format!("| `{title}` | {} |\n", names.join(" | "));
        text += &format!("|---|{}\n", "---|".repeat(names.len()));
        for (program, name) in PROGRAMS {
            let words = CALLS
                .iter()
                .map(|(calls, ..)| word(&cells, mode, program, *calls));
            text += &format!("| {name} | {} |\n", words.collect::<Vec<_>>().join(" | "));
        }
        text.push('\n');
    }
    text += WORDS;
    text += "\n\n| column | calls made by |\n|---|---|\n";
    for (_, name, what) in CALLS {
        text += &format!("| {name} | {what} |\n");
    }
    text
}
