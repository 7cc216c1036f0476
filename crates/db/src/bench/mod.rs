//! Prefill and decode speed, beside what this machine was measured to read and to multiply.
//!
//! Each repeat runs the prompt, the decode steps, and the decode steps of several sequences together where that is asked
//! for; medians are reported with their extremes, and where the time went per class of operators. The answer is checked:
//! every repeat must give the same tokens, and every sequence of a batch those that it gets alone. A ratio to a ceiling is
//! given only if the ceiling was the same before and after.

mod control;
mod report;
mod run;

pub use control::{Ceiling, Ceilings, Refusal};
pub use report::{BatchReport, BenchReport, ClassLine, Ledgers, PhaseLedger};
pub use run::{BenchOptions, bench};
