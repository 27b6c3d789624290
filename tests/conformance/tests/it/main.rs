//! The same programs bare and under Bonsai.

mod calls;
mod coverage;
mod covered;
mod faults;
mod fixture;
mod go;
mod libraries;
mod peers;
mod probe;
mod programs;
mod statics;
mod strict;
mod transparency;
mod unwind;
