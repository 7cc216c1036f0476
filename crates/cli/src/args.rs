//! The arguments of `larql` as plain data, with their help texts.
//!
//! Types only: nothing here opens a file, prints or decides. `docs/cli.md` is generated from these.

use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::context::Context;
use crate::error::CliError;
use crate::numbers;

/// A transformer as a database: look inside a model, query it, run it on ordinary CPUs.
///
/// MODEL is always a vindex, a `.gguf` file, a Hugging Face checkpoint folder, or `hf://org/repo` on the Hugging Face Hub.
/// Data goes to stdout; progress, notes and errors go to stderr.
/// Exit codes: 0 done, 1 the request cannot be met (the message says why), 2 failure, 130 ended by Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "larql", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct GlobalArgs {
    /// Form of the data on stdout and of errors on stderr; csv is for `lql` and `repl`
    #[arg(long, global = true, value_enum, default_value_t = Format::Table, help_heading = "Global options")]
    pub(crate) format: Format,
    /// Threads that compute; 0 is what this process may use
    #[arg(
        long,
        global = true,
        value_name = "N",
        value_parser = numbers::whole,
        allow_negative_numbers = true,
        help_heading = "Global options"
    )]
    pub(crate) threads: Option<usize>,
    /// Only data and errors: no progress, notes or hints
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
}

/// Form of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For reading
    Table,
    /// For programs
    Json,
    /// One table per statement, header first
    Csv,
}

/// Arithmetic of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileArg {
    /// Float32 activations
    Exact,
    /// Activations in int8 blocks where the stored type has an integer kernel
    Fast,
    /// As `fast`, with asymmetric int8 blocks of 16 for Q8_0 matrices
    Asym16,
}

/// The arithmetic of commands whose numbers are looked at.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExactByDefault {
    /// Arithmetic of the run, `exact` where neither this nor LARQL_CPU_ARITHMETIC says otherwise; printed with the result
    #[arg(long, value_enum)]
    profile: Option<ProfileArg>,
}

impl ExactByDefault {
    /// The option, what the environment asks for, or the default.
    ///
    /// # Errors
    /// If the environment is asked, and names no arithmetic.
    pub(crate) fn profile(&self, context: &Context) -> Result<ProfileArg, CliError> {
        context.profile(self.profile, ProfileArg::Exact)
    }
}

/// The arithmetic of commands that make text.
#[derive(Debug, Clone, Args)]
pub(crate) struct FastByDefault {
    /// Arithmetic of the run, `fast` where neither this nor LARQL_CPU_ARITHMETIC says otherwise; printed with the result
    #[arg(long, value_enum)]
    profile: Option<ProfileArg>,
}

impl FastByDefault {
    /// The option, what the environment asks for, or the default.
    ///
    /// # Errors
    /// If the environment is asked, and names no arithmetic.
    pub(crate) fn profile(&self, context: &Context) -> Result<ProfileArg, CliError> {
        context.profile(self.profile, ProfileArg::Fast)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Guided tour on the model that comes with the program
    Demo(DemoArgs),
    /// Make a vindex of a checkpoint; accounts for every tensor, by name in JSON
    Extract(ExtractArgs),
    /// Write a model as a GGUF file or a Hugging Face folder
    Export(ExportArgs),
    /// Write a model as a GGUF file in smaller types
    Quantize(QuantizeArgs),
    /// Keep the weights of a vindex beside them as they are computed with: starts read nothing ahead, and a model may be larger
    /// than memory
    Pack(PackArgs),
    /// What is inside a model; reads headers only
    Show(ShowArgs),
    /// Whether a vindex is intact
    Verify(VerifyArgs),
    /// Continue a prompt
    Run(RunArgs),
    /// Chat with the model's own template
    Chat(ChatArgs),
    /// Execute LQL statements
    Lql(LqlArgs),
    /// Type LQL statements
    Repl(ReplArgs),
    /// Token ids of a text
    Tokenize(TokenizeArgs),
    /// Distribution of the next token
    Logits(LogitsArgs),
    /// Compare with a reference run and name the first stage that differs
    Parity(ParityArgs),
    /// Prefill and decode speed beside what this machine can do at most
    Bench(BenchArgs),
    /// Bits per token, byte and character of a text, beside another profile or model
    Score(ScoreArgs),
    /// This reference as Markdown
    #[command(hide = true)]
    MarkdownHelp,
}

/// `larql demo`
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the vindex in this new folder
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) arithmetic: ExactByDefault,
}

