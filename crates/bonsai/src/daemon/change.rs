//! Changes by the daemon.

use bonsai_api::{Changed, Difference, ServiceView, Share};
use bonsai_client::{Client, ClientError, How};
use bonsai_services::limits::{Limit, nearest};
use bonsai_services::observe::SCHEMA;
use bonsai_services::refusal::Refusal;
use bonsai_units::{LimitSpec, Resource, Setting};
use serde_json::{Map, Value, json};

use super::{needed, said};
use crate::cli::{Changing, ConfigCommand, Set, Undo};
use crate::output::{count, escaped, print, print_json};

/// How a change is made, as it is said on the command line.
pub(crate) fn how(changing: &Changing) -> How {
    How {
        dry_run: changing.dry_run,
        lasts: changing.lasts,
        reason: changing.reason.clone(),
        revision: None,
    }
}

/// `bonsai set` where the daemon runs.
///
/// # Errors
/// The daemon will not.
pub(crate) fn set(client: &Client, args: &Set, limits: &[Limit]) -> anyhow::Result<Changed> {
    let weighed = weighed(&known(client, &args.service)?, args)?;
    let patch = patch(args, limits, &weighed)?;
    client
        .change_service(&args.service, &patch, &how(&args.how))
        .map_err(said)
}

/// A service that runs or is configured: a name that was mistyped would be configured.
///
/// # Errors
/// A [`Refusal`]: there is none of that name.
fn known(client: &Client, id: &str) -> anyhow::Result<ServiceView> {
    match client.service(id) {
        Err(ClientError::Refused(problem)) if problem.status == 404 => {}
        other => return other.map_err(said),
    }
    let services = client.services().map_err(said)?.services;
    let near = nearest(id, services.iter().map(|service| &*service.id));
    let near = near.map_or_else(String::new, |near| format!(" (the nearest is {near})"));
    Err(Refusal::input(format!(
        "no service {id} runs or is configured{near}: for one that comes later, write bonsai config set services.{id}.send.max=10Mbit/s"
    )))
}

/// Resources that a weight is of: all that the service has.
fn weighed(service: &ServiceView, args: &Set) -> anyhow::Result<Vec<Resource>> {
    if args.member.weight.is_none() || service.target.is_none() {
        return Ok(Resource::ALL.to_vec());
    }
    if !service.running {
        return Err(Refusal::input(format!(
            "{0} is not there now, so which resources it has is not known: say of which one \
             (bonsai config set services.{0}.send.weight=2)",
            args.service
        )));
    }
    let has = service.resources.iter();
    Ok(has.map(|of| of.resource.into()).collect())
}

/// What `bonsai set` says, as a merge patch on the service.
fn patch(args: &Set, limits: &[Limit], weighed: &[Resource]) -> anyhow::Result<Value> {
    // The daemon says best what is wrong with a name; what is wrong with a text is said here.
    args.member.wishes()?;
    let mut patch = Map::new();
    let mut put = |resource: Resource, word: &str, value: Value| {
        let terms = patch.entry(resource.name()).or_insert_with(|| json!({}));
        terms[word] = value;
    };
    let mut further = Map::new();
    for (limit, text) in limits.iter().zip(&args.limits) {
        let of_it = |resource: &Resource| resource.class() == limit.name;
        let resource = Resource::ALL.into_iter().find(of_it);
        match (resource, limit.setting) {
            (Some(resource), Setting::Rate { rate, burst: None })
                if rate.unit() == resource.unit() =>
            {
                // In the unit that it was written in.
                let share = text
                    .split_once('=')
                    .and_then(|(_, value)| value.parse().ok());
                put(resource, "max", json!(share.unwrap_or(Share::Rate(rate))));
            }
            (Some(resource), Setting::Unlimited) => {
                put(resource, "max", Value::Null);
                further.insert(limit.name.clone(), Value::Null);
            }
            (_, Setting::Unlimited) => drop(further.insert(limit.name.clone(), Value::Null)),
            (_, setting) => {
                // In the words that it was written in.
                let value = LimitSpec::value_of(text);
                let value = value.map_or_else(|| setting.to_string(), str::to_owned);
                further.insert(limit.name.clone(), json!(value));
            }
        }
    }
    let wishes = [
        ("min", &args.member.guarantees),
        ("max", &args.member.ceilings),
    ];
    for (word, texts) in wishes {
        for text in texts {
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            let of_it =
                |resource: &Resource| [resource.class(), resource.name()].contains(&name.trim());
            let resource = Resource::ALL.into_iter().find(of_it).ok_or_else(|| {
                Refusal::input(format!(
                    "{text:?}: the daemon shares out read, write, send, recv and all (calls), and \
                     not {name:?}"
                ))
            })?;
            let value = value.trim();
            let lifted = matches!(value, "none" | "unlimited");
            put(
                resource,
                word,
                if lifted { Value::Null } else { json!(value) },
            );
        }
    }
    if let Some(weight) = args.member.weight {
        for resource in weighed {
            put(*resource, "weight", json!(weight));
        }
    }
    if !further.is_empty() {
        patch.insert("limits".to_owned(), Value::Object(further));
    }
    Ok(Value::Object(patch))
}

