//! The probes measure what they say: more of the same work takes longer, and a cache is faster than memory.
//!
//! Nothing here compares with an absolute speed, since that is what a probe is for.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;

use larql_kernels::{
    Arithmetic, Kernels, Team, cache_bandwidth_gb_s, multiply_rate_gmac_s, read_bandwidth_gb_s,
};

fn team(n: usize) -> Team {
    Team::new(NonZeroUsize::new(n).unwrap())
}

/// No machine reads or multiplies faster per thread: 64 bytes, and as many products, in each of 8 x 10^9 cycles.
const PER_THREAD_MAX: f64 = 64.0 * 8.0;

#[test]
fn reading_is_measured_on_any_length() {
    for (n_threads, len) in [(1, 1 << 20), (2, (3 << 20) + 77)] {
        let mut memory = vec![0; len];
        let gb_s = read_bandwidth_gb_s(&mut team(n_threads), Kernels::detect(), &mut memory);
        // A loop that the compiler removed would be beyond any machine.
        let most = PER_THREAD_MAX * n_threads as f64;
        assert!(gb_s > 0.01 && gb_s < most, "{n_threads} threads: {gb_s}");
        assert!(memory.iter().all(|byte| *byte != 0), "a page was not made");
    }
}

#[test]
fn a_cache_is_read_at_a_speed_of_this_world() {
    let gb_s = cache_bandwidth_gb_s(&mut team(1), Kernels::detect());
    assert!(gb_s > 0.1 && gb_s < PER_THREAD_MAX, "{gb_s}");
}

#[test]
fn both_arithmetics_have_a_rate() {
    for n_threads in [1, 2] {
        for arithmetic in Arithmetic::ALL {
            let kernels = Kernels::detect();
            let gmac_s = multiply_rate_gmac_s(&mut team(n_threads), kernels, arithmetic);
            let most = PER_THREAD_MAX * n_threads as f64;
            assert!(gmac_s > 0.01 && gmac_s < most, "{arithmetic:?}: {gmac_s}");
        }
    }
}
