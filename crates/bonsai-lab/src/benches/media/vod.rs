//! Paper 002: what viewers see of a media server beside a file server, a web server, and senders and receivers
//! of TCP and UDP; without Bonsai and with it.
//!
//! The paper's two virtual machines share a host and its card of 100 Mbit/s. Here they are two tenants in
//! network namespaces that share a processor, the disk, and a link of 100 Mbit/s; the viewers are outside, on
//! another processor. With Bonsai, the media server has a guarantee on the link and a large weight on the
//! processor, and who reads and writes files is a service under a limit, with a small weight.
//!
//! The paper looks for the largest number of viewers first. So does `--full`; else it is a number that a link
//! of 100 Mbit/s carries.

mod figure;
mod site;
mod stress;
mod tables;

use std::time::Duration;

use bonsai_media::search::Search;
use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::audience::{Ask, Seen, watch_all};
use super::clip::{KEY_FRAMES, NAME, Shelf};
use super::server::{Kind, Served, Server, Start};
use super::{Cores, together};
use crate::context::{Context, Effort};
use crate::load::{Control, Moment};
use crate::record::{Record, Sample};
use crate::report::Section;
use site::Site;
use stress::{Files, Stress, Times};

/// The benchmark "media-002".
#[derive(Debug)]
pub(crate) struct Vod;

/// Viewers, where no largest number is looked for: 83 Mbit/s of layer 2.
const VIEWERS: u32 = 40;
/// That is looked for from here on, up to there, and has to be good so many times.
const SEARCH: (u32, u32, u32) = (36, 60, 3);
const SEARCH_LENGTH: Duration = Duration::from_secs(5);
/// From the beginning of the stress to the first viewer.
const LEAD: Duration = Duration::from_secs(1);
/// The service of the media server.
const SERVICE: [&str; 4] = ["--name", "media", "--cpu", "weight=5000"];

/// What viewers watch.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Scenario {
    /// All the same video.
    Same,
    /// Each its own, which is read from the disk.
    Own,
}

impl Scenario {
    const fn name(self) -> &'static str {
        match self {
            Self::Same => "scenario 1, one video",
            Self::Own => "scenario 2, a video each",
        }
    }
}

/// What is measured at a time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Case {
    kind: Kind,
    scenario: Scenario,
    stress: Stress,
    /// Whether Bonsai protects the viewers.
    with: bool,
}

impl Case {
    fn text(self) -> String {
        let with = if self.with {
            "with Bonsai"
        } else {
            "without Bonsai"
        };
        format!(
            "{}, {}, {}, {with}",
            self.kind.name(),
            self.scenario.name(),
            self.stress.name()
        )
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    case: Case,
    round: u32,
    viewers: u32,
    seen: Seen,
    /// What the stress got, bytes a second.
    stress_rate: Option<f64>,
    served: Option<Served>,
}

/// The search for the largest number of viewers.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Base {
    /// Each number that was tried, how many of them had top quality by all criteria, and what the others
    /// fell short of.
    tries: Vec<(u32, usize, String)>,
    /// The largest that was good, and how many times.
    found: Option<(u32, u32)>,
    too_many: Option<u32>,
}

/// What is measured in a round. The paper's server is VLC; ours is as good as any.
fn cases(effort: Effort) -> Vec<Case> {
    let kinds = effort.of(
        &[Kind::Classic][..],
        &[Kind::Classic],
        &[Kind::Classic, Kind::Vlc],
    );
    let mut cases = Vec::new();
    for kind in kinds {
        for scenario in [Scenario::Same, Scenario::Own] {
            let stresses = match (effort, scenario) {
                (Effort::Quick, Scenario::Own) => &[Stress::None, Stress::Fileserver][..],
                _ => &Stress::ALL,
            };
            for stress in stresses {
                // Beside nothing there is nothing to be protected from.
                let withs = if *stress == Stress::None {
                    &[false][..]
                } else {
                    &[false, true]
                };
                cases.extend(withs.iter().map(|with| Case {
                    kind: *kind,
                    scenario,
                    stress: *stress,
                    with: *with,
                }));
            }
        }
    }
    cases
}

impl Benchmark for Vod {
    fn name(&self) -> &'static str {
        "media-002"
    }

    fn about(&self) -> &'static str {
        "viewers beside disk, TCP and UDP stress, without and with Bonsai: the paper's Tables 1 to 3, scenarios 1 and 2"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(3, 10, 30));
        let rounds = context.effort.of(1, 1, 5);
        let seconds = length.max(SEARCH_LENGTH).as_secs() + 2;
        let made = Shelf::make(context, seconds).and_then(|shelf| Ok((shelf, Site::new(context)?)));
        let (shelf, site) = match made {
            Ok(made) => made,
            Err(error) => return context.skip("all of it", format!("{error:#}")),
        };
        let viewers = match context.effort {
            Effort::Full => search(context, &site, &shelf)?,
            _ => VIEWERS,
        };
        let mut stage = Stage {
            site,
            shelf,
            files: None,
            viewers,
            length,
        };
        let mut missing: Vec<String> = Vec::new();
        for round in 0..rounds {
            let mut cases = cases(context.effort);
            if round > 0 {
                context.shuffle(&mut cases);
            }
            for case in cases {
                if !context.is_wanted(&case.text()) {
                    continue;
                }
                let why = case.kind.missing().or_else(|| case.stress.missing());
                if let Some(why) = why {
                    if !missing.iter().any(|known| known == why) {
                        missing.push(why.to_owned());
                        context.skip(case.text(), why)?;
                    }
                    continue;
                }
                context.progress(&case.text());
                stage.measure(context, case, round)?;
            }
        }
        if let Some(figure) = context.figure.clone() {
            let record = Record::read(&context.recorder.path)?;
            figure::write(&figure, &record.samples(self.name()))?;
            context.progress(&format!("figure: {}", figure.display()));
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        let bases: Vec<Sample<Base>> = record.samples(self.name());
        tables::report(
            &record.samples(self.name()),
            bases.first().map(|base| &base.data),
        )
    }
}

