//! The crate as its users see it, on files and sockets.

mod brought;
mod capture;
mod documents;
mod files;
mod film;
mod fuse;
mod hung;
mod parts;
mod play;
mod programs;
mod qualities;
mod rates;
mod retina;
mod serve;
mod slow;
mod strangers;
mod support;
mod vbr;
mod web;
