//! The exports of a server, as the command line names them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bonsai_nbd::export::{Export, Options};
use bonsai_nbd::image::{Image, ImageError};
use bonsai_nbd::sharing::Sharing;
use bonsai_services::limits::{self, Limit};
use bonsai_services::refusal::Refusal;

use super::serve::secret;
use super::service::Made;
use crate::cli::DriveServe;

/// Opens the images, and makes their services.
///
/// # Errors
/// An image that cannot be served, a name that is used twice, a limit that cannot be held.
pub(super) fn exports(args: &DriveServe) -> anyhow::Result<(Vec<Arc<Export>>, Made)> {
    let limits: Vec<Limit> = args
        .limits
        .iter()
        .map(|text| Limit::parse(text))
        .collect::<Result<_, _>>()?;
    limits::check_together(&limits).map_err(|problem| Refusal::input(problem.to_string()))?;
    let mut services = Made::default();
    let sharing = match args.plain {
        true => None,
        false => Some(Sharing::new(
            (args.memory as usize) << 20,
            args.verify,
            secret(args)?,
        )?),
    };
    let mut names = BTreeSet::new();
    let mut exports = Vec::new();
    for path in &args.images {
        let name = name_of(path);
        if !names.insert(name.clone()) {
            return Err(Refusal::input(format!(
                "{}: there is an export {name:?} already; images are told apart by the names of their files",
                path.display()
            )));
        }
        let image = Image::open(path, args.read_only).map_err(|error| match error {
            ImageError::Open { source, path } if source.raw_os_error() == Some(libc_erofs()) => {
                Refusal::input(format!(
                    "{}: cannot be written; --read-only serves it",
                    path.display()
                ))
            }
            error => Refusal::input(error.to_string()),
        })?;
        let image = Arc::new(image);
        let group = args.group.as_ref().unwrap_or(&name);
        let member = sharing
            .as_ref()
            .map(|sharing| sharing.member(&image, group));
        let options = Options {
            name: name.clone(),
            workers: args.workers as usize,
        };
        let throttle = services.make(&name, &limits)?;
        let export = Export::new(image, member.transpose()?, &options).under(throttle);
        exports.push(Arc::new(export));
    }
    Ok((exports, services))
}

fn libc_erofs() -> i32 {
    rustix::io::Errno::ROFS.raw_os_error()
}

/// The name of a file without what all of them end in.
fn name_of(path: &Path) -> String {
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    let short = name
        .strip_suffix(".raw")
        .or_else(|| name.strip_suffix(".img"));
    short
        .filter(|short| !short.is_empty())
        .unwrap_or(&name)
        .to_owned()
}
