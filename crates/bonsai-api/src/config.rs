//! The configuration file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::amount::{CpuQuota, CpuReserve, Percent, Share, Size, Span};
use crate::resource::Resource;

/// All of `bonsai.toml`. Each part may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// How the daemon runs. Takes effect when it is started.
    pub daemon: Daemon,
    /// What the machine has. What is not said is not shared out.
    pub capacity: Capacity,
    /// How is decided.
    pub policy: Policy,
    /// Named defaults of services.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, Class>,
    /// Services that are treated as one against the others, by name. Groups may be in groups.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, Group>,
    /// Services, by name; those of another user as `user:name`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, Service>,
    /// Interfaces, for root's daemon: by name (`vnet3`), or as `netns:NAME`, `container:NAME` and
    /// `vm:NAME`, with `/IFACE` where there is more than one. And what processes of this machine send
    /// by one: those of a systemd unit (`unit:NAME`) or of a control group of version 2
    /// (`cgroup:/PATH`), which need not be there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, Link>,
    /// What is kept of the past.
    pub history: History,
    /// Who may ask and change what.
    pub api: Api,
}

/// How the daemon runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Daemon {
    /// Time between two decisions, from `10ms` to `10s`.
    #[schema(value_type = String, format = "span", example = "100ms")]
    pub period: Span,
    /// The Unix socket. Without it: `daemon.sock` in the runtime directory.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Where history, changes and tokens are kept. Without it: `/var/lib/bonsai` for root,
    /// otherwise `$XDG_STATE_HOME/bonsai` or `~/.local/state/bonsai`.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<PathBuf>,
    /// Whether services share in a group of the ledger, where unused parts are lent within
    /// microseconds; otherwise each has a limit that is rewritten every period.
    pub pool: bool,
    /// Where the runtime directories of other users are, for root's daemon, with `{uid}` for the
    /// number of a user. Without it `/run/user/{uid}/bonsai` and `/dev/shm/bonsai-{uid}`, where
    /// its own is `/run/bonsai`; an empty list for its own services only.
    #[schema(value_type = Option<Vec<String>>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<PathBuf>>,
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            period: Span(std::time::Duration::from_millis(100)),
            socket: None,
            state: None,
            pool: true,
            users: None,
        }
    }
}

/// What the machine has of each resource, such as `1Gbit/s`, `200MB/s`, `100000/s`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Capacity {
    /// Bytes read per second.
    #[schema(value_type = Option<String>, format = "rate", example = "200MB/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Share>,
    /// Bytes written per second.
    #[schema(value_type = Option<String>, format = "rate", example = "100MB/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Share>,
    /// Bytes sent per second.
    #[schema(value_type = Option<String>, format = "rate", example = "1Gbit/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send: Option<Share>,
    /// Bytes received per second.
    #[schema(value_type = Option<String>, format = "rate", example = "1Gbit/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recv: Option<Share>,
    /// Calls per second.
    #[schema(value_type = Option<String>, format = "rate", example = "1000000/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Share>,
}

/// How is decided who gets how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// As configured, whatever is used: nothing is lent.
    Static,
    /// What a service leaves is lent to others and given back at once.
    #[default]
    Dynamic,
    /// As dynamic, with guarantees that follow what was needed in the past.
    Adaptive,
    /// As dynamic, with guarantees that follow what clients report.
    Qos,
}

/// What becomes of changes that the policy would make by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Automatic {
    /// They are shown and not made.
    #[default]
    DryRun,
    /// They are made.
    On,
}

/// What becomes of guarantees that the machine has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overcommit {
    /// The configuration is refused.
    #[default]
    Refuse,
    /// They are all made smaller by the same factor.
    Scale,
}

/// How is decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// For services and classes that say nothing else.
    pub mode: Mode,
    /// What automatic changes do.
    pub automatic: Automatic,
    /// What too many guarantees do.
    pub overcommit: Overcommit,
    /// How far above its use a service's demand is taken to be.
    #[schema(value_type = String, format = "percent", example = "10%")]
    pub headroom: Percent,
    /// Changes of a share by less than this part of it are not made.
    #[schema(value_type = String, format = "percent", example = "5%")]
    pub hysteresis: Percent,
    /// The part of the capacity that learned guarantees leave alone.
    #[schema(value_type = String, format = "percent", example = "5%")]
    pub reserve: Percent,
    /// The part of each capacity that guarantees of all services of one other user may grow by, automatically: what the user
    /// reports, and what those services demand, moves them. Required by root's daemon where `automatic` is `on` and services of
    /// users are in mode adaptive or qos.
    #[schema(value_type = Option<String>, format = "percent", example = "10%")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_max: Option<Percent>,
    /// The most that the weights of one other user's services come to, of those in the same group or in none, 1 to 1000: by that
    /// weight the user has a part of what is unused, whatever the number of services. A heavier service of theirs counts in full.
    pub owner_weight: u16,
    /// After this time what was seen counts half.
    #[schema(value_type = String, format = "span", example = "24h")]
    pub half_life: Span,
    /// The part of the time in which a learned guarantee is to suffice.
    #[schema(value_type = String, format = "percent", example = "95%")]
    pub percentile: Percent,
    /// How far above that percentile a learned guarantee is.
    #[schema(value_type = String, format = "percent", example = "15%")]
    pub margin: Percent,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            automatic: Automatic::default(),
            overcommit: Overcommit::default(),
            headroom: Percent::from_milli(10_000),
            hysteresis: Percent::from_milli(5_000),
            reserve: Percent::from_milli(5_000),
            owner_max: None,
            owner_weight: 1,
            half_life: Span(std::time::Duration::from_secs(24 * 3600)),
            percentile: Percent::from_milli(95_000),
            margin: Percent::from_milli(15_000),
        }
    }
}

