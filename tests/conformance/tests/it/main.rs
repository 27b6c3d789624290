//! The same programs bare and under Bonsai.

mod calls;
mod coverage;
mod fixture;
mod libraries;
mod peers;
mod probe;
mod programs;
mod rings;
mod statics;
mod transparency;
mod unwind;
