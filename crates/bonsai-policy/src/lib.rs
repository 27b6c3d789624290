//! Who gets how much: what services of a machine have of each resource, period by period.
//!
//! | type | is |
//! |---|---|
//! | [`Config`] | what a person wants: capacities, groups, classes, services |
//! | [`Observation`] | what was seen in a period |
//! | [`Policy`] | decides: [`Policy::decide`] |
//! | [`Allocation`] | who gets what, and why |
//!
//! Nothing here reads a clock or a file: time, usage and reports are arguments, so that a week
//! takes seconds in a test. Rates are thousandths of a unit per second
//! ([`bonsai_units::Rate::milli`]), parts are thousandths, and all arithmetic of shares is exact
//! on integers.
//!
//! ```
//! use bonsai_policy::{Config, Observation, Policy, Seen, Service, Terms, Usage};
//! use bonsai_units::{Rate, Resource};
//!
//! let send = Resource::Send.index();
//! let mbit = |n: u64| Rate::bytes_per_sec(n * 125_000).milli();
//! let mut config = Config::default();
//! config.capacity[send] = Some(mbit(100));
//! let mut vod = Service::named("vod");
//! vod.terms[send] = Terms { min: Some(mbit(40)), ..Terms::default() };
//! config.services.push(vod);
//! let mut policy = Policy::new(config).expect("a good configuration");
//!
//! let seen = |name: &str, used, wanted_more| {
//!     let mut usage = [Usage::default(); Resource::COUNT];
//!     usage[send] = Usage { used: mbit(used), wanted_more, borrowed: None, bound: None };
//!     Seen { name: name.into(), usage }
//! };
//! let observation = Observation {
//!     services: vec![seen("vod", 24, false), seen("backup", 70, true)],
//!     ..Observation::default()
//! };
//! let allocation = policy.decide(&observation);
//! let [vod, backup] = &allocation.services[..] else { panic!() };
//! assert_eq!(backup.grants[send].share, Some(mbit(70)));
//! assert_eq!(
//!     vod.grants[send].reason().to_string(),
//!     "guarantee 40 Mbit/s, 10 Mbit/s of it lent: demand was 30 Mbit/s"
//! );
//! ```
#![forbid(unsafe_code)]

mod adaptive;
mod admission;
mod allocation;
mod automatic;
mod cause;
mod check;
mod config;
mod fill;
mod histogram;
mod history;
mod limits;
mod memory;
mod observation;
mod plan;
mod policy;
mod qos;
mod share;
mod tree;
mod weights;

pub use admission::{Admission, Giver, Gives, Request, RequestError};
pub use allocation::{Allocated, Allocation, Change, Grant, Reason, Why};
pub use cause::{Cause, CauseKind, Metric};
pub use check::Problem;
pub use config::{
    Adaptive, Automatic, Class, Config, Group, MAX_WEIGHT, Mode, Name, Overcommit, PerResource,
    Qos, Service, Target, Terms, is_same,
};
pub use memory::{Entry, Memory, ResourceMemory, ServiceMemory};
pub use observation::{ClientReport, Observation, Seen, Usage};
pub use policy::Policy;
