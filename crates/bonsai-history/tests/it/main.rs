//! Everything on real files: faults of the disk, of the files, of the clock, and of processes.

mod support;

mod points;
