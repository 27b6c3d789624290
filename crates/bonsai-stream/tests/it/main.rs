//! The crate as its users see it, on files and sockets.

mod capture;
mod documents;
mod film;
mod play;
mod programs;
mod rates;
mod serve;
mod strangers;
mod support;
mod web;
