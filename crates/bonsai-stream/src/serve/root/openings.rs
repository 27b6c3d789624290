//! The files of clips, opened by other threads for requests that wait.
//!
//! A name is opened once at a time, anew for each request, and once for all that came before that: what is in the
//! folder when a request comes is what it is answered by.

use rtsp_types::StatusCode;

use bonsai_media::rtsp::server::Refusal;

use super::super::loader::{Candidate, Names};
use super::{Awaited, PASSING, Root, Wanted};
use crate::clock::now;
use crate::folder::{Stamp, Unfound};

/// Clips with files that stay open for a moment, for requests that wait for them.
pub(in super::super) const OPENINGS: usize = 256;

/// A clip with files that are being opened, or were a moment ago.
#[derive(Debug)]
pub(super) struct Opening {
    /// When that began: requests that came before it are answered by it.
    pub(super) began: u64,
    /// When it was asked for last.
    pub(super) used: u64,
    pub(super) names: Option<Names>,
}

impl Root {
    /// True where the files of a clip have been opened for a request; they are otherwise.
    pub(super) fn is_open(&mut self, clip: &str, wanted: &Wanted<'_>) -> Result<bool, Refusal> {
        let at = now();
        if let Some(opening) = self.openings.get_mut(clip) {
            opening.used = at;
            if opening.names.is_some() && opening.began >= wanted.since {
                return Ok(true);
            }
            if opening.names.is_none() {
                self.awaited = vec![Awaited::Clip(clip.to_owned())];
                return Ok(false);
            }
        }
        if self.openings.len() >= OPENINGS {
            self.tidy(at + PASSING);
        }
        let lower = wanted.lower.iter().map(|pattern| pattern.of(clip));
        let names = std::iter::once(clip.to_owned()).chain(lower).collect();
        let device = self.mounts.device(clip);
        let names = (clip.to_owned(), names);
        self.awaited = match self.loader.open(&self.folder, names, device) {
            Ok(()) => vec![Awaited::Clip(clip.to_owned())],
            Err(why) => return self.unread(why).map(|()| false),
        };
        let opening = Opening {
            began: at,
            used: at,
            names: None,
        };
        if let Some(Opening {
            names: Some(before),
            ..
        }) = self.openings.insert(clip.to_owned(), opening)
        {
            self.loader.pool.close((device, 0), before);
        }
        Ok(false)
    }

    /// The files of a clip, as they are now.
    pub(super) fn files(&mut self, clip: &str) -> Result<Vec<(String, Candidate)>, Refusal> {
        let opening = self.openings.get(clip);
        let names = opening.and_then(|of| of.names.as_ref());
        let (mut files, mut unfit) = (Vec::<(String, Candidate)>::new(), Vec::new());
        for (name, found) in names.into_iter().flatten() {
            match found {
                Ok(of) => {
                    let mut of = of.clone();
                    of.stamp = Stamp::known(&of.file).unwrap_or(of.stamp);
                    let is_other = |(_, one): &(String, Candidate)| one.stamp.file != of.stamp.file;
                    if files.iter().all(is_other) {
                        files.push((name.clone(), of));
                    }
                }
                Err(why) if files.is_empty() => return Err(refusal(clip, why)),
                Err(Unfound::Missing) => {}
                Err(why) => unfit.push((name.clone(), why.to_string())),
            }
        }
        for (name, why) in unfit {
            self.unfit(clip, &name, &why);
        }
        Ok(files)
    }

    /// Forgets files that were opened for requests and are not waited for.
    pub(in super::super) fn tidy(&mut self, at: u64) {
        let asked = &self.asked;
        let is_read = |(_, found): &(String, Result<Candidate, Unfound>)| {
            let file = found.as_ref().map(|of| of.stamp.file);
            file.is_ok_and(|file| asked.contains_key(&file))
        };
        let gone = self.openings.extract_if(|_, of| {
            let names = of.names.as_ref();
            at >= of.used + PASSING && names.is_some_and(|of| !of.iter().any(is_read))
        });
        for (_, opening) in gone {
            let names = opening.names.unwrap_or_default();
            if let Some((_, Ok(best))) = names.first() {
                self.loader.pool.close(best.stamp.file, names);
            }
        }
    }
}

/// Why a clip cannot be opened, as an answer.
fn refusal(clip: &str, why: &Unfound) -> Refusal {
    let status = match why {
        Unfound::Missing => StatusCode::NotFound,
        Unfound::Outside | Unfound::Denied | Unfound::NoFile => StatusCode::Forbidden,
        Unfound::Disk(_) => StatusCode::InternalServerError,
    };
    Refusal::new(status, format!("{clip}: {why}"))
}
