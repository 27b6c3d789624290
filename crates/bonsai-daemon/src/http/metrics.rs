//! Metrics for Prometheus, made of the latest picture, in the text format that is asked for ([`crate::exposition`]).
//!
//! Names end with their unit, counters with `_total`. Rates of bytes and of calls are metrics of
//! their own, since they cannot be added up.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bonsai_api::{LinkState, LinkView, Links};
use bonsai_policy::Grant;
use bonsai_units::text::escaped;
use bonsai_units::{Resource, Unit};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::App;
use super::body::{Failure, aside};
use crate::exposition::accepted;
use crate::links::{Kept, Orders};
use crate::picture::{Picture, per_s};
use crate::problems::unavailable;
use crate::who::Who;

type Value = Gauge<f64, AtomicU64>;
type Sum = Counter<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name(Arc<str>);

impl EncodeLabelValue for Name {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(&escaped(&self.0))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    service: Name,
    resource: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct All {
    resource: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Link {
    target: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Direction {
    target: Name,
    direction: &'static str,
}

/// The same of bytes and of calls: the resource `calls` has no label of its own kind.
struct Pair<L> {
    bytes: Family<L, Value>,
    calls: Family<L, Value>,
}

impl<L: Clone + std::hash::Hash + Eq + EncodeLabelSet + std::fmt::Debug + Send + Sync + 'static>
    Pair<L>
{
    fn new(registry: &mut Registry, name: &str, help: &str) -> Self {
        let pair = Self {
            bytes: Family::default(),
            calls: Family::default(),
        };
        for (unit, family) in [("bytes", &pair.bytes), ("calls", &pair.calls)] {
            let name = format!("{name}_{unit}_per_second");
            registry.register(name, format!("{help}, {unit} per second"), family.clone());
        }
        pair
    }

    fn set(&self, resource: Resource, labels: &L, value: f64) {
        let family = match resource.unit() {
            Unit::Bytes => &self.bytes,
            Unit::Calls => &self.calls,
        };
        family.get_or_create(labels).set(value);
    }
}

/// What is, for whoever scrapes: of the services that they may see.
pub(super) async fn metrics(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let picture = Arc::clone(&app.published.pictures.borrow());
    let kept = app.links.as_ref().map(Orders::kept);
    // Where nothing is limited, nothing is looked at.
    let is_limited = !picture.config.links.is_empty();
    let seen = match app.links.as_ref().filter(|_| who.reads_all) {
        Some(orders) if is_limited => app.samples.lately(orders).await,
        _ => Some(Arc::default()),
    };
    let looks = app.samples.looks();
    let text = aside(move || {
        let of_links = kept.as_deref().map(|kept| OfLinks {
            kept,
            seen: seen.as_deref(),
            looks,
        });
        written(&picture, of_links, &who)
    });
    let text = text.await?;
    let text = text.map_err(|error| unavailable(error.to_string()))?;
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let (kind, text) = accepted(accept, text);
    let head = [(header::CONTENT_TYPE, kind), (header::VARY, "accept")];
    Ok((head, text).into_response())
}

/// All that there is to say of interfaces.
struct OfLinks<'a> {
    kept: &'a Kept,
    /// Nothing, if they could not be seen.
    seen: Option<&'a Links>,
    looks: u64,
}

fn written(
    picture: &Picture,
    of_links: Option<OfLinks<'_>>,
    who: &Who,
) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("bonsai");
    services(&mut registry, picture, who);
    if who.reads_all {
        daemon(&mut registry, picture);
    }
    if let Some(of) = of_links.filter(|_| who.reads_all) {
        links(&mut registry, picture, of.kept);
        scraped(&mut registry, &of);
        if let Some(seen) = of.seen {
            moved(&mut registry, seen);
        }
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn services(registry: &mut Registry, picture: &Picture, who: &Who) {
    let got = Pair::new(
        registry,
        "service_got",
        "What a service got in the last period",
    );
    let guarantee = Pair::new(
        registry,
        "service_guarantee",
        "What a service gets whatever others do",
    );
    let share = Pair::new(registry, "service_share", "What a service would get now");
    let ceiling = Pair::new(registry, "service_ceiling", "The most that a service gets");
    let borrowed = Pair::new(
        registry,
        "service_borrowed",
        "What a service got beyond its guarantee",
    );
    let [moved, calls, waits, waited]: [Family<Of, Sum>; 4] = Default::default();
    for (name, help, family) in [
        (
            "service_bytes",
            "Bytes moved since the service was made",
            &moved,
        ),
        (
            "service_calls",
            "Calls made since the service was made",
            &calls,
        ),
        (
            "service_waits",
            "Waits imposed since the service was made",
            &waits,
        ),
        (
            "service_waited_seconds",
            "Time waited since the service was made, over all threads",
            &waited,
        ),
    ] {
        registry.register(name, help, family.clone());
    }
    let visible = |id: &Arc<str>| picture.identities.get(id).is_some_and(|i| who.sees(i.uid));
    let all = picture
        .allocation
        .services
        .iter()
        .zip(&picture.seen)
        .zip(&picture.done);
    for ((decided, seen), done) in all.filter(|((decided, _), _)| visible(&decided.name)) {
        for resource in Resource::ALL {
            let at = resource.index();
            let of = Of {
                service: Name(Arc::clone(&decided.name)),
                resource: resource.name(),
            };
            let (usage, done, grant): (_, _, &Grant) =
                (seen.usage[at], done[at], &decided.grants[at]);
            got.set(resource, &of, per_s(usage.used));
            guarantee.set(resource, &of, per_s(grant.guarantee));
            if let Some(rate) = grant.given() {
                share.set(resource, &of, per_s(rate));
            }
            if let Some(rate) = grant.ceiling {
                ceiling.set(resource, &of, per_s(rate));
            }
            borrowed.set(resource, &of, per_s(usage.borrowed.unwrap_or_default()));
            let total = match resource.unit() {
                Unit::Bytes => &moved,
                Unit::Calls => &calls,
            };
            total.get_or_create(&of).inc_by(done.units as f64);
            waits.get_or_create(&of).inc_by(done.waits as f64);
            waited
                .get_or_create(&of)
                .inc_by(done.waited_ns as f64 / 1e9);
        }
    }
}

/// Says that interfaces could be seen, or not: one part that fails is left out, and takes no other with it.
fn scraped(registry: &mut Registry, of: &OfLinks<'_>) {
    let ok = Value::default();
    let is_whole = of.seen.is_some_and(|seen| seen.problems.is_empty());
    ok.set(f64::from(u8::from(is_whole)));
    let help = "Whether all interfaces could be seen at the last look: 1 or 0";
    registry.register("links_scrape_ok", help, ok);
    let looks = Sum::default();
    looks.inc_by(of.looks as f64);
    let help = "Looks at interfaces for scrapes, which make none themselves";
    registry.register("links_looks", help, looks);
}

/// What moves through interfaces that are limited, as the kernel counts it there.
fn moved(registry: &mut Registry, seen: &Links) {
    let rates = Family::<Direction, Value>::default();
    let name = "link_moved_bytes_per_second";
    let help = "What a limited interface itself sends and receives, bytes per second";
    registry.register(name, help, rates.clone());
    let backlog = Family::<Link, Value>::default();
    let help = "What waits for the limits of an interface, bytes";
    registry.register("link_backlog_bytes", help, backlog.clone());
    let drops = Family::<Link, Sum>::default();
    let help = "Packets that the limits of an interface have dropped since they were made";
    registry.register("link_dropped_packets", help, drops.clone());
    let limited = |link: &&LinkView| link.by.is_some();
    for link in seen.links.iter().filter(limited) {
        let target = Name(link.target.as_deref().unwrap_or(&link.name).into());
        for (direction, rate) in [("tx", link.tx), ("rx", link.rx)] {
            let of = Direction {
                target: target.clone(),
                direction,
            };
            rates.get_or_create(&of).set(rate);
        }
        let of = Link { target };
        backlog.get_or_create(&of).set(link.backlog as f64);
        drops.get_or_create(&of).inc_by(link.drops as f64);
    }
}

/// What interfaces are limited to, and whether that is in force.
fn links(registry: &mut Registry, picture: &Picture, kept: &Kept) {
    let limit = Family::<Direction, Value>::default();
    registry.register(
        "link_limit_bytes_per_second",
        "The most that an interface is configured to send or receive, bytes per second",
        limit.clone(),
    );
    let in_force = Family::<Link, Value>::default();
    registry.register(
        "link_in_force",
        "Whether the kernel does what is configured of an interface: 1 or 0",
        in_force.clone(),
    );
    // What is configured has been checked.
    let wishes = bonsai_tenants::wishes(&picture.config.links).unwrap_or_default();
    for (name, wish) in &wishes {
        let target = Name(name.as_str().into());
        for (direction, rate) in [("tx", wish.tx), ("rx", wish.rx)] {
            if let Some(rate) = rate {
                let of = Direction {
                    target: target.clone(),
                    direction,
                };
                limit.get_or_create(&of).set(rate as f64);
            }
        }
        let state = kept.granted.get(name).map(|granted| granted.state);
        let done = f64::from(u8::from(state == Some(LinkState::InForce)));
        in_force.get_or_create(&Link { target }).set(done);
    }
    let repairs = Sum::default();
    repairs.inc_by(kept.repairs as f64);
    registry.register(
        "link_repairs",
        "How often what somebody else had changed at interfaces was put right",
        repairs,
    );
}

fn daemon(registry: &mut Registry, picture: &Picture) {
    let capacity = Pair::new(registry, "capacity", "What the machine has");
    for resource in Resource::ALL {
        if let Some(rate) = picture.planned.capacity[resource.index()] {
            let of = All {
                resource: resource.name(),
            };
            capacity.set(resource, &of, per_s(rate));
        }
    }
    let build = Family::<Build, Value>::default();
    let version = env!("CARGO_PKG_VERSION");
    build.get_or_create(&Build { version }).set(1.0);
    registry.register("build_info", "Version of the daemon; always 1", build);
    let health = &picture.health;
    let seconds = |ns: u64| ns as f64 / 1e9;
    for (name, help, value) in [
        (
            "services",
            "Services that run",
            picture.identities.len() as f64,
        ),
        (
            "config_revision",
            "The state of what is configured",
            picture.revision as f64,
        ),
        (
            "problems",
            "What is not as it should be",
            health.problems.len() as f64,
        ),
        (
            "decision_seconds",
            "How long the last decision took",
            seconds(health.decision_ns),
        ),
        (
            "period_work_seconds",
            "How long the last period's work took",
            seconds(health.work_ns),
        ),
        (
            "history_keeping",
            "Whether what happens is kept: 1 or 0",
            f64::from(u8::from(health.history.keeping)),
        ),
        (
            "history_bytes",
            "Bytes of the history on disk",
            health.history.bytes as f64,
        ),
    ] {
        let gauge = Value::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
    for (name, help, value) in [
        (
            "periods",
            "Periods since the daemon was started",
            health.periods,
        ),
        (
            "written_limits",
            "Changes of limits and terms that were written",
            health.written,
        ),
        (
            "history_dropped_points",
            "Points that could not be kept",
            health.history.dropped,
        ),
    ] {
        let counter = Sum::default();
        counter.inc_by(value as f64);
        registry.register(name, help, counter);
    }
}
