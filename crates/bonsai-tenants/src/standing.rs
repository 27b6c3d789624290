//! What stands of an interface before it is configured.

use std::path::Path;

use bonsai_api as api;
use bonsai_link::Terms;
use bonsai_units::Rate;

use crate::book::Book;
use crate::error::Error;
use crate::find::{Whose, find};
use crate::target::Target;

/// What the book says of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing, or it is not there.
    Free,
    /// It was limited by hand; so it would be written.
    Hand(Box<api::Link>),
    /// It is limited for that target.
    Of(String),
}

/// Looks what stands of a target.
///
/// # Errors
/// If the book or the kernel cannot be asked. A target that is not there, or not clear, is free.
pub fn standing(folder: &Path, target: &str) -> Result<Standing, Error> {
    let book = Book::read(folder)?;
    let Ok(of) = target.parse::<Target>() else {
        return Ok(Standing::Free);
    };
    if book.is_empty() {
        return Ok(Standing::Free);
    }
    if let Whose::Group(_) = of.whose() {
        // Those are configured, and never limited by hand.
        return Ok(Standing::Free);
    }
    let found = match find(of.whose(), of.interface()) {
        Ok(found) => found,
        Err(error) if error.is_input() => return Ok(Standing::Free),
        Err(error) => return Err(error),
    };
    let mut site = found.site()?;
    let room = book.rooms().get(&site.cookie()?);
    let entry = room.and_then(|room| room.links.get(&found.link.index));
    let Some(entry) = entry.filter(|entry| !entry.terms.is_nothing()) else {
        return Ok(Standing::Free);
    };
    if let Some(other) = entry.target.as_ref().filter(|other| *other != target) {
        return Ok(Standing::Of(other.clone()));
    }
    let links = site.links()?;
    let uplink = entry.terms.share.as_ref().and_then(|share| {
        let link = links.iter().find(|link| link.index == share.uplink);
        link.map(|link| link.name.clone())
    });
    let link = written(&entry.terms, found.swapped, uplink, entry.adopted.is_some());
    Ok(Standing::Hand(Box::new(link)))
}

/// Terms as they would be configured.
fn written(terms: &Terms, swapped: bool, uplink: Option<String>, adopt: bool) -> api::Link {
    let rate = |rate: Option<u64>| rate.map(|rate| api::Share::Bits(Rate::bytes_per_sec(rate)));
    let (tx, rx) = match swapped {
        false => (terms.tx, terms.rx),
        true => (terms.rx, terms.tx),
    };
    let share = terms.share.as_ref();
    let burst = terms.burst_ns.map(std::time::Duration::from_nanos);
    api::Link {
        tx: rate(tx),
        rx: rate(rx),
        guarantee: rate(share.and_then(|share| share.guarantee)),
        ceiling: rate(share.and_then(|share| share.ceiling)),
        weight: share
            .map(|share| share.weight)
            .filter(|weight| *weight != 1),
        uplink: share.and(uplink),
        burst: burst.map(api::Span),
        adopt,
    }
}