/// `larql extract`
#[derive(Debug, Args)]
pub(crate) struct ExtractArgs {
    /// A `.gguf` file, a Hugging Face checkpoint folder or `hf://org/repo`
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,
    /// The vindex to make; must not exist
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Fill the table of output tokens per feature now rather than on demand
    #[arg(long)]
    pub(crate) features: bool,
    /// How much to take
    #[arg(long, value_enum, default_value_t = LevelArg::All)]
    pub(crate) level: LevelArg,
    #[command(flatten)]
    pub(crate) quant: QuantArgs,
}

/// Types that the weights of a vindex get.
#[derive(Debug, Clone, Args)]
pub(crate) struct QuantArgs {
    /// Encode the weights: q8_0, q6_k, q5_k_m, q5_k_s, q5_0, q4_k_m, q4_k_s, q4_0 and others, mixed as llama.cpp mixes them
    #[arg(long, value_name = "TYPE")]
    pub(crate) quant: Option<String>,
    /// Encode tensors that are quantized already once more, which adds the second error to the first; f32, which holds the
    /// decoded values exactly, does not need it
    #[arg(long, requires = "quant")]
    pub(crate) requantize: bool,
}

/// `larql export`
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// The kind of files to write
    #[arg(long, value_enum)]
    pub(crate) to: ExportFormat,
    /// The file (gguf) or folder (safetensors) to make; must not exist
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Type of matrices that had no type of their own in safetensors, for instance those of a GGUF file; float32 by default
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<FloatArg>,
}

/// Kinds of files that a model can be written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// One file that llama.cpp runs
    Gguf,
    /// A folder that transformers loads
    Safetensors,
}

/// Floating-point types of safetensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FloatArg {
    /// Holds every stored value exactly
    Float32,
    /// IEEE half precision
    Float16,
    /// The upper half of float32
    Bfloat16,
}

/// `larql quantize`
#[derive(Debug, Args)]
pub(crate) struct QuantizeArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// q8_0, q6_k, q5_k_m, q5_k_s, q5_0, q4_k_m, q4_k_s, q4_0 and others, mixed tensor by tensor as llama.cpp mixes them
    #[arg(value_name = "TYPE")]
    pub(crate) mix: String,
    /// The GGUF file to make; must not exist
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Encode tensors that are quantized already once more, which adds the second error to the first; f32, which holds the
    /// decoded values exactly, does not need it
    #[arg(long)]
    pub(crate) requantize: bool,
}

/// `larql pack`
#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// The vindex; its tiles.pack is made, or replaced if it is damaged, of another model, or of another version or layout, and
    /// can be deleted at any time
    #[arg(value_name = "VINDEX")]
    pub(crate) vindex: PathBuf,
}

/// What a vindex contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LevelArg {
    /// Embedding, norms and FFNs: features can be looked up, the model cannot be run
    Browse,
    /// Attention too: the model runs
    Inference,
    /// And what it takes to write the files of the source again
    All,
}

/// `larql show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
}

/// `larql verify`
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The vindex
    #[arg(value_name = "VINDEX")]
    pub(crate) vindex: PathBuf,
}

/// How a prompt is read.
#[derive(Debug, Clone, Args)]
pub(crate) struct PromptArgs {
    /// The prompt; `-` reads it from stdin
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: String,
    /// Read `\n`, `\t`, `\r`, `\0`, `\\`, `\"` and `\'` in the prompt and in stop texts as escapes
    #[arg(short = 'e', long)]
    pub(crate) escape: bool,
    /// Read markers such as `<bos>` in the prompt as the tokens they name, not as text
    #[arg(long)]
    pub(crate) special: bool,
}

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        value_parser = numbers::number,
        allow_negative_numbers = true
    )]
    pub(crate) temp: f32,
    /// Seed of the draws; the same seed gives the same text
    #[arg(
        long,
        value_name = "S",
        default_value_t = 0,
        value_parser = numbers::seed,
        allow_negative_numbers = true
    )]
    pub(crate) seed: u64,
    /// Draw from this many of the most likely tokens
    #[arg(
        long,
        value_name = "K",
        value_parser = numbers::whole,
        allow_negative_numbers = true
    )]
    pub(crate) top_k: Option<usize>,
    /// Draw from the fewest tokens whose probability reaches this
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        value_parser = numbers::number,
        allow_negative_numbers = true
    )]
    pub(crate) top_p: f32,
    /// Leave out tokens less likely than this share of the most likely
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.0,
        value_parser = numbers::number,
        allow_negative_numbers = true
    )]
    pub(crate) min_p: f32,
    /// End at this text, which is not printed; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

/// Where guesses at the coming tokens are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GuessArg {
    /// What followed the same tokens earlier in the text
    Lookup,
}

