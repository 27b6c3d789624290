//! What is shaped at interfaces: how exact it is, how fast it changes, and what it does to others. Each
//! takes whatever shapes as `net::shaper::Shaper`; all in namespaces of the run.

pub(super) mod accuracy;
pub(super) mod change;
pub(super) mod churn;
pub(super) mod cost;
mod counted;
mod flows;
pub(super) mod generator;
pub(super) mod idle;
pub(super) mod media;
pub(super) mod paper;
pub(super) mod parts;
pub(super) mod protected;
pub(super) mod scale;
mod stage;

/// Mbit/s as bytes a second.
const fn mbit(rate: u64) -> u64 {
    rate * 125_000
}

/// Bytes a second as Mbit/s.
fn in_mbit(bytes_per_sec: f64) -> f64 {
    bytes_per_sec * 8.0 / 1e6
}

/// As text, with as many digits as say something.
fn shown(bytes_per_sec: f64) -> String {
    let mbit = in_mbit(bytes_per_sec);
    let digits = if mbit < 100.0 { 3 } else { 1 };
    format!("{mbit:.digits$}")
}

/// Of two reasons to doubt, both.
fn both(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}; {other}")),
        (one, other) => one.or(other),
    }
}
