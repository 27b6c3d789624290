//! What is written and read from outside: the configuration file `bonsai.toml`, and what the
//! daemon's REST interface takes and gives.
//!
//! One struct is file, schema and client type: [`Config`] is read from TOML, changed through the
//! interface by JSON merge patches (RFC 7396) on its JSON form, and described in OpenAPI.
//!
//! # Words
//! | word | means |
//! |---|---|
//! | `min` | what a service gets whatever the others do: its guarantee |
//! | `max` | the most that it gets: its ceiling |
//! | `weight` | its part of what is left beyond the guarantees, against those who want more |
//!
//! # Units
//! What is written has its unit in the text (`40Mbit/s`, `90%` of the capacity, `10min`, `64KiB`).
//! Numbers in answers are bytes/s or calls/s, and times are ms since 1970 or ns where the name says
//! so; `null` is what is not known or does not exist.
#![forbid(unsafe_code)]

mod amount;
mod change;
mod client_qos;
mod config;
mod export;
mod history;
mod link;
mod probe;
mod problem;
mod resource;
mod view;

pub use amount::{AmountError, CpuQuota, CpuReserve, Percent, Share, Size, Span};
pub use change::{AuditEntry, AuditPage, Changed, Difference, Revision, Undo, Undone};
pub use client_qos::{Admission, AdmitRequest, Give, QosReport, QosView};
pub use config::{
    Api, Automatic, Capacity, Class, Config, Cpu, Daemon, Group, History, Link, Mode, Overcommit,
    Policy, Qos, Service, Terms, Tls, Token, TokenScope,
};
pub use export::{Export, ExportCache, ExportGroup, ExportSharing, Exports, NotRedirected};
pub use history::{Known, Point, Series};
pub use link::{LinkBy, LinkChanged, LinkShare, LinkState, LinkView, Links};
pub use probe::{ProbeRequest, Probed};
pub use problem::Problem;
pub use resource::Resource;
pub use view::{
    Decision, Enforced, GroupView, LimitInForce, LimitOwner, Proposal, ServiceView, Services,
    Status, StoreState, Use,
};

/// The version of the interface: the first part of each path, and of what changes together.
pub const VERSION: &str = "v1";
