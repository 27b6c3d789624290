//! The ways to get under limits, with what becomes of each kind of call in each kind of
//! program. Rows are in the order of `PROGRAMS`, columns in that of `CALLS`:
//! libc, inside, library, own, made, io_uring, aio, mmap.

use super::Answer::{Audited, Denied, Limited, Measured, Named, Nothing, Refused};
use super::Need::{
    Attaching, Enforcing, Library, OtherUsers, Patching, Services, Tracing, Trapping, Unfiltered,
};
use super::{Answer, Column, Need, Rule};

/// There is no such thing: a static program without a library, Go without libc.
const NONE: Rule = Rule(Nothing, &[]);

pub(super) const MODES: [Column; 4] = [RUN, TRAP, ATTACH, ENFORCE];

const RUN: Column = Column {
    mode: "run",
    needs: Services,
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
        /// By one of a process that is entered, that the engine does not see.
        const MISSED: Rule = Rule(Audited, &[(Patching, Named), (Tracing, Named)]);
        let [s, p, l, e] = [SYMBOL, PATCHED, LATE, ENTERED];
        let [u, x, m, f] = [UNSEEN, MISSED, MAPPED, FAULTS];
        [
            [s, p, l, p, u, s, s, m],
            [s, p, u, p, u, s, s, m],
            [e, e, NONE, e, x, e, e, f],
            [e, e, NONE, e, x, e, e, f],
            [NONE, NONE, NONE, e, NONE, e, e, f],
            // libc's by the library, Go's own by the engine that it maps itself.
            [p, p, l, p, NONE, p, p, m],
            [OUT_OF_REACH; 8],
            [OUT_OF_REACH; 8],
        ]
    },
};

/// As [`RUN`], but that in programs of glibc what `dlopen` brings under a filter, and what
/// `mmap` and `mprotect` make executable, is seen like the program's own instructions.
const TRAP: Column = {
    let mut rows = RUN.rows;
    let own = rows[0][3];
    (rows[0][2], rows[0][4]) = (own, own);
    Column {
        mode: "run --unpatched trap",
        needs: Trapping,
        rows,
    }
};

const ATTACH: Column = Column {
    mode: "attach",
    needs: Attaching,
    rows: {
        const OTHERS: &[(Need, Answer)] = &[(OtherUsers, Refused)];
        let l = Rule(Limited, &[]);
        // A ring that is there already: how it was made is not known.
        let r = Rule(Named, &[]);
        let u = Rule(Audited, &[]);
        let m = Rule(Measured, &[]);
        let (ol, ou, or, om) = (
            Rule(Limited, OTHERS),
            Rule(Audited, OTHERS),
            Rule(Named, OTHERS),
            Rule(Measured, OTHERS),
        );
        [
            [l, l, l, l, u, r, l, m],
            [l, l, l, l, u, r, l, m],
            [l, l, NONE, l, u, r, l, m],
            [l, l, NONE, l, u, r, l, m],
            [NONE, NONE, NONE, l, NONE, r, l, m],
            [l, l, l, l, NONE, r, l, m],
            [ol, ol, ol, ol, ou, or, ol, om],
            [Rule(Refused, &[]); 8],
        ]
    },
};

const ENFORCE: Column = Column {
    mode: "run --enforce",
    needs: Enforcing,
    rows: {
        let [l, d, m] = [Rule(Limited, &[]), Rule(Denied, &[]), Rule(Measured, &[])];
        [
            [l, l, l, l, l, d, d, m],
            [l, l, l, l, l, d, d, m],
            [l, l, NONE, l, l, d, d, m],
            [l, l, NONE, l, l, d, d, m],
            [NONE, NONE, NONE, l, NONE, d, d, m],
            [l, l, l, l, NONE, d, d, m],
            [l, l, l, l, l, d, d, m],
            [d; 8],
        ]
    },
};
