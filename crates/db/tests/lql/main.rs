//! LQL as a user meets it: statements in, rows or refusals out.
//!
//! How: `.slt` files hold statements with their rows; every clause is shown to change some rows; every plan is compared with
//! its words; the blocks of `docs/lql.md` run.

mod clauses;
mod docs;
mod features;
mod plans;
mod script;
mod slt;
