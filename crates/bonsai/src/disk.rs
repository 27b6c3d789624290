//! `bonsai disk`: limits of control groups and units on disks.

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use bonsai_cgroup::disk::{DiskLimits, DiskUse, InForce, Seen};
use bonsai_cgroup::{Device, Disk, Hierarchies};
use bonsai_services::refusal::Refusal;
use bonsai_units::{DiskTerms, Rate};
use serde_json::{Value, json};

use crate::cgroup::{confirmed, named, records, refused, target};
use crate::cli::{DiskClear, DiskCommand, DiskLook, DiskSet, DiskTarget};
use crate::output::{finish, print, print_json, say, table};

/// Does what one of the subcommands says.
///
/// # Errors
/// A target or device that is not there, or limits that make no sense or are refused.
pub(crate) fn run(command: &DiskCommand) -> anyhow::Result<u8> {
    match command {
        DiskCommand::Ls(args) => ls(args)?,
        DiskCommand::Set(args) => set(args)?,
        DiskCommand::Clear(args) => clear(args)?,
    }
    Ok(0)
}

fn disk() -> anyhow::Result<Disk> {
    let hierarchies = Hierarchies::read().map_err(refused)?;
    Disk::open(hierarchies, &records()?).map_err(refused)
}

fn of(args: &DiskTarget) -> bonsai_cgroup::Target {
    target(args.cgroup.as_ref(), args.unit.as_ref(), None)
}

/// The devices that are named, each once.
fn devices(names: &[String]) -> anyhow::Result<Vec<Device>> {
    let found = names.iter().map(|name| Device::find(name));
    let mut found = found.collect::<Result<Vec<_>, _>>().map_err(refused)?;
    found.sort();
    found.dedup();
    Ok(found)
}

fn set(args: &DiskSet) -> anyhow::Result<()> {
    let terms = DiskTerms::parse(args.limits.iter().map(String::as_str));
    let terms = terms.map_err(|error| Refusal::input(error.to_string()))?;
    let devices = match args.devices.as_slice() {
        [] => Device::disks().map_err(refused)?,
        names => devices(names)?,
    };
    let target = of(&args.target);
    // What is given free stops nothing.
    let gives = args
        .limits
        .iter()
        .all(|limit| limit.ends_with("=unlimited"));
    let hierarchies = Hierarchies::read().map_err(refused)?;
    confirmed(&hierarchies, &target, args.force || gives)?;
    let done = disk()?.set(&target, &devices, &terms);
    say(&done.map_err(refused)?, args.json)
}

fn clear(args: &DiskClear) -> anyhow::Result<()> {
    let devices = devices(&args.devices)?;
    let only = (!devices.is_empty()).then_some(devices.as_slice());
    let done = disk()?.clear(&of(&args.target), only).map_err(refused)?;
    for device in &done.changed_since {
        say!(
            "bonsai: somebody else had changed the limits of {} on {device} since; they are as \
             they were before Bonsai's",
            done.target
        );
    }
    say(&done, args.json)
}

/// Says what is in force now.
fn say(done: &InForce, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let (kind, name) = named(&done.target);
        let devices = done.devices.iter().map(|(device, limits)| {
            json!({"device": device.name, "number": device.number.to_string(), "limits": limits})
        });
        let document = json!({
            "schema": 1,
            kind: name,
            "group": done.group,
            "version": done.version.map(|version| version.to_string()),
            "devices": devices.collect::<Vec<_>>(),
            "changed_since": done.changed_since.iter().map(|one| &one.name).collect::<Vec<_>>(),
            "escapes": done.escapes.iter().map(|one| one.words()).collect::<Vec<_>>(),
        });
        return print_json(&document, false);
    }
    let lines = done
        .devices
        .iter()
        .map(|(device, limits)| format!("{} on {device}: {limits}\n", done.target));
    print(&lines.collect::<String>())?;
    for escape in &done.escapes {
        say!("bonsai: {}", escape.words());
    }
    Ok(())
}

/// What a group did on a device between two looks, in each second.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    read_bytes: f64,
    write_bytes: f64,
    reads: f64,
    writes: f64,
}

