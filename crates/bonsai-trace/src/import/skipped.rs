//! Lines that hold no request, counted by reason: an import never passes over anything without saying so.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// Why a line holds no request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// Nothing stands in it.
    Blank,
    /// A comment.
    Comment,
    /// Names of columns, or the version of the format.
    Heading,
    /// A summary behind the events, as blkparse(1) prints it.
    Summary,
    /// What the recording tool says of itself.
    Tool,
    /// Another event than the one that is imported.
    OtherEvent,
    /// An event, or a command to a device, that has no blocks.
    NoBlocks,
    /// A file that is added, opened or closed, in fio's iolog.
    FileAction,
    /// A wait.
    Wait,
    /// A wait that fio(1) itself ignores: in version 3, or without a third value.
    IgnoredWait,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Blank,
        Self::Comment,
        Self::Heading,
        Self::Summary,
        Self::Tool,
        Self::OtherEvent,
        Self::NoBlocks,
        Self::FileAction,
        Self::Wait,
        Self::IgnoredWait,
    ];

    /// The name in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Blank => "blank",
            Self::Comment => "comment",
            Self::Heading => "heading",
            Self::Summary => "summary",
            Self::Tool => "tool",
            Self::OtherEvent => "other_event",
            Self::NoBlocks => "no_blocks",
            Self::FileAction => "file_action",
            Self::Wait => "wait",
            Self::IgnoredWait => "ignored_wait",
        }
    }

    /// One such line, and several.
    pub const fn words(self) -> [&'static str; 2] {
        match self {
            Self::Blank => ["blank line", "blank lines"],
            Self::Comment => ["comment", "comments"],
            Self::Heading => ["heading", "headings"],
            Self::Summary => ["line of a summary", "lines of summaries"],
            Self::Tool => [
                "line about the recording tool",
                "lines about the recording tool",
            ],
            Self::OtherEvent => ["other event", "other events"],
            Self::NoBlocks => ["request without blocks", "requests without blocks"],
            Self::FileAction => ["add, open or close", "adds, opens and closes"],
            Self::Wait => ["wait", "waits"],
            Self::IgnoredWait => ["wait that fio ignores, too", "waits that fio ignores, too"],
        }
    }
}

/// How many lines hold no request, by reason.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Skipped([u64; Reason::ALL.len()]);

impl Skipped {
    pub(super) fn add(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    /// Lines that were skipped for a reason.
    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// All lines that were skipped.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL
            .into_iter()
            .map(|reason| (reason, self.of(reason)))
            .filter(|(_, lines)| *lines > 0)
    }
}

impl Serialize for Skipped {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (reason, lines) in self.iter() {
            map.serialize_entry(reason.key(), &lines)?;
        }
        map.end()
    }
}
