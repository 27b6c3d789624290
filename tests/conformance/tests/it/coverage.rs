//! The cases against the table of calls: every entry and every exported symbol has one.

use std::collections::HashSet;

use bonsai_calls::symbols::SYMBOLS;
use bonsai_calls::{CALLS, Call, Fd};
use object::{Object, ObjectSymbol};

use crate::fixture::cases;

/// Entries and symbols without a case, each with its reason.
const WITHOUT_CASE: &[(&str, &str)] = &[];

/// The name of an entry in the cases.
pub(crate) fn entry_name(call: &Call) -> String {
    match call.fd {
        Fd::Any => call.name.to_owned(),
        Fd::File => format!("{}.file", call.name),
        Fd::Socket => format!("{}.socket", call.name),
        Fd::Other => format!("{}.other", call.name),
    }
}

fn excused(name: &str) -> bool {
    WITHOUT_CASE.iter().any(|(without, _)| *without == name)
}

#[test]
fn every_entry_of_the_table_has_a_case() {
    let Some(cases) = cases("every_entry_of_the_table_has_a_case") else {
        return;
    };
    let tested: HashSet<&str> = cases.cases.iter().map(|case| case.entry.as_str()).collect();
    let missing: Vec<String> = CALLS
        .iter()
        .map(entry_name)
        .filter(|name| !tested.contains(name.as_str()) && !excused(name))
        .collect();
    assert!(missing.is_empty(), "no case in c/calls_*.c for {missing:?}");
}

/// By its number through `syscall`, too: the only way for some, and open for all.
#[test]
fn every_entry_of_the_table_has_a_case_through_syscall() {
    let Some(cases) = cases("every_entry_of_the_table_has_a_case_through_syscall") else {
        return;
    };
    // `vfork` through a function that returns in the child destroys the parent's stack.
    let unusable = ["vfork"];
    let missing: Vec<String> = CALLS
        .iter()
        .map(entry_name)
        .filter(|name| !unusable.contains(&name.as_str()) && !excused(name))
        .filter(|name| {
            let mut through = cases.cases.iter().filter(|case| case.symbol == "syscall");
            !through.any(|case| case.entry == *name)
        })
        .collect();
    assert!(
        missing.is_empty(),
        "no case through syscall() for {missing:?}"
    );
}

#[test]
fn every_exported_symbol_has_a_case() {
    let Some(cases) = cases("every_exported_symbol_has_a_case") else {
        return;
    };
    let tested: HashSet<&str> = cases
        .cases
        .iter()
        .map(|case| case.symbol.as_str())
        .collect();
    let missing: Vec<&str> = SYMBOLS
        .iter()
        .map(|symbol| symbol.name)
        .filter(|name| !tested.contains(name) && !excused(name))
        .collect();
    assert!(missing.is_empty(), "no case in c/calls_*.c for {missing:?}");
}

/// A compiler or a header may put another symbol in the place of the one that is written.
#[test]
fn the_program_really_imports_every_symbol() {
    let Some(cases) = cases("the_program_really_imports_every_symbol") else {
        return;
    };
    let bytes = std::fs::read(&cases.program).expect("the program was just made");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let imported: HashSet<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    let missing: Vec<&str> = SYMBOLS
        .iter()
        .map(|symbol| symbol.name)
        .filter(|name| !imported.contains(name) && !excused(name))
        .collect();
    assert!(missing.is_empty(), "not imported: {missing:?}");
}

#[test]
fn the_cases_name_entries_and_symbols_that_exist() {
    let Some(cases) = cases("the_cases_name_entries_and_symbols_that_exist") else {
        return;
    };
    let entries: HashSet<String> = CALLS.iter().map(entry_name).collect();
    let mut names = HashSet::new();
    for case in &cases.cases {
        assert!(names.insert(&case.name), "{} is there twice", case.name);
        let entry = &case.entry;
        assert!(entries.contains(entry), "{}: no entry {entry}", case.name);
        let call = CALLS.iter().find(|call| entry_name(call) == *entry);
        let in_bytes = call.is_some_and(Call::moves_bytes);
        assert_eq!(in_bytes, case.unit > 0, "{}: bytes or calls?", case.name);
        if case.symbol.is_empty() || case.symbol == "syscall" {
            continue;
        }
        let symbol = SYMBOLS.iter().find(|symbol| symbol.name == case.symbol);
        let symbol = symbol.unwrap_or_else(|| panic!("{}: no symbol {}", case.name, case.symbol));
        let counts_as = CALLS[usize::from(symbol.call)].name;
        assert_eq!(counts_as, case.call(), "{} counts as", case.symbol);
    }
}

#[test]
fn what_has_no_case_is_known_and_has_none() {
    let Some(cases) = cases("what_has_no_case_is_known_and_has_none") else {
        return;
    };
    for (name, reason) in WITHOUT_CASE {
        assert!(!reason.is_empty(), "{name} needs a reason");
        let known = SYMBOLS.iter().any(|symbol| symbol.name == *name)
            || CALLS.iter().any(|call| entry_name(call) == *name);
        assert!(known, "{name} is neither an entry nor a symbol");
        let mut cases = cases.cases.iter();
        assert!(
            !cases.any(|case| case.symbol == *name || case.entry == *name),
            "{name} has a case: take it off the list"
        );
    }
}
