//! A house with a shaper at its uplink, and traffic of its tenants.

use std::time::Duration;

use super::counted::Counted;
use crate::context::Context;
use crate::net::packet::udp_frame;
use crate::net::rooms::{House, UPLINK, Wire};
use crate::net::shaper::{self, Change, Limits, Make, Plan, Shaper, Target};
use crate::net::traffic::{Listen, Outcome, SendSpec, Traffic, sleep_until};
use crate::service::monotonic_ns;

/// Something that is asked to send more than it may is asked for so much of it, percent.
const OVER: u64 = 120;

/// A house with a shaper.
pub(super) struct Stage {
    pub(super) house: House,
    pub(super) shaper: Box<dyn Shaper>,
    pub(super) plan: Plan,
}

/// Whose traffic, and what.
pub(super) type Part = (u8, SendSpec);

/// All shapers that can run here; the others are skipped, with the reason.
///
/// # Errors
/// The record cannot be written.
pub(super) fn shapers(context: &mut Context) -> anyhow::Result<Vec<Make>> {
    let mut makes = Vec::new();
    for made in shaper::all() {
        match made {
            Ok(make) => makes.push(make),
            Err(why) => context.skip("a shaper", why)?,
        }
    }
    Ok(makes)
}

/// A plan for the uplink: each tenant's packets by their address.
pub(super) fn plan(total: u64, limits: &[Limits]) -> Plan {
    let targets = limits.iter().zip(0_u8..).map(|(limits, tenant)| Target {
        from: Some(House::address(tenant)),
        limits: *limits,
    });
    Plan {
        device: UPLINK.to_owned(),
        total: Some(total),
        targets: targets.collect(),
    }
}

/// One queue of a rate for all.
pub(super) fn one_queue(total: u64) -> Plan {
    Plan::one(UPLINK, total)
}

/// Datagrams, more of them than a rate of layer 2 lets through.
pub(super) fn too_much(rate: u64, length: Duration) -> SendSpec {
    let mut spec = SendSpec::udp(Some(rate * OVER / 100), length);
    spec.segments = segments(rate);
    spec
}

/// So many datagrams go in one call: a tenth of a millisecond's worth.
fn segments(rate: u64) -> u16 {
    let packets = rate / 10_000 / udp_frame(1_400);
    u16::try_from(packets).unwrap_or(u16::MAX).clamp(1, 32)
}

impl Stage {
    /// Makes it, with a tenant for each target of the plan, and at least so many.
    ///
    /// # Errors
    /// No right to make rooms, or the shaper refuses.
    pub(super) fn new(make: Make, tenants: u8, plan: Plan) -> anyhow::Result<Self> {
        let house = House::new(tenants, Wire::default())?;
        let mut shaper = make();
        shaper.apply(&house.host, &plan)?;
        Ok(Self {
            house,
            shaper,
            plan,
        })
    }

    /// Starts traffic from tenants to the outside.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(&self, parts: &[Part], listen: Listen) -> anyhow::Result<Vec<Traffic>> {
        let start = |(tenant, spec): &Part| {
            let from = &self.house.tenants[usize::from(*tenant)];
            Traffic::start(from, self.house.outside(), spec, listen)
        };
        parts.iter().map(start).collect()
    }

    /// Gives targets other limits.
    ///
    /// # Errors
    /// The shaper cannot.
    pub(super) fn change(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        self.shaper.change(&self.house.host, changes)
    }

    /// Bytes let out for all targets together.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn let_out(&self) -> anyhow::Result<Option<u64>> {
        let mut sum = 0;
        for target in 0..self.plan.targets.len() {
            match self.shaper.let_out(&self.house.host, target)? {
                Some(bytes) => sum += bytes,
                None => return Ok(None),
            }
        }
        Ok(Some(sum))
    }

    /// Reads that each `step` until an instant; empty where nobody counts.
    ///
    /// # Errors
    /// As [`Stage::let_out`], or a signal came.
    pub(super) fn watch(
        &self,
        context: &Context,
        until_ns: u64,
        step: Duration,
    ) -> anyhow::Result<Counted> {
        let step = u64::try_from(step.as_nanos())?;
        let mut counted = Counted::default();
        loop {
            context.check()?;
            let before = monotonic_ns();
            let Some(bytes) = self.let_out()? else {
                return Ok(counted);
            };
            let now = monotonic_ns();
            counted.0.push((before.midpoint(now), bytes));
            if before + step > until_ns {
                return Ok(counted);
            }
            sleep_until(before + step);
        }
    }
}

/// Lets a while pass, unless a signal comes.
///
/// # Errors
/// It came.
pub(super) fn pass(context: &Context, length: Duration) -> anyhow::Result<()> {
    let end = monotonic_ns() + u64::try_from(length.as_nanos())?;
    while monotonic_ns() < end {
        context.check()?;
        sleep_until(end.min(monotonic_ns() + 50_000_000));
    }
    Ok(())
}

/// Waits until all have ended by themselves.
///
/// # Errors
/// One has failed, or a signal came.
pub(super) fn finish(context: &Context, traffic: Vec<Traffic>) -> anyhow::Result<Vec<Outcome>> {
    while traffic.iter().any(Traffic::is_sending) {
        context.check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    traffic.into_iter().map(Traffic::wait).collect()
}

/// Ends all.
///
/// # Errors
/// One has failed.
pub(super) fn stop(traffic: Vec<Traffic>) -> anyhow::Result<Vec<Outcome>> {
    traffic.iter().for_each(Traffic::ask_to_end);
    traffic.into_iter().map(Traffic::wait).collect()
}
