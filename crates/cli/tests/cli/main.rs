//! The binary as users and scripts see it: exit codes, streams, forms, texts.
//!
//! One test binary. The model is the embedded one; parity runs on the tiny reference checkpoints. No test looks at the
//! environment of the machine.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod errors;
mod forms;
mod lql;
mod model;
mod support;
mod vindex;
