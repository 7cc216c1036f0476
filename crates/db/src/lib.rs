//! Open, extract, plan, execute: statements in, typed rows out.
//!
//! Useful for: everything a front end offers, without knowing which front end it is. Not useful for: printing, progress
//! bars, reading arguments or the environment.
//! Cost: opening reads headers; weights stay mapped until a statement runs them.
#![forbid(unsafe_code)]

pub mod address;
pub mod ask;
pub mod attribution;
pub mod bench;
pub mod database;
pub mod describe;
pub mod error;
mod exec;
pub mod facts;
pub mod features;
pub mod generate;
pub mod infer;
pub mod pack;
pub mod parity;
pub mod plan;
pub mod progress;
pub mod relations;
pub mod rows;
pub mod score;
pub mod session;
pub mod speculate;
pub mod token;
pub mod walk;

pub use database::Database;
pub use error::DbError;
pub use progress::{OnProgress, Progress};
pub use relations::Relation;
pub use rows::{Cell, Rows};
pub use session::{Session, SessionOptions};
