//! The same programs bare and under Bonsai.

mod calls;
mod coverage;
mod crowds;
mod fixture;
mod libraries;
mod loops;
mod peers;
mod probe;
mod programs;
mod statics;
mod transparency;
mod unwind;
