//! Which device of a trace is which export.

use bonsai_nbd::client::Uri;
use bonsai_services::refusal::Refusal;
use bonsai_trace::Volume;

use super::survey::Survey;
use crate::trace::made::file_names;

/// What stands for a device's name.
const DEVICE: &str = "{device}";

/// What `--to` says.
#[derive(Debug)]
pub(super) struct Target {
    /// Of that device alone.
    device: Option<String>,
    uri: String,
}

impl Target {
    /// `URI`, or `DEVICE=URI`.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        // A name may have any character; what stands before :// is a scheme, which has no =.
        let scheme = text.split("://").next().unwrap_or_default();
        let target = match scheme.rfind('=') {
            Some(at) => Self {
                device: Some(text[..at].to_owned()),
                uri: text[at + 1..].to_owned(),
            },
            None => Self {
                device: None,
                uri: text.to_owned(),
            },
        };
        target.uri("x")?;
        Ok(target)
    }

    /// The export of a device, by its name in names of files.
    fn uri(&self, device: &str) -> anyhow::Result<Uri> {
        // A brace in a URI would be encoded.
        let text = self.uri.replace(DEVICE, device);
        let uri = text.parse();
        uri.map_err(|error: bonsai_nbd::client::UriError| Refusal::input(format!("--to {error}")))
    }

    fn is_of_many(&self) -> bool {
        self.uri.contains(DEVICE)
    }
}

/// The exports of all devices that are asked for something, by numbers of volumes.
pub(super) fn devices(
    targets: &[Target],
    survey: &Survey,
    reads_only: bool,
) -> anyhow::Result<Vec<(usize, Uri)>> {
    let asked = survey.asked.iter().zip(&survey.volumes).enumerate();
    let wanted: Vec<(usize, &Volume)> = asked
        .filter(|(_, (asked, _))| asked.is_used(reads_only))
        .map(|(number, (_, volume))| (number, volume))
        .collect();
    for target in targets {
        let named = target.device.as_ref();
        let is_there = |name: &&String| survey.volumes.iter().any(|volume| volume.name == **name);
        if let Some(name) = named.filter(|name| !is_there(name)) {
            return Err(Refusal::input(format!(
                "--to {name}=...: the trace has no such device; it has {}",
                names(&wanted)
            )));
        }
    }
    let files = file_names(&survey.volumes);
    let mut found: Vec<(usize, Uri)> = Vec::new();
    for (number, volume) in &wanted {
        let own = |target: &&Target| target.device.as_ref() == Some(&volume.name);
        let of_all = |target: &&Target| target.device.is_none();
        let target = targets
            .iter()
            .find(own)
            .or_else(|| targets.iter().find(of_all));
        let Some(target) = target else {
            return Err(Refusal::input(format!(
                "the trace has a device {} that --to says nothing of: add --to {}=URI",
                volume.name, volume.name
            )));
        };
        let uri = target.uri(&files[*number])?;
        if let Some((other, _)) = found.iter().find(|(_, other)| *other == uri) {
            let other = &survey.volumes[*other].name;
            let hint = if target.is_of_many() || target.device.is_some() {
                "each has to have its own"
            } else {
                "write --to DEVICE=URI for each, or {device} in one"
            };
            return Err(Refusal::input(format!(
                "the trace has the devices {}, and {other} and {} would be one export: {hint}",
                names(&wanted),
                volume.name
            )));
        }
        found.push((*number, uri));
    }
    Ok(found)
}

fn names(volumes: &[(usize, &Volume)]) -> String {
    const MOST: usize = 8;
    let shown: Vec<&str> = volumes
        .iter()
        .take(MOST)
        .map(|(_, volume)| volume.name.as_str())
        .collect();
    let more = volumes.len().saturating_sub(MOST);
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_may_have_any_name() {
        let parse = |text: &str| {
            let target = Target::parse(text).expect(text);
            (target.device, target.uri)
        };
        let uri = "nbd+unix:///a?socket=/x=nbd://";
        assert_eq!(parse(uri), (None, uri.to_owned()));
        for device in ["vda", "8:0", "nbd0", "a=b"] {
            let found = parse(&format!("{device}={uri}"));
            assert_eq!(found, (Some(device.to_owned()), uri.to_owned()));
        }
        let of_all = Target::parse("nbd://host/disk.{device}").expect("a URI");
        let uri = of_all.uri("dev_0_0").expect("a URI");
        assert_eq!(uri.export, "disk.dev_0_0");
        for wrong in ["", "vda", "vda=", "vda=http://host/", "file:///x"] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
