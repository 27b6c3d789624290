//! The same programs bare and under Bonsai.

mod attach;
mod busy;
mod calls;
mod coverage;
mod fixture;
mod libraries;
mod peers;
mod probe;
mod programs;
mod refusals;
mod statics;
mod transparency;
mod unwind;