impl Rates {
    fn new(moved: &DiskUse, seconds: f64) -> Self {
        let rate = |n: u64| n as f64 / seconds;
        Self {
            read_bytes: rate(moved.read_bytes),
            write_bytes: rate(moved.write_bytes),
            reads: rate(moved.reads),
            writes: rate(moved.writes),
        }
    }
}

/// One line of `bonsai disk ls`.
#[derive(Debug)]
struct Line<'a> {
    group: &'a Seen,
    device: usize,
    rates: Rates,
    /// Part of the time in which somebody waited, 0 to 1.
    waiting: Option<f64>,
}

fn ls(args: &DiskLook) -> anyhow::Result<()> {
    let disk = disk()?;
    let look = || disk.look(args.cgroup.as_deref()).map_err(refused);
    let (start, first) = (Instant::now(), look()?);
    thread::sleep(args.interval);
    let seen = look()?;
    let seconds = start.elapsed().as_secs_f64();
    let mut earlier = BTreeMap::new();
    let mut waited = BTreeMap::new();
    for one in &first {
        waited.extend(one.pressure.map(|pressure| (&one.group, pressure)));
        for on in &one.devices {
            earlier.insert((&one.group, on.device.number), on.total);
        }
    }
    let mut lines = Vec::new();
    for group in &seen {
        let waiting = group.pressure.and_then(|now| {
            let before = waited.get(&group.group)?;
            Some(now.some_us.saturating_sub(before.some_us) as f64 / 1e6 / seconds)
        });
        for (device, on) in group.devices.iter().enumerate() {
            let before = earlier.get(&(&group.group, on.device.number));
            let moved = on.total.since(&before.copied().unwrap_or_default());
            // Groups that did something once are many.
            if on.limits.is_unlimited() && moved.is_none() && args.cgroup.is_none() {
                continue;
            }
            lines.push(Line {
                group,
                device,
                rates: Rates::new(&moved, seconds),
                waiting: waiting.map(|part| part.min(1.0)),
            });
        }
    }
    if args.json {
        let document = json!({
            "schema": 1,
            "interval_s": seconds,
            "disks": lines.iter().map(Line::as_json).collect::<Vec<_>>(),
        });
        return print_json(&document, false);
    }
    print(&text(&lines))
}

impl Line<'_> {
    fn as_json(&self) -> Value {
        let on = &self.group.devices[self.device];
        json!({
            "group": self.group.group,
            "version": self.group.version.to_string(),
            "device": on.device.name,
            "number": on.device.number.to_string(),
            "limits": on.limits,
            "before": on.before,
            "set_by": on.holder,
            "total": on.total,
            "rates": {
                "read_bytes": self.rates.read_bytes,
                "write_bytes": self.rates.write_bytes,
                "reads": self.rates.reads,
                "writes": self.rates.writes,
            },
            "waiting": self.waiting,
        })
    }
}

fn text(lines: &[Line<'_>]) -> String {
    if lines.is_empty() {
        return "no control group has a limit on a disk, or has moved anything\n".to_owned();
    }
    let header = [
        "group", "device", "limits", "read", "write", "reads", "writes", "waiting", "set by",
    ];
    let mut table = table(&header, &[3, 4, 5, 6, 7]);
    for line in lines {
        let on = &line.group.devices[line.device];
        let waiting = line.waiting.map(|part| format!("{:.0} %", part * 100.0));
        table.add_row([
            line.group.group.clone(),
            on.device.to_string(),
            shown(&on.limits),
            bytes(line.rates.read_bytes),
            bytes(line.rates.write_bytes),
            format!("{:.0}/s", line.rates.reads),
            format!("{:.0}/s", line.rates.writes),
            waiting.unwrap_or_else(|| "-".to_owned()),
            on.holder.words().to_owned(),
        ]);
    }
    finish(&table)
}

fn shown(limits: &DiskLimits) -> String {
    if limits.is_unlimited() {
        "-".to_owned()
    } else {
        limits.to_string()
    }
}

/// Bytes per second for people; a rate is never zero.
fn bytes(per_second: f64) -> String {
    if per_second < 1.0 {
        return "0 B/s".to_owned();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is at least 1, and casts saturate"
    )]
    let whole = per_second as u64;
    Rate::bytes_per_sec(whole).storage()
}
