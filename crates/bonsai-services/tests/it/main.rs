//! Services, ledgers and groups on disk, in a runtime directory of the test's own.

mod glance;
mod pool;
mod support;
