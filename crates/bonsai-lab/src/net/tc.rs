//! HTB by `tc`, as an expert sets it up: the peer.
//!
//! Its rules were measured: the quantum holds a whole GSO packet times the weight, or weights do not
//! hold for TCP; the burst is 1 ms, and 256 KiB from 1 Gbit/s on, or rates above it are not reached; a
//! leaf has room for two GSO packets at least, or slow congestion controls lose everything.

use std::process::Command;

use super::rooms::Room;
use super::shaper::{Change, Limits, Plan, Shaper};

/// Bytes of the largest packet that the kernel hands down whole, with its headers (64 KiB).
const WHOLE: u64 = 65_536;
const MTU: u64 = 1_514;
/// HTB quanta above this are refused with a warning (`net/sched/sch_htb.c`).
const MOST_QUANTUM: u64 = 200_000;
/// Above all targets.
const ROOT: u16 = 1;
const FIRST: u16 = 0x10;

/// HTB by `tc`.
#[derive(Debug, Default)]
pub(crate) struct Tc {
    plan: Option<Plan>,
}

impl Tc {
    fn plan(&self) -> anyhow::Result<&Plan> {
        let plan = self.plan.as_ref();
        plan.ok_or_else(|| anyhow::anyhow!("nothing is shaped yet"))
    }

    fn minor(target: usize) -> u16 {
        u16::try_from(target).map_or(u16::MAX, |i| FIRST.saturating_add(i))
    }

    fn parent(plan: &Plan) -> String {
        plan.total
            .map_or("1:".to_owned(), |_| format!("1:{ROOT:x}"))
    }
}

/// Bytes that a class may send at once.
fn burst(rate: u64) -> u64 {
    let least = if rate >= 125_000_000 { 256 << 10 } else { MTU };
    (rate / 1_000).max(least)
}

/// What a class of these limits is told.
fn class(limits: Limits, unit: u64) -> String {
    let Limits {
        guarantee,
        ceiling,
        weight,
    } = limits;
    let quantum = (unit * u64::from(weight)).clamp(MTU, MOST_QUANTUM);
    format!(
        "htb rate {}bit ceil {}bit burst {} cburst {} quantum {quantum}",
        guarantee * 8,
        ceiling * 8,
        burst(guarantee),
        burst(ceiling)
    )
}

/// Bytes that may wait: 10 ms, and two whole packets at least.
fn leaf(limits: Limits) -> u64 {
    (limits.ceiling / 100).max(2 * (WHOLE + MTU))
}

/// The quantum of weight one: whole packets where the largest weight leaves room for that.
fn unit(plan: &Plan) -> u64 {
    let weights = plan.targets.iter().map(|target| target.limits.weight);
    let most = weights.max().unwrap_or(1).max(1);
    WHOLE.min(MOST_QUANTUM / u64::from(most))
}

/// The commands that shape an interface.
fn commands(plan: &Plan) -> Vec<String> {
    let device = &plan.device;
    let default = plan.targets.iter().position(|target| target.from.is_none());
    let default = default.map_or(0, Tc::minor);
    let mut lines = vec![format!(
        "qdisc add dev {device} root handle 1: htb default {default:x}"
    )];
    if let Some(total) = plan.total {
        let limits = class(Limits::exactly(total), WHOLE);
        lines.push(format!(
            "class add dev {device} parent 1: classid 1:{ROOT:x} {limits}"
        ));
    }
    for (i, target) in plan.targets.iter().enumerate() {
        let minor = Tc::minor(i);
        let limits = class(target.limits, unit(plan));
        let parent = Tc::parent(plan);
        lines.push(format!(
            "class add dev {device} parent {parent} classid 1:{minor:x} {limits}"
        ));
        lines.push(format!(
            "qdisc add dev {device} parent 1:{minor:x} handle {minor:x}: bfifo limit {}",
            leaf(target.limits)
        ));
        if let Some(from) = target.from {
            lines.push(format!(
                "filter add dev {device} parent 1: protocol ip prio 1 u32 match ip src {from}/32 flowid 1:{minor:x}"
            ));
        }
    }
    lines
}