/// What somebody has of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Terms {
    /// Guarantee: a rate, or a percentage of the capacity.
    #[schema(value_type = Option<String>, format = "rate", example = "40Mbit/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<Share>,
    /// Ceiling: a rate, or a percentage of the capacity.
    #[schema(value_type = Option<String>, format = "rate", example = "90%")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Share>,
    /// Weight, 1 to 1000; 1 where nothing is said.
    #[schema(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

macro_rules! with_terms {
    ($($type:ty),*) => {$(
        impl $type {
            /// What it has of a resource.
            #[must_use]
            pub const fn terms(&self, resource: Resource) -> Option<&Terms> {
                match resource {
                    Resource::Read => self.read.as_ref(),
                    Resource::Write => self.write.as_ref(),
                    Resource::Send => self.send.as_ref(),
                    Resource::Recv => self.recv.as_ref(),
                    Resource::Calls => self.calls.as_ref(),
                }
            }
        }
    )*};
}

with_terms!(Class, Group, Service);

impl Config {
    /// The class of services that name none.
    pub const DEFAULT_CLASS: &str = "default";

    /// The class of a service, whether anything is said of that service or not.
    #[must_use]
    pub fn class_of(&self, service: Option<&Service>) -> Option<&Class> {
        let named = service.and_then(|service| service.class.as_deref());
        self.classes.get(named.unwrap_or(Self::DEFAULT_CLASS))
    }
}

impl Capacity {
    /// What is said of a resource.
    #[must_use]
    pub const fn of(&self, resource: Resource) -> Option<Share> {
        match resource {
            Resource::Read => self.read,
            Resource::Write => self.write,
            Resource::Send => self.send,
            Resource::Recv => self.recv,
            Resource::Calls => self.calls,
        }
    }
}

/// What clients of a service are to see; what is not said does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Qos {
    /// The most packets lost.
    #[schema(value_type = Option<String>, format = "percent", example = "0.1%")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Percent>,
    /// The longest delay.
    #[schema(value_type = Option<String>, format = "span", example = "400ms")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// The most jitter (RFC 3550).
    #[schema(value_type = Option<String>, format = "span", example = "50ms")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
    /// The most stalls in one report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalls: Option<u32>,
    /// The resource whose guarantee is raised for it; `send` where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<Resource>,
}

/// Defaults for services that name it. The class `default` is that of services which name none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Class {
    /// How is decided for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The group of its services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Of bytes read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Terms>,
    /// Of bytes written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Terms>,
    /// Of bytes sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send: Option<Terms>,
    /// Of bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recv: Option<Terms>,
    /// Of calls made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Terms>,
    /// What their clients are to see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<Qos>,
}

/// Services that are treated as one against the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Group {
    /// The group it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Of bytes read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Terms>,
    /// Of bytes written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Terms>,
    /// Of bytes sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send: Option<Terms>,
    /// Of bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recv: Option<Terms>,
    /// Of calls made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Terms>,
}

/// One service. It need not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Service {
    /// Its class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// How is decided for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Of bytes read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Terms>,
    /// Of bytes written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Terms>,
    /// Of bytes sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send: Option<Terms>,
    /// Of bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recv: Option<Terms>,
    /// Of calls made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Terms>,
    /// Further limits, as for `bonsai run --limit`: `"send/stream" = "2Mbit/s"`. Those on the
    /// resources themselves are written as `max`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
    /// What its clients are to see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<Qos>,
    /// What it is, if it is no `bonsai run`: `container:NAME`, `vm:NAME` or `netns:NAME`, with
    /// `/IFACE` where there is more than one interface, an interface (`vnet3`), `unit:NAME` or
    /// `cgroup:PATH`. For root's daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The interface by which what it sends leaves: guarantee, ceiling and weight of `send` hold
    /// there, in the kernel. It has a `tx` of its own in `[links]`. With a target only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<String>,
    /// What it has of the CPUs. With a target only: a `bonsai run` is given it by `--cpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Whether nobody but users who own it has named it. Not written: the daemon knows who did.
    #[serde(skip)]
    pub by_owner: bool,
}

