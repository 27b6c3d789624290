//! Filters and blocks: where packets find their class, and what they go through.

use std::borrow::Cow;

use crate::bpf::Which;
use crate::links::Link;
use crate::plan::Plan;
use crate::tc::Handle;

/// The turn of our programs; plain filters come behind them.
const PRIORITY: u16 = 0xb05a;

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
}

impl Hook {
    pub(crate) fn parent(self) -> Handle {
        match self {
            Self::Incoming | Self::Mirrored => Handle::INCOMING,
            Self::Outgoing => Handle::OUTGOING,
        }
    }

    /// Its turn: a program that is there is asked first.
    pub(crate) const fn priority(self) -> u16 {
        match self {
            Self::Incoming | Self::Outgoing => PRIORITY,
            Self::Mirrored => PRIORITY + 1,
        }
    }

    pub(crate) fn program(self) -> Which {
        match self {
            Self::Incoming | Self::Mirrored => Which::Incoming,
            Self::Outgoing => Which::Outgoing,
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
