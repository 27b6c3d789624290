//! What a look at many services costs: namespaces with a pair each, without limits, with a part of one
//! uplink each, and with limits in both directions; and groups. As root; it runs in a network namespace of its own.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bonsai_cgroup::{Controller, Hierarchies};
use bonsai_link::namespace;
use bonsai_tenants::{Bodies, Keeper, wishes};
use rustix::time::{ClockId, clock_gettime};

const LOOKS: u32 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let many: usize = match std::env::args().nth(1) {
        Some(many) => many.parse()?,
        None => 1000,
    };
    if std::env::var_os("APART").is_none() {
        let host = namespace::make()?;
        let own = std::env::current_exe()?;
        let run = || {
            Command::new(own)
                .arg(many.to_string())
                .env("APART", "1")
                .status()
        };
        let done = namespace::inside(host.as_fd(), run)??;
        std::process::exit(done.code().unwrap_or(1));
    }
    let folder = tempfile::tempdir()?;
    let guest = namespace::make()?;
    let holder = namespace::inside(guest.as_fd(), || Command::new("sleep").arg("1000").spawn())??;
    let mut lines = vec!["link add out type veth peer name far".to_owned()];
    for number in 0..many {
        let pid = holder.id();
        lines.push(format!(
            "link add v{number} type veth peer name e{number} netns {pid}"
        ));
    }
    let batch = folder.path().join("batch");
    std::fs::write(&batch, lines.join("\n"))?;
    Command::new("ip").arg("-batch").arg(&batch).status()?;

    let names: Vec<String> = (0..many).map(|number| format!("v{number}")).collect();
    let mut bodies = Bodies::new(folder.path().to_owned());
    let places = names
        .iter()
        .map(|name| (name.clone(), name.parse().expect("a place")));
    bodies.want(places.collect());
    let mut keeper = Keeper::new(folder.path().to_owned());
    println!("{many} services, CPU time of a look in ms (mean, worst), and at ten looks a second");
    measure("without limits", &mut bodies, &BTreeMap::new());
    let mut share = serde_json::json!({"out": {"tx": "10Gbit/s"}});
    let mut both = serde_json::json!({});
    for name in &names {
        share[name] = serde_json::json!({"guarantee": "1Mbit/s", "uplink": "out"});
        both[name] = serde_json::json!({"tx": "10Mbit/s", "rx": "10Mbit/s"});
    }
    for (what, links) in [("a part of an uplink", share), ("both directions", both)] {
        let round = keeper.round(&wishes(&serde_json::from_value(links)?)?, Instant::now())?;
        if let Some(problem) = round.problems.first() {
            println!("{problem}");
        }
        let granted = round.granted.into_iter();
        let at = granted.filter_map(|(name, granted)| Some((name, granted.at?)));
        measure(what, &mut bodies, &at.collect());
    }
    groups(many, &folder.path().join("groups"))?;
    let mut holder = holder;
    holder.kill()?;
    holder.wait()?;
    Ok(())
}

/// Control groups that rest.
fn groups(many: usize, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir(folder)?;
    let hierarchies = Hierarchies::read()?;
    let mount = &hierarchies.with(Controller::Io)?.mount;
    let above = format!("bonsai-example.{}", std::process::id());
    let made: Vec<_> = (0..many)
        .map(|number| mount.join(&above).join(number.to_string()))
        .collect();
    for group in &made {
        std::fs::create_dir_all(group)?;
    }
    let mut bodies = Bodies::new(folder.to_owned());
    let places = (0..many).map(|number| format!("cgroup:/{above}/{number}"));
    bodies.want(
        places
            .map(|place| (place.clone(), place.parse().expect("a place")))
            .collect(),
    );
    measure("groups", &mut bodies, &BTreeMap::new());
    for group in made.iter().chain([&mount.join(&above)]) {
        std::fs::remove_dir(group)?;
    }
    Ok(())
}

/// Looks ten times a second.
fn measure(what: &str, bodies: &mut Bodies, links: &BTreeMap<String, (u64, u32)>) {
    for _ in 0..20 {
        bodies.look(links);
        std::thread::sleep(Duration::from_millis(100));
    }
    let (mut sum, mut worst) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..LOOKS {
        let start = cpu_time();
        bodies.look(links);
        let took = cpu_time() - start;
        sum += took;
        worst = worst.max(took);
        std::thread::sleep(Duration::from_millis(100));
    }
    let counted = bodies.look(links).values();
    let counted = counted.filter(|body| body.totals != [None; 4]).count();
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let mean = ms(sum) / f64::from(LOOKS);
    println!(
        "{what:20} {mean:7.3} {:7.3}   {mean:.2} %   ({counted} counted)",
        ms(worst)
    );
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
