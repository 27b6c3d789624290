//! What of which program is limited, and how: the claim that the README makes, for a
//! machine without restrictions and for this one. Every cell is tried out by
//! `tests/conformance/tests/it/covered.rs`.
//!
//! A way to get under limits is a [`Column`] in `modes.rs`, and nothing else: the test does
//! what the column's name says.

use serde::Serialize;

use self::modes::MODES;

use crate::output::{finish, table};

mod modes;

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
    Made,
    Ring,
    Aio,
    Mapped,
}

const CALLS: [(Calls, &str, &str); 8] = [
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
    (Calls::Made, "made", "code that it makes as it runs (JIT)"),
    (Calls::Ring, "io_uring", "bytes that are queued in a ring"),
    (Calls::Aio, "aio", "bytes that io_submit queues"),
    (Calls::Mapped, "mmap", "bytes that move by page faults"),
];

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
    /// The call fails.
    Denied,
    /// `bonsai` does not do it, and says why.
    Refused,
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
            Self::Denied => "denied",
            Self::Refused => "refused",
            Self::Nothing => "",
        }
    }
}

/// What is needed for more than nothing, and a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Services can be made; nothing else is asked where they cannot.
    Services,
    /// The library gets into programs.
    Library,
    /// libc's instructions may be replaced.
    Patching,
    /// No seccomp filter is on it, which may not expect new code in a program that runs.
    Unfiltered,
    /// Programs may be entered from outside, at their start.
    Tracing,
    /// So may those that run already.
    Attaching,
    /// Those of other users, too.
    OtherUsers,
    /// A supervisor may be asked about calls, out of reach of who makes them.
    Enforcing,
    /// A process may have its own calls trapped.
    Trapping,
}

/// What a machine has of it.
#[derive(Clone, Debug)]
pub(super) struct Allowed(Vec<Need>);

impl Allowed {
    pub(super) fn new(found: impl IntoIterator<Item = (Need, bool)>) -> Self {
        let there = found.into_iter().filter(|(_, is_there)| *is_there);
        Self(there.map(|(need, _)| need).collect())
    }

    /// An ordinary user's, on a machine that restricts nothing.
    fn ordinary() -> Self {
        use Need::{
            Attaching, Enforcing, Library, Patching, Services, Tracing, Trapping, Unfiltered,
        };
        Self(vec![
            Services, Library, Patching, Unfiltered, Tracing, Attaching, Enforcing, Trapping,
        ])
    }
}

