//! The server as clients meet it: over TCP, with real files.

mod clips;
mod library;
mod limits;
mod line;
mod proxy;
mod support;
