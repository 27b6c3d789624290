//! Looking for system call instructions in text that nobody has looked through before.
//! Few processes ever do that, so it is in the extension; and in the engine, whose
//! programs are not known.

use crate::found::{Found, MOVED, SITES, Search, Sites, is_signals, is_wanted, next_call};
use bonsai_sites::ANY;

/// Finds the calls that a musl of an unknown build makes by itself, but for its cancellation points.
#[cfg(not(feature = "alone"))]
fn musl_itself(
    text: &[u8],
    points: &[Option<bonsai_sites::Site>],
    found: &mut dyn FnMut(bonsai_sites::Site),
) {
    let mut at = 0;
    while let Some(next) = next_call(text, at) {
        at = next + 2;
        let is_point = |site: &bonsai_sites::Site| {
            let mut points = points.iter().flatten();
            points.any(|point| point.offset == site.offset)
        };
        let site = bonsai_sites::guess_moved(text, next).filter(|site| !is_point(site));
        if let Some(site) = site.and_then(|site| bonsai_sites::musl_itself(text, site)) {
            found(site);
        }
    }
}

/// Looks for sites in the text of a library of an unknown build.
// Its arrays are several pages, and each page of a frame is touched.
#[inline(never)]
pub(crate) fn look_through(text: &[u8], search: Search, found: &mut Sites) {
    let mut sites = [None; SITES];
    let wanted = |s: &bonsai_sites::Site| match search {
        Search::Signals => is_signals(usize::from(s.nr)),
        _ => s.nr == ANY || is_wanted(s.nr),
    };
    let mut slots = sites.iter_mut();
    let mut at = 0;
    while let Some(next) = next_call(text, at) {
        at = next + 2;
        let compared = || bonsai_sites::guess_at(text, next);
        let moved = || bonsai_sites::guess_moved(text, next);
        let site = match search {
            Search::Compared => compared(),
            #[cfg(feature = "alone")]
            Search::Both => {
                let compared =
                    compared().filter(|site| !matches!(site.nr, 9 | 56..=58 | 157 | 317));
                compared.or_else(moved)
            }
            #[cfg(not(feature = "alone"))]
            Search::Program => moved(),
            Search::Moved | Search::Signals | Search::No => moved(),
        };
        if site.is_none() && search != Search::Compared && bonsai_sites::may_be_call(text, next) {
            found.unsure += 1;
        }
        if let Some(site) = site.filter(wanted)
            && let Some(slot) = slots.next()
        {
            *slot = Some(site);
        }
    }
    // The engine patches such calls as any other moved ones.
    #[cfg(not(feature = "alone"))]
    if search == Search::Compared {
        let points = bonsai_sites::cancelling(text);
        let (all, left) = (SITES, slots.len());
        // As musl has no site that is compared, and glibc hundreds.
        if left == all && points.iter().any(Option::is_some) {
            musl_itself(text, &points, &mut |site| {
                if let Some(slot) = slots.next() {
                    *slot = Some(site);
                }
            });
        }
        let any = points.into_iter().flatten();
        slots.zip(any).for_each(|(slot, site)| *slot = Some(site));
    }
    let used = sites.iter().position(Option::is_none).unwrap_or(SITES);
    let Some(sites) = sites.get_mut(..used).filter(|sites| !sites.is_empty()) else {
        return;
    };
    bonsai_sites::reject_branch_targets(text, sites);
    for site in sites.iter().flatten() {
        let at = text.as_ptr() as usize + site.offset as usize;
        found.add(Found {
            at,
            nr: site.nr,
            to: 0,
            back: if site.is_moved() { site.back } else { 0 },
            form: match site.cmp {
                -4096 => 0,
                0 => MOVED,
                _ => 1,
            },
        });
    }
}
