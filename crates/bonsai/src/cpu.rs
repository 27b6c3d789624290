//! `bonsai cpu`: what control groups, units and processes get of the CPUs.

use bonsai_cgroup::cpu::CpuInForce;
use bonsai_cgroup::{Cpu, Hierarchies, Target};
use bonsai_services::refusal::Refusal;
use bonsai_units::CpuTerms;
use serde_json::{Value, json};

use crate::cgroup::{confirmed, named, records, refused, target};
use crate::cli::{CpuCommand, CpuLook, CpuSet, CpuTarget};
use crate::output::{count, finish, print, print_json, say, table};

/// Does what one of the subcommands says.
///
/// # Errors
/// A target that is not there, or terms that make no sense, do not fit, or are refused.
pub(crate) fn run(command: &CpuCommand) -> anyhow::Result<u8> {
    match command {
        CpuCommand::Ls(args) => ls(args)?,
        CpuCommand::Set(args) => set(args)?,
        CpuCommand::Clear(args) => {
            let done = open()?.clear(&of(&args.target)).map_err(refused)?;
            if done.changed_since {
                say!(
                    "bonsai: somebody else had changed what {} has of the CPUs since; it is as it \
                     was before Bonsai's",
                    done.target
                );
            }
            say(&done, args.json)?;
        }
    }
    Ok(0)
}

/// The CPU time of this machine, with the records of this user.
///
/// # Errors
/// There is no safe runtime directory.
pub(crate) fn open() -> anyhow::Result<Cpu> {
    let hierarchies = Hierarchies::read().map_err(refused)?;
    Cpu::open(hierarchies, &records()?).map_err(refused)
}

fn of(args: &CpuTarget) -> Target {
    target(args.cgroup.as_ref(), args.unit.as_ref(), args.pid)
}

fn set(args: &CpuSet) -> anyhow::Result<()> {
    let terms: CpuTerms = args
        .terms
        .join(",")
        .parse()
        .map_err(|error: bonsai_units::CpuTermsError| Refusal::input(error.to_string()))?;
    let target = of(&args.target);
    let is_quota = |term: &String| term.starts_with("quota=") && term != "quota=unlimited";
    let hierarchies = Hierarchies::read().map_err(refused)?;
    let force = args.force || !args.terms.iter().any(is_quota);
    confirmed(&hierarchies, &target, force)?;
    let done = open()?.set(&target, &terms).map_err(refused)?;
    say(&done, args.json)
}

fn say(done: &CpuInForce, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let mut document = as_value(done);
        document["schema"] = json!(1);
        document["changed_since"] = json!(done.changed_since);
        return print_json(&document, false);
    }
    let mut parts = Vec::new();
    parts.extend(done.weight.map(|weight| format!("weight={weight}")));
    if done.group.is_some() {
        parts.push(format!("quota={}", quota(done)));
    }
    parts.push(match done.reserve {
        Some(reserve) => format!("reserve={reserve} ({})", threads(done)),
        None => "reserve=none".to_owned(),
    });
    print(&format!("{}: {}\n", done.target, parts.join(", ")))
}

fn ls(args: &CpuLook) -> anyhow::Result<()> {
    let seen = open()?.look(None).map_err(refused)?;
    if args.json {
        let all = seen.iter().map(|one| {
            let mut value = as_value(&one.state);
            value["version"] = json!(one.version.map(|version| version.to_string()));
            value["set_by"] = json!(one.holder);
            value
        });
        let document = json!({"schema": 1, "cpus": all.collect::<Vec<_>>()});
        return print_json(&document, false);
    }
    if seen.is_empty() {
        return print("nobody has another part of the CPUs than everybody else\n");
    }
    let mut table = table(
        &["of", "weight", "quota", "reserve", "threads", "set by"],
        &[1, 2],
    );
    for one in &seen {
        let state = &one.state;
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            state.target.to_string(),
            or_none(state.weight.map(|weight| weight.to_string())),
            or_none(state.group.as_ref().map(|_| quota(state))),
            or_none(state.reserve.map(|reserve| reserve.to_string())),
            or_none(state.reserve.map(|_| threads(state))),
            one.holder.words().to_owned(),
        ]);
    }
    print(&finish(&table))
}

fn quota(state: &CpuInForce) -> String {
    state
        .quota
        .map_or_else(|| "unlimited".to_owned(), |quota| quota.to_string())
}

/// How many have their reserve: those that were made since have none.
fn threads(state: &CpuInForce) -> String {
    let all = u64::try_from(state.threads).unwrap_or(u64::MAX);
    if state.reserved == state.threads {
        count(all, "thread", "threads")
    } else {
        format!("{} of {}", state.reserved, count(all, "thread", "threads"))
    }
}

fn as_value(state: &CpuInForce) -> Value {
    let (kind, name) = named(&state.target);
    let reserve = state.reserve.map(|reserve| {
        json!({
            "runtime_ns": reserve.runtime_ns,
            "period_ns": reserve.period_ns,
            "reserved": state.reserved,
            "threads": state.threads,
        })
    });
    let quota = state
        .quota
        .map(|quota| json!({"runtime_us": quota.runtime_us, "period_us": quota.period_us}));
    json!({
        kind: name,
        "group": state.group,
        "weight": state.weight,
        "quota": quota,
        "reserve": reserve,
    })
}
