//! Statistics of measurements: what a record of samples says, and how far to
//! trust it.
//!
//! | module of | functions |
//! |---|---|
//! | one sample | [`mean`], [`stddev`], [`coefficient_of_variation`], [`median`], [`mad`], [`percentile_nearest`], [`percentile_linear`] |
//! | trust | [`MedianEstimate`], [`PairedRatio`]: medians with bootstrap intervals |
//! | sharing | [`jain_index`], [`min_max_ratio`] |
//! | exactness of a rate | [`windows`], [`max_relative_error`] |
//! | delays | [`LogHistogram`], [`bucket_of`], [`bucket_bounds`] |
//!
//! # Conventions
//! - A function of a sample returns `None` where it has no meaning: for an
//!   empty sample, or one with a value that is infinite or not a number. There
//!   is no silent zero and no NaN.
//! - Nothing is random: whoever resamples hands in a seed, and the same seed
//!   gives the same interval.
//!
//! Without the default feature `std` only the histogram is there; it needs
//! nothing but `core`.
#![no_std]
#![forbid(unsafe_code)]
// The table above speaks of the whole crate, whose parts may be left out.
#![cfg_attr(not(feature = "std"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "std")]
mod bootstrap;
#[cfg(feature = "std")]
mod fairness;
mod histogram;
#[cfg(feature = "std")]
mod sample;
#[cfg(feature = "std")]
mod windows;

#[cfg(feature = "std")]
pub use bootstrap::{Interval, MedianEstimate, PairedRatio, RESAMPLES, SplitMix64};
#[cfg(feature = "std")]
pub use fairness::{jain_index, min_max_ratio};
pub use histogram::{BUCKETS, LogHistogram, bucket_bounds, bucket_of};
#[cfg(feature = "std")]
pub use sample::{
    coefficient_of_variation, mad, mean, median, percentile_linear, percentile_nearest, stddev,
};
#[cfg(feature = "std")]
pub use windows::{max_relative_error, windows};
