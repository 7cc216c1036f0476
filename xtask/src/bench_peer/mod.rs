//! `cargo xtask bench-peer`: our speed beside llama.cpp's, on the same file, threads and token ids.
//!
//! Two programs on a shared machine can only be compared when they take turns, so the runs are interleaved, and when the
//! machine has not changed meanwhile, so llama.cpp is the control: where its first and last runs differ too much, no ratio
//! is given. Not here: what one program alone can do (`larql bench`), and whether its answers are right beyond one token
//! (`cargo xtask conformance`). `docs/performance.md` describes the protocol for readers.

mod busy;
mod measure;
mod programs;
mod report;
mod stats;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

pub(crate) use busy::spin;
pub(crate) use programs::{Programs, our_program};

/// More pairs than this take hours and add nothing to a median.
const PAIRS_MAX: i64 = 99;

/// Room for any context that a machine without a large server's memory holds.
const TOKENS_MAX: u64 = 1 << 17;

/// More threads than any machine this is run on has cores.
const THREADS_MAX: u64 = 1024;

/// What to measure, as given on the command line.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// GGUF files
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// A Python that has llama-cpp-python and numpy
    #[arg(long)]
    python: PathBuf,
    /// Our program; target/release/larql unless named
    #[arg(long)]
    larql: Option<PathBuf>,
    /// Thread counts, each measured apart
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: Vec<u64>,
    /// Runs of each program per model and thread count; two at least, so that drift can be seen
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=PAIRS_MAX))]
    pairs: u32,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=TOKENS_MAX))]
    prompt: u64,
    /// Tokens decoded after it
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=TOKENS_MAX))]
    decode: u64,
    /// Also the time from start to the first token and the peak of memory
    #[arg(long)]
    start: bool,
    /// Also decode beside this many busy threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    busy: Option<u64>,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For reading
    Table,
    /// For programs
    Json,
}

/// Measures everything asked for and prints it; fails afterwards if a ratio was refused or the answers differ.
pub(crate) fn run(options: &Options) -> Result<()> {
    let programs = Programs::find(&options.python, options.larql.clone())?;
    for model in &options.models {
        programs::check_readable(model)?;
    }
    let outcome = measure::all(&programs, options)?;
    match options.format {
        Format::Table => report::table(&outcome),
        Format::Json => println!("{:#}", report::json(&outcome)),
    }
    let complaints = report::complaints(&outcome);
    if complaints.is_empty() {
        Ok(())
    } else {
        bail!("{}", complaints.join("\n  "))
    }
}
