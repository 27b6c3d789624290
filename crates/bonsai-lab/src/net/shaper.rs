//! Whatever holds rates at interfaces: what it is told, and what it is asked.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::ours::Ours;
use super::rooms::Room;
use super::tc::Tc;

/// What somebody may have. Rates are bytes of layer 2 a second.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Limits {
    /// What it gets whenever it wants it.
    pub(crate) guarantee: u64,
    /// What it never exceeds.
    pub(crate) ceiling: u64,
    /// Its part of what is left, against the others.
    pub(crate) weight: u32,
}

impl Limits {
    /// A fixed rate.
    pub(crate) const fn exactly(rate: u64) -> Self {
        Self {
            guarantee: rate,
            ceiling: rate,
            weight: 1,
        }
    }
}

/// Somebody who is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Whose packets: by their source. `None`: all that are nobody else's.
    pub(crate) from: Option<Ipv4Addr>,
    /// What it may have.
    pub(crate) limits: Limits,
}

/// What is to hold at an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The interface; what leaves there is shaped.
    pub(crate) device: String,
    /// Of all together, bytes of layer 2 a second; `None`: nothing but the targets' own.
    pub(crate) total: Option<u64>,
    /// Who.
    pub(crate) targets: Vec<Target>,
}

impl Plan {
    /// One rate for everything.
    pub(crate) fn one(device: &str, rate: u64) -> Self {
        Self {
            device: device.to_owned(),
            total: None,
            targets: vec![Target {
                from: None,
                limits: Limits::exactly(rate),
            }],
        }
    }
}

/// A target, by its place in the plan, and what it may have from now on.
pub(crate) type Change = (usize, Limits);

/// Something that holds rates.
pub(crate) trait Shaper {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Shapes an interface of a room that has not been shaped.
    ///
    /// # Errors
    /// It cannot.
    fn apply(&mut self, host: &Room, plan: &Plan) -> anyhow::Result<()>;

    /// Changes what targets of the plan may have, as nearly at once as it can and in this order. When this
    /// has returned, the kernel has them.
    ///
    /// # Errors
    /// It cannot.
    fn change(&mut self, host: &Room, changes: &[Change]) -> anyhow::Result<()>;

    /// Bytes of layer 2 that the interface has let out for a target; `None` where nothing counts them.
    ///
    /// # Errors
    /// They cannot be read.
    fn let_out(&self, host: &Room, target: usize) -> anyhow::Result<Option<u64>>;
}

/// What Bonsai's own is called. Promises are only of it; the others are peers to compare with.
pub(crate) const OURS: &str = "bonsai-link";

/// Whether a shaper of that name is Bonsai's own.
pub(crate) fn is_ours(name: &str) -> bool {
    name == OURS
}

/// Makes a shaper anew for each measurement.
pub(crate) type Make = fn() -> Box<dyn Shaper>;

/// All that are compared; those that cannot run here are left out, with the reason.
pub(crate) fn all() -> Vec<Result<Make, String>> {
    let tc: Result<Make, String> = if crate::child::is_installed("tc") {
        Ok(|| Box::new(Tc::default()))
    } else {
        Err("tc (iproute2) is not installed".to_owned())
    };
    vec![Ok(|| Box::new(Ours::default())), tc]
}
