//! Exports of block servers, as they are told.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use bonsai_api::{
    Export, ExportCache, ExportGroup, ExportSharing, Exports, NotRedirected, Problem,
};
use bonsai_nbd::control::{ExportStatus, SharingStatus};
use bonsai_nbd::sharing::GroupShares;
use bonsai_services::harmless;
use bonsai_services::observe::unix_ms;

use super::App;
use super::body::Failure;
use crate::drives::{Server, User};
use crate::who::Who;

/// All exports of block servers that whoever asks may see: what was asked of them, what they share and why not more,
/// and what each two of a group have in common. A server that does not answer is named.
#[utoipa::path(
    get, path = "/v1/exports", tag = "state",
    responses(
        (status = 200, description = "They.", body = Exports),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn exports(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
) -> Result<Json<Exports>, Failure> {
    let users = app.drives.ask().await;
    let mut all = Exports {
        unix_ms: unix_ms(),
        ..Exports::default()
    };
    for user in users.iter().filter(|user| who.sees(user.uid)) {
        if user.is_stuck {
            all.problems.push(format!(
                "block servers of {} are not seen: something of theirs keeps whoever asks waiting",
                named(user)
            ));
        }
        for server in &user.servers {
            add(&mut all, user, server);
        }
    }
    Ok(Json(all))
}

fn named(user: &User) -> String {
    let label = user.label.clone();
    label.unwrap_or_else(|| format!("user {}", user.uid))
}

fn add(all: &mut Exports, user: &User, server: &Server) {
    let Some(status) = &server.status else {
        let text = format!(
            "the block server {} of {} does not answer",
            server.pid,
            named(user)
        );
        all.problems.push(text);
        return;
    };
    let exports = status.exports.iter();
    all.exports
        .extend(exports.map(|of| export(user, server, of)));
    if let Some(shares) = &server.shares {
        let groups = shares.groups.iter();
        all.groups.extend(groups.map(|of| ExportGroup {
            server: server.pid,
            uid: user.uid,
            age_ms: shares.age_ms,
            ..group(of)
        }));
    }
}

/// What a server said, whose words may be anything.
fn export(user: &User, server: &Server, of: &ExportStatus) -> Export {
    let service = of.service.as_ref().map(|name| match &user.label {
        Some(label) => format!("{label}:{}", harmless(name)),
        None => harmless(name),
    });
    Export {
        name: harmless(&of.name),
        service,
        server: server.pid,
        uid: user.uid,
        image: harmless(&of.image),
        size: of.size,
        read_only: of.read_only,
        connections: of.connections,
        reads: of.reads,
        read_bytes: of.read_bytes,
        at_once: of.at_once,
        writes: of.writes,
        written_bytes: of.written_bytes,
        flushes: of.flushes,
        refused: of.refused,
        failed: of.failed,
        sharing: of.sharing.as_ref().map(sharing),
        charged: format!(
            "reads to this export, as they were asked for; memory of the page cache to process {}",
            server.pid
        ),
        wrong: of.wrong.as_deref().map(harmless),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn sharing(of: &SharingStatus) -> ExportSharing {
    ExportSharing {
        group: harmless(&of.group),
        reads_saved: of.reads_saved,
        redirected_bytes: of.redirected_bytes,
        zero_bytes: of.zero_bytes,
        not_redirected: NotRedirected {
            not_known: of.not_known,
            leads: of.leads,
            cold: of.cold,
            split: of.split,
            raced: of.raced,
            wrong: of.wrong,
        },
        not_learned: of.not_learned,
        outside_writes: of.outside_writes,
        known_blocks: of.known_blocks,
        contents: of.contents,
        dedup_factor: (of.contents > 0).then(|| of.known_blocks as f64 / of.contents as f64),
        metadata_bytes: of.metadata_bytes,
        metadata_limit: of.metadata_limit,
    }
}

fn group(of: &GroupShares) -> ExportGroup {
    ExportGroup {
        group: harmless(&of.group),
        exports: of.exports.iter().map(|name| harmless(name)).collect(),
        known_blocks: of.known_blocks.clone(),
        contents: of.contents,
        shared_blocks: of.shared_blocks.clone(),
        one_in: of.one_in,
        cache: of.cache.as_ref().map(|cache| ExportCache {
            resident_blocks: cache.resident_blocks,
            contents: cache.contents,
            dedup_factor: cache.dedup_factor,
            error: cache.error,
            sampled: cache.sampled,
            one_in: cache.one_in,
        }),
        ..ExportGroup::default()
    }
}
