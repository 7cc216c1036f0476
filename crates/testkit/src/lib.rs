//! Tiny checkpoints and helpers for the tests of the other crates