/// What a service has of the CPUs, as `bonsai cpu set` takes it; what is not said stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cpu {
    /// Against the weights of its siblings, 1 to 10000; 100 is what everybody has.
    #[schema(minimum = 1, maximum = 10_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// The most it uses: percent of one CPU, or a time per period.
    #[schema(value_type = Option<String>, example = "150%")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<CpuQuota>,
    /// What each of its threads always gets, by the deadline scheduler.
    #[schema(value_type = Option<String>, example = "1.9ms/10ms")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve: Option<CpuReserve>,
}

/// What an interface may send and receive. It need not be there. Rates are counted at layer 2, with
/// the heads of packets; what is not said is not limited. Of a unit or a control group, it is what its
/// processes send by their uplink: those that have made the socket there. While the daemon does not
/// run, whatever starts beside them is held by the strictest of their limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Link {
    /// The most that it sends; for a unit or a control group, by its uplink.
    #[schema(value_type = Option<String>, format = "rate", example = "20Mbit/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx: Option<Share>,
    /// The most that it receives; not for units and control groups.
    #[schema(value_type = Option<String>, format = "rate", example = "50Mbit/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx: Option<Share>,
    /// What it has of its uplink whenever it wants it.
    #[schema(value_type = Option<String>, format = "rate", example = "10Mbit/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Share>,
    /// The most that it has of its uplink.
    #[schema(value_type = Option<String>, format = "rate", example = "40Mbit/s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Share>,
    /// How what is left of its uplink is shared out, 1 to 1000; 1 where nothing is said.
    #[schema(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// The interface by which it leaves, which has a `tx` of its own; without it, where its bridge
    /// or the default route leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<String>,
    /// For how long a limit may be exceeded, from `1ms` to `1s`; where nothing is said `10ms`, and `2ms`
    /// of one that borrows: whose ceiling is above its guarantee.
    #[schema(value_type = Option<String>, format = "span", example = "2ms")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Span>,
    /// Whether it takes the place of a queueing discipline that somebody else made, which is back
    /// once there is no limit any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adopt: bool,
}

/// What is kept of the past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct History {
    /// Whether anything is.
    pub keep: bool,
    /// The most bytes that it takes on disk, from `8MiB`.
    #[schema(value_type = String, format = "size", example = "512MB")]
    pub size: Size,
    /// The most bytes of who changed what, from `256KiB`.
    #[schema(value_type = String, format = "size", example = "32MB")]
    pub audit_size: Size,
}

impl Default for History {
    fn default() -> Self {
        Self {
            keep: true,
            size: Size(bonsai_units::Bytes(512_000_000)),
            audit_size: Size(bonsai_units::Bytes(32_000_000)),
        }
    }
}

/// Who may ask and change what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Api {
    /// Address and port of the interface over TCP, such as `127.0.0.1:7117`; none without it.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Certificate and key, without which only addresses of this machine may be listened on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Names under which the interface may be asked over TCP at this machine's own address, beside that and `localhost`:
    /// those of a proxy. Whatever port they have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The Unix group whose users see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_group: Option<String>,
    /// The Unix group whose users change everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_group: Option<String>,
    /// Requests per second and client, from 1; a second's worth may come at once.
    #[schema(minimum = 1, maximum = 100_000)]
    pub requests: u32,
    /// The most bytes of a request's body, from `1KiB` to `16MiB`.
    #[schema(value_type = String, format = "size", example = "64KiB")]
    pub body: Size,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            listen: None,
            tls: None,
            hosts: Vec::new(),
            read_group: None,
            write_group: None,
            requests: 1000,
            body: Size(bonsai_units::Bytes(65_536)),
        }
    }
}

/// What makes connections private.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tls {
    /// File of the certificate and its chain, PEM.
    #[schema(value_type = String)]
    pub certificate: PathBuf,
    /// File of its key, PEM, readable by nobody else.
    #[schema(value_type = String)]
    pub key: PathBuf,
}

/// What the bearer of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenScope {
    /// Look.
    Read,
    /// Look and change.
    Write,
}

/// A token, as it is listed. Nobody has the token itself but its bearer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Name of the token; `page:` and the beginning of its hash for the token of a page.
    pub name: String,
    /// User that a page belongs to; absent for a token that was made by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_of: Option<String>,
    /// What its bearer may do.
    pub scope: TokenScope,
    /// When it was made, ms since 1970.
    pub created_unix_ms: u64,
    /// When it ends, ms since 1970; `null` for never.
    pub until_unix_ms: Option<u64>,
    /// True once it has ended: then it is refused, and forgotten when another one is made.
    #[serde(default)]
    pub expired: bool,
}
