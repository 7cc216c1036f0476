//! What this machine can do at most, measured before and after, and when a ratio to it means nothing.

use larql_engine::{EngineError, Runtime};
use larql_formats::Arena;
use larql_kernels::{Arithmetic, cache_bandwidth_gb_s, multiply_rate_gmac_s, read_bandwidth_gb_s};
use serde::Serialize;

use crate::error::DbError;

/// Bytes of the bandwidth probe: far beyond any cache.
const PROBE_BYTES: usize = 512 << 20;

/// Bytes of it that are written between two looks at whether somebody interrupts: a huge page.
const PIECE_BYTES: usize = 2 << 20;

/// Two readings of a ceiling that are further apart were taken of two different machines, so to speak.
const DRIFT_MAX: f64 = 1.10;

/// A probe that is not slower than a cache by this factor did not reach memory.
const CACHE_BY_MEMORY_MIN: f64 = 1.5;

/// One ceiling, before the repeats and after them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ceiling {
    /// Reading before.
    pub before: f64,
    /// Reading after.
    pub after: f64,
}

/// The ceilings of this machine with the threads of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ceilings {
    /// Reads of memory, in pages of the kind that the weights are in.
    pub read_gb_s: Ceiling,
    /// Reads of a second-level cache.
    pub cache_gb_s: Ceiling,
    /// Multiply-adds on 8-bit activations and Q8_0 weights, from caches.
    pub integer_gmac_s: Ceiling,
    /// Multiply-adds on float32 activations and weights, from caches.
    pub float_gmac_s: Ceiling,
}

/// Bytes that a token reads at least where memory is the ceiling: last-level caches of servers keep less for a core.
const TOKEN_BYTES_MIN: u64 = 64 << 20;

/// Why there is no ratio to a ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The readings before and after differ by more than a tenth.
    Drifted,
    /// Memory was read as fast as a cache: the probe did not reach it.
    NotMemory,
    /// What a token reads may stay in a cache, and then memory is no ceiling.
    Cached,
}

impl Refusal {
    /// The name users see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drifted => "drifted",
            Self::NotMemory => "not memory",
            Self::Cached => "cached",
        }
    }
}

impl Ceiling {
    /// Between the readings.
    pub fn mean(&self) -> f64 {
        (self.before + self.after) / 2.0
    }

    /// The lower reading, then the higher one.
    pub(crate) fn range(&self) -> [f64; 2] {
        [self.before.min(self.after), self.before.max(self.after)]
    }

    /// Whether the readings differ by more than a tenth; readings that are no numbers do.
    pub(crate) fn has_drifted(&self) -> bool {
        let [low, high] = self.range();
        // The smaller of a number and none is the number.
        let are_numbers = self.before.is_finite() && self.after.is_finite();
        !(are_numbers && low > 0.0 && high <= low * DRIFT_MAX)
    }
}

impl Ceilings {
    /// Why decoding is not compared with the read bandwidth, if it is not; a token reads `token_bytes`.
    pub(crate) fn refuse_read(&self, token_bytes: u64) -> Option<Refusal> {
        if token_bytes < TOKEN_BYTES_MIN {
            return Some(Refusal::Cached);
        }
        let reaches_memory = |cache: f64, read: f64| cache >= CACHE_BY_MEMORY_MIN * read;
        if self.read_gb_s.has_drifted() {
            Some(Refusal::Drifted)
        } else if reaches_memory(self.cache_gb_s.before, self.read_gb_s.before)
            && reaches_memory(self.cache_gb_s.after, self.read_gb_s.after)
        {
            None
        } else {
            Some(Refusal::NotMemory)
        }
    }

    /// Why decoding several sequences is not compared with decoding one, if it is not: they run one after the other.
    pub(crate) fn refuse_speedup(&self) -> Option<Refusal> {
        self.read_gb_s.has_drifted().then_some(Refusal::Drifted)
    }

    /// The part of the read bandwidth `read_gb_s` that so many tokens per second use.
    pub(crate) fn read_fraction(tok_s: f64, token_bytes: u64, read_gb_s: f64) -> f64 {
        tok_s * token_bytes as f64 / (read_gb_s * 1e9)
    }

    /// Why a run with these multiply-adds is not compared with the multiply rates, if it is not.
    pub(crate) fn refuse_multiply(&self, integer_macs: u64, float_macs: u64) -> Option<Refusal> {
        let of = |macs: u64, rate: &Ceiling| macs > 0 && rate.has_drifted();
        (of(integer_macs, &self.integer_gmac_s) || of(float_macs, &self.float_gmac_s))
            .then_some(Refusal::Drifted)
    }

    /// Seconds that so many multiply-adds take at the measured rates.
    pub(crate) fn multiply_s(&self, integer_macs: f64, float_macs: f64) -> f64 {
        (integer_macs / self.integer_gmac_s.mean() + float_macs / self.float_gmac_s.mean()) / 1e9
    }
}

/// One reading of every ceiling.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    read_gb_s: f64,
    cache_gb_s: f64,
    integer_gmac_s: f64,
    float_gmac_s: f64,
}

