//! The binary as users and scripts see it: exit codes, streams, forms, texts.
//!
//! One test binary. The model is the embedded one; parity runs on the tiny reference checkpoints. No test looks at the
//! environment of the machine.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod errors;
mod export;
mod forms;
mod hub;
#[cfg(unix)]
mod interrupt;
mod lql;
mod model;
mod pack;
mod score;
#[expect(dead_code, reason = "the tests of the hub use the rest")]
#[path = "../../../hub/tests/it/server.rs"]
mod server;
mod speculate;
mod support;
mod vindex;
