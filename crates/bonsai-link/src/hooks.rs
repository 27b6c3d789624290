//! Filters and blocks: where packets find their class, and what they go through.

use std::borrow::Cow;

use crate::bpf::Which;
use crate::links::Link;
use crate::plan::Plan;
use crate::tc::Handle;

/// The turn of our programs, before those of others; plain filters come behind them.
const FIRST: u16 = 1;
/// Their turn where others have the first ones for filters of another kind or protocol, and that of versions before.
const LATE: u16 = 0xb05a;

/// The block that what comes in goes through; blocks of one link have its slot behind that.
pub(crate) const IFB: &str = "bonsai-ifb";

/// What a filter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Aim {
    /// A program, and the deepest level of groups that it looks at; `None` where it looks at none.
    Program(Option<u8>),
    /// A program that says the class alone; all is sent to a block, by its number, 0 where that is
    /// gone.
    Through(u32),
    /// Without a program, all is sent to a block, by its number; 0 where that is gone.
    Block(u32),
}

/// A filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hook {
    /// A program for what comes in.
    Incoming,
    /// A program for what goes out.
    Outgoing,
    /// A plain filter for what comes in.
    Mirrored,
    /// The same, behind filters of others.
    LateIncoming,
    LateOutgoing,
    LateMirrored,
}

impl Hook {
    /// All that can hang at a place.
    pub(crate) const fn at(parent: Handle) -> &'static [Self] {
        match parent {
            Handle::OUTGOING => &[Self::Outgoing, Self::LateOutgoing],
            _ => &[
                Self::Incoming,
                Self::Mirrored,
                Self::LateIncoming,
                Self::LateMirrored,
            ],
        }
    }

    pub(crate) const fn parent(self) -> Handle {
        match self {
            Self::Incoming | Self::Mirrored | Self::LateIncoming | Self::LateMirrored => {
                Handle::INCOMING
            }
            Self::Outgoing | Self::LateOutgoing => Handle::OUTGOING,
        }
    }

    /// Its turn: a program that is there is asked first.
    pub(crate) const fn priority(self) -> u16 {
        match self {
            Self::Incoming | Self::Outgoing => FIRST,
            Self::Mirrored => FIRST + 1,
            Self::LateIncoming | Self::LateOutgoing => LATE,
            Self::LateMirrored => LATE + 1,
        }
    }

    /// The kind of its filter.
    pub(crate) const fn kind(self) -> &'static str {
        match self.is_mirrored() {
            true => "u32",
            false => "bpf",
        }
    }

    pub(crate) const fn is_mirrored(self) -> bool {
        matches!(self, Self::Mirrored | Self::LateMirrored)
    }

    /// The same with a turn behind filters of others.
    pub(crate) const fn late(self) -> Self {
        match self {
            Self::Incoming | Self::LateIncoming => Self::LateIncoming,
            Self::Outgoing | Self::LateOutgoing => Self::LateOutgoing,
            Self::Mirrored | Self::LateMirrored => Self::LateMirrored,
        }
    }

    pub(crate) fn program(self) -> Which {
        match self {
            Self::Outgoing | Self::LateOutgoing => Which::Outgoing,
            _ => Which::Incoming,
        }
    }

    /// The name of its program, which says how deep it looks at groups.
    pub(crate) fn name(self, deepest: Option<u8>) -> String {
        let name = self.program().name();
        deepest.map_or_else(|| name.to_owned(), |deepest| format!("{name}-{deepest}"))
    }

    /// What one of that kind is for whose program has that name; `None` if it is none of ours.
    pub(crate) fn aim(self, name: &str) -> Option<Aim> {
        let rest = name.strip_prefix(self.program().name())?;
        match rest.strip_prefix('-') {
            Some(deepest) => deepest.parse().ok().map(|of| Aim::Program(Some(of))),
            None => rest.is_empty().then_some(Aim::Program(None)),
        }
    }
}

/// The name of the block of a link.
pub(crate) fn block_name(plan: Plan, slot: u16) -> Cow<'static, str> {
    match plan {
        Plan::Bpf => IFB.into(),
        Plan::U32 => format!("{IFB}{slot:x}").into(),
    }
}

/// Our blocks among the links, with the slot that each is for; the one that all share has none.
pub(crate) fn blocks(links: &[Link]) -> impl Iterator<Item = (&Link, Option<u16>)> {
    links.iter().filter_map(|link| {
        let rest = link.name.strip_prefix(IFB)?;
        let is_block = link.kind.as_deref() == Some("ifb");
        let slot = match rest {
            "" => None,
            rest => Some(u16::from_str_radix(rest, 16).ok()?),
        };
        is_block.then_some((link, slot))
    })
}
