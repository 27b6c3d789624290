//! Groups, and being a member of one.

use std::time::Duration;

use bonsai_services::group::Wishes;
use clap::{Args, Subcommand};

use super::look::interval;

/// What a service has of its group; for `run`, `set` and `group join`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Member {
    /// What the service always gets of what its group has, such as send=40Mbit/s.
    ///
    /// It may be repeated; NAME=none takes it back. The guarantees of all members
    /// together are at most what the group has.
    #[arg(long = "guarantee", visible_alias = "min", value_name = "NAME=RATE")]
    pub(crate) guarantees: Vec<String>,

    /// The most that the service gets with what others leave, such as send=90Mbit/s.
    ///
    /// It may be repeated; NAME=none takes it back. Without one, it gets all that the
    /// group has while nobody else wants it.
    #[arg(long = "ceiling", visible_alias = "max", value_name = "NAME=RATE")]
    pub(crate) ceilings: Vec<String>,

    /// Its part of what is left beyond the guarantees, against the weights of the
    /// others that want more, from 1 to 1000; 1 where nothing is said.
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u64>,
}

impl Member {
    /// What the options say.
    ///
    /// # Errors
    /// A refusal.
    pub(crate) fn wishes(&self) -> anyhow::Result<Wishes> {
        Wishes::parse(&self.guarantees, &self.ceilings, self.weight)
    }
}

/// Joining a group.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Joining {
    /// The group that the service draws on, beside its own limits.
    ///
    /// `bonsai group create` makes it.
    #[arg(id = "group", long = "group", value_name = "GROUP")]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) member: Member,
}

/// Make groups, whose services share a rate; change and show them.
///
/// Each service of a group has its guarantee always, and beyond that a part of what
/// the others leave, by its weight and up to its ceiling: at once, without anybody in
/// between.
#[derive(Debug, Subcommand)]
#[command(after_help = GROUP_EXAMPLES)]
pub(crate) enum GroupCommand {
    Create(GroupCreate),
    Set(GroupSet),
    Join(GroupJoin),
    Leave(GroupLeave),
    Status(GroupStatus),
    Remove(GroupRemove),
}

const GROUP_EXAMPLES: &str = "\
Examples:
  bonsai group create media --limit send=100Mbit/s
  bonsai run --group media --guarantee send=40Mbit/s --weight 3 -- nginx -c vod.conf
  bonsai run --group media --ceiling send=20Mbit/s -- rsync -a /srv/ backup:
  bonsai group join media backup --ceiling send=20Mbit/s
  bonsai group leave backup
  bonsai group status media
  bonsai group set media send=200Mbit/s
  bonsai group remove media";

/// Make a group.
#[derive(Args, Debug)]
pub(crate) struct GroupCreate {
    /// Its name: letters, digits, `.`, `_`, `-`; at most 63.
    pub(crate) group: String,

    /// What its services share, such as send=100Mbit/s; may be repeated.
    #[arg(
        long = "limit",
        short,
        required = true,
        value_name = "NAME=RATE[:burst=B]"
    )]
    pub(crate) limits: Vec<String>,

    /// Let all users of a Unix group put services into it. Only root can.
    #[arg(long, value_name = "NAME")]
    pub(crate) unix_group: Option<String>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change what a group shares.
#[derive(Args, Debug)]
pub(crate) struct GroupSet {
    /// The group.
    pub(crate) group: String,

    /// Limits as for `bonsai group create`, or NAME=unlimited. What is new holds for all
    /// services of this user, and for others that join from then on.
    #[arg(required = true, value_name = "NAME=RATE[:burst=B]")]
    pub(crate) limits: Vec<String>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Put a running service into a group.
///
/// Its calls draw on the group from then on, also those that wait for the service's own
/// limits. A service is in one group at a time.
#[derive(Args, Debug)]
pub(crate) struct GroupJoin {
    /// The group.
    pub(crate) group: String,

    /// The service.
    pub(crate) service: String,

    #[command(flatten)]
    pub(crate) member: Member,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a running service out of its group.
///
/// Calls that wait for the group go on at once; limits of the service itself stay.
#[derive(Args, Debug)]
pub(crate) struct GroupLeave {
    /// The service.
    pub(crate) service: String,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show groups and all of their members.
#[derive(Args, Debug)]
pub(crate) struct GroupStatus {
    /// Only this group.
    pub(crate) group: Option<String>,

    /// How long to measure what each member gets.
    #[arg(long, short, value_name = "TIME", default_value = "500ms", value_parser = interval)]
    pub(crate) interval: Duration,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove a group that has no members any more.
#[derive(Args, Debug)]
pub(crate) struct GroupRemove {
    /// The group.
    pub(crate) group: String,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
