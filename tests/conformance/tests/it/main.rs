//! The same programs bare and under Bonsai.

mod calls;
mod coverage;
mod fixture;
mod peers;
mod probe;
mod programs;
mod transparency;
