//! Libraries made of real files by the real ffmpeg, played by it, and served.

mod http;
mod import;
mod nginx;
mod playing;
mod search;
mod support;
