//! Each case bare, as a service without limits, and under limits.

use bonsai_calls::{CALLS, Class, Shape, select};
use conformance::{Case, Counters, Outcome, for_each, skip};

use crate::coverage::entry_name;
use crate::fixture::{
    Cases, PATIENCE, SLEEPERS, WORKERS, assert_none, bare, bare_run, bonsai, cases, outcome,
    scratch, static_cases,
};

/// What glibc calls in the place of the system call that its function is named after:
/// where its call sites are patched, the call may count as the one or the other.
const MADE_BY_LIBC: &[(&str, &str)] = &[
    ("open", "openat"),
    ("open64", "openat"),
    ("__open", "openat"),
    ("__open64", "openat"),
    ("stat", "newfstatat"),
    ("stat64", "newfstatat"),
    ("lstat", "newfstatat"),
    ("lstat64", "newfstatat"),
    ("fstat", "newfstatat"),
    ("fstat64", "newfstatat"),
    ("faccessat", "faccessat2"),
    ("pipe", "pipe2"),
    ("fork", "clone"),
    ("_Fork", "clone"),
    ("__fork", "clone"),
    ("select", "pselect6"),
    ("posix_spawn", "execve"),
    ("posix_spawnp", "execve"),
    ("system", "execve"),
    ("popen", "execve"),
];

fn made_by_libc(case: &Case) -> Option<&'static str> {
    let mut table = MADE_BY_LIBC.iter();
    table
        .find(|(symbol, _)| *symbol == case.symbol)
        .map(|(_, entry)| *entry)
}

/// The name under which a limit is on an entry: its call's. Where that is the name
/// of a class without the entry (`read` on a socket), the socket's class.
fn limit_name(entry: &str) -> &'static str {
    let call = CALLS.iter().find(|call| entry_name(call) == entry);
    let call = call.unwrap_or_else(|| panic!("no entry {entry}"));
    match (select(call.name), call.shape) {
        (Some(chosen), _) if chosen.contains(call) => call.name,
        (_, Shape::In) => Class::Recv.name(),
        (_, _) => Class::Send.name(),
    }
}

/// Whether libc's call sites are patched, and where libc is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sites {
    Patched,
    Left,
    /// Patched, in a static program, which the engine was put into.
    Static,
}

impl Sites {
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Patched | Self::Static => &[],
            Self::Left => &["--no-patch"],
        }
    }

    /// The program with the cases.
    fn cases(self, test: &str) -> Option<&'static Cases> {
        match self {
            Self::Patched | Self::Left => cases(test),
            Self::Static => static_cases(test),
        }
    }

    /// The entries that a case may be counted as.
    fn entries(self, case: &Case) -> Vec<&str> {
        let mut entries = vec![case.entry.as_str()];
        if self != Self::Left {
            entries.extend(made_by_libc(case));
        }
        entries
    }
}

/// The option of the program with the cases.
const FOUR: &[&str] = &["-t", "4"];

/// What the operations of a case take under its limit, ms.
const LIMITED_MS: u64 = 400;

/// The clock of a program may start a little after its first call.
const TOLERANCE: f64 = 0.98;

/// A rate under which the operations take [`LIMITED_MS`], with a burst of one operation.
struct Limit {
    name: String,
    rate: f64,
    burst: u64,
    amount: u64,
}

impl Limit {
    fn on(name: &str, case: &Case, amount: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
        let rate = amount as f64 * 1000.0 / LIMITED_MS as f64;
        Self {
            name: name.to_owned(),
            rate: rate.round().max(1.0),
            burst: case.unit.clamp(1, 4096),
            amount,
        }
    }

    fn option(&self, case: &Case) -> String {
        let (rate, burst, name) = (self.rate, self.burst, &self.name);
        match case.unit {
            0 => format!("{name}={rate}/s:burst={burst}calls"),
            _ => format!("{name}={rate}B/s:burst={burst}B"),
        }
    }

