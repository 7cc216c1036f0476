//! Runs a resolved model: forward, sequence state, sampling, taps