impl Reading {
    /// Measures; takes half a gigabyte of memory meanwhile.
    ///
    /// # Errors
    /// If there is no such memory, or somebody interrupts.
    pub(crate) fn take(runtime: &mut Runtime) -> Result<Self, DbError> {
        let kernels = runtime.kernels();
        let interrupt = runtime.interrupt().clone();
        let team = runtime.team();
        let go_on = || match interrupt.is_raised() {
            true => Err(EngineError::Interrupted),
            false => Ok(()),
        };
        // The weights lie in an arena too, so both are in pages of one kind.
        let mut memory =
            Arena::new()
                .alloc(PROBE_BYTES)
                .map_err(|source| DbError::ProbeMemory {
                    n_bytes: PROBE_BYTES,
                    source,
                })?;
        // Making the pages takes most of the time of a reading; by the threads that will read them, as the probe does.
        team.chunks_mut(&mut memory, PIECE_BYTES, |_, piece| {
            if !interrupt.is_raised() {
                piece.fill(1);
            }
        });
        go_on()?;
        let read_gb_s = read_bandwidth_gb_s(team, kernels, &mut memory);
        go_on()?;
        // These take some milliseconds each.
        let reading = Self {
            read_gb_s,
            cache_gb_s: cache_bandwidth_gb_s(team, kernels),
            integer_gmac_s: multiply_rate_gmac_s(team, kernels, Arithmetic::Fast),
            float_gmac_s: multiply_rate_gmac_s(team, kernels, Arithmetic::Exact),
        };
        go_on()?;
        Ok(reading)
    }

    /// This reading and a later one.
    pub(crate) fn and(&self, after: &Self) -> Ceilings {
        let pair = |of: fn(&Self) -> f64| Ceiling {
            before: of(self),
            after: of(after),
        };
        Ceilings {
            read_gb_s: pair(|reading| reading.read_gb_s),
            cache_gb_s: pair(|reading| reading.cache_gb_s),
            integer_gmac_s: pair(|reading| reading.integer_gmac_s),
            float_gmac_s: pair(|reading| reading.float_gmac_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use larql_engine::{Interrupt, Profile};

    use super::*;

    #[test]
    fn a_reading_can_be_interrupted() {
        let interrupt = Interrupt::default();
        let mut runtime = Runtime::new(NonZeroUsize::MIN, Profile::Fast, interrupt.clone());
        interrupt.raise();
        let ended = Reading::take(&mut runtime);
        assert!(
            matches!(ended, Err(DbError::Engine(EngineError::Interrupted))),
            "{ended:?}"
        );
    }

    fn ceiling(before: f64, after: f64) -> Ceiling {
        Ceiling { before, after }
    }

    fn ceilings(read: Ceiling, cache: Ceiling) -> Ceilings {
        Ceilings {
            read_gb_s: read,
            cache_gb_s: cache,
            integer_gmac_s: ceiling(50.0, 54.0),
            float_gmac_s: ceiling(20.0, 23.0),
        }
    }

    #[test]
    fn a_ceiling_drifts_when_its_readings_are_more_than_a_tenth_apart() {
        for (before, after, drifted) in [
            (10.0, 10.9, false),
            (10.9, 10.0, false),
            (10.0, 11.1, true),
            (11.1, 10.0, true),
            (0.0, 0.0, true),
            (f64::NAN, 10.0, true),
            (f64::INFINITY, 10.0, true),
        ] {
            let ceiling = ceiling(before, after);
            assert_eq!(ceiling.has_drifted(), drifted, "{before} and {after}");
        }
    }

    #[test]
    fn memory_as_fast_as_a_cache_is_refused_in_either_reading() {
        let read = ceiling(10.0, 10.5);
        let refused = |cache| ceilings(read, cache).refuse_read(TOKEN_BYTES_MIN);
        assert_eq!(refused(ceiling(15.0, 16.0)), None);
        assert_eq!(refused(ceiling(14.9, 16.0)), Some(Refusal::NotMemory));
        assert_eq!(refused(ceiling(15.0, 15.7)), Some(Refusal::NotMemory));
        let drifted = ceilings(ceiling(10.0, 12.0), ceiling(40.0, 40.0));
        assert_eq!(drifted.refuse_read(TOKEN_BYTES_MIN), Some(Refusal::Drifted));
        // Runs one after the other are compared whatever the probe reached, if the machine stayed the same.
        assert_eq!(drifted.refuse_speedup(), Some(Refusal::Drifted));
        let cached = ceilings(read, ceiling(14.9, 16.0));
        assert_eq!(cached.refuse_speedup(), None);
    }

    #[test]
    fn a_model_that_a_cache_may_keep_is_not_compared_with_memory() {
        let steady = ceilings(ceiling(10.0, 10.0), ceiling(40.0, 40.0));
        assert_eq!(
            steady.refuse_read(TOKEN_BYTES_MIN - 1),
            Some(Refusal::Cached)
        );
        assert_eq!(steady.refuse_read(TOKEN_BYTES_MIN), None);
        assert_eq!(Ceilings::read_fraction(50.0, 160_000_000, 10.0), 0.8);
    }

    /// The float rate of these readings has drifted, the integer rate has not.
    #[test]
    fn a_rate_that_was_not_used_is_no_control() {
        let ceilings = ceilings(ceiling(10.0, 10.0), ceiling(40.0, 40.0));
        assert_eq!(ceilings.refuse_multiply(7, 0), None);
        assert_eq!(ceilings.refuse_multiply(7, 1), Some(Refusal::Drifted));
        assert_eq!(ceilings.refuse_multiply(0, 1), Some(Refusal::Drifted));
    }

    #[test]
    fn multiply_adds_take_their_time_at_the_mean_rates() {
        let ceilings = ceilings(ceiling(10.0, 10.0), ceiling(40.0, 40.0));
        let seconds = ceilings.multiply_s(104e9, 43e9);
        assert!((seconds - 4.0).abs() < 1e-9, "{seconds}");
    }
}
