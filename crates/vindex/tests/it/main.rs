//! Tests of the vindex directory, in one binary.

mod compat;
mod extraction;
mod manifest;
mod support;
mod verification;
