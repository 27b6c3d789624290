//! Judgement on a C library, by the bytes that the ledger has counted, or by its machine code.

use bonsai_calls::{BY_NR, CALLS, NO_CALL};
use bonsai_host::libcs::WAYS;
use bonsai_ledger::Reason;

use super::scan::CodeView;

/// Ways and calls that were not seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unseen {
    /// On the first thread.
    pub(super) one: Vec<String>,
    /// On the second.
    pub(super) threads: Vec<String>,
}

/// The answer about a library.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) state: &'static str,
    pub(super) unseen: Unseen,
    pub(super) sites: Option<usize>,
    pub(super) verdict: String,
}

impl Answer {
    fn new(state: &'static str, verdict: String) -> Self {
        Self {
            state,
            unseen: Unseen::default(),
            sites: None,
            verdict,
        }
    }

    pub(super) fn unknown(verdict: String) -> Self {
        Self::new("unknown", verdict)
    }

    pub(super) fn no(why: &str) -> Self {
        Self::new(
            "no",
            format!("{why}: nothing of programs with it is limited"),
        )
    }
}

/// Ways in which the probe moves bytes: the name of a way, the calls that may be made for it, and whether stdio goes that way, too.
const MOVES: [(&str, &[&str], bool); 4] = [
    ("read", &["read", "readv"], true),
    ("write", &["write", "writev"], true),
    ("send", &["sendto"], false),
    ("recv", &["recvfrom"], false),
];

/// Ways that are missing from `counted` (calls by their names, with bytes) of a probe with an input of that length, which it moved by each way as often as [`WAYS`] says.
pub(super) fn unseen(len: u64, threads: bool, counted: &[(&str, u64)]) -> Unseen {
    let mut unseen = Unseen::default();
    for (name, calls, stdio) in MOVES {
        let is_one = |(name, _): &&(&str, u64)| calls.contains(name);
        let bytes: u64 = counted.iter().filter(is_one).map(|(_, bytes)| bytes).sum();
        // The loader's and the program's own words are shorter than the input.
        let moved = bytes / len.max(1);
        for (i, times) in WAYS.into_iter().enumerate() {
            let (by_stdio, second) = (i % 2 == 0, i > 1);
            let is_made = (stdio || !by_stdio) && (threads || !second);
            if !is_made || moved & times != 0 {
                continue;
            }
            let name = if by_stdio {
                format!("{name} by stdio")
            } else {
                name.to_owned()
            };
            let list = if second {
                &mut unseen.threads
            } else {
                &mut unseen.one
            };
            list.push(name);
        }
        let all = WAYS.iter().sum::<u64>();
        if moved > all {
            unseen.one.push(format!("{name}, counted twice"));
        }
    }
    unseen
}

/// The answer about a library that was run.
pub(super) fn by_run(
    unseen: Unseen,
    threads: bool,
    is_patched: bool,
    reason: Reason,
    sites: Option<usize>,
) -> Answer {
    let on = if threads {
        "one thread, threads"
    } else {
        "one thread"
    };
    let (state, verdict) = match (is_patched, unseen == Unseen::default()) {
        (true, true) if threads => ("yes", format!("calls are seen ({on})")),
        (true, true) => {
            let text = format!("calls are seen ({on}); its library of threads is not there");
            ("yes", text)
        }
        // The word of the process counts, also where each of these ways was seen.
        (false, is_seen) => {
            let why = match (reason, is_seen) {
                (Reason::Unseen, true) => "not all calls inside it are seen".to_owned(),
                (Reason::Unseen, false) => format!("not seen: {}", list(&unseen)),
                (reason, _) => reason.about().to_owned(),
            };
            let text = format!(
                "{why}: functions are limited by their names, and programs with it are named"
            );
            ("part", text)
        }
        (true, false) => {
            let text = format!(
                "not seen: {}; --unpatched trap or --enforce of `bonsai run` limits them",
                list(&unseen)
            );
            ("part", text)
        }
    };
    Answer {
        unseen,
        sites,
        ..Answer::new(state, verdict)
    }
}

