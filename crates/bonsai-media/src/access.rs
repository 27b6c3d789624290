//! Users of a server of media, and proof of a password without sending it: Digest of RFC 7616 and RFC 2617 with MD5, the only one
//! that players know for RTSP.
//!
//! # Invariants
//! 1. No password is kept: a file of users has the MD5 of `name:realm:password`, as `htdigest(1)` writes it.
//! 2. A challenge is one of this server, and of the last five minutes; nothing is kept of it. A client that shows the right proof for
//!    an older one gets a new one, and not the answer that the password is wrong (`stale`).
//! 3. The time of an answer does not tell if there is a user of that name, nor how much of a proof is right.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use md5::Md5;
use sha2::{Digest as _, Sha256};

use crate::rtsp::server::decoded;

/// Time for which a challenge is answered.
const LASTS_S: u64 = 300;

/// Maximum number of users of a file.
const MOST_USERS: usize = 10_000;

/// Maximum number of parameters of a header.
const MOST_PARAMETERS: usize = 32;

/// Bytes of a challenge: its time and its proof.
const TIME: usize = 8;
const PROOF: usize = 16;

type Secret = [u8; 16];

/// Users, with what stands for their passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Users {
    realm: String,
    of: HashMap<String, Secret>,
}

impl Users {
    /// Reads the lines of a file of `htdigest(1)`: `name:realm:MD5`, all of one realm.
    ///
    /// # Errors
    /// The line that is wrong, and what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut users = Self {
            realm: String::new(),
            of: HashMap::new(),
        };
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            users
                .add(line)
                .map_err(|why| format!("line {number}: {why}"))?;
        }
        match users.of.is_empty() {
            true => Err("it has no user: a line is name:realm:MD5, as htdigest writes it".into()),
            false => Ok(users),
        }
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let form = "a line is name:realm:MD5, as htdigest writes it";
        let mut parts = line.split(':');
        let (Some(name), Some(realm), Some(hash), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(form.into());
        };
        // Headers have names and realms in quotation marks.
        let is_plain = |text: &str| {
            !text.is_empty() && !text.contains(['"', '\\']) && !text.chars().any(char::is_control)
        };
        if !is_plain(name) || !is_plain(realm) {
            return Err(format!("{form}, without quotation marks"));
        }
        let secret = from_hex(hash).ok_or_else(|| {
            format!("{hash:?} is no MD5 of name:realm:password, which has 32 hexadecimal digits")
        })?;
        if !self.of.is_empty() && realm != self.realm {
            return Err(format!("{realm:?} is another realm than {:?}", self.realm));
        }
        if self.of.len() == MOST_USERS {
            return Err(format!("there are more than {MOST_USERS} users"));
        }
        realm.clone_into(&mut self.realm);
        match self.of.insert(name.to_owned(), secret) {
            Some(_) => Err(format!("{name:?} is there twice")),
            None => Ok(()),
        }
    }
}

/// A request, as far as its proof is about it.
#[derive(Clone, Copy, Debug)]
pub struct AuthRequest<'a> {
    /// The header `Authorization`.
    pub header: Option<&'a str>,
    /// The method.
    pub method: &'a str,
    /// The address, whole or from the path on.
    pub uri: &'a str,
    /// The monotonic clock, ns.
    pub now_ns: u64,
    /// True where it names a session that a granted request began: a player answers the challenge of its
    /// first request for as long as a film lasts.
    pub goes_on: bool,
}

/// A request that is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Why, for the log.
    pub why: String,
    /// True where there was a proof that is wrong, which is worth a line; the first request of each player has none.
    pub is_wrong: bool,
    /// The header `WWW-Authenticate`.
    pub challenge: String,
}

/// Decides if requests come from a user.
#[derive(Debug)]
pub struct Guard {
    users: RwLock<Arc<Users>>,
    /// Secret of this server, by which it knows its challenges.
    secret: [u8; 32],
    /// True for HTTP: a proof is about a count and a text of the client, too (`qop`), which players do not know for RTSP.
    counts: bool,
}

impl Guard {
    /// For RTSP, with 32 random bytes.
    #[must_use]
    pub fn for_rtsp(users: Users, secret: [u8; 32]) -> Self {
        Self {
            users: RwLock::new(Arc::new(users)),
            secret,
            counts: false,
        }
    }

    /// For HTTP, likewise.
    #[must_use]
    pub fn for_http(users: Users, secret: [u8; 32]) -> Self {
        Self {
            counts: true,
            ..Self::for_rtsp(users, secret)
        }
    }

    /// Other users from now on.
    pub fn replace(&self, users: Users) {
        *self.users.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(users);
    }

    /// Returns the user that a request proves to come from.
    ///
    /// # Errors
    /// The request proves no user.
    pub fn check(&self, asked: &AuthRequest<'_>) -> Result<String, Denied> {
        let users = Arc::clone(&self.users.read().unwrap_or_else(PoisonError::into_inner));
        let now_s = asked.now_ns / 1_000_000_000;
        let (why, is_stale) = match asked.header {
            None => ("a user has to be named".to_owned(), false),
            Some(header) => match proved(header, asked, &users) {
                Ok((name, nonce)) => match self.age_s(nonce, now_s) {
                    Some(age_s) if age_s <= LASTS_S || asked.goes_on => return Ok(name.to_owned()),
                    _ => (format!("{name:?} answers an old challenge"), true),
                },
                Err(why) => (why, false),
            },
        };
        let mut challenge = format!(
            "Digest realm=\"{}\", nonce=\"{}\", algorithm=MD5",
            users.realm,
            self.nonce(now_s)
        );
        if self.counts {
            challenge.push_str(", qop=\"auth\"");
        }
        if is_stale {
            challenge.push_str(", stale=true");
        }
        Err(Denied {
            why,
            is_wrong: asked.header.is_some() && !is_stale,
            challenge,
        })
    }

