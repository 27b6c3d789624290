//! What a machine has, measured on demand, with as little harm as can be.
//!
//! # Promises
//! 1. One measurement at a time; each in a thread of its own, so that neither the owner of what
//!    changes nor other requests wait for it.
//! 2. It ends by itself: after [`LONGEST`] and half of that. On a device that hangs it ends when
//!    the kernel lets go of it; whoever asks is answered after [`PATIENCE`], and until it has
//!    ended there is no other one.
//! 3. A disk is measured by a file without a name, which is gone when the measurement is, however
//!    that ends. Where a file system has none, it has one until it is open; one that is left
//!    behind, empty, is removed by the next measurement there. It takes a twentieth of what is free and 256 MiB at most, and no more than 4 GiB
//!    are written.
//! 4. Nothing is sent to anybody: of a link its own speed is read.
//! 5. Nothing is configured by it.

mod disk;
mod judge;
mod link;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bonsai_api::{ProbeRequest, Probed, Problem, Resource};
use bonsai_services::observe::unix_ms;
use tokio::sync::oneshot;

use crate::problems::{bad_input, problem, unavailable};

/// For how long is measured where nothing is said.
const STANDARD: Duration = Duration::from_secs(3);

/// The shortest time.
const SHORTEST: Duration = Duration::from_secs(1);

/// The longest time.
const LONGEST: Duration = Duration::from_secs(20);

/// A device that does not answer for so long has failed; its calls cannot be taken back.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether one is under way.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    busy: Arc<AtomicBool>,
}

/// The one that is under way.
struct Turn(Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Probes {
    fn turn(&self) -> Result<Turn, Problem> {
        let was = self.busy.swap(true, Ordering::Acquire);
        if was {
            let text = "a capacity is being measured already: ask again when that is over";
            return Err(problem(409, "busy", "One at a time", text));
        }
        Ok(Turn(Arc::clone(&self.busy)))
    }

    /// Measures; `usual` is the folder where none is said.
    pub(crate) async fn measure(
        &self,
        request: ProbeRequest,
        usual: &Path,
    ) -> Result<Probed, Problem> {
        let time = check(&request)?;
        let folder = request.path.clone().unwrap_or_else(|| usual.to_owned());
        let turn = self.turn()?;
        let (reply, answer) = oneshot::channel();
        let work = move || {
            let measured = measure(&request, &folder, time);
            // Whoever has the answer may ask for the next one.
            drop(turn);
            // Whoever asked may have gone away.
            drop(reply.send(measured));
        };
        std::thread::Builder::new()
            .name("probe".to_owned())
            .spawn(work)
            .map_err(|error| unavailable(format!("no thread to measure in: {error}")))?;
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(unavailable("the measurement was broken off")),
            Err(_) => Err(unavailable("the device does not answer")),
        }
    }
}

/// Whether what is asked for makes sense, and for how long.
fn check(request: &ProbeRequest) -> Result<Duration, Problem> {
    let resource = request.resource;
    let name = bonsai_units::Resource::from(resource).name();
    match resource {
        Resource::Calls => {
            return Err(bad_input(
                "a capacity of calls cannot be measured, for it depends on which calls they are: \
                 configure it (bonsai config set capacity.calls=100000/s)",
            ));
        }
        Resource::Read | Resource::Write if request.interface.is_some() => {
            return Err(bad_input(format!(
                "interface: {name} is of a disk: say path"
            )));
        }
        Resource::Send | Resource::Recv if request.path.is_some() => {
            return Err(bad_input(format!(
                "path: {name} is of a link: say interface"
            )));
        }
        _ => {}
    }
    let time = request.lasts.map_or(STANDARD, |span| span.0);
    if !(SHORTEST..=LONGEST).contains(&time) {
        return Err(bad_input("for: a capacity is measured for 1s to 20s"));
    }
    Ok(time)
}

fn measure(request: &ProbeRequest, folder: &Path, time: Duration) -> Result<Probed, Problem> {
    let resource = request.resource;
    let now = unix_ms();
    match resource {
        Resource::Read | Resource::Write => {
            let run = disk::run(folder, resource == Resource::Write, time).map_err(bad_input)?;
            judge::disk(resource, now, &run).map_err(bad_input)
        }
        _ => {
            let net = Path::new("/sys/class/net");
            let name = match &request.interface {
                Some(name) => name.clone(),
                None => link::of_default_route().map_err(bad_input)?,
            };
            let link = link::look(net, &name).map_err(bad_input)?;
            Ok(judge::link(resource, now, &name, &link))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_a_time() {
        let probes = Probes::default();
        let turn = probes.turn().expect("free");
        assert_eq!(probes.turn().err().map(|problem| problem.status), Some(409));
        drop(turn);
        probes.turn().expect("free again");
    }
}
