//! Interfaces: seen, limited, given free.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use bonsai_api::{Changed, Link, LinkChanged, LinkState, LinkView, Links, Problem};
use bonsai_tenants::{Standing, Target, standing};
use serde_json::{Value, json};

use super::App;
use super::body::{Failure, IfMatch, Json, Params, Part, Revised, aside};
use super::routes::How;
use crate::links::{Kept, Orders};
use crate::patch::merge;
use bonsai_units::text::escaped;

use crate::problems::{bad_input, forbidden, problem, unavailable};
use crate::ring::{Ask, may_write};
use crate::who::Who;

type Answer<T> = Result<Revised<T>, Failure>;

/// All interfaces of the machine, and those that limits wait for: whose they are, what moves through
/// them, what they are limited to, and whether that is in force.
#[utoipa::path(
    get, path = "/v1/links", tag = "state",
    responses(
        (status = 200, description = "They.", body = Links),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn links(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
) -> Answer<Links> {
    let links = seen(&app, &who).await?;
    Ok(Revised(links.revision, links))
}

/// One of them.
#[utoipa::path(
    get, path = "/v1/links/{target}", tag = "state",
    params(("target" = String, Path, description = "An interface, or netns:NAME, container:NAME, vm:NAME, with /IFACE; or unit:NAME, cgroup:/PATH.")),
    responses(
        (status = 200, description = "It.", body = LinkView),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn link(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Part(target): Part,
) -> Answer<LinkView> {
    let target = named(&target)?;
    let links = seen(&app, &who).await?;
    let is_it = |link: &&LinkView| link.target.as_deref() == Some(target.as_str());
    let link = links.links.iter().find(is_it);
    let missing = || match &*links.problems {
        [] => unknown(&target),
        // The interface may be one of those.
        problems => unavailable(problems.join("; ")),
    };
    let link = link.ok_or_else(missing)?.clone();
    Ok(Revised(links.revision, link))
}

/// Changes what an interface may send and receive by a JSON merge patch (RFC 7396):
/// `{"tx": "20Mbit/s"}`; `null` removes. What is not said stays, also what was limited by hand. The
/// answer says whether the kernel does it now; an interface that is not there gets its limit when it
/// comes.
#[utoipa::path(
    patch, path = "/v1/links/{target}", tag = "change",
    params(
        ("target" = String, Path, description = "An interface, or netns:NAME, container:NAME, vm:NAME, with /IFACE; or unit:NAME, cgroup:/PATH."), How,
        ("If-Match" = Option<String>, Header, description = "The revision that the change is made for, as in ETag.")
    ),
    request_body(content = Link, description = "What is to be different.", content_type = "application/merge-patch+json"),
    responses(
        (status = 200, description = "What is different now, and whether it is in force.", body = LinkChanged),
        (status = "4XX", description = "Why not. Nothing was changed.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn change_link(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Part(target): Part,
    Params(how): Params<How>,
    revision: IfMatch,
    Json(patch): Json<Value>,
) -> Answer<LinkChanged> {
    may_write(&who)?;
    let target = named(&target)?;
    if !patch.is_object() {
        let text = "a change is a JSON object with what is to be different (RFC 7396)";
        return Err(bad_input(text).into());
    }
    let orders = keeper(&app)?;
    let patch = if is_configured(&app, &target) {
        // One that says nothing any more is none.
        match is_emptied(&app, &target, &patch) {
            true => Value::Null,
            false => patch,
        }
    } else {
        // What was said by hand is not lost with the first word that is configured.
        let (folder, of) = (Arc::clone(&orders.folder), target.clone());
        let stands = aside(move || standing(&folder, &of)).await?;
        match stands.map_err(|error| unavailable(error.sentence()))? {
            Standing::Free => patch,
            Standing::Hand(by_hand) => {
                let mut document = json!(by_hand);
                merge(&mut document, &patch);
                document
            }
            Standing::Of(other) => {
                let text = format!("{target} is limited as {other}: change that one");
                return Err(problem(409, "same-interface", "The same interface", text).into());
            }
        }
    };
    change(&app, who, target, patch, how, revision).await
}

/// Takes the limits of an interface away: exactly what was there before is back.
#[utoipa::path(
    delete, path = "/v1/links/{target}", tag = "change",
    params(
        ("target" = String, Path, description = "An interface, or netns:NAME, container:NAME, vm:NAME, with /IFACE; or unit:NAME, cgroup:/PATH."), How,
        ("If-Match" = Option<String>, Header, description = "The revision that the change is made for, as in ETag.")
    ),
    responses(
        (status = 200, description = "What is different now, and whether it is in force.", body = LinkChanged),
        (status = "4XX", description = "Why not. Nothing was changed.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn clear_link(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Part(target): Part,
    Params(how): Params<How>,
    revision: IfMatch,
) -> Answer<LinkChanged> {
    may_write(&who)?;
    let target = named(&target)?;
    keeper(&app)?;
    if !is_configured(&app, &target) {
        return Err(unknown(&target).into());
    }
    change(&app, who, target, Value::Null, how, revision).await
}

/// Makes a change by what is configured, and waits for its effect.
async fn change(
    app: &App,
    who: Who,
    target: String,
    patch: Value,
    how: How,
    revision: IfMatch,
) -> Answer<LinkChanged> {
    let orders = keeper(app)?;
    let wish = how.wish(None, json!({"links": {target.as_str(): patch}}), revision);
    let changed = app.change(who, |reply| Ask::Change(wish, reply)).await?;
    let kept = match changed.dry_run {
        true => orders.kept(),
        false => orders.settled(changed.revision).await,
    };
    Ok(Revised(changed.revision, became(&kept, target, changed)))
}

/// What has become of a change.
fn became(kept: &Kept, target: String, changed: Changed) -> LinkChanged {
    let settled = !changed.dry_run && kept.revision >= changed.revision;
    let granted = kept.granted.get(&target).cloned().unwrap_or_default();
    let done = match granted.state {
        LinkState::InForce => true,
        // Nothing is wanted: what was there is gone, unless that could not be done.
        LinkState::Free => kept.failures.is_empty(),
        LinkState::Waiting | LinkState::Problem => false,
    };
    let why = match settled {
        false if changed.dry_run => None,
        false => Some("it has not taken effect within a second, and may still do".to_owned()),
        true if done => None,
        true => granted.why.or_else(|| Some(kept.failures.join("; "))),
    };
    LinkChanged {
        target,
        in_force: settled && done,
        state: granted.state,
        why,
        changed,
    }
}

/// A target in its one form.
fn named(target: &str) -> Result<String, Problem> {
    let target: Result<Target, String> = target.parse();
    target.map(|target| target.to_string()).map_err(bad_input)
}

fn unknown(target: &str) -> Problem {
    let detail = format!(
        "{target} has no configured limit, and no interface of that name is shown: GET /v1/links \
         lists them, and bonsai link clear takes away what was limited by hand"
    );
    problem(404, "unknown-link", "No such interface", detail)
}

fn is_configured(app: &App, target: &str) -> bool {
    let picture = app.published.pictures.borrow();
    picture.config.links.contains_key(target)
}

/// Whether nothing is left of what is configured after a patch.
fn is_emptied(app: &App, target: &str, patch: &Value) -> bool {
    let picture = app.published.pictures.borrow();
    let mut document = json!(picture.config.links.get(target));
    merge(&mut document, patch);
    document == json!({})
}

/// Whoever keeps interfaces.
fn keeper(app: &App) -> Result<&Orders, Problem> {
    app.links.as_ref().ok_or_else(|| {
        let uid = rustix::process::geteuid().as_raw();
        let text = format!("interfaces are for root's daemon, and this one is of user {uid}");
        problem(409, "not-roots", "Not root's daemon", text)
    })
}

/// The interfaces of now, for a client that may see them. Those that cannot be seen are said.
async fn seen(app: &App, who: &Who) -> Result<Links, Problem> {
    if !who.reads_all {
        return Err(forbidden("interfaces are for those who see all services"));
    }
    let orders = keeper(app)?;
    let mut links = app.samples.now(orders).await?;
    let picture = Arc::clone(&app.published.pictures.borrow());
    links.revision = picture.revision;
    complete(&mut links, &picture.config.links, &orders.kept());
    Ok(links)
}

/// Adds what is configured, and what has become of it.
fn complete(links: &mut Links, configured: &std::collections::BTreeMap<String, Link>, kept: &Kept) {
    let mut shown = BTreeSet::new();
    for link in &mut links.links {
        let Some(target) = &link.target else {
            continue;
        };
        // Whoever keeps them knows best: the book may be a second behind what moves.
        if let Some(granted) = kept.granted.get(target) {
            link.state = granted.state;
            link.problem = granted.why.as_deref().map(plain);
        }
        let Some(settings) = configured.get(target) else {
            continue;
        };
        shown.insert(target.clone());
        link.settings = Some(settings.clone());
    }
    // Those without an interface that is limited for them.
    for (target, settings) in configured.iter().filter(|(of, _)| !shown.contains(*of)) {
        let granted = kept.granted.get(target).cloned().unwrap_or_default();
        links.links.push(LinkView {
            target: Some(target.clone()),
            name: target.clone(),
            state: granted.state,
            settings: Some(settings.clone()),
            problem: granted.why.as_deref().map(plain),
            ..LinkView::default()
        });
    }
}

/// A reason that names what others named, safe to show.
fn plain(text: &str) -> String {
    escaped(text).into_owned()
}