/// Runs one `tc` for all these.
fn run(host: &Room, lines: &[String]) -> anyhow::Result<()> {
    let input = lines.join("\n") + "\n";
    host.run(Command::new("tc").args(["-batch", "-"]), &input)?;
    Ok(())
}

impl Shaper for Tc {
    fn name(&self) -> &'static str {
        "tc (HTB)"
    }

    fn apply(&mut self, host: &Room, plan: &Plan) -> anyhow::Result<()> {
        run(host, &commands(plan))?;
        self.plan = Some(plan.clone());
        Ok(())
    }

    fn change(&mut self, host: &Room, changes: &[Change]) -> anyhow::Result<()> {
        let plan = self.plan()?;
        let line = |(target, limits): &Change| {
            format!(
                "class change dev {} parent {} classid 1:{:x} {}",
                plan.device,
                Self::parent(plan),
                Self::minor(*target),
                class(*limits, unit(plan))
            )
        };
        run(host, &changes.iter().map(line).collect::<Vec<_>>())
    }

    fn let_out(&self, host: &Room, target: usize) -> anyhow::Result<Option<u64>> {
        let classes = host.classes(&self.plan()?.device)?;
        let minor = Self::minor(target);
        let found = classes.iter().find(|class| class.minor == minor);
        Ok(found.map(|class| class.bytes))
    }
}

/// HTB by `tc`, where each change takes everything down and makes it anew: what tools do that were
/// written for machines that are about to start.
#[derive(Debug, Default)]
pub(crate) struct Careless(Tc);

impl Careless {
    /// Its name.
    pub(crate) const NAME: &'static str = "tc, delete and add";
}

impl Shaper for Careless {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn apply(&mut self, host: &Room, plan: &Plan) -> anyhow::Result<()> {
        self.0.apply(host, plan)
    }

    fn change(&mut self, host: &Room, changes: &[Change]) -> anyhow::Result<()> {
        let mut plan = self.0.plan()?.clone();
        for (target, limits) in changes {
            let place = plan.targets.get_mut(*target);
            place
                .ok_or_else(|| anyhow::anyhow!("there is no target {target}"))?
                .limits = *limits;
        }
        run(host, &[format!("qdisc del dev {} root", plan.device)])?;
        self.0.apply(host, &plan)
    }

    fn let_out(&self, host: &Room, target: usize) -> anyhow::Result<Option<u64>> {
        self.0.let_out(host, target)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shaper::Target;
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_rules_hold_for_what_tc_is_told() {
        let target = |weight, from| Target {
            from,
            limits: Limits {
                guarantee: 1_250_000,
                ceiling: 12_500_000,
                weight,
            },
        };
        let plan = Plan {
            device: "up0".to_owned(),
            total: Some(12_500_000),
            targets: vec![target(1, Some(Ipv4Addr::new(10, 0, 0, 1))), target(2, None)],
        };
        let lines = commands(&plan);
        for expected in [
            "qdisc add dev up0 root handle 1: htb default 11",
            "class add dev up0 parent 1: classid 1:1 htb rate 100000000bit ceil 100000000bit burst 12500 cburst 12500 quantum 65536",
            "class add dev up0 parent 1:1 classid 1:11 htb rate 10000000bit ceil 100000000bit burst 1514 cburst 12500 quantum 131072",
            "filter add dev up0 parent 1: protocol ip prio 1 u32 match ip src 10.0.0.1/32 flowid 1:10",
        ] {
            assert!(
                lines.iter().any(|line| line == expected),
                "{expected}: {lines:#?}"
            );
        }
        // Ten times the weight is ten times the quantum, however small it has to be for that.
        let mut steep = plan;
        steep.targets[1].limits.weight = 10;
        let unit = unit(&steep);
        assert!(unit * 10 <= MOST_QUANTUM && unit > MTU, "{unit}");
        assert_eq!(burst(625_000_000), 625_000);
        assert_eq!(burst(125_000_000), 256 << 10);
    }
}
