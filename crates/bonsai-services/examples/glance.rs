//! What looking at many services costs: `glance [SERVICES [THREADS [LOOKS]]]`.
//!
//! Another process makes the services, each with its limits and a page of counters for each
//! thread, in which some entries have been counted, and goes on counting in all of them. This
//! one looks ten times a second, as a daemon does.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_calls::CallId;
use bonsai_ledger::sync::bump;
use bonsai_ledger::{Ledger, Owner, own_process};
use bonsai_services::glance::Glances;
use bonsai_services::limits::{Limit, apply};
use bonsai_services::observe::monotonic_ns;
use bonsai_services::service::{OwnService, Services, Wanted};

/// What a server's threads do: about as many entries as those of nginx.
const USED: [CallId; 8] = [
    bonsai_calls::READ_FILE,
    bonsai_calls::WRITE_FILE,
    bonsai_calls::RECVFROM,
    bonsai_calls::SENDTO,
    bonsai_calls::OPEN,
    bonsai_calls::CLOSE,
    bonsai_calls::ACCEPT4,
    bonsai_calls::EPOLL_WAIT,
];

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if first.as_deref() == Some("make") {
        let number = |text: Option<String>| text.as_deref().unwrap_or("0").parse::<u32>();
        return make(number(args.next())?, number(args.next())?);
    }
    let services: usize = first.as_deref().unwrap_or("1000").parse()?;
    let threads = args.next().unwrap_or_else(|| "10".to_owned());
    let looks: u32 = args.next().as_deref().unwrap_or("50").parse()?;
    let folder = bonsai_host::runtime_dir()?;
    let mut writer = Command::new(std::env::current_exe()?)
        .args(["make", &services.to_string(), &threads])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut ready = String::new();
    if let Some(out) = writer.stdout.take() {
        BufReader::new(out).read_line(&mut ready)?;
    }
    println!(
        "{services} services of {threads} threads in {}",
        folder.display()
    );
    measure(looks)?;
    writer.kill()?;
    writer.wait()?;
    // Its services are dead now, and go.
    let start = Instant::now();
    Services::open()?.live()?;
    println!("removing them: {:?}", start.elapsed());
    Ok(())
}

fn make(services: u32, threads: u32) -> anyhow::Result<()> {
    let limits: Vec<Limit> = [
        "read=10MB/s",
        "write=10MB/s",
        "send=80Mbit/s",
        "all=10000/s",
    ]
    .iter()
    .map(|text| Limit::parse(text))
    .collect::<Result<_, _>>()?;
    let mut all: Vec<(OwnService, Ledger)> = Vec::new();
    for i in 0..services {
        let name = format!("service-{i}");
        let own = Services::open()?.make(&Wanted::Exactly(&name))?;
        let ledger = Ledger::create(&own.ledger_path(), &name)?;
        apply(&ledger, &limits, None, monotonic_ns())?;
        for tid in 1..=threads {
            let me = Owner::of(own_process(), tid);
            ledger.claim_page(me, |_| false, |_| true);
        }
        all.push((own, ledger));
    }
    println!("ready");
    loop {
        for (_, ledger) in &all {
            for page in &ledger.threads[..threads as usize] {
                for call in USED {
                    let count = &page.counts[usize::from(call)];
                    bump(&count.calls, 1);
                    bump(&count.bytes, 1000);
                }
            }
        }
        // Some of them are held back.
        for (_, ledger) in all.iter().step_by(10) {
            let now = monotonic_ns();
            let note = &ledger.threads[0].wait;
            note.sleep(bonsai_calls::SENDTO, 1, 0, now, now);
            note.end();
            ledger.record_wait(bonsai_calls::SENDTO, 1, 1000);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn memory(what: &str) -> String {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(what));
    line.map_or_else(String::new, |line| {
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}

fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
}

fn measure(looks: u32) -> anyhow::Result<()> {
    let mut glances = Glances::new()?;
    let start = Instant::now();
    glances.look()?;
    println!("the first look: {:?}", start.elapsed());
    let mut times = Vec::new();
    let (from, before) = (Instant::now(), cpu_ns());
    for _ in 0..looks {
        std::thread::sleep(Duration::from_millis(100));
        let start = cpu_ns();
        glances.look()?;
        times.push(cpu_ns() - start);
    }
    let used = cpu_ns() - before;
    times.sort_unstable();
    let count = glances.len().max(1) as u64;
    let [half, most] = [times.len() / 2, times.len() - 1].map(|i| times[i]);
    println!(
        "a look: {} us in the median, {} us at most; {} ns a service",
        half / 1000,
        most / 1000,
        half / count
    );
    #[expect(clippy::cast_precision_loss, reason = "times are small")]
    let part = used as f64 / from.elapsed().as_nanos() as f64 * 100.0;
    println!("of one core: {part:.2} %");
    let sums = glances.iter().map(|(_, glance)| glance.totals[2]);
    println!("sent: {} bytes", sums.sum::<u64>());
    for what in [
        "VmRSS", "RssAnon", "RssFile", "RssShmem", "VmPTE", "Threads",
    ] {
        println!("{}", memory(what));
    }
    let pss = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let pss = pss.lines().find(|line| line.starts_with("Pss:"));
    println!("{}", pss.unwrap_or_default());
    Ok(())
}
