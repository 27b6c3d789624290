//! What a look at the tenants costs beside many processes, and what it shows of this machine.
//!
//! `cargo run --release -p bonsai-host --example tenants -- [PROCESSES] [DESCRIPTORS]` starts that
//! many sleeping processes (1,000) with that many descriptors each besides the usual three (7), looks 50
//! times, and ends them.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bonsai_host::Error;
use bonsai_host::tenants::{Roots, Tenants};
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (processes, descriptors) = (number(1000)?, number(7)?);
    // Without CLOEXEC they are the children's, too.
    let open = || rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty());
    let inherited: Vec<_> = (0..descriptors).map(|_| open()).collect::<Result<_, _>>()?;
    let mut sleepers = Sleepers(Vec::new());
    for _ in 0..processes {
        let mut command = Command::new("sleep");
        let child = command.arg("600").stdin(Stdio::null()).spawn()?;
        sleepers.0.push(child);
    }
    drop(inherited);
    std::thread::sleep(Duration::from_secs(1));
    measure(
        "with their descriptors",
        || Tenants::look(&Roots::default()),
    )?;
    measure("without", || Tenants::look_without_taps(&Roots::default()))?;
    let tenants = Tenants::look(&Roots::default())?;
    for namespace in tenants.namespaces.values() {
        let who = tenants.behind_netns(namespace.id).map(|who| who.describe());
        let who = who.as_deref().unwrap_or(if namespace.own {
            "this machine"
        } else {
            "nobody"
        });
        println!(
            "net:[{}] {} processes: {who}",
            namespace.id.inode, namespace.processes
        );
    }
    for tap in &tenants.taps {
        let who = tenants.behind_process(tap.pid).map(|who| who.describe());
        println!("{:?} {:?}: {}", tap.kind, tap.name, who.unwrap_or_default());
    }
    Ok(())
}

fn measure(what: &str, look: impl Fn() -> Result<Tenants, Error>) -> Result<(), Error> {
    let mut times = Vec::new();
    let mut count = 0;
    for _ in 0..50 {
        let start = cpu_time();
        count = look()?.processes.len();
        times.push(cpu_time().saturating_sub(start));
    }
    times.sort();
    let (median, least, most) = (times[25], times[0], times[49]);
    println!("{count} processes {what}: CPU time {median:?}, {least:?} to {most:?}");
    Ok(())
}

/// That of this thread: others may keep the CPUs busy.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}

struct Sleepers(Vec<Child>);

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
