//! The exports of a server: images that are opened, with their services.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bonsai_nbd::export::{Export, Options};
use bonsai_nbd::image::{Image, ImageError, Opening, RawImages};
use bonsai_nbd::sharing::{Guarding, Member, MemberError, Sharing};
use bonsai_services::limits::{self, Limit};
use bonsai_services::refusal::Refusal;

use super::escape::say;
use super::images::ImageArgs;
use super::serve::secret;
use super::service::Made;
use crate::cli::DriveServe;

/// Where images that were served are recorded as raw, below the state directory.
const RAW_IMAGES: &str = "drive.raw-images";

/// What is served.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) exports: Vec<Arc<Export>>,
    /// Those whose contents are to be known from the start.
    pub(super) scanned: Vec<Arc<Export>>,
    /// They go with this.
    _services: Made,
}

/// Opens the images, and makes their services.
///
/// # Errors
/// An image that cannot be served, a name that is used twice, a limit that cannot be held.
pub(super) fn exports(args: &DriveServe, images: &[ImageArgs]) -> anyhow::Result<Served> {
    let common = parsed(&args.limits)?;
    let mut services = Made::default();
    let sharing = match args.plain {
        true => None,
        false => Some(Sharing::new(
            (args.memory as usize) << 20,
            args.verify,
            secret(args)?,
        )?),
    };
    let known = raw_images();
    let mut names = BTreeSet::new();
    let (mut exports, mut scanned) = (Vec::new(), Vec::new());
    for of in images {
        let (name, path) = (&of.name, of.path.display());
        if !names.insert(name.clone()) {
            return Err(Refusal::input(format!(
                "{path}: there is an export {name:?} already: give this one another name, as in NAME={path}"
            )));
        }
        let opening = Opening {
            read_only: of.read_only,
            raw: of.raw,
            known: known.clone(),
        };
        let image = match Image::open_as(&of.path, &opening) {
            Ok(image) => Arc::new(image),
            Err(error) if args.keep_going => {
                say!("bonsai: {}; the others are served", said(error));
                continue;
            }
            Err(error) if images.len() > 1 => {
                return Err(Refusal::input(format!(
                    "{}; so none of the images is served (--keep-going serves the others)",
                    said(error)
                )));
            }
            Err(error) => return Err(Refusal::input(said(error))),
        };
        let group = of.group.as_ref().unwrap_or(name);
        let member = sharing
            .as_ref()
            .and_then(|sharing| member(sharing, &image, group, args));
        let options = Options {
            name: name.clone(),
            workers: args.workers as usize,
        };
        let throttle = services.make(name, &limits_of(of, &common)?)?;
        let mut export = Export::new(image, member, &options).under(throttle);
        if !of.discard {
            export = export.without_discard();
        }
        let export = Arc::new(export);
        if of.scan {
            scanned.push(Arc::clone(&export));
        } else if let Some(member) = export.member() {
            member.recall_nothing();
        }
        exports.push(export);
    }
    if exports.is_empty() {
        return Err(Refusal::input("none of the images can be served"));
    }
    Ok(Served {
        exports,
        scanned,
        _services: services,
    })
}

/// The part of an image in what is shared; an image that other programs could change unseen has none.
fn member(
    sharing: &Arc<Sharing>,
    image: &Arc<Image>,
    group: &str,
    args: &DriveServe,
) -> Option<Member> {
    let guarding = match args.trust {
        true => Guarding::Trust,
        false => Guarding::Lease,
    };
    let path = image.path().display();
    match sharing.member(image, group, guarding) {
        Ok(member) => Some(member),
        Err(error @ MemberError::Full) => {
            say!("bonsai: {path}: is served without sharing: {error}");
            None
        }
        Err(error) => {
            say!(
                "bonsai: {path}: is served without sharing: {error}; --trust shares it if nothing else writes to it"
            );
            None
        }
    }
}

fn parsed(texts: &[String]) -> anyhow::Result<Vec<Limit>> {
    let parsed = texts.iter().map(|text| Limit::parse(text));
    let parsed: Vec<Limit> = parsed.collect::<Result<_, _>>()?;
    limits::check_together(&parsed).map_err(|problem| Refusal::input(problem.to_string()))?;
    Ok(parsed)
}

/// The limits of one image: its own, and of those for all of them what it has none of that name for.
fn limits_of(image: &ImageArgs, common: &[Limit]) -> anyhow::Result<Vec<Limit>> {
    let mut own = parsed(&image.limits)?;
    let others = common
        .iter()
        .filter(|common| !own.iter().any(|own| own.name == common.name));
    let others: Vec<Limit> = others.cloned().collect();
    own.extend(others);
    Ok(own)
}

fn said(error: ImageError) -> String {
    match error {
        ImageError::Open { source, path } if source.raw_os_error() == Some(libc_erofs()) => {
            format!(
                "{}: cannot be written; --read-only serves it",
                path.display()
            )
        }
        error => error.to_string(),
    }
}

fn libc_erofs() -> i32 {
    rustix::io::Errno::ROFS.raw_os_error()
}

fn raw_images() -> Option<RawImages> {
    let folder = bonsai_host::state_dir().ok()?;
    Some(RawImages::new(folder.join(RAW_IMAGES)))
}

/// Records images that guests can write as raw, before the first of them does.
pub(super) fn record_raw(exports: &[Arc<Export>], images: &[ImageArgs]) {
    let record = |export: &Export| match bonsai_host::state_dir() {
        Ok(folder) => {
            let image = export.image();
            let path = image.path();
            let path = std::path::absolute(path).unwrap_or_else(|_| Path::to_owned(path));
            RawImages::new(folder.join(RAW_IMAGES)).insert(image.file(), image.size(), &path)
        }
        Err(error) => Err(error),
    };
    for export in exports.iter().filter(|export| !export.info().read_only) {
        let is_said = |image: &ImageArgs| image.raw && image.name == export.info().name;
        if let Err(error) = record(export)
            && !images.iter().any(is_said)
        {
            say!(
                "bonsai: {}: is raw as far as can be told, and that cannot be recorded ({error}): say format=raw, or a guest that writes another format's signature keeps the next server from it",
                export.image().path().display()
            );
        }
    }
}
