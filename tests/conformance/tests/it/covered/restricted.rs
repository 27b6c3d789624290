//! What a container takes away is in the table of `bonsai doctor` there, and true.

use std::path::Path;

use super::kinds::open_to_all;
use super::{Cell, bonsai, doctor, try_all};
use crate::fixture::compiler;

/// A system call that does not work, with its `errno`, and what changes by that: in this
/// mode, of these programs, to this answer. That there is a filter changes one thing more.
struct Without {
    call: &'static str,
    errno: &'static str,
    changes: &'static [(&'static str, &'static str, &'static str)],
}

const ALL: &str = "";

/// Libraries that come by `dlopen` are not changed under a filter; in programs that Go has
/// not made, they can be trapped.
fn is_left_alone(cell: &Cell) -> bool {
    let is_trapped = cell.mode == "run --unpatched trap" && cell.program == "glibc";
    cell.mode.starts_with("run")
        && cell.mode != "run --enforce"
        && !is_trapped
        && cell.calls == "library"
        && cell.answer == "limited"
}

const WITHOUT: [Without; 5] = [
    // ptrace(2)
    Without {
        call: "101",
        errno: "1",
        changes: &[
            ("run", "static", "named"),
            ("run --unpatched trap", "static", "named"),
            ("attach", ALL, "refused"),
        ],
    },
    // seccomp(2): not there, and forbidden.
    Without {
        call: "317",
        errno: "38",
        changes: &[
            ("run --unpatched trap", ALL, "refused"),
            ("run --enforce", ALL, "refused"),
        ],
    },
    Without {
        call: "317",
        errno: "1",
        changes: &[
            ("run --unpatched trap", ALL, "refused"),
            ("run --enforce", ALL, "refused"),
        ],
    },
    // landlock_create_ruleset(2), landlock_restrict_self(2)
    Without {
        call: "444",
        errno: "38",
        changes: &[("run --enforce", ALL, "refused")],
    },
    Without {
        call: "446",
        errno: "1",
        changes: &[("run --enforce", ALL, "refused")],
    },
];

impl Without {
    /// Of one of them, everything is tried that it leaves.
    fn is_first(&self) -> bool {
        self.call == WITHOUT[0].call
    }

    /// What the table has to say of a cell that says `cell` elsewhere.
    fn expected<'a>(&self, cell: &'a Cell) -> &'a str {
        let changes = |(mode, programs, _): &&(&str, &str, &str)| {
            cell.mode == *mode && cell.program.starts_with(programs)
        };
        match self.changes.iter().find(changes) {
            Some((.., answer)) if cell.answer != "nothing" => answer,
            _ if is_left_alone(cell) => "audited",
            _ => &cell.answer,
        }
    }
}

/// Where no service can be made, nothing can be done in any way.
#[test]
fn without_a_folder_for_services_everything_is_refused() {
    let test = "without_a_folder_for_services_everything_is_refused";
    if compiler(test).is_none() {
        return;
    }
    let there = bonsai().within::<&str>(&[]);
    let there = there.unwrap_or_else(|error| panic!("{error}"));
    open_to_all(&there.services());
    let all = doctor(&there);
    for cell in &all {
        assert!(["refused", "nothing"].contains(&&*cell.answer), "{cell:?}");
    }
    // Not one of them is about the program.
    let kinds = ["glibc", "static_go"].map(str::to_owned);
    let few = all.into_iter().filter(|cell| kinds.contains(&cell.program));
    try_all(test, &there, few.collect());
}

#[test]
fn what_a_container_takes_away_is_in_its_table() {
    let test = "what_a_container_takes_away_is_in_its_table";
    let Some(gcc) = compiler(test) else { return };
    let made = gcc.make("without-covered", &[Path::new("enforced/without.c")], &[]);
    let without = made.unwrap_or_else(|error| panic!("{error}"));
    let free = bonsai();
    let table = doctor(&free);
    for less in WITHOUT {
        let by = [without.as_os_str(), less.call.as_ref(), less.errno.as_ref()];
        let there = free.within(&by).unwrap_or_else(|error| panic!("{error}"));
        let mut tried = Vec::new();
        for (cell, now) in table.iter().zip(doctor(&there)) {
            let expected = less.expected(cell);
            assert_eq!(now.answer, expected, "{}: {cell:?}", less.call);
            // What is refused is so whatever it calls. Under a filter that an ordinary user has
            // made, nobody becomes another user.
            let is_one = now.answer != "refused" || cell.calls == "own";
            let is_changed = now.answer != cell.answer;
            if is_one && (is_changed || less.is_first()) && cell.program != "set_user_id" {
                tried.push(now);
            }
        }
        assert!(!tried.is_empty(), "{}: nothing changes", less.call);
        try_all(test, &there, tried);
    }
}