    fn nonce(&self, now_s: u64) -> String {
        let time = now_s.to_be_bytes();
        hex(&time) + &hex(&self.proof(time))
    }

    fn proof(&self, time: [u8; TIME]) -> [u8; PROOF] {
        let whole = Sha256::new()
            .chain_update(self.secret)
            .chain_update(time)
            .finalize();
        core::array::from_fn(|i| whole[i])
    }

    /// The age of a challenge; `None` for one of another server, or of none.
    fn age_s(&self, nonce: &str, now_s: u64) -> Option<u64> {
        let (time, proof) = nonce.split_at_checked(2 * TIME)?;
        let time: [u8; TIME] = from_hex(time)?;
        let proof: [u8; PROOF] = from_hex(proof)?;
        is_same(&proof, &self.proof(time)).then_some(())?;
        now_s.checked_sub(u64::from_be_bytes(time))
    }
}

/// The user of a proof that is right, and the challenge that it is for.
fn proved<'a>(
    header: &'a str,
    asked: &AuthRequest<'_>,
    users: &Users,
) -> Result<(&'a str, &'a str), String> {
    let of = Parameters::parse(header)?;
    let [name, realm, nonce, uri, response] =
        ["username", "realm", "nonce", "uri", "response"].map(|name| of.get(name));
    let (Some(name), Some(realm), Some(nonce), Some(uri), Some(response)) =
        (name, realm, nonce, uri, response)
    else {
        return Err("its proof lacks a part".into());
    };
    if of
        .get("algorithm")
        .is_some_and(|text| !text.eq_ignore_ascii_case("MD5"))
    {
        return Err("its proof is by another algorithm than MD5".into());
    }
    let method = md5(&[asked.method, uri]);
    let method = hex(&method);
    let secret = users.of.get(name).filter(|_| realm == users.realm);
    let first = hex(secret.unwrap_or(&Secret::default()));
    let wanted = match of.get("qop") {
        None => md5(&[&first, nonce, &method]),
        Some("auth") => {
            let count = of.get("nc").unwrap_or_default();
            let own = of.get("cnonce").unwrap_or_default();
            md5(&[&first, nonce, count, own, "auth", &method])
        }
        Some(_) => return Err("its proof is about its body, too: qop=auth is right".into()),
    };
    let given: Secret = from_hex(response).unwrap_or_default();
    if !is_same(&given, &wanted) || secret.is_none() {
        return Err(format!(
            "the password of {name:?} is wrong, or there is no such user"
        ));
    }
    if !is_about(uri, asked.uri) {
        return Err(format!("{name:?} proves to ask for something else"));
    }
    Ok((name, nonce))
}

/// True where a proof about an address is one about another, too: of the same path, or of a track of it. Players write the
/// address of a clip in proofs of requests about its tracks, and some the path alone.
fn is_about(proved: &str, asked: &str) -> bool {
    let (proved, asked) = (path(proved), path(asked));
    let (Some(proved), Some(asked)) = (decoded(proved), decoded(asked)) else {
        return proved == asked;
    };
    let proved = proved.trim_end_matches('/');
    asked
        .strip_prefix(proved)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An address from its path on.
fn path(uri: &str) -> &str {
    let Some((_, rest)) = uri.split_once("://") else {
        return uri;
    };
    rest.find('/').map_or("/", |at| &rest[at..])
}

/// Parameters of a header (RFC 9110, 11.4): `Digest name=token, name="quoted"`.
struct Parameters<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Parameters<'a> {
    fn parse(header: &'a str) -> Result<Self, String> {
        let broken = || "its proof cannot be read".to_owned();
        let (scheme, mut rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if !scheme.eq_ignore_ascii_case("Digest") {
            return Err("it proves its user by another scheme than Digest".into());
        }
        let mut all: Vec<(&str, &str)> = Vec::new();
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if rest.is_empty() {
                return Ok(Self(all));
            }
            let (name, after) = rest.split_once('=').ok_or_else(broken)?;
            let (name, after) = (name.trim(), after.trim_start());
            let (value, behind) = match after.strip_prefix('"') {
                // Names and realms have no escapes: none is granted to a text with one.
                Some(quoted) => quoted.split_once('"').ok_or_else(broken)?,
                None => after.split_at(after.find(',').unwrap_or(after.len())),
            };
            let is_known = all.iter().any(|(of, _)| of.eq_ignore_ascii_case(name));
            if is_known || all.len() == MOST_PARAMETERS || value.contains('\\') {
                return Err(broken());
            }
            all.push((name, value.trim()));
            rest = behind.trim_start();
            if !rest.is_empty() && !rest.starts_with(',') {
                return Err(broken());
            }
        }
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let mut all = self.0.iter();
        all.find(|(of, _)| of.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }
}

/// The MD5 of texts with colons between them.
fn md5(parts: &[&str]) -> Secret {
    Md5::digest(parts.join(":")).into()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

/// True where two proofs are the same, after the same time in each case.
fn is_same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    let pairs = one.iter().zip(other);
    core::hint::black_box(pairs.fold(0, |all, (a, b)| all | (a ^ b))) == 0
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
