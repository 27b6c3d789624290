//! Which quality of a clip a stream is of.

use std::fmt;
use std::sync::Arc;

use super::Parts;

/// In what its pictures can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QualityView<'a> {
    /// Bits a second of each quality that there is of the clip, the best first; at least one.
    pub bits_per_sec: &'a [u64],
    /// The one that is sent now.
    pub current: usize,
    /// The one that the server would send next.
    pub server: usize,
    /// How late the next picture is, nanoseconds.
    pub late_ns: u64,
}

/// Which quality a stream is of.
///
/// By itself the server decides for all streams alike, by what it is allotted and how late it is. A program
/// may decide for streams by a selector with a name, for `selector` in a pipeline's file:
///
/// ```
/// use std::sync::Arc;
///
/// use bonsai_stream::serve::{Parts, QualityView, Selector};
///
/// /// Never less than that, whatever the server is short of.
/// #[derive(Debug)]
/// struct AtLeast(u64);
///
/// impl Selector for AtLeast {
///     fn quality(&mut self, view: &QualityView<'_>) -> usize {
///         let good = view.bits_per_sec.iter().rposition(|bits| *bits >= self.0);
///         good.map_or(0, |last| view.server.min(last))
///     }
/// }
///
/// let mut parts = Parts::builtin();
/// parts.register_selector("at-least", |value| {
///     let bits: u64 = value
///         .parse()
///         .map_err(|_| format!("at-least={value}: write bits a second, as at-least=800000"))?;
///     Ok(Arc::new(move |_stream| Ok(Box::new(AtLeast(bits)))))
/// });
/// # let mut one = AtLeast(500);
/// # let view = QualityView { bits_per_sec: &[900, 600, 300], current: 0, server: 2, late_ns: 0 };
/// # assert_eq!(one.quality(&view), 1);
/// ```
pub trait Selector: fmt::Debug {
    /// Asked where playing begins, and before each picture, of clips that there are lower qualities of. It
    /// is gone over to at the next picture that decoding can begin with. By default, the server's; one
    /// that there is not is the last.
    fn quality(&mut self, view: &QualityView<'_>) -> usize {
        view.server
    }
}

pub(super) fn register(parts: &mut Parts) {
    parts.register_selector("fixed", |value| {
        let quality: usize = value
            .parse()
            .map_err(|_| format!("fixed={value}: write a number, as fixed=0 for the best"))?;
        Ok(Arc::new(move |_| Ok(Box::new(Fixed(quality)))))
    });
}

/// Always the same.
#[derive(Debug)]
struct Fixed(usize);

impl Selector for Fixed {
    fn quality(&mut self, _: &QualityView<'_>) -> usize {
        self.0
    }
}