    /// The shortest time in which the operations are allowed to end, s. One unit
    /// more may go, because buckets count whole units: what an idle one has gained
    /// of the next unit is not taken away from it.
    #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
    fn least(&self) -> f64 {
        self.amount.saturating_sub(self.burst + 1) as f64 / self.rate
    }

    /// Never faster than the limit; much slower is only said.
    fn check(&self, outcome: &Outcome) -> Result<(), String> {
        #[expect(clippy::cast_precision_loss, reason = "seconds, not years")]
        let took = outcome.elapsed_ns as f64 / 1e9;
        let least = self.least();
        if took < least * TOLERANCE {
            return Err(format!(
                "{}: {} units under {}={}/s took {took:.3} s; {least:.3} s is the least",
                outcome.name, self.amount, self.name, self.rate
            ));
        }
        if took > least * 1.5 + 0.3 {
            eprintln!(
                "NOTE: {} under {}: took {took:.3} s instead of {least:.3} s",
                outcome.name, self.name
            );
        }
        Ok(())
    }
}

/// The cases that run here; the others are skips of `test`.
fn usable(test: &str, sites: Sites, cases: &'static Cases) -> Vec<&'static Case> {
    let bare = bare(cases);
    let (here, not) = cases
        .cases
        .iter()
        .partition::<Vec<_>, _>(|case| bare[&case.name].skip.is_none());
    for case in not {
        let reason = bare[&case.name].skip.as_deref().unwrap_or_default();
        skip(&format!("{test} {}", case.name), reason);
    }
    // What a static program loads is another libc, which nobody looks at.
    let loads = |case: &Case| sites == Sites::Static && case.name.contains("dlsym");
    here.into_iter().filter(|case| !loads(case)).collect()
}

/// Units that the operations alone have used of the case's entry.
fn units(case: &Case, cases: &Cases) -> Result<u64, String> {
    let outcome = bare_run(cases, case, &["--no-errors"])?;
    let (calls, bytes) = outcome.counts.get(&case.entry).copied().unwrap_or_default();
    Ok(if case.unit > 0 { bytes } else { calls })
}

/// Runs a case as a service.
fn run(
    cases: &Cases,
    case: &Case,
    options: &[&str],
    args: &[&str],
) -> Result<(Outcome, Counters), String> {
    let mut all = vec![case.name.as_str()];
    all.extend(args);
    let (finished, counters) = bonsai()
        .counted(options, &cases.program, &all, &scratch(), PATIENCE)
        .map_err(|error| format!("{}: {error}", case.name))?;
    Ok((outcome(case, &finished)?, counters))
}

/// Every entry that the case has used, exactly. Of what libc makes of stdio only the
/// bytes are known.
fn counted_exactly(
    case: &Case,
    sites: Sites,
    said: &Outcome,
    counters: &Counters,
) -> Result<(), String> {
    for (entry, want) in &said.counts {
        let entries = match *entry == case.entry {
            true => sites.entries(case),
            false => vec![entry.as_str()],
        };
        if sites == Sites::Static {
            counted_at_least(case, &entries, *want, counters)?;
            continue;
        }
        let calls_known = !case.symbol.is_empty() || case.unit == 0;
        // The allocator asks for a random number once, where threads make it start.
        let more = u64::from(sites != Sites::Left && entry == "getrandom");
        let right = |(calls, bytes): (u64, u64)| {
            let known = calls == want.0 || calls == want.0 + more;
            bytes == want.1 && (known || !calls_known)
        };
        let seen: Vec<(u64, u64)> = entries.iter().map(|entry| counters.of(entry)).collect();
        let hits = seen.iter().filter(|seen| right(**seen)).count();
        let none = seen.iter().filter(|seen| **seen == (0, 0)).count();
        // A spawned program is a new process and a new program.
        let once = hits == 1 || (hits == 2 && case.entry == "vfork");
        if !once || hits + none < seen.len() {
            return Err(format!(
                "{}: {entries:?} counted {seen:?} (calls, bytes) instead of {want:?}",
                case.name
            ));
        }
    }
    if let Some((about, calls)) = counters.unshaped.iter().next() {
        return Err(format!("{}: {calls} calls unshaped: {about}", case.name));
    }
    Ok(())
}

/// In a static program, the system calls that the harness makes by itself are seen as
/// well: it and libc are one.
fn counted_at_least(
    case: &Case,
    entries: &[&str],
    want: (u64, u64),
    counters: &Counters,
) -> Result<(), String> {
    let seen = entries.iter().map(|entry| counters.of(entry));
    let (calls, bytes) = seen.fold((0, 0), |sum, seen| (sum.0 + seen.0, sum.1 + seen.1));
    let calls_known = !case.symbol.is_empty() || case.unit == 0;
    // libc's own fstat knows without asking that no descriptor is negative.
    let spared = u64::from(case.entry == "fstat");
    if bytes < want.1 || (calls_known && calls + spared < want.0) {
        return Err(format!(
            "{}: {entries:?} counted {:?} (calls, bytes), less than {want:?}",
            case.name,
            (calls, bytes)
        ));
    }
    Ok(())
}

#[test]
fn bare_on_one_thread_and_on_four() {
    let test = "bare_on_one_thread_and_on_four";
    let Some(cases) = cases(test) else { return };
    let list = usable(test, Sites::Patched, cases);
    assert_none(&for_each(&list, WORKERS, |case| {
        let one = &bare(cases)[&case.name];
        one.same_as(one)?;
        if case.single {
            return Ok(());
        }
        bare_run(cases, case, FOUR)?.same_as(one)
    }));
}

#[test]
fn without_limits_results_are_equal_and_counts_exact() {
    unlimited(
        "without_limits_results_are_equal_and_counts_exact",
        Sites::Patched,
    );
}

#[test]
fn static_without_limits_results_are_equal_and_counts_exact() {
    unlimited(
        "static_without_limits_results_are_equal_and_counts_exact",
        Sites::Static,
    );
}

fn unlimited(test: &str, sites: Sites) {
    let Some(cases) = sites.cases(test) else {
        return;
    };
    let list = usable(test, sites, cases);
    assert_none(&for_each(&list, WORKERS, |case| {
        let (said, counters) = run(cases, case, &[], &[])?;
        said.same_as(&bare(cases)[&case.name])?;
        counted_exactly(case, sites, &said, &counters)
    }));
}

/// Under a limit on the call itself, by each name that it may have. Cases that may have four threads are run by turns: every
/// second one on four, the others on one, and in static programs the other way round. With `BONSAI_CALLS=all`, all on both.
fn limited(test: &str, sites: Sites, threads: &[&str]) {
    let all = std::env::var("BONSAI_CALLS").is_ok_and(|value| value == "all");
    let on_four = !threads.is_empty();
    let mut turn = on_four != (sites == Sites::Static);
    let mut is_now = |case: &Case| {
        if case.single {
            return !on_four;
        }
        turn = !turn;
        turn || all
    };
    let wanted = |case: &Case| !(sites == Sites::Left && case.inside) && is_now(case);
    limited_by(test, sites, threads, wanted, |case| sites.entries(case));
}

fn limited_by<'a>(
    test: &str,
    sites: Sites,
    args: &[&str],
    mut wanted: impl FnMut(&Case) -> bool,
    entries: impl Fn(&'a Case) -> Vec<&'a str> + Sync,
) {
    let Some(cases) = sites.cases(test) else {
        return;
    };
    let mut list = usable(test, sites, cases);
    list.retain(|case| wanted(case));
    assert_none(&for_each(&list, SLEEPERS, |case| {
        let amount = units(case, cases)?;
        let limits: Vec<Limit> = entries(case)
            .into_iter()
            .map(|entry| Limit::on(limit_name(entry), case, amount))
            .collect();
        let texts: Vec<String> = limits.iter().map(|limit| limit.option(case)).collect();
        let mut all: Vec<&str> = texts.iter().flat_map(|text| ["--limit", text]).collect();
        all.extend(sites.options());
        let (said, counters) = run(cases, case, &all, args)?;
        said.same_as(&bare(cases)[&case.name])?;
        limits[0].check(&said)?;
        counted_exactly(case, sites, &said, &counters)
    }));
}

/// A limit that is accepted holds: also by the name of a function that libc makes
/// of another system call.
#[test]
fn limited_by_the_name_of_the_function_alone() {
    limited_by(
        "limited_by_the_name_of_the_function_alone",
        Sites::Patched,
        &[],
        |case| made_by_libc(case).is_some(),
        |case| vec![case.entry.as_str()],
    );
}

#[test]
fn limited_on_one_thread() {
    limited("limited_on_one_thread", Sites::Patched, &[]);
}

#[test]
fn limited_on_four_threads() {
    limited("limited_on_four_threads", Sites::Patched, FOUR);
}

#[test]
fn static_limited_on_one_thread() {
    limited("static_limited_on_one_thread", Sites::Static, &[]);
}

#[test]
fn static_limited_on_four_threads() {
    limited("static_limited_on_four_threads", Sites::Static, FOUR);
}

/// Without patched call sites: what libc does inside itself is not seen.
#[test]
fn limited_through_exported_symbols_alone() {
    limited("limited_through_exported_symbols_alone", Sites::Left, &[]);
}

/// With threads, the first door makes some calls in another way than without.
#[test]
fn on_four_threads_exported_symbols_alone_count_exactly() {
    let test = "on_four_threads_exported_symbols_alone_count_exactly";
    let Some(cases) = cases(test) else { return };
    let mut list = usable(test, Sites::Patched, cases);
    list.retain(|case| !case.inside && !case.single);
    assert_none(&for_each(&list, WORKERS, |case| {
        let (said, counters) = run(cases, case, Sites::Left.options(), FOUR)?;
        said.same_as(&bare(cases)[&case.name])?;
        counted_exactly(case, Sites::Left, &said, &counters)
    }));
}

/// For each entry that moves bytes one case, under each class that the entry is in.
#[test]
fn limited_by_class() {
    let test = "limited_by_class";
    let Some(cases) = cases(test) else { return };
    let list = usable(test, Sites::Patched, cases);
    let mut pairs: Vec<(&Case, Class)> = Vec::new();
    for call in CALLS.iter().filter(|call| call.moves_bytes()) {
        let entry = entry_name(call);
        let plain = |case: &&&Case| case.entry == entry && !case.symbol.is_empty();
        if let Some(case) = list.iter().find(plain) {
            pairs.extend(call.classes.iter().map(|class| (*case, class)));
        }
    }
    assert!(pairs.len() > 100, "only {} pairs", pairs.len());
    assert_none(&for_each(&pairs, SLEEPERS, |(case, class)| {
        let limit = Limit::on(class.name(), case, units(case, cases)?);
        let (said, counters) = run(cases, case, &["--limit", &limit.option(case)], &[])?;
        said.same_as(&bare(cases)[&case.name])?;
        limit.check(&said)?;
        counted_exactly(case, Sites::Patched, &said, &counters)
    }));
}

/// What happens inside libc is not seen where nothing is patched, and goes on unharmed.
#[test]
fn libc_inside_itself_is_unseen_without_patching() {
    let test = "libc_inside_itself_is_unseen_without_patching";
    let Some(cases) = cases(test) else { return };
    let mut list = usable(test, Sites::Patched, cases);
    list.retain(|case| case.inside);
    assert_none(&for_each(&list, WORKERS, |case| {
        let option = Limit::on(limit_name(&case.entry), case, 1).option(case);
        let (said, _) = run(cases, case, &["--no-patch", "--limit", &option], &[])?;
        said.same_as(&bare(cases)[&case.name])
    }));
}
