//! Traces as others meet them: written, read, damaged, imported, described and made anew.

mod data;
mod format;
mod import;
mod stat;
mod twin;
