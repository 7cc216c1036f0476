//! LQL as a user meets it: statements in, rows or refusals out.
//!
//! How: `.slt` files hold statements with their rows; every clause is shown to change some rows; every plan is compared with
//! its words; the blocks of `docs/lql.md` run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::result_large_err,
    reason = "an error of a test is printed once"
)]

mod clauses;
mod docs;
mod experts;
mod features;
mod plans;
mod script;
mod slt;
