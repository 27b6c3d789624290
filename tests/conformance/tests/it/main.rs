//! The same programs bare and under Bonsai.

mod calls;
mod coverage;
mod enforced;
mod enforced_calls;
mod fixture;
mod libraries;
mod peers;
mod probe;
mod programs;
mod statics;
mod transparency;
mod unwind;
