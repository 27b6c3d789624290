//! What the policy has learned, as bytes.

use bonsai_history::Blob;
use bonsai_policy::{Entry, Memory, ResourceMemory, ServiceMemory};
use serde::{Deserialize, Serialize};

/// The version of the form.
const VERSION: u32 = 1;

#[derive(Deserialize, Serialize)]
struct Kept {
    wall_s: u64,
    services: Vec<(String, Vec<KeptResource>)>,
}

#[derive(Deserialize, Serialize)]
struct KeptResource {
    resource: String,
    seconds: u64,
    hunger: f64,
    guarantee: Option<u64>,
    all: Vec<Entry>,
    recent: Vec<Entry>,
    hours: Vec<Vec<Entry>>,
}

/// As bytes.
pub(super) fn write(memory: &Memory) -> Blob {
    let resource = |known: &ResourceMemory| KeptResource {
        resource: known.resource.name().to_owned(),
        seconds: known.seconds,
        hunger: known.hunger,
        guarantee: known.guarantee,
        all: known.all.clone(),
        recent: known.recent.clone(),
        hours: known.hours.clone(),
    };
    let services = memory.services.iter().map(|service| {
        let resources = service.resources.iter().map(resource).collect();
        (service.name.to_string(), resources)
    });
    let kept = Kept {
        wall_s: memory.wall_s,
        services: services.collect(),
    };
    Blob {
        version: VERSION,
        // Numbers, texts and lists of them: nothing that JSON has not.
        data: serde_json::to_vec(&kept).unwrap_or_default(),
    }
}

/// Written by a newer version.
pub(super) const fn is_newer(blob: &Blob) -> bool {
    blob.version > VERSION
}

/// From bytes.
///
/// # Errors
/// The reason why they are none of this form, in words.
pub(super) fn read(blob: &Blob) -> Result<Memory, String> {
    if blob.version != VERSION {
        return Err(format!(
            "it is of version {}, and this program knows {VERSION}",
            blob.version
        ));
    }
    let kept: Kept =
        serde_json::from_slice(&blob.data).map_err(|error| format!("it is damaged: {error}"))?;
    let resource = |known: KeptResource| {
        let resource = known.resource.parse();
        Ok(ResourceMemory {
            resource: resource.map_err(|_| format!("{:?} is no resource", known.resource))?,
            seconds: known.seconds,
            hunger: known.hunger,
            guarantee: known.guarantee,
            all: known.all,
            recent: known.recent,
            hours: known.hours,
        })
    };
    let services = kept.services.into_iter().map(|(name, resources)| {
        let resources = resources.into_iter().map(resource);
        Ok(ServiceMemory {
            name: name.into(),
            resources: resources.collect::<Result<_, String>>()?,
        })
    });
    Ok(Memory {
        wall_s: kept.wall_s,
        services: services.collect::<Result<_, String>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonsai_units::Resource;

    #[test]
    fn what_was_learned_comes_back() {
        let memory = Memory {
            wall_s: 1_700_000_000,
            services: vec![ServiceMemory {
                name: "vod".into(),
                resources: vec![ResourceMemory {
                    resource: Resource::Send,
                    seconds: 7200,
                    hunger: 0.25,
                    guarantee: Some(5_000_000_000),
                    all: vec![(300, 12.5), (301, 0.125)],
                    recent: vec![(300, 1.0)],
                    hours: vec![Vec::new(), vec![(300, 3.0)]],
                }],
            }],
        };
        let blob = write(&memory);
        assert_eq!(read(&blob), Ok(memory));
        let other = Blob {
            version: 2,
            ..blob.clone()
        };
        assert!(read(&other).expect_err("refused").contains("version 2"));
        let damaged = Blob {
            data: blob.data[1..].to_vec(),
            ..blob
        };
        assert!(read(&damaged).expect_err("refused").contains("damaged"));
    }
}
