//! Tests of the language through its public API, in one binary.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in its helper functions"
)]

mod errors;
mod grammar;
mod interactive;
mod robustness;
mod round_trip;
mod spans;
mod statements;
