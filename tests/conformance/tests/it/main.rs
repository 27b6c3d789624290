//! The same programs bare and under Bonsai.

mod attach;
mod busy;
mod calls;
mod coverage;
mod covered;
mod crowds;
mod enforced;
mod enforced_calls;
mod faults;
mod fixture;
mod go;
mod groups;
mod libraries;
mod loops;
mod narrowed;
mod peers;
mod probe;
mod programs;
mod refusals;
mod rings;
mod statics;
mod strict;
mod supervised;
mod transparency;
mod trapped;
mod unwind;
