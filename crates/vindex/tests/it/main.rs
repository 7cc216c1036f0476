//! Tests of the vindex directory, in one binary.

#![expect(
    clippy::unwrap_used,
    reason = "the clippy exemption covers test functions, not the helpers they share"
)]

mod compat;
mod corpus;
mod extraction;
mod manifest;
mod pack;
mod roundtrip;
mod support;
mod verification;
