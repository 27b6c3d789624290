//! Lines of `bonsai drive` for a terminal or a log: names of files, exports and peers come from others, and may hold control
//! sequences. A line is one event; what a name holds neither ends it nor moves the cursor.

/// As [`crate::output::say`], with all of the line escaped; in a server that has started by [`super::lines`].
macro_rules! say {
    ($($text:tt)*) => {
        crate::drive::lines::say(crate::output::escaped(&format!($($text)*)))
    };
}
pub(super) use say;