/// Where all of it is measured.
#[derive(Debug)]
struct Stage {
    site: Site,
    shelf: Shelf,
    /// What a file server and a web server have, once one was needed.
    files: Option<Files>,
    viewers: u32,
    length: Duration,
}

impl Stage {
    fn measure(&mut self, context: &mut Context, case: Case, round: u32) -> anyhow::Result<()> {
        if case.stress.needs_files() && self.files.is_none() {
            context.progress("files for the file server and the web server");
            self.files = Some(Files::make(context)?);
        }
        let guarantee = case.with.then(|| site::guarantee(self.viewers));
        self.site.protect(guarantee)?;
        let before = Moment::now();
        let cores = Cores::find();
        let service = case.with.then(|| SERVICE.map(str::to_owned).to_vec());
        let names = match case.scenario {
            Scenario::Same => vec![NAME.to_owned()],
            Scenario::Own => self.shelf.copies(self.viewers)?,
        };
        let server = start(context, &self.site, &self.shelf, case.kind, service)?;
        if case.scenario == Scenario::Own {
            self.shelf.forget(&names)?;
        }
        let times = Times {
            // Until all have come.
            uncounted: LEAD + KEY_FRAMES,
            counted: self.length,
        };
        let files = self.files.as_ref();
        let stress = case
            .stress
            .start(context, &self.site, files, case.with, times)?;
        if stress.is_some() {
            std::thread::sleep(LEAD);
        }
        let control = Control::start();
        let seen = watch_all(&self.asks(&server, &names, cores));
        let gaps = control.finish();
        let stress_rate = stress.map(stress::Running::finish).transpose();
        let served = server.end()?;
        let mut conditions = before.until_now();
        conditions.gaps = gaps;
        let measured = Measured {
            case,
            round,
            viewers: self.viewers,
            seen: Seen::of_all(seen?),
            stress_rate: stress_rate?,
            served,
        };
        context.sample(conditions, &measured)
    }

    fn asks<'a>(&'a self, server: &Server, names: &[String], cores: Cores) -> Vec<Ask<'a>> {
        let count = u32::try_from(names.len()).unwrap_or(1);
        let ask = |(number, name): (u32, &String)| Ask {
            url: server.url(name),
            server: server.at,
            viewers: self.viewers / count,
            within: KEY_FRAMES,
            after: KEY_FRAMES * number / count,
            length: self.length,
            room: Some(self.site.outside()),
            core: cores.viewers,
        };
        (0..).zip(names).map(ask).collect()
    }
}

fn start(
    context: &mut Context,
    site: &Site,
    shelf: &Shelf,
    kind: Kind,
    service: Option<Vec<String>>,
) -> anyhow::Result<Server> {
    let start = Start {
        kind,
        shelf,
        service,
        core: Cores::find().server,
        room: Some(site.media()),
    };
    start.start(context)
}

/// Looks for the largest number of viewers that all have top quality, beside nothing.
fn search(context: &mut Context, site: &Site, shelf: &Shelf) -> anyhow::Result<u32> {
    let before = Moment::now();
    let cores = Cores::find();
    let server = start(context, site, shelf, Kind::Classic, None)?;
    let mut search = Search::new(SEARCH.0, SEARCH.1, SEARCH.2);
    let mut tries = Vec::new();
    while let Some(viewers) = search.next() {
        context.check()?;
        context.progress(&format!("{viewers} viewers, beside nothing"));
        let ask = Ask {
            url: server.url(NAME),
            server: server.at,
            viewers,
            within: KEY_FRAMES,
            after: Duration::ZERO,
            length: SEARCH_LENGTH,
            room: Some(site.outside()),
            core: cores.viewers,
        };
        let seen = Seen::of_all(watch_all(&[ask])?);
        let quality = seen.quality();
        search.told(quality.honest == quality.all);
        let short = together([seen.failures(), Some(seen.short_of()), seen.own_fault()]);
        tries.push((viewers, quality.honest, short.unwrap_or_default()));
    }
    let (found, too_many) = search.found();
    drop(server);
    let base = Base {
        tries,
        found,
        too_many,
    };
    context.sample(before.until_now(), &base)?;
    Ok(found.map_or(VIEWERS, |(viewers, _)| viewers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stress_is_met_without_and_with_bonsai() {
        for effort in [Effort::Quick, Effort::Normal, Effort::Full] {
            let cases = cases(effort);
            for stress in Stress::ALL {
                let count = |with| {
                    let is_it = |case: &&Case| {
                        (case.kind, case.scenario, case.stress, case.with)
                            == (Kind::Classic, Scenario::Same, stress, with)
                    };
                    cases.iter().filter(is_it).count()
                };
                assert_eq!(
                    (count(false), count(true)),
                    (1, usize::from(stress != Stress::None))
                );
            }
            assert!(
                cases
                    .iter()
                    .any(|case| case.scenario == Scenario::Own && case.with)
            );
        }
    }
}
