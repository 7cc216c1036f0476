//! Checks and chores of this repository; `cargo xtask --help` lists them.
//!
//! Nothing here is part of the product, and no crate depends on it.
//! What a chore needs from outside (cargo, git, python3 with pip) it runs as a process.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for a terminal: it reports by printing"
)]

mod bench_models;
mod bench_peer;
mod ci;
mod cli_docs;
mod conformance;
mod fetch_gemma;
mod loom;
mod process;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks and chores of this repository")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Every check except the tests: formatting, tidiness, lints, documentation
    Ci,
    /// Only the rules about the text and the shape of the repository
    Tidy,
    /// Rewrite docs/cli.md from the command line's own help
    Docs,
    /// Run the tests with snapshots accepted, then rewrite the generated documentation
    Bless,
    /// Run the models of the thread team in every order of their steps
    Loom,
    /// Record the present hashes of the sources that a document describes
    Lock,
    /// Fetch Gemma 3 270M (GGUF, Q4_K_M, 254 MB, under the Gemma terms of use) into DIR
    FetchGemma {
        /// Where the file goes; never commit it
        dir: PathBuf,
    },
    /// Measure our speed beside llama.cpp's, on the same files, in turns
    BenchPeer(bench_peer::Options),
    /// Make the random 1.1 B models that speed is measured on (GGUF, four types, 4.9 GB) in DIR
    BenchModels {
        /// Where the files go; those that are there already are kept
        dir: PathBuf,
        /// Our program, which quantizes; target/release/larql unless named
        #[arg(long)]
        larql: Option<PathBuf>,
        /// A Python that has llama-cpp-python, to compare the next token of both programs
        #[arg(long)]
        python: Option<PathBuf>,
    },
    /// Keep threads busy until the standard input ends
    #[command(hide = true)]
    Spin {
        /// How many
        threads: u64,
    },
    /// Compare every family's exports with llama.cpp and transformers
    Conformance {
        /// A Python that has llama-cpp-python, torch and transformers
        #[arg(long)]
        python: PathBuf,
        /// Our program; target/release/larql unless named
        #[arg(long)]
        larql: Option<PathBuf>,
        /// Only these fixtures, and no Atlas
        #[arg(long, value_delimiter = ',')]
        families: Vec<String>,
        /// A folder of vocabularies with recorded ids, for the tokenizer suite
        #[arg(long)]
        vocabularies: Option<PathBuf>,
        /// A GGUF file to take through a vindex and a Hugging Face folder
        #[arg(long)]
        gguf: Option<PathBuf>,
    },
    /// Compare a model with prompts whose logits another program computed
    Golden {
        /// A GGUF file or a Hugging Face folder
        model: PathBuf,
        /// The reference: prompts with ids, top logits and a greedy continuation
        golden: PathBuf,
    },
    /// Compare a model's tokenizer with texts whose ids another program computed
    Tokens {
        /// A GGUF file or a Hugging Face folder
        model: PathBuf,
        /// `cases` with `text` and `ids`
        cases: PathBuf,
    },
    /// Ask a model for every fact it was trained on, and complete phrasings it never saw
    Facts {
        /// Any model
        model: PathBuf,
        /// A folder with facts.json and heldout.jsonl
        reference: PathBuf,
    },
    /// Hit rates of DESCRIBE for one relation over a table of true answers
    Hits {
        /// Any model
        model: PathBuf,
        /// `rows` with `entity`, `population` and one key per relation
        table: PathBuf,
        /// The relation
        #[arg(long, default_value = "capital")]
        relation: String,
        /// Entities, the most populous first
        #[arg(long, default_value_t = 40)]
        limit: usize,
    },
}

fn main() -> ExitCode {
    let root = process::root();
    let outcome = match Args::parse().task {
        Task::Ci => ci::ci(&root),
        Task::Tidy => ci::tidy(&root),
        Task::Docs => cli_docs::write(&root),
        Task::Bless => ci::bless(&root),
        Task::Loom => loom::run(&root),
        Task::Lock => tidy::locks::write(&root),
        Task::BenchPeer(options) => bench_peer::run(&options),
        Task::BenchModels { dir, larql, python } => {
            bench_models::make(&dir, larql, python.as_deref())
        }
        Task::Spin { threads } => bench_peer::spin(threads),
        Task::Conformance {
            python,
            larql,
            families,
            vocabularies,
            gguf,
        } => conformance::peers(
            &python,
            larql,
            &families,
            vocabularies.as_deref(),
            gguf.as_deref(),
        ),
        Task::Golden { model, golden } => conformance::golden(&model, &golden),
        Task::Tokens { model, cases } => conformance::tokens(&model, &cases),
        Task::Facts { model, reference } => conformance::facts(&model, &reference),
        Task::Hits {
            model,
            table,
            relation,
            limit,
        } => conformance::hits(&model, &table, &relation, limit),
        Task::FetchGemma { dir } => fetch_gemma::fetch(&dir),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
