//! HTB by `tc`, as an expert sets it up: the peer.
//!
//! Its rules were measured: the quantum holds a whole GSO packet times the weight, or weights do not
//! hold for TCP; the burst is 1 ms and a packet, and 256 KiB from 1 Gbit/s on, or what late timers miss
//! is lost; who may borrow can burst for as long as a turn of the others takes, or its ceiling is out of
//! reach; a leaf has room for two GSO packets at least, or slow congestion controls lose everything.

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

/// Bytes that a class may send at once: a packet, and what a timer that is 1 ms late has missed.
fn burst(rate: u64) -> u64 {
    let least = if rate >= 125_000_000 { 256 << 10 } else { 0 };
    (rate / 1_000 + MTU).max(least)
}

/// What a class of these limits is told.
fn class(limits: Limits, unit: u64) -> String {
    let Limits {
        guarantee,
        ceiling,
        weight,
    } = limits;
    let quantum = (unit * u64::from(weight)).clamp(MTU, MOST_QUANTUM);
    // Whoever borrows waits for the turns of the others. With less than such a turn it would never come up
    // to its ceiling: 14 of 20 Mbit/s were measured.
    let turn = if guarantee < ceiling { WHOLE } else { 0 };
    format!(
        "htb rate {}bit ceil {}bit burst {} cburst {} quantum {quantum}",
        guarantee * 8,
        ceiling * 8,
        burst(guarantee),
        burst(ceiling).max(turn)
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
    use super::super::rooms::{House, Pair, UPLINK, Wire, tests::made};
    use super::super::shaper::Target;
    use super::super::traffic::{Listen, SendSpec, Traffic};
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

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
            "class add dev up0 parent 1: classid 1:1 htb rate 100000000bit ceil 100000000bit burst 14014 cburst 14014 quantum 65536",
            "class add dev up0 parent 1:1 classid 1:11 htb rate 10000000bit ceil 100000000bit burst 2764 cburst 65536 quantum 131072",
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
        assert_eq!(burst(625_000_000), 626_514);
        assert_eq!(burst(125_000_000), 256 << 10);
    }
    /// Rooms and a shaper in force, or `None` with the reason printed.
    fn shaped<T>(
        test: &str,
        rooms: anyhow::Result<T>,
        host: fn(&T) -> &Room,
        plan: &Plan,
    ) -> Option<(T, Tc)> {
        let rooms = made(test, rooms)?;
        let mut tc = Tc::default();
        made(test, tc.apply(host(&rooms), plan))?;
        Some((rooms, tc))
    }

    #[test]
    fn a_rate_is_never_exceeded_and_what_is_let_out_is_counted() {
        const TEST: &str = "a_rate_is_never_exceeded_and_what_is_let_out_is_counted";
        const RATE: u64 = 1_250_000;
        let pair = Pair::new(Wire::default());
        let plan = Plan::one("eth0", RATE);
        let Some((pair, tc)) = shaped(TEST, pair, |pair| &pair.client, &plan) else {
            return;
        };
        let mut spec = SendSpec::udp(None, Duration::from_millis(400));
        spec.queue = Some(32 << 10);
        let traffic = Traffic::start(&pair.client, pair.server(), &spec, Listen::default());
        let outcome = traffic.expect("started").wait().expect("an outcome");
        let total = outcome.received.total();
        assert_eq!((outcome.lost(), total.reordered), (0, 0), "{outcome:?}");
        let series = &outcome.received.series;
        let seconds = series.bins.len() as f64 * series.bin_ns as f64 / 1e9;
        // At the beginning the burst, and a packet that may be owed.
        let most = RATE as f64 * seconds + (burst(RATE) + MTU) as f64;
        assert!(total.layer2 as f64 <= most, "{} of {most}", total.layer2);
        let counted = tc.let_out(&pair.client, 0).expect("read").expect("counted");
        assert!(
            (total.layer2..total.layer2 + 500).contains(&counted),
            "{counted}"
        );
    }

    #[test]
    fn tenants_are_told_apart_and_changed_one_by_one() {
        const TEST: &str = "tenants_are_told_apart_and_changed_one_by_one";
        let limits = Limits::exactly(1_250_000);
        let targets = [0, 1].map(|tenant| Target {
            from: Some(House::address(tenant)),
            limits,
        });
        let plan = Plan {
            device: UPLINK.to_owned(),
            total: Some(12_500_000),
            targets: targets.to_vec(),
        };
        let house = House::new(2, Wire::default());
        let Some((house, mut tc)) = shaped(TEST, house, |house| &house.host, &plan) else {
            return;
        };
        let send = || {
            let spec = SendSpec::udp(Some(500_000), Duration::from_millis(100));
            let listen = Listen::default();
            let traffic = Traffic::start(&house.tenants[1], house.outside(), &spec, listen);
            traffic.expect("started").wait().expect("an outcome")
        };
        let read = |tc: &Tc, i| tc.let_out(&house.host, i).expect("read").expect("counted");
        let first = send();
        assert_eq!(first.lost(), 0);
        assert_eq!((read(&tc, 0), read(&tc, 1)), (0, first.sent.layer2));
        let change = (1, Limits::exactly(2_500_000));
        tc.change(&house.host, &[change]).expect("changed");
        let shown = house.host.run(
            Command::new("tc").args(["class", "show", "dev", UPLINK]),
            "",
        );
        let shown = shown.expect("shown");
        let of_1 = shown
            .lines()
            .find(|line| line.contains("htb 1:11"))
            .expect("it is there");
        assert!(of_1.contains("rate 20Mbit ceil 20Mbit"), "{shown}");
        let second = send();
        assert_eq!(second.lost(), 0);
        assert_eq!(
            read(&tc, 1),
            first.sent.layer2 + second.sent.layer2,
            "nothing began anew"
        );
        tc.change(&house.host, &[(7, change.1)])
            .expect_err("there is no such class");
        Careless(tc)
            .change(&house.host, &[change])
            .expect("changed");
        let anew = house.host.classes(UPLINK).expect("read");
        assert_eq!(
            anew.iter()
                .find(|class| class.minor == 0x11)
                .map(|class| class.bytes),
            Some(0)
        );
    }
}
