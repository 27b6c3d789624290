//! draft
mod desired;
mod patch;
