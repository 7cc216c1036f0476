//! Open, extract, plan, execute: statements in, typed rows out.
#![forbid(unsafe_code)]

pub mod error;
pub mod parity;

pub use error::DbError;
