//! Annotated video in segments, as in DAVVI: cut into same-length segments that each can be
//! played alone, in several qualities; found again by what was said of its events; put together
//! into playlists across videos; served by any web server.
//!
//! # A library
//! ```text
//! LIBRARY/
//!   .private/           index.db, watched.db, lock: for the owner alone
//!   .incoming-XXXXXX/   what is being imported, locked by whoever does; left behind, the next import removes it
//!   match-1/            a video, under its name
//!     video.json        what it is: length, segments, qualities ([`Video`])
//!     events.json       what happens in it ([`Event`])
//!     master.m3u8       HLS (RFC 8216), with 720p.m3u8, audio.m3u8, ...
//!     manifest.mpd      DASH (ISO/IEC 23009-1)
//!     720p/00000.mp4    segments; each is a fragmented MP4 file with its own header
//!     720p/init.mp4     that header alone, for players that want it once
//!     audio/00000.mp4   the sound
//! ```
//! A video is there when its folder has its name: it is made under another and renamed when it is
//! whole and on the disk. What is in `.private/index.db` follows from the folders, and is made up
//! to date, or anew, by whoever asks next.
//!
//! # Map
//! - [`Library`]: the folder; [`Library::import`] by ffmpeg; [`read_events`] reads annotations;
//! - [`Library::search`], [`Library::recommend`]: hits; [`cut`] makes clips of whole segments of them;
//! - [`Show`]: clips as HLS and DASH playlists;
//! - [`nginx()`]: a configuration of what serves a library; `bonsai-web` does it without.
//!
//! # Invariants
//! 1. All qualities of a video are cut at the same frames, every segment but the last has the same
//!    number of frames, and each begins with a picture that needs no other.
//! 2. What is seen in a library is whole.
//! 3. No program is started by a shell, and none without a bound on its time.
#![forbid(unsafe_code)]

mod boxes;
mod error;
mod events;
mod import;
mod index;
mod ladder;
mod library;
mod name;
mod nginx;
mod personal;
mod position;
mod probe;
mod query;
mod recommend;
mod show;
mod tool;
mod video;
mod watched;

pub use error::Error;
pub use events::{Event, parse_events, read_events};
pub use import::{Import, Imported, Stage};
pub use index::Hit;
pub use library::{Library, Listed};
pub use name::Name;
pub use nginx::{Nginx, nginx};
pub use personal::{Cut, cut};
pub use position::{format_position, parse_position};
pub use query::{Found, Query, Wanted};
pub use recommend::Recommended;
pub use show::{Clip, Show};
pub use video::{Quality, Sound, Video};