/// `bonsai undo`.
///
/// # Errors
/// There is nothing to undo, or no daemon.
pub(crate) fn undo(args: &Undo) -> anyhow::Result<u8> {
    let undone = needed()?.undo(args.to, args.dry_run).map_err(said)?;
    if !args.json {
        for change in &undone.undone {
            let whose = change.actor.as_deref().unwrap_or("somebody");
            let whose = escaped(whose);
            print(&format!(
                "the change of {whose}, revision {}\n",
                change.revision
            ))?;
        }
    }
    show(&undone, args.json)?;
    Ok(0)
}

/// `bonsai config`.
///
/// # Errors
/// What is written makes no sense, or no daemon runs.
pub(crate) fn config(command: &ConfigCommand) -> anyhow::Result<u8> {
    match command {
        ConfigCommand::Check {
            file,
            json: as_json,
        } => {
            let Some(path) = file.clone().or_else(bonsai_daemon::config_path) else {
                let text = "there is no configuration file at the usual place: name one (bonsai config check FILE)";
                return Err(Refusal::input(text));
            };
            let config = bonsai_daemon::read_config(&path)?;
            let planned = bonsai_daemon::plan(&config).map_err(Refusal::input)?;
            let mut idle = bonsai_daemon::idle(&config, &planned);
            idle.extend(
                bonsai_daemon::check_start(&config)
                    .map_err(|error| error.context(path.display().to_string()))?,
            );
            if *as_json {
                let document = json!({
                    "schema": SCHEMA,
                    "file": path,
                    "services": config.services.len(),
                    "groups": config.groups.len(),
                    "classes": config.classes.len(),
                    "without_effect": idle,
                });
                print_json(&document, false)?;
                return Ok(0);
            }
            let verdict = match idle.is_empty() {
                true => "fine",
                false => "can be used, but some of it has no effect now",
            };
            let mut text = format!(
                "{}: {verdict}: {}, {}, {}\n",
                path.display(),
                count(config.services.len() as u64, "service", "services"),
                count(config.groups.len() as u64, "group", "groups"),
                count(config.classes.len() as u64, "class", "classes")
            );
            for what in idle {
                text.push_str(&format!("  {what}\n"));
            }
            print(&text)?;
        }
        ConfigCommand::Show { json } => {
            let config = needed()?.config().map_err(said)?;
            if *json {
                print_json(&config, false)?;
            } else {
                print(&toml::to_string(&config)?)?;
            }
        }
        ConfigCommand::Set {
            values,
            how: changing,
            json: as_json,
        } => {
            let mut patch = json!({});
            for text in values {
                put(&mut patch, text)?;
            }
            let changed = needed()?
                .change_config(&patch, &how(changing))
                .map_err(said)?;
            show(&changed, *as_json)?;
            return Ok(u8::from(!changed.held.is_empty()));
        }
    }
    Ok(0)
}

/// Puts `a.b.c=value` into a patch.
fn put(patch: &mut Value, text: &str) -> anyhow::Result<()> {
    let Some((path, value)) = text.split_once('=') else {
        let text = format!("{text:?} has no =: write NAME=VALUE, such as policy.mode=static");
        return Err(Refusal::input(text));
    };
    let mut at = patch;
    for name in path.split('.') {
        if name.is_empty() {
            return Err(Refusal::input(format!(
                "{text:?}: {path:?} is no name of a setting"
            )));
        }
        at = &mut at[name];
    }
    *at = match value {
        "" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        number if number.bytes().all(|b| b.is_ascii_digit()) => number.parse::<u64>()?.into(),
        text => text.into(),
    };
    Ok(())
}

/// What a change did, or would do.
///
/// # Errors
/// It cannot be printed.
pub(crate) fn show(changed: &Changed, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return print_json(changed, false);
    }
    let mut lines = differences(changed);
    if changed.dry_run {
        lines.push("\nnothing was changed; with it, services would get:".to_owned());
        let table = super::look::table_of(&changed.services, None, false);
        lines.push(table.trim_end().to_owned());
    }
    lines.extend(notes(changed));
    print(&(lines.join("\n") + "\n"))
}

/// What a change that was made did, in lines.
pub(crate) fn lines(changed: &Changed) -> Vec<String> {
    let mut lines = differences(changed);
    lines.extend(notes(changed));
    lines
}

fn differences(changed: &Changed) -> Vec<String> {
    if changed.differences.is_empty() {
        return vec!["nothing is different".to_owned()];
    }
    changed.differences.iter().map(line).collect()
}

fn notes(changed: &Changed) -> impl Iterator<Item = String> {
    let problems = changed.problems.iter().chain(&changed.held);
    problems.map(|problem| format!("note: {problem}"))
}

fn line(difference: &Difference) -> String {
    let Difference { path, from, to } = difference;
    let said = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
    let path = path.strip_prefix("services.").unwrap_or(path);
    format!("{path}: {} -> {}", said(from), said(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_patches() {
        let mut patch = json!({});
        for text in [
            "policy.mode=static",
            "groups.a.send.weight=3",
            "daemon.pool=true",
            "capacity.send=",
        ] {
            put(&mut patch, text).expect(text);
        }
        let expected = json!({
            "policy": {"mode": "static"},
            "groups": {"a": {"send": {"weight": 3}}},
            "daemon": {"pool": true},
            "capacity": {"send": null},
        });
        assert_eq!(patch, expected);
        put(&mut patch, "policy").expect_err("no value");
        put(&mut patch, ".x=1").expect_err("no name");
    }
}
