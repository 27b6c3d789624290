//! A film, as Sabre describes one.

use serde::{Deserialize, Serialize};

use super::super::{Error, Ladder};

/// Segments are up to 1 Tbit.
const SIZES: std::ops::RangeInclusive<f64> = 1.0..=1e12;

/// A film: its qualities, and the size of each segment in each of them. Read and written as Sabre's
/// `movie.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Movie {
    ladder: Ladder,
    sizes_bits: Vec<Vec<f64>>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    segment_duration_ms: f64,
    bitrates_kbps: Vec<f64>,
    segment_sizes_bits: Vec<Vec<f64>>,
}

impl Movie {
    /// One whose segments last so long.
    ///
    /// # Errors
    /// If a number cannot be, or a segment has not a size for each quality.
    pub fn new(
        segment_ms: f64,
        bitrates_kbps: Vec<f64>,
        sizes_bits: Vec<Vec<f64>>,
    ) -> Result<Self, Error> {
        let ladder = Ladder::new(segment_ms, bitrates_kbps, Some(sizes_bits.len()))?;
        let qualities = ladder.bitrates_kbps().len();
        for (segment, sizes) in sizes_bits.iter().enumerate() {
            if sizes.len() != qualities {
                return Err(Error::Ragged {
                    segment,
                    sizes: sizes.len(),
                    qualities,
                });
            }
            if let Some(quality) = sizes.iter().position(|bits| !SIZES.contains(bits)) {
                return Err(Error::Size {
                    segment,
                    quality,
                    bits: sizes[quality],
                });
            }
        }
        Ok(Self { ladder, sizes_bits })
    }

    /// Its qualities.
    #[must_use]
    pub const fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// How many segments it has.
    #[must_use]
    pub const fn segments(&self) -> usize {
        self.sizes_bits.len()
    }

    pub(super) fn bits(&self, segment: usize, quality: usize) -> f64 {
        self.sizes_bits[segment][quality]
    }
}

impl TryFrom<Written> for Movie {
    type Error = Error;

    fn try_from(written: Written) -> Result<Self, Error> {
        Self::new(
            written.segment_duration_ms,
            written.bitrates_kbps,
            written.segment_sizes_bits,
        )
    }
}

impl From<Movie> for Written {
    fn from(movie: Movie) -> Self {
        Self {
            segment_duration_ms: movie.ladder.segment_ms(),
            bitrates_kbps: movie.ladder.bitrates_kbps().to_vec(),
            segment_sizes_bits: movie.sizes_bits,
        }
    }
}
