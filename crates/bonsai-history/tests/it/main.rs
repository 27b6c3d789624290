//! Everything on real files: faults of the disk, of the files, of the clock, and of processes.

mod support;

mod audit;
mod clock;
mod export;
mod faults;
mod killed;
mod points;
mod retention;
mod room;
mod state;
mod writer;
