//! Files that programs have mapped into memory under limits, which see nothing of what is read and written there: as the library has
//! counted the mappings. How much of them was fetched from storage is the kernel's to say (`mapped.rs`).

use std::collections::BTreeSet;

use bonsai_ledger::Ledger;
use serde::Serialize;

use crate::harmless;

/// Less is not worth a line for people: twice what the kernel reads ahead for one page fault, and more than the tables that
/// libraries map (fonts, icons, character sets) have in most programs.
const WORTH_SAYING: u64 = 256 << 10;

/// Programs that are named.
const NAMED: usize = 5;

/// Bytes of files in mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MappedFiles {
    /// Mapped while a limit was on reads of the file.
    pub read: u64,
    /// Mapped to be written, while a limit was on writes of the file.
    pub written: u64,
    /// Programs that have mapped them, as far as they are known.
    pub programs: Vec<String>,
}

impl MappedFiles {
    /// Bytes that a service has mapped since it was made.
    #[must_use]
    pub fn of(ledger: &Ledger) -> Self {
        let [read, written] = ledger.mapped();
        let table = ledger.process_table().into_iter();
        let mapping = table.filter(|entry| entry.mapped != [0, 0]);
        let programs: BTreeSet<String> = mapping.map(|entry| harmless(&entry.program)).collect();
        Self {
            read,
            written,
            programs: programs.into_iter().collect(),
        }
    }

    /// In words, if it is worth a line.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        let human = |bytes: u64| bonsai_units::Bytes(bytes).human();
        let mapped = match (self.read >= WORTH_SAYING, self.written >= WORTH_SAYING) {
            (false, false) => return None,
            (true, false) => human(self.read),
            (false, true) => format!("{} to be written", human(self.written)),
            (true, true) => format!(
                "{}, and {} to be written",
                human(self.read),
                human(self.written)
            ),
        };
        let shown = self.programs.iter().take(NAMED).cloned();
        let programs = match shown.collect::<Vec<String>>().as_slice() {
            [] => String::new(),
            shown if self.programs.len() > NAMED => {
                format!(", by {} and others", shown.join(", "))
            }
            shown => format!(", by {}", shown.join(", ")),
        };
        Some(format!(
            "not limited: files mapped into memory (mmap): {mapped}{programs}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_bytes_and_programs_and_small_maps_have_none() {
        let of = |read, written, programs: &[&str]| MappedFiles {
            read,
            written,
            programs: programs.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert_eq!(of(WORTH_SAYING - 1, 0, &["a"]).line(), None);
        let line = of(3_000_000, 1, &["look", "rg"]).line();
        let wanted = "not limited: files mapped into memory (mmap): 3 MB, by look, rg";
        assert_eq!(line.as_deref(), Some(wanted));
        let line = of(3_000_000, 5_000_000, &[]).line().expect("a line");
        assert!(line.ends_with("3 MB, and 5 MB to be written"), "{line}");
        let line = of(0, 5_000_000, &["a", "b", "c", "d", "e", "f"]).line();
        let line = line.expect("a line");
        assert!(line.ends_with("by a, b, c, d, e and others"), "{line}");
    }
}
