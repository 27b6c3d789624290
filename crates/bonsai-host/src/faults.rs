//! What processes read without a call: page faults that had to wait for storage.

use std::fs;

/// Page faults of a process that had to wait for storage (`majflt` and `cmajflt` in proc(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Of the process itself, all threads.
    pub own: u64,
    /// Of the children that it has waited for, and theirs.
    pub children: u64,
}

/// Those of a process; `None` for one that does not exist.
#[must_use]
pub fn faults(pid: u32) -> Option<Faults> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<Faults> {
    // The name may have anything in it; the twelfth field of the file comes ten behind it.
    let (_, from_third) = stat.rsplit_once(") ")?;
    let mut fields = from_third.split_ascii_whitespace().skip(9);
    Some(Faults {
        own: fields.next()?.parse().ok()?,
        children: fields.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_stand_behind_a_name_of_any_kind() {
        let stat = "7 (a) S (b) S 1 7 7 0 -1 4194560 101 202 303 404 5 6 7 8 20 0 1 0 9";
        let found = Faults {
            own: 303,
            children: 404,
        };
        assert_eq!(parse(stat), Some(found));
        assert_eq!(parse("7 (a) S 1 7"), None);
        assert!(faults(std::process::id()).is_some());
    }
}
