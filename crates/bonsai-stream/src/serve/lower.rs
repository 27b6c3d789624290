//! Which files are lower qualities of a clip.

use std::fmt;
use std::sync::Arc;

use bonsai_media::load::QUALITIES;

/// What stands for the clip.
const CLIP: &str = "{}";

/// What a lower quality of each clip is called: a path below the root, in which `{}` is the clip's own
/// without its extension. `{}-500k.mp4` is `sport/final-500k.mp4` for the clip `sport/final.mp4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lower {
    before: String,
    after: String,
}

impl Lower {
    /// How many lower qualities a clip may have.
    pub const MOST: usize = QUALITIES - 1;

    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        let pattern = text.strip_prefix('/').unwrap_or(text);
        let mut parts = pattern.split(CLIP);
        let (Some(before), Some(after), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!(
                "{text:?}: write {CLIP} once, for the clip's path without its extension, as \
                 {CLIP}-500k.mp4"
            ));
        };
        let is_elsewhere = |part: &str| part.is_empty() || part.starts_with('.');
        if pattern.replace(CLIP, "clip").split('/').any(is_elsewhere) || text.contains('\0') {
            return Err(format!(
                "{text:?}: it leads out of the folder, or to what is hidden; write a path below the \
                 folder, as low/{CLIP}.mp4"
            ));
        }
        if pattern == CLIP {
            return Err(format!(
                "{text:?}: every clip would be its own; write {CLIP}-500k.mp4, say"
            ));
        }
        Ok(Self {
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }

    /// Reads those of a clip, the best first.
    ///
    /// # Errors
    /// The first that is wrong, or that there are too many.
    pub fn list<T: AsRef<str>>(texts: &[T]) -> Result<Arc<[Self]>, String> {
        if let Some(more) = texts.get(Self::MOST) {
            let (more, most) = (more.as_ref(), Self::MOST);
            return Err(format!(
                "{more:?}: there are more than {most}; a clip has up to {most} lower qualities"
            ));
        }
        texts
            .iter()
            .map(|text| Self::parse(text.as_ref()))
            .collect()
    }

    /// What it is called of a clip, by its path below the root.
    pub(super) fn of(&self, clip: &str) -> String {
        let name = clip.rfind('/').map_or(0, |slash| slash + 1);
        let end = match clip[name..].rfind('.') {
            None | Some(0) => clip.len(),
            Some(dot) => name + dot,
        };
        [&self.before, &clip[..end], &self.after].concat()
    }
}

impl fmt::Display for Lower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{CLIP}{}", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_is_named_without_its_extension() {
        for (pattern, clip, expected) in [
            ("{}-500k.mp4", "final.mp4", "final-500k.mp4"),
            (
                "{}-500k.mp4",
                "sport/may.26/final",
                "sport/may.26/final-500k.mp4",
            ),
            (
                "/low/{}.m4v",
                "sport/final.v2.mp4",
                "low/sport/final.v2.m4v",
            ),
            ("{}/200k.mp4", "final.mp4", "final/200k.mp4"),
        ] {
            let lower = Lower::parse(pattern).expect(pattern);
            assert_eq!(lower.of(clip), expected, "{pattern}");
            assert_eq!(Lower::parse(&lower.to_string()), Ok(lower));
        }
    }

    #[test]
    fn none_leads_elsewhere() {
        for (pattern, why) in [
            ("../{}.mp4", "leads out"),
            ("low/../../{}.mp4", "leads out"),
            ("{}/../x.mp4", "leads out"),
            ("//etc/{}", "leads out"),
            (".hidden/{}.mp4", "leads out"),
            ("low/.{}.mp4", "leads out"),
            ("{}/", "leads out"),
            ("{}\0.mp4", "leads out"),
            ("low.mp4", "write {} once"),
            ("", "write {} once"),
            ("{}{}.mp4", "write {} once"),
            ("{}", "its own"),
        ] {
            let said = Lower::parse(pattern).expect_err(pattern);
            assert!(said.contains(why), "{pattern}: {said}");
        }
        let five = ["{}-1", "{}-2", "{}-3", "{}-4", "{}-5"];
        assert_eq!(Lower::list(&five).expect("right").len(), 5);
        let six = [&five[..], &["{}-6"]].concat();
        let said = Lower::list(&six).expect_err("too many");
        assert!(
            said.starts_with("\"{}-6\": there are more than 5"),
            "{said}"
        );
        Lower::list(&["{}-1", "x"]).expect_err("the second");
    }
}
