//! Bonsai's own: `bonsai-link`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Mutex;

use anyhow::Context as _;
use bonsai_link::{Link, Share, Site, Terms, Wanted};

use super::rooms::{House, Room};
use super::shaper::{Change, Limits, OURS, Plan, Shaper};

/// A namespace, and what is wanted of it.
#[derive(Debug)]
struct Live {
    site: Mutex<Site>,
    /// The interface that is shaped.
    device: u32,
    plan: Plan,
    /// Interfaces of targets, in the order of the plan; `None` for all else.
    ports: Vec<Option<u32>>,
    /// Where a class of a target is counted, by its number.
    classes: Vec<u16>,
    wanted: Wanted,
}

/// What everybody without a share is in.
const OTHERS: u16 = 2;

/// `bonsai-link`.
#[derive(Debug, Default)]
pub(crate) struct Ours {
    live: Option<Live>,
}

impl Ours {
    fn live(&self) -> anyhow::Result<&Live> {
        self.live.as_ref().context("nothing is shaped yet")
    }
}

/// What is wanted for a plan.
fn wanted(device: u32, plan: &Plan, ports: &[Option<u32>]) -> anyhow::Result<Wanted> {
    let total = plan.total;
    let alone = || plan.targets.first().map(|target| target.limits.ceiling);
    let tx = total.or_else(alone);
    let line = Terms {
        tx,
        ..Terms::default()
    };
    let mut links = BTreeMap::from([(device, line)]);
    for (target, port) in plan.targets.iter().zip(ports) {
        let Some(port) = port else {
            continue;
        };
        let Limits {
            guarantee,
            ceiling,
            weight,
        } = target.limits;
        let share = Share {
            uplink: device,
            guarantee: Some(guarantee).filter(|rate| *rate > 0),
            ceiling: Some(ceiling).filter(|rate| Some(*rate) != tx),
            weight: u16::try_from(weight)?,
        };
        let share = Some(share);
        links.insert(
            *port,
            Terms {
                share,
                ..Terms::default()
            },
        );
    }
    Ok(Wanted {
        links,
        ..Wanted::default()
    })
}

/// The interface behind which an address is.
fn port(links: &[Link], from: Ipv4Addr) -> anyhow::Result<u32> {
    let name = House::port(from.octets()[3]);
    Ok(bonsai_link::named(links, &name)?.index)
}

impl Shaper for Ours {
    fn name(&self) -> &'static str {
        OURS
    }

    fn apply(&mut self, host: &Room, plan: &Plan) -> anyhow::Result<()> {
        let mut site = Site::open(Some(host.namespace()))?;
        let links = site.links()?;
        let device = bonsai_link::named(&links, &plan.device)?.index;
        let froms = plan.targets.iter().map(|target| target.from);
        let ports = froms.map(|from| from.map(|from| port(&links, from)).transpose());
        let ports = ports.collect::<anyhow::Result<Vec<_>>>()?;
        let wanted = wanted(device, plan, &ports)?;
        site.apply(&wanted, &[])?;
        let slots = site.see()?.slots();
        let class = |port: &Option<u32>| match port {
            None => Some(OTHERS),
            Some(port) => slots.get(port).copied(),
        };
        let classes = ports.iter().map(class).collect::<Option<_>>();
        self.live = Some(Live {
            site: Mutex::new(site),
            device,
            plan: plan.clone(),
            ports,
            classes: classes.context("a target has no class")?,
            wanted,
        });
        Ok(())
    }

    fn change(&mut self, _host: &Room, changes: &[Change]) -> anyhow::Result<()> {
        let live = self.live.as_mut().context("nothing is shaped yet")?;
        for (target, limits) in changes {
            live.plan.targets[*target].limits = *limits;
        }
        live.wanted = wanted(live.device, &live.plan, &live.ports)?;
        let site = live.site.get_mut().unwrap_or_else(|site| site.into_inner());
        site.apply(&live.wanted, &[])?;
        Ok(())
    }

    fn let_out(&self, _host: &Room, target: usize) -> anyhow::Result<Option<u64>> {
        let live = self.live()?;
        let minor = live.classes[target];
        let mut found = None;
        let mut site = live.site.lock().unwrap_or_else(|site| site.into_inner());
        site.classes(live.device, |class| match class {
            None => found = None,
            Some(class) if class.handle.minor() == minor => found = Some(class.counters.bytes),
            Some(_) => {}
        })?;
        Ok(found)
    }
}
