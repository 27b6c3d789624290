//! What the machine has: shown, measured, and where it is from.

use bonsai_api::{ProbeRequest, Probed};
use bonsai_client::{Client, How};
use bonsai_services::refusal::Refusal;
use bonsai_units::Resource;
use serde_json::json;

use super::look::rate;
use super::{needed, said};
use crate::cli::{CapacityCommand, Probe};
use crate::output::{finish, print, print_json, table};

/// How the reason of a change begins that configures what was measured.
const MEASURED: &str = "measured on ";

/// `bonsai capacity`.
///
/// # Errors
/// No daemon, or it cannot be measured.
pub(crate) fn capacity(command: &CapacityCommand) -> anyhow::Result<u8> {
    let client = needed()?;
    match command {
        CapacityCommand::Show { json } => show(&client, *json)?,
        CapacityCommand::Probe(args) => probe(&client, args)?,
    }
    Ok(0)
}

fn show(client: &Client, as_json: bool) -> anyhow::Result<()> {
    let capacity = client.status().map_err(said)?.capacity;
    // Who may not read the trail sees what is in force.
    let trail = client.audit(None, None, 500).map(|page| page.entries);
    let trail = trail.unwrap_or_default();
    let source = |resource: Resource| {
        let path = format!("capacity.{resource}");
        let of_it = |entry: &&bonsai_api::AuditEntry| {
            entry
                .differences
                .iter()
                .any(|difference| difference.path == path)
        };
        let reason = trail.iter().find(of_it).map(|entry| entry.reason.as_str());
        let measured = reason.filter(|reason| reason.starts_with(MEASURED));
        measured.unwrap_or("configured").to_owned()
    };
    if as_json {
        let all = Resource::ALL.map(|resource| {
            let value = capacity.get(&resource.into());
            let source = value.map(|_| source(resource));
            json!({"resource": resource.name(), "capacity": value, "source": source})
        });
        return print_json(&all, false);
    }
    let mut table = table(&["of", "capacity", "from"], &[1]);
    for resource in Resource::ALL {
        let row = match capacity.get(&resource.into()) {
            Some(value) => [rate(resource, *value), source(resource)],
            None => ["-".to_owned(), "not configured: not shared out".to_owned()],
        };
        let [value, source] = row;
        table.add_row([resource.to_string(), value, source]);
    }
    print(&finish(&table))
}

fn probe(client: &Client, args: &Probe) -> anyhow::Result<()> {
    let path = args.path.as_ref().map(|path| {
        // The daemon runs elsewhere.
        std::path::absolute(path)
            .map_err(|error| Refusal::input(format!("{}: {error}", path.display())))
    });
    let request = ProbeRequest {
        resource: args.resource.into(),
        path: path.transpose()?,
        interface: args.interface.clone(),
        lasts: Some(args.lasts),
    };
    let probed = client.probe(&request).map_err(said)?;
    let name = args.resource.name();
    let applied = if args.apply {
        let how = How {
            reason: Some(probed.reason.clone()),
            ..How::default()
        };
        let patch = json!({"capacity": {name: probed.capacity}});
        Some(client.change_config(&patch, &how).map_err(said)?)
    } else {
        None
    };
    if args.json {
        return print_json(&json!({"probed": probed, "changed": applied}), false);
    }
    let mut text = told(args.resource, &probed);
    match &applied {
        Some(changed) => {
            let lines = super::lines(changed);
            text.push_str(
                &lines
                    .iter()
                    .map(|line| format!("{line}\n"))
                    .collect::<String>(),
            );
        }
        None => text.push_str(&format!(
            "nothing was changed; with --apply, capacity.{name} would be {}\n",
            probed.capacity
        )),
    }
    print(&text)
}

/// A measurement in words.
fn told(resource: Resource, probed: &Probed) -> String {
    let of = |value: f64| rate(resource, value);
    let mut text = format!("{resource}: {} ({})\n", of(probed.median), probed.of);
    if !probed.slices.is_empty() {
        let others = match probed.others {
            Some(others) => format!("; {} of it by others", of(others)),
            None => String::new(),
        };
        text.push_str(&format!(
            "  median of {} slices, {} to {}{others}\n",
            probed.slices.len(),
            of(probed.low),
            of(probed.high)
        ));
    }
    for doubt in &probed.doubts {
        text.push_str(&format!("  doubt: {doubt}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_told_with_its_doubts() {
        let probed = Probed {
            resource: Resource::Read.into(),
            unix_ms: 0,
            median: 412e6,
            low: 400e6,
            high: 420e6,
            others: Some(12e6),
            slices: vec![412e6; 11],
            moved: 1,
            of: "sda, by direct sequential reads in /srv".to_owned(),
            doubts: vec!["others were busy".to_owned()],
            capacity: "412MB/s".to_owned(),
            reason: String::new(),
        };
        assert_eq!(
            told(Resource::Read, &probed),
            "read: 412 MB/s (sda, by direct sequential reads in /srv)\n  \
             median of 11 slices, 400 MB/s to 420 MB/s; 12 MB/s of it by others\n  \
             doubt: others were busy\n"
        );
    }
}
