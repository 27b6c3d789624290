//! What is typed to change a service, as `bonsai set` understands it.

use bonsai_services::limits::BY_DAEMON;
use bonsai_services::refusal::Refusal;

use crate::cli::{Changing, Member, Set};

/// Words that take a limit away.
const OFF: [&str; 3] = ["off", "none", "unlimited"];

/// The calls that a line of the picture is about: a limit's name is that of its calls, but for one
/// that the daemon moves, and for a part of a group's.
pub(super) fn calls(limit: &str) -> &str {
    let name = limit.strip_suffix(BY_DAEMON).unwrap_or(limit);
    match name.strip_prefix("group ") {
        Some(part) => part.rsplit(' ').next().unwrap_or(part),
        None => name,
    }
}

/// What to change of a service; `of` are the calls that a word without a name is about.
///
/// # Errors
/// A [`Refusal`] if it is not understood. Whether it makes sense is said where it is done.
pub(super) fn parse(service: &str, of: Option<&str>, text: &str) -> anyhow::Result<Set> {
    let mut set = Set {
        service: service.to_owned(),
        limits: Vec::new(),
        member: Member::default(),
        how: Changing::default(),
        direct: false,
        event_loops: None,
        json: false,
    };
    for word in text.split_whitespace() {
        take(&mut set, of, word)?;
    }
    if set.limits.is_empty()
        && set.member.guarantees.is_empty()
        && set.member.ceilings.is_empty()
        && set.member.weight.is_none()
    {
        let text = "nothing is typed: write a limit such as read=5MB/s, or read=off; Esc leaves";
        return Err(Refusal::input(text));
    }
    Ok(set)
}

fn take(set: &mut Set, of: Option<&str>, word: &str) -> anyhow::Result<()> {
    let chosen = || {
        of.ok_or_else(|| {
            Refusal::input(format!(
                "{word:?} does not say of what: write it with a name, such as read=5MB/s or \
                 send.min=40Mbit/s"
            ))
        })
    };
    let Some((name, value)) = word.split_once('=') else {
        let name = chosen()?;
        set.limits.push(limit(name, word));
        return Ok(());
    };
    let (name, term) = match name.rsplit_once('.') {
        Some((name, term @ ("min" | "max" | "weight"))) => (Some(name), term),
        _ if ["min", "max", "weight"].contains(&name) => (None, name),
        _ => (Some(name), ""),
    };
    match (name, term) {
        (None, "weight") => {
            let weight = value.parse().map_err(|_| {
                Refusal::input(format!(
                    "{value:?} is no weight: write a whole number from 1 to 1000"
                ))
            })?;
            set.member.weight = Some(weight);
        }
        (Some(_), "weight") => {
            let text =
                format!("{word:?}: a weight is of all that a service does: write weight={value}");
            return Err(Refusal::input(text));
        }
        (name, "min" | "max") => {
            let name = name.map_or_else(chosen, Ok)?;
            let value = if OFF.contains(&value) { "none" } else { value };
            let terms = match term {
                "min" => &mut set.member.guarantees,
                _ => &mut set.member.ceilings,
            };
            terms.push(format!("{name}={value}"));
        }
        (name, _) => set.limits.push(limit(name.unwrap_or_default(), value)),
    }
    Ok(())
}

fn limit(name: &str, value: &str) -> String {
    let value = if OFF.contains(&value) {
        "unlimited"
    } else {
        value
    };
    format!("{name}={value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_what_set_understands() {
        let typed = |text| {
            let set = parse("vod", Some("send"), text).expect(text);
            let member = set.member;
            (
                set.limits,
                member.guarantees,
                member.ceilings,
                member.weight,
            )
        };
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let none = Vec::<String>::new();
        assert_eq!(
            typed(" read=5MB/s:burst=1MB  open=9/s "),
            (
                texts(&["read=5MB/s:burst=1MB", "open=9/s"]),
                none.clone(),
                none.clone(),
                None
            )
        );
        assert_eq!(typed("5MB/s").0, ["send=5MB/s"]);
        assert_eq!(typed("off").0, ["send=unlimited"]);
        assert_eq!(
            typed("read=off send=none").0,
            ["read=unlimited", "send=unlimited"]
        );
        assert_eq!(
            typed("min=1MB/s recv.max=off weight=3"),
            (none, texts(&["send=1MB/s"]), texts(&["recv=none"]), Some(3))
        );
        assert_eq!(
            typed("read@/srv/a.min.mp4=5MB/s").0,
            ["read@/srv/a.min.mp4=5MB/s"]
        );
    }

    #[test]
    fn each_slip_has_its_sentence() {
        let cases = [
            (None, "", "nothing is typed"),
            (None, "5MB/s", "does not say of what"),
            (None, "min=5MB/s", "does not say of what"),
            (Some("send"), "weight=x", "\"x\" is no weight"),
            (Some("send"), "send.weight=3", "write weight=3"),
        ];
        for (of, text, expected) in cases {
            let error = parse("vod", of, text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn lines_are_about_calls() {
        for (limit, expected) in [
            ("read", "read"),
            ("send/stream@inet:443", "send/stream@inet:443"),
            ("read/daemon", "read"),
            ("group daemon-pool read", "read"),
        ] {
            assert_eq!(calls(limit), expected);
        }
    }
}
