//! Traces as others meet them: written, read, damaged, imported, described and made anew.

mod format;
