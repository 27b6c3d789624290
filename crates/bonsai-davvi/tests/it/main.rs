//! Libraries made of real files by the real ffmpeg, played by it, and served by nginx.

mod import;
mod nginx;
mod playing;
mod search;
mod support;
