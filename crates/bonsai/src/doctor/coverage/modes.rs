//! The ways to get under limits, with what becomes of each kind of call in each kind of
//! program. Rows are in the order of `PROGRAMS`, columns in that of `CALLS`:
//! libc, inside, library, own, io_uring, aio, mmap.

use super::Answer::{Audited, Denied, Limited, Measured, Named, Nothing, Refused};
use super::Need::{Attaching, Enforcing, Library, OtherUsers, Patching, Tracing, Unfiltered};
use super::{Answer, Column, Need, Rule};

/// There is no such thing: a static program without a library, Go without libc.
const NONE: Rule = Rule(Nothing, &[]);

pub(super) const MODES: [Column; 3] = [RUN, ATTACH, ENFORCE];

const RUN: Column = Column {
    mode: "run",
    rows: {
        /// By an exported symbol; rings and queues are entered by `syscall`.
        const SYMBOL: Rule = Rule(Limited, &[(Library, Named)]);
        /// By an instruction that the library replaces.
        const PATCHED: Rule = Rule(Limited, &[(Library, Named), (Patching, Audited)]);
        /// By one that the engine replaces, which is put there from outside.
        const ENTERED: Rule = Rule(Limited, &[(Patching, Named), (Tracing, Named)]);
        /// By one of a library that comes while it runs.
        const LATE: Rule = Rule(
            Limited,
            &[(Library, Named), (Patching, Audited), (Unfiltered, Audited)],
        );
        const UNSEEN: Rule = Rule(Audited, &[(Library, Named)]);
        const MAPPED: Rule = Rule(Measured, &[]);
        /// Of a process that is entered.
        const FAULTS: Rule = Rule(Measured, &[(Patching, Named), (Tracing, Named)]);
        const OUT_OF_REACH: Rule = Rule(Named, &[]);
        let [s, p, l, e] = [SYMBOL, PATCHED, LATE, ENTERED];
        let [u, m, f] = [UNSEEN, MAPPED, FAULTS];
        [
            [s, p, l, p, s, s, m],
            [s, p, u, p, s, s, m],
            [e, e, NONE, e, e, e, f],
            [e, e, NONE, e, e, e, f],
            [NONE, NONE, NONE, e, e, e, f],
            // libc's by the library, Go's own by the engine that it maps itself.
            [p, p, l, p, p, p, m],
            [OUT_OF_REACH; 7],
            [OUT_OF_REACH; 7],
        ]
    },
};

const ATTACH: Column = Column {
    mode: "attach",
    rows: {
        const TRACED: &[(Need, Answer)] = &[(Attaching, Refused)];
        const OTHERS: &[(Need, Answer)] = &[(Attaching, Refused), (OtherUsers, Refused)];
        let l = Rule(Limited, TRACED);
        // A ring that is there already: how it was made is not known.
        let r = Rule(Named, TRACED);
        let m = Rule(Measured, TRACED);
        let (ol, or, om) = (
            Rule(Limited, OTHERS),
            Rule(Named, OTHERS),
            Rule(Measured, OTHERS),
        );
        [
            [l, l, l, l, r, l, m],
            [l, l, l, l, r, l, m],
            [l, l, NONE, l, r, l, m],
            [l, l, NONE, l, r, l, m],
            [NONE, NONE, NONE, l, r, l, m],
            [l, l, l, l, r, l, m],
            [ol, ol, ol, ol, or, ol, om],
            [Rule(Refused, &[]); 7],
        ]
    },
};

const ENFORCE: Column = Column {
    mode: "run --enforce",
    rows: {
        const WITH: &[(Need, Answer)] = &[(Enforcing, Refused)];
        let l = Rule(Limited, WITH);
        let d = Rule(Denied, WITH);
        let m = Rule(Measured, WITH);
        [
            [l, l, l, l, d, d, m],
            [l, l, l, l, d, d, m],
            [l, l, NONE, l, d, d, m],
            [l, l, NONE, l, d, d, m],
            [NONE, NONE, NONE, l, d, d, m],
            [l, l, l, l, d, d, m],
            [l, l, l, l, d, d, m],
            [d; 7],
        ]
    },
};
