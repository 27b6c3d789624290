//! Services that are no `bonsai run`, as the daemon sees them, beside those with a ledger.

use bonsai_api::ServiceView as Seen;
use bonsai_client::Client;
use bonsai_services::observe::{
    LimitView, Mapped, Observation, Sampler, ServiceView, Waits, unix_ms,
};
use bonsai_units::{Rate, Resource};

/// Looks at them, where a daemon runs that knows of some.
#[derive(Debug)]
pub(crate) struct Outside {
    client: Option<Client>,
    /// The only one that is asked for.
    only: Option<String>,
    /// Whether that is one of these, so that none with a ledger is shown.
    is_outside: bool,
}

/// What looks at all services, or at one; with those that are no `bonsai run`.
///
/// # Errors
/// There is no such service, or nothing can be read.
pub(crate) fn samplers(service: Option<&str>) -> anyhow::Result<(Sampler, Outside)> {
    let client = super::running_soon();
    let mut outside = Outside {
        client,
        only: service.map(str::to_owned),
        is_outside: false,
    };
    let known = service.and_then(|id| outside.client.as_ref()?.service(id).ok());
    outside.is_outside = known.is_some_and(|known| known.target.is_some());
    let sampler = Sampler::new(service.filter(|_| !outside.is_outside))?;
    Ok((sampler, outside))
}

impl Outside {
    /// Adds those that are there now. A daemon that has ended has none any more.
    pub(crate) fn add(&self, observation: &mut Observation) {
        if self.is_outside {
            observation.services.clear();
        }
        let services = self
            .client
            .as_ref()
            .and_then(|client| client.services().ok());
        let services = services.into_iter().flat_map(|all| all.services);
        let wanted = |seen: &Seen| {
            let named = self.only.as_ref().is_none_or(|only| *only == seen.id);
            // A service of another user, as root's daemon names it, is shown by a line.
            let is_others = seen.id.contains(':');
            named && seen.running && (seen.target.is_some() || is_others)
        };
        let before = observation.services.len();
        observation
            .services
            .extend(services.filter(wanted).map(shown));
        if observation.services.len() > before {
            observation.services.sort_by(|a, b| a.name.cmp(&b.name));
        }
    }
}

/// One as it is shown beside those with a ledger.
fn shown(seen: Seen) -> ServiceView {
    let limits = seen.resources.iter().filter_map(|of| {
        let resource: Resource = of.resource.into();
        let asked = of.decision.max.or(of.decision.share)?;
        let milli = (asked * 1000.0).round().min(Rate::MAX_MILLI as f64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is neither negative nor beyond the largest rate"
        )]
        let rate = Rate::from_milli(milli as u64, resource.unit());
        Some(LimitView {
            name: resource.class().to_owned(),
            setting: rate.to_string(),
            unit: "bytes",
            asked,
            got: Some(of.got),
            burst: 0,
            level: 0,
            waits: Waits::default(),
            recent: Waits::default(),
            waiting_calls: Vec::new(),
            per_stream: false,
            streams: None,
            network: matches!(resource, Resource::Send | Resource::Recv),
        })
    });
    let others = seen.id.split_once(':');
    let others =
        others.map(|(user, _)| format!("of {user} (bonsai status {} shows all of it)", seen.id));
    ServiceView {
        limits: limits.collect(),
        name: seen.id,
        folder: std::path::PathBuf::new(),
        error: None,
        keeper: seen.keeper,
        created_unix_ms: match seen.created_unix_ms {
            0 => unix_ms(),
            made => made,
        },
        interval_ms: 0,
        group: None,
        waits: Waits::default(),
        longest_wait_ns: 0,
        waiting: Vec::new(),
        crowded: false,
        processes: Vec::new(),
        uncovered: Vec::new(),
        unshaped: Vec::new(),
        mapped: Mapped::default(),
        mapped_files: bonsai_services::observe::MappedFiles::default(),
        unseen: None,
        unseen_line: None,
        processes_lost: 0,
        enforced: None,
        target: seen.target.or(others),
    }
}