/// How tokens are run ahead.
#[derive(Debug, Clone, Args)]
pub(crate) struct SpeculationArgs {
    /// Guess the coming tokens and run them together, while that is faster; the tokens stay the same
    #[arg(long, value_enum, value_name = "SOURCE", conflicts_with = "draft")]
    pub(crate) speculate: Option<GuessArg>,
    /// Guess with this smaller model, whose tokenizer must be the same; the tokens stay the same
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft: Option<PathBuf>,
}

/// `larql run`
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// Most tokens to make
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 128,
        value_parser = numbers::whole,
        allow_negative_numbers = true
    )]
    pub(crate) max_tokens: usize,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
    #[command(flatten)]
    pub(crate) arithmetic: FastByDefault,
}

/// `larql chat`
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// A system message before the conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Most tokens per answer
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 512,
        value_parser = numbers::whole,
        allow_negative_numbers = true
    )]
    pub(crate) max_tokens: usize,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
    #[command(flatten)]
    pub(crate) arithmetic: FastByDefault,
}

/// `larql lql`
#[derive(Debug, Args)]
pub(crate) struct LqlArgs {
    /// Statements separated by `;`; without them and without a file, stdin is read
    #[arg(value_name = "STATEMENTS", conflicts_with = "file")]
    pub(crate) statements: Option<String>,
    /// Read the statements from this file; `-` is stdin
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The model to ask, in place of a first `USE`
    #[arg(long, value_name = "MODEL", visible_alias = "model")]
    pub(crate) vindex: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) arithmetic: ExactByDefault,
}

/// `larql repl`
#[derive(Debug, Args)]
pub(crate) struct ReplArgs {
    /// The model to ask, in place of a first `USE`
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) arithmetic: ExactByDefault,
}

/// `larql tokenize`
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// The text; `-` reads it from stdin
    #[arg(value_name = "TEXT")]
    pub(crate) text: String,
    /// No beginning-of-sequence token, even if the model wants one
    #[arg(long)]
    pub(crate) no_bos: bool,
    /// Read markers such as `<bos>` in the text as the tokens they name, not as text
    #[arg(long)]
    pub(crate) special: bool,
}

/// `larql logits`
#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// How many tokens to show, most likely first
    #[arg(
        long,
        value_name = "K",
        default_value_t = 10,
        value_parser = numbers::count,
        allow_negative_numbers = true
    )]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) arithmetic: ExactByDefault,
}

/// `larql parity`
#[derive(Debug, Args)]
pub(crate) struct ParityArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "CHECKPOINT")]
    pub(crate) checkpoint: PathBuf,
    /// Reference run: safetensors with input_ids, hidden_states, logits and greedy
    #[arg(long, value_name = "FILE")]
    pub(crate) golden: PathBuf,
    #[command(flatten)]
    pub(crate) arithmetic: ExactByDefault,
}

/// `larql bench`
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Prompt tokens
    #[arg(
        long,
        value_name = "N",
        default_value_t = 256,
        value_parser = numbers::count,
        allow_negative_numbers = true
    )]
    pub(crate) pp: usize,
    /// Tokens to decode
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = numbers::count,
        allow_negative_numbers = true
    )]
    pub(crate) tg: usize,
    /// Runs of which the median is reported
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = numbers::count,
        allow_negative_numbers = true
    )]
    pub(crate) repeats: usize,
    /// Sequences that are also decoded together, each with a prompt of its own; 1 is no batch
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = numbers::sequences,
        allow_negative_numbers = true
    )]
    pub(crate) batch: usize,
    #[command(flatten)]
    pub(crate) arithmetic: FastByDefault,
}

/// `larql score`
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// A vindex, a `.gguf` file, a checkpoint folder or `hf://org/repo`
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// The text, in UTF-8 and taken byte for byte; `-` is stdin
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Score bytes A to B of it only, B not included; both lie between two characters
    #[arg(long, value_name = "A..B", value_parser = numbers::range)]
    pub(crate) bytes: Option<Range<u64>>,
    /// Compare the next-token distributions with those of another profile on the same weights (`exact`, `fast`, `asym16`) or
    /// of another model with the same tokenizer: divergences are KL(against || run)
    #[arg(long, value_name = "PROFILE|MODEL")]
    pub(crate) against: Option<String>,
    /// Tokens that are scored in one context, behind the model's beginning of sequence
    #[arg(
        long,
        value_name = "N",
        default_value_t = larql_db::score::WINDOW_TOKENS,
        value_parser = numbers::whole,
        allow_negative_numbers = true
    )]
    pub(crate) window: usize,
    /// Score the first N windows only
    #[arg(
        long,
        value_name = "N",
        value_parser = numbers::count,
        allow_negative_numbers = true
    )]
    pub(crate) windows: Option<usize>,
    #[command(flatten)]
    pub(crate) arithmetic: ExactByDefault,
}
