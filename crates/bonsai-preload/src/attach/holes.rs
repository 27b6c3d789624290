//! Limited calls that are made by instructions which cannot be replaced.

use super::ProgramName;
use crate::patch;
use crate::trap;
use crate::uncovered;
use bonsai_ledger::{Segment, flags};

/// Says that a limited call has an instruction which could not be replaced. Limits that come later are weighed by `bonsai status`,
/// which names the calls as well.
pub(super) fn complain(segment: &Segment) {
    let unseen = patch::unseen();
    if unseen == [0, 0] || trap::is_active() || segment.limited_of(unseen).next().is_none() {
        return;
    }
    uncovered::complain(
        segment,
        flags::HOLES,
        ProgramName::own().bytes(),
        b": a limited call is made by an instruction that cannot be replaced: not limited there (bonsai status names it, --unpatched trap limits it)\n",
        b": a limited call is made by an instruction that cannot be replaced, and --strict refuses that\n",
    );
}
