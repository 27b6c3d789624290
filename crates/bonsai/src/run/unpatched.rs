//! What becomes of calls that cannot be patched, and what that costs here.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bonsai_host::libs::{ANY, Site, is_left_alone, libc_sites, libraries, moved_sites};
use bonsai_services::refusal::Refusal;
use bonsai_supervisor::enforce::price;
use bonsai_supervisor::{TrapPrice, Way, is_allowed, trap_price};
use bonsai_units::format_duration_ns;

use super::program::Program;
use super::sites::is_wanted;
use crate::cli::Run;
use crate::output::say;

/// A time as it is shown.
fn shown(time: Duration) -> String {
    format_duration_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// What the trap costs.
pub(crate) fn price_of(price: &TrapPrice) -> String {
    format!(
        "+{} for each call that is trapped, and +{} for every other call of such a process",
        shown(price.trapped),
        shown(price.other)
    )
}

/// Says on standard error what the trap costs here, before anything is started.
///
/// # Errors
/// There is no seccomp here.
pub(super) fn say_price() -> anyhow::Result<()> {
    is_allowed(Way::Trap).map_err(|denied| {
        Refusal::input(format!(
            "calls that cannot be patched cannot be trapped here: {denied}"
        ))
    })?;
    let price = trap_price().map_err(|error| {
        Refusal::input(format!(
            "calls that cannot be patched cannot be trapped here: no seccomp filters ({error})"
        ))
    })?;
    say!(
        "bonsai: what cannot be patched is trapped: {}, which gains no new privileges any more",
        price_of(&price)
    );
    Ok(())
}

/// Whether the program makes calls that cannot be patched, as far as that can be told of its
/// files, so that a supervisor has to be asked (`--unpatched notify`). Says so, and what that
/// costs here.
///
/// # Errors
/// There is no such program, or what was asked for needs the library in it.
pub(super) fn needs_supervisor(args: &Run) -> anyhow::Result<bool> {
    let program = Program::find(&args.program, true)?;
    let Some(why) = why_not_patched(&program) else {
        return Ok(false);
    };
    if args.group.name.is_some() {
        let text = format!(
            "{why}, so that a supervisor would be asked, which groups do not work with: \
             --unpatched trap, or leave"
        );
        return Err(Refusal::input(text));
    }
    let price = price().map_or_else(|_| "unknown".to_owned(), shown);
    say!("bonsai: {why}: it runs as with --enforce, +{price} for each call asked about");
    Ok(true)
}

fn why_not_patched(program: &Program) -> Option<String> {
    if let Some(warning) = &program.warning {
        return Some(warning.split(": ").next().unwrap_or(warning).to_owned());
    }
    let of = |path: &Path, missed: usize| {
        let path = path.display();
        (missed > 0).then(|| format!("{missed} system calls of {path} cannot be patched"))
    };
    if program.is_entered {
        return of(&program.path, missed(&program.path));
    }
    let file = program.file()?;
    let others = libraries(file).into_iter().filter(|path| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        // The C library and its loader are patched in another way.
        let libc = [&b"libc."[..], b"ld-", b"libc-"];
        !is_left_alone(name) && !libc.iter().any(|begin| name.starts_with(begin))
    });
    let mut all = std::iter::once(file.to_owned()).chain(others);
    all.find_map(|path| of(&path, missed(&path)))
}

/// Calls of the table that a file makes by instructions that cannot be replaced.
fn missed(path: &Path) -> usize {
    let Ok(found) = moved_sites(path) else {
        return 0;
    };
    let stays = |site: &&Site| site.back == 0 && (is_wanted(site.nr) || site.nr == ANY);
    let left: Vec<&Site> = found.sites.iter().filter(stays).collect();
    if left.is_empty() {
        return 0;
    }
    // With a comparison behind it there is another way.
    let compared = libc_sites(path)
        .map(|found| found.sites)
        .unwrap_or_default();
    let compared: BTreeSet<u32> = compared.iter().map(|site| site.offset).collect();
    left.iter()
        .filter(|site| !compared.contains(&site.offset))
        .count()
}