/// What becomes of a cell, and what instead where something is lacking: the first of these
/// that is decides.
#[derive(Clone, Copy, Debug)]
struct Rule(Answer, &'static [(Need, Answer)]);

impl Rule {
    fn answer(self, needs: Need, allowed: &Allowed) -> Answer {
        let is_there = |need| allowed.0.contains(&need);
        if self.0 != Answer::Nothing && !(is_there(Need::Services) && is_there(needs)) {
            return Answer::Refused;
        }
        let mut lacking = self.1.iter().filter(|(need, _)| !allowed.0.contains(need));
        lacking.next().map_or(self.0, |(_, answer)| *answer)
    }
}

/// A way to get under limits.
#[derive(Debug)]
struct Column {
    /// The words behind `bonsai`.
    mode: &'static str,
    /// Without which it is refused as a whole.
    needs: Need,
    /// Its cells, in the order of [`PROGRAMS`] and [`CALLS`].
    rows: [[Rule; CALLS.len()]; PROGRAMS.len()],
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Cell {
    mode: &'static str,
    program: Program,
    calls: Calls,
    answer: Answer,
}

/// The table for a machine that allows so much.
pub(super) fn cells(allowed: &Allowed) -> Vec<Cell> {
    let mut cells = Vec::new();
    for Column { mode, needs, rows } in &MODES {
        for ((program, _), row) in PROGRAMS.iter().zip(rows) {
            cells.extend(CALLS.iter().zip(row).map(|((calls, ..), rule)| Cell {
                mode,
                program: *program,
                calls: *calls,
                answer: rule.answer(*needs, allowed),
            }));
        }
    }
    cells
}

/// The words of one row.
fn words(cells: &[Cell], mode: &str, program: Program) -> Vec<&'static str> {
    let row = cells
        .iter()
        .filter(|cell| cell.mode == mode && cell.program == program);
    row.map(|cell| cell.answer.word()).collect()
}

/// The table for people: a row for each kind of program.
pub(super) fn text(cells: &[Cell]) -> String {
    let mut text = String::new();
    for Column { mode, .. } in &MODES {
        let title = format!("bonsai {mode}");
        let mut head = vec![&*title];
        head.extend(CALLS.iter().map(|(_, name, _)| *name));
        let mut rows = table(&head, &[]);
        for (program, name) in PROGRAMS {
            let words = words(cells, mode, program);
            rows.add_row([name].into_iter().chain(words));
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

const WORDS: &str = "limited: counted, and never faster than the limit. named: it is \
     unlimited; `status` says so, and `bonsai run` at its end. audit: it is not seen; `audit` shows \
     how many bytes that were. measured: it is not limited; `status` and `audit` say how many bytes \
     came in at least. denied: the call fails with `ENOSYS`. refused: `bonsai` says in a sentence \
     why not, and ends with exit code 2. `bonsai attach` finds the libraries and rings that are \
     there: one that comes by `dlopen` later is not seen, a ring that is made later is limited.";

/// Programs with the same row in one: the rows of a mode, names first.
fn merged(cells: &[Cell], mode: &str) -> Vec<(String, Vec<&'static str>)> {
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for (program, name) in PROGRAMS {
        let words = words(cells, mode, program);
        match rows.iter_mut().find(|(_, same)| *same == words) {
            Some((names, _)) => {
                names.push_str("; ");
                names.push_str(name);
            }
            None => rows.push((name.to_owned(), words)),
        }
    }
    rows
}

/// `docs/reference/coverage.md`: the table for a machine without restrictions.
pub(crate) fn page() -> String {
    let mut text = String::from(
        "# Coverage\n\nWritten by `cargo xtask gen` from the table that `bonsai doctor` prints, \
         for an ordinary user on a machine that restricts nothing; `bonsai doctor` has it for \
         yours. Root may also attach to set-user-ID programs, with the answers of the others.\n\n",
    );
    let cells = cells(&Allowed::ordinary());
    for Column { mode, .. } in &MODES {
        let names: Vec<&str> = CALLS.iter().map(|(_, name, _)| *name).collect();
        text += &format!("| `bonsai {mode}` | {} |\n", names.join(" | "));
        text += &format!("|---|{}\n", "---|".repeat(names.len()));
        for (names, words) in merged(&cells, mode) {
            text += &format!("| {names} | {} |\n", words.join(" | "));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_need_that_is_lacking_decides() {
        use Answer::{Audited, Limited, Named};
        let rule = Rule(
            Limited,
            &[(Need::Patching, Audited), (Need::Tracing, Named)],
        );
        let answer = |needs: &[Need]| rule.answer(Need::Services, &Allowed(needs.to_vec()));
        let services = Need::Services;
        assert_eq!(answer(&[services, Need::Patching, Need::Tracing]), Limited);
        assert_eq!(answer(&[services, Need::Patching]), Named);
        assert_eq!(answer(&[services]), Audited);
        assert_eq!(answer(&[Need::Patching, Need::Tracing]), Answer::Refused);
    }

    /// What nothing is lacking for is what the page says.
    #[test]
    fn every_mode_has_a_row_for_every_program() {
        for Column { mode, .. } in &MODES {
            let cells = cells(&Allowed::ordinary());
            for (program, name) in PROGRAMS {
                let words = words(&cells, mode, program);
                assert_eq!(words.len(), CALLS.len(), "{mode} {name}");
                assert!(words.iter().any(|word| !word.is_empty()), "{mode} {name}");
            }
        }
    }
}
