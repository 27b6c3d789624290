//! Tokens: what is shown over TCP. 256 random bits; only their SHA-256 is kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use bonsai_api::{Problem, Span, Token, TokenScope};
use bonsai_services::refusal::before_start;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::App;
use super::body::{Failure, Json, Part, aside};
use super::pages::{self, Pages};
use super::places::administers;
use crate::problems::{bad_input, forbidden, problem};
use crate::state_file;
use crate::who::Who;
use bonsai_services::observe::unix_ms;

/// Tokens at a time; the page's own do not count.
pub(super) const MOST_TOKENS: usize = 1000;

/// Whoever has the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bearer {
    /// In words.
    pub(crate) name: String,
    /// What they may do.
    pub(crate) scope: TokenScope,
    /// Whose page it is; `None` for everybody's.
    pub(crate) uid: Option<u32>,
    /// Its user's group.
    #[serde(default = "nobodys")]
    pub(super) gid: u32,
    /// Whether they see what belongs to others.
    pub(crate) all: bool,
    pub(super) created_unix_ms: u64,
    until_unix_ms: Option<u64>,
}

/// The form of [`Kept`].
const VERSION: u32 = 1;

/// The file of them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    /// By the hash of the token.
    tokens: BTreeMap<String, Bearer>,
}

/// The number that no group has.
fn nobodys() -> u32 {
    u32::MAX
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Tokens {
    path: PathBuf,
    /// By the hash of the token, in hexadecimal digits.
    known: Mutex<BTreeMap<String, Bearer>>,
    /// Held while a change is written.
    changing: Mutex<()>,
    /// Those of pages.
    pub(crate) pages: Pages,
}

impl Bearer {
    /// Whether it has not ended at a time, ms since 1970.
    pub(super) fn holds(&self, now: u64) -> bool {
        self.until_unix_ms.is_none_or(|until| now < until)
    }
}

/// What is kept of a token.
pub(super) fn hash(token: &str) -> String {
    let digest = Sha256::digest(token.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random() -> Result<String, Problem> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        problem(
            503,
            "unavailable",
            "Not available now",
            format!("no random numbers: {error}"),
        )
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Tokens {
    /// Those that are kept in a folder; none if it has none.
    ///
    /// # Errors
    /// The file cannot be read, or is of a newer version.
    pub(crate) fn open(state: &Path) -> anyhow::Result<Self> {
        let path = state.join("tokens.json");
        let text = state_file::read(&path)
            .with_context(|| format!("{}: cannot be read", path.display()))
            .map_err(before_start)?;
        let known = text.map_or_else(|| Ok(BTreeMap::new()), |text| kept(&path, &text))?;
        Ok(Self {
            path,
            known: Mutex::new(known),
            changing: Mutex::new(()),
            pages: Pages::open(state.join("pages.json"))?,
        })
    }

    /// Who has a token. It is looked up by its hash, so that the time this takes tells nothing of
    /// others.
    pub(super) fn bearer(&self, hash: &str) -> Option<Bearer> {
        let now = unix_ms();
        let found = self.known().get(hash).cloned();
        found
            .or_else(|| self.pages.get(hash))
            .filter(|bearer| bearer.holds(now))
    }

    /// A token for a page of somebody, for as long as said.
    pub(super) fn for_page(&self, who: &Who, gid: u32, lasts_ms: u64) -> Result<String, Problem> {
        let token = random()?;
        let now = unix_ms();
        let bearer = Bearer {
            name: who.name.clone(),
            scope: if who.writes_all {
                TokenScope::Write
            } else {
                TokenScope::Read
            },
            uid: who.uid,
            gid,
            all: who.reads_all,
            created_unix_ms: now,
            until_unix_ms: Some(now + lasts_ms),
        };
        self.pages.insert(hash(&token), bearer);
        Ok(token)
    }

    /// Changes those that are kept: all, or none if they cannot be written. This waits for the disk; requests with a token
    /// meanwhile do not.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, Bearer>) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = self.known().clone();
        let done = change(&mut changed)?;
        let kept = Kept {
            version: VERSION,
            tokens: changed,
        };
        state_file::replace(&self.path, &kept).map_err(|error| {
            let text = format!("{}: cannot be written: {error}", self.path.display());
            problem(507, "not-kept", "Cannot be kept", text)
        })?;
        *self.known() = kept.tokens;
        Ok(done)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Bearer>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tokens of a file.
fn kept(path: &Path, text: &[u8]) -> anyhow::Result<BTreeMap<String, Bearer>> {
    let damaged = || {
        format!(
            "{}: is damaged: remove it, and make tokens anew",
            path.display()
        )
    };
    let all: serde_json::Value = serde_json::from_slice(text).with_context(damaged)?;
    // The first form had no version, and hashes beside each other.
    let Some(version) = all.get("version") else {
        return serde_json::from_value(all).with_context(damaged);
    };
    state_file::check_version(path, version.as_u64(), VERSION.into())?;
    let kept: Kept = serde_json::from_value(all).with_context(damaged)?;
    Ok(kept.tokens)
}

/// A token that is wished for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wished {
    /// What it is called: letters, digits, `.`, `_`, `-`.
    #[schema(min_length = 1, max_length = 63)]
    name: String,
    /// What its bearer may do.
    scope: TokenScope,
    /// How long it holds; for good without it.
    #[serde(rename = "for")]
    #[schema(value_type = Option<String>, format = "span", example = "720h")]
    lasts: Option<Span>,
}

/// A token that was made. It is shown this once.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Made {
    /// The token.
    token: String,
    /// What it is called.
    name: String,
    /// When it ends, ms since 1970.
    until_unix_ms: Option<u64>,
}

/// Tokens are given by whoever administers the machine, and is at it: they go on when a user is no
/// more in the group that may write.
fn may(who: &Who) -> Result<(), Problem> {
    if who.uid.is_some_and(administers) && who.via == "socket" {
        return Ok(());
    }
    Err(forbidden(
        "tokens are given over the daemon's Unix socket, by root or its own user",
    ))
}

/// The tokens there are, those of open pages included.
#[utoipa::path(
    get, path = "/v1/tokens", tag = "access",
    responses(
        (status = 200, description = "They.", body = [Token]),
        (status = 403, description = "Not over the Unix socket, or not allowed.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
) -> Result<axum::Json<Vec<Token>>, Failure> {
    may(&who)?;
    let known = app.tokens.known();
    let now = unix_ms();
    let listed = |name: String, page_of: Option<String>, bearer: &Bearer| Token {
        name,
        page_of,
        scope: bearer.scope,
        created_unix_ms: bearer.created_unix_ms,
        until_unix_ms: bearer.until_unix_ms,
        expired: !bearer.holds(now),
    };
    let tokens = known.values().map(|bearer| {
        let name = bearer.name.trim_start_matches("token ").to_owned();
        listed(name, None, bearer)
    });
    let pages = app.tokens.pages.list().into_iter();
    let pages = pages.map(|(name, page)| listed(name, Some(page.name.clone()), &page));
    Ok(axum::Json(tokens.chain(pages).collect()))
}

/// Makes a token.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "access",
    request_body = Wished,
    responses(
        (status = 201, description = "It. It is not shown again.", body = Made),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 507, description = "It cannot be kept.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Json(wished): Json<Wished>,
) -> Result<(StatusCode, axum::Json<Made>), Failure> {
    may(&who)?;
    bonsai_services::service::check_name(&wished.name).map_err(|error| {
        bad_input(
            error
                .to_string()
                .replace("the name of a service", "the name of a token"),
        )
    })?;
    let now = unix_ms();
    let lasts = wished
        .lasts
        .map(|span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX));
    let token = random()?;
    let bearer = Bearer {
        name: format!("token {}", wished.name),
        scope: wished.scope,
        uid: None,
        gid: nobodys(),
        all: true,
        created_unix_ms: now,
        until_unix_ms: lasts.map(|ms| now.saturating_add(ms)),
    };
    let until_unix_ms = bearer.until_unix_ms;
    let (name, key) = (wished.name.clone(), hash(&token));
    let change = move |known: &mut BTreeMap<String, Bearer>| {
        known.retain(|_, old| old.holds(now));
        if known.values().any(|old| old.name == bearer.name) {
            let text =
                format!("there is a token {name:?}: revoke it first, or choose another name");
            return Err(problem(409, "name-in-use", "Name in use", text));
        }
        if known.len() >= MOST_TOKENS {
            return Err(bad_input(format!(
                "there are {MOST_TOKENS} tokens: revoke some first"
            )));
        }
        known.insert(key, bearer);
        Ok(())
    };
    aside(move || app.tokens.change(change)).await??;
    let made = Made {
        token,
        name: wished.name,
        until_unix_ms,
    };
    Ok((StatusCode::CREATED, axum::Json(made)))
}

/// Ends a token, or a page.
#[utoipa::path(
    delete, path = "/v1/tokens/{name}", tag = "access",
    params(("name" = String, Path, description = "What it is called.")),
    responses(
        (status = 204, description = "It is not known any more."),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 507, description = "It cannot be kept.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn revoke(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Part(name): Part,
) -> Result<StatusCode, Failure> {
    may(&who)?;
    if pages::is_name(&name) {
        let ends = name.clone();
        if aside(move || app.tokens.pages.revoke(&ends)).await? {
            return Ok(StatusCode::NO_CONTENT);
        }
        let text = format!("there is no open page {name:?}: GET /v1/tokens lists them");
        return Err(problem(404, "unknown-token", "No such token", text).into());
    }
    let change = move |known: &mut BTreeMap<String, Bearer>| {
        let before = known.len();
        known.retain(|_, bearer| bearer.name != format!("token {name}"));
        if known.len() == before {
            let text = format!("there is no token {name:?}: GET /v1/tokens lists them");
            return Err(problem(404, "unknown-token", "No such token", text));
        }
        Ok(())
    };
    aside(move || app.tokens.change(change)).await??;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_kept_as_hashes_and_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        let tokens = Tokens::open(folder.path()).expect("none yet");
        let token = random().expect("random bits");
        let bearer = |until| Bearer {
            name: "token x".to_owned(),
            scope: TokenScope::Read,
            uid: None,
            gid: nobodys(),
            all: true,
            created_unix_ms: 1,
            until_unix_ms: until,
        };
        let put = |until| {
            tokens
                .change(|known| Ok(known.insert(hash(&token), bearer(until))))
                .expect("kept");
        };
        put(None);
        assert!(tokens.bearer(&hash(&token)).is_some());
        assert!(tokens.bearer(&hash(&token[1..])).is_none());
        let text = std::fs::read_to_string(&path).expect("a file");
        assert!(!text.contains(&token), "the token itself is nowhere");
        let again = Tokens::open(folder.path()).expect("kept");
        assert!(again.bearer(&hash(&token)).is_some());
        put(Some(2));
        assert!(tokens.bearer(&hash(&token)).is_none(), "it has ended");
    }

    #[test]
    fn the_first_form_is_read_and_a_newer_one_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        let bearer = serde_json::json!({
            "name": "token x", "scope": "read", "uid": null, "all": true,
            "created_unix_ms": 1, "until_unix_ms": null
        });
        let first = serde_json::json!({"00ff": bearer}).to_string();
        state_file::replace(&path, &serde_json::json!({"00ff": bearer})).expect("written");
        let tokens = Tokens::open(folder.path()).expect("the first form");
        assert!(tokens.bearer("00ff").is_some());
        tokens.change(|_| Ok(())).expect("written");
        let tokens = Tokens::open(folder.path()).expect("this form");
        assert!(tokens.bearer("00ff").is_some());
        assert_ne!(std::fs::read_to_string(&path).expect("text"), first);
        let newer = serde_json::json!({"version": 2, "hashes": []});
        for name in ["tokens.json", "pages.json"] {
            let path = folder.path().join(name);
            state_file::replace(&path, &newer).expect("written");
            let error = Tokens::open(folder.path())
                .expect_err("a newer one")
                .to_string();
            assert!(
                error.contains("version 2") && error.contains(name),
                "{error}"
            );
            std::fs::remove_file(path).expect("removed");
        }
    }

    #[test]
    fn a_token_is_shown_while_the_disk_hangs() {
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = Tokens::open(folder.path()).expect("none yet");
        let (go, hangs) = std::sync::mpsc::channel::<()>();
        let (inside, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let tokens = &tokens;
            scope.spawn(move || {
                let change = |_: &mut BTreeMap<String, Bearer>| {
                    inside.send(()).expect("the test listens");
                    let _ = hangs.recv();
                    Ok(())
                };
                tokens.change(change).expect("written");
            });
            begun.recv().expect("it has begun");
            for _ in 0..100 {
                assert!(tokens.bearer("00ff").is_none());
            }
            go.send(()).expect("it waits");
        });
    }
}