fn list(unseen: &Unseen) -> String {
    let Unseen { one, threads } = unseen;
    if one == threads {
        return format!("{} (one thread, threads)", one.join(", "));
    }
    let part = |names: &[String], on: &str| {
        (!names.is_empty()).then(|| format!("{} ({on})", names.join(", ")))
    };
    let parts = [part(one, "one thread"), part(threads, "threads")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

/// Calls that move bytes, look up folders and open files: read, write, pread64, pwrite64, readv, sendto, recvfrom, sendmsg, recvmsg,
/// getdents64, openat, preadv, pwritev. glibc's writev is made for its last words (`__libc_message`), musl's for stdio.
const MOVERS: [u16; 13] = [0, 1, 17, 18, 19, 44, 45, 46, 47, 217, 257, 295, 296];
const WRITEV: u16 = 20;

/// The answer about a library whose machine code was searched.
pub(super) fn by_code(flavour: &str, code: &CodeView) -> Answer {
    let is_musl = flavour == "musl";
    let is_mover = |nr: &&u16| MOVERS.contains(nr) || is_musl && **nr == WRITEV;
    let left: Vec<String> = code.left.iter().filter(is_mover).map(name_of).collect();
    let (state, verdict) = match (code.replaced, left.is_empty()) {
        (0, _) => (
            "part",
            "none of its system calls has a known form: functions are limited by their names (by its code, not run)".to_owned(),
        ),
        (_, true) => ("yes", "calls are seen (by its code, not run)".to_owned()),
        (_, false) => (
            "part",
            format!("not all is seen of {} (by its code, not run)", left.join(", ")),
        ),
    };
    Answer {
        unseen: Unseen {
            one: left.clone(),
            threads: left,
        },
        sites: Some(code.replaced),
        ..Answer::new(state, verdict)
    }
}

fn name_of(nr: &u16) -> String {
    let call = BY_NR.get(usize::from(*nr)).filter(|call| **call != NO_CALL);
    let call = call.and_then(|call| CALLS.get(usize::from(*call)));
    call.map_or_else(|| nr.to_string(), |call| call.name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 4000;

    fn counted(read: u64, send: u64) -> Vec<(&'static str, u64)> {
        vec![
            ("readv", 3 * LEN + 900),
            ("read", read),
            ("write", 15 * LEN),
            ("sendto", send),
            ("recvfrom", 10 * LEN),
        ]
    }

    #[test]
    fn each_way_that_is_missing_is_told_from_the_sum() {
        let of = |read, send| unseen(LEN, true, &counted(read, send));
        assert_eq!(of(12 * LEN, 10 * LEN), Unseen::default());
        let missing = of(8 * LEN, 2 * LEN);
        assert_eq!(missing.one, [""; 0]);
        assert_eq!(missing.threads, ["read by stdio", "send"]);
        let missing = of(12 * LEN, 8 * LEN);
        assert_eq!(missing.one, ["send"]);
        let twice = of(13 * LEN + 8 * LEN, 10 * LEN);
        assert!(
            twice.one.contains(&"read, counted twice".to_owned()),
            "{twice:?}"
        );
    }

    #[test]
    fn without_threads_nothing_is_said_of_them() {
        let mut counted = counted(0, 2 * LEN);
        counted[2].1 = 3 * LEN;
        counted[4].1 = 2 * LEN;
        assert_eq!(unseen(LEN, false, &counted), Unseen::default());
    }

    #[test]
    fn a_hole_is_never_a_yes() {
        let hole = || Unseen {
            one: Vec::new(),
            threads: vec!["read".to_owned()],
        };
        let run = |unseen, patched, reason| by_run(unseen, true, patched, reason, None).state;
        assert_eq!(run(Unseen::default(), true, Reason::None), "yes");
        assert_eq!(run(hole(), true, Reason::None), "part");
        assert_eq!(run(Unseen::default(), false, Reason::Unseen), "part");
        let code = |replaced, left: &[u16]| {
            let left = left.to_vec();
            let code = CodeView { replaced, left };
            by_code("glibc", &code).state
        };
        assert_eq!(code(400, &[3, 20, 60]), "yes");
        assert_eq!(code(400, &[0]), "part");
        assert_eq!(code(0, &[]), "part");
    }
}
