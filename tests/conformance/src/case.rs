//! What `calls --list` and `calls CASE` print.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A case, as the program lists it.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// Its name.
    #[serde(rename = "case")]
    pub name: String,
    /// The libc symbol it goes through; empty when libc calls itself, or a child does.
    pub symbol: String,
    /// The entry of the table: `NAME`, or `NAME.KIND`.
    pub entry: String,
    /// Bytes that one operation moves; 0 where calls count.
    pub unit: u64,
    /// Operations where nothing else is said.
    pub ops: u64,
    /// Seen only where libc's call sites are patched.
    pub inside: bool,
    /// Cannot be divided among threads.
    pub single: bool,
}

impl Case {
    /// The name of the call, without the kind of descriptor.
    #[must_use]
    pub fn call(&self) -> &str {
        self.entry.split('.').next().unwrap_or(&self.entry)
    }

    /// Units that all operations need: bytes, or calls.
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.ops * self.unit.max(1)
    }
}

/// What a case says that it did.
#[derive(Clone, Debug, Deserialize)]
pub struct Outcome {
    /// The case.
    #[serde(rename = "case")]
    pub name: String,
    /// Time of all operations, ns of the monotonic clock.
    pub elapsed_ns: u64,
    /// A hash over results and contents, the same for any number of threads.
    pub hash: String,
    /// The errno of each call that had to fail, 0 for one that had to succeed.
    pub errnos: Vec<i32>,
    /// By entry: calls and bytes.
    pub counts: BTreeMap<String, (u64, u64)>,
    /// Why it could not run here.
    pub skip: Option<String>,
    /// The first thing that was wrong.
    pub failure: Option<String>,
}

impl Outcome {
    /// Whether two runs had the same results and errors; if not, what differs.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn same_as(&self, other: &Self) -> Result<(), String> {
        if let Some(failure) = self.failure.as_ref().or(other.failure.as_ref()) {
            return Err(format!("{}: {failure}", self.name));
        }
        if self.hash != other.hash {
            return Err(format!(
                "{}: results differ: hash {} instead of {}",
                self.name, self.hash, other.hash
            ));
        }
        if self.errnos != other.errnos {
            return Err(format!(
                "{}: errno differs: {:?} instead of {:?}",
                self.name, self.errnos, other.errnos
            ));
        }
        Ok(())
    }
}
