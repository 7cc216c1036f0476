//! Makes the models that speed is measured on: a random decoder of 1.1 billion parameters in four types.
//!
//! The shape is that of TinyLlama (llama architecture, untied head), so that the files stand for a model people run.
//! The weights are noise from a fixed seed: good for speed and for comparing arithmetic, useless as a language model.
//! The 16-bit file is streamed, so memory stays at a few megabytes; `larql quantize` makes the others from it.
//! With a Python that has llama-cpp-python, every file is run by both programs on the same text: they must read the same ids
//! and find the same next token, or the command fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use larql_formats::gguf::{Array, DEFAULT_ALIGNMENT, GgufWriter, Metadata, StringArray, Value};
use larql_formats::{Dtype, Error, Sink, TensorInfo, publish};
use larql_kernels::f32_to_f16;

use crate::bench_peer::{Programs, our_program};
use crate::process;

/// The types that `larql quantize` makes of the 16-bit file, and the endings of the file names.
const QUANTIZED: &[&str] = &["q8_0", "q6_k", "q4_k_m"];

/// What the files are called before the type.
const STEM: &str = "random-llama-1.1b";

/// `general.file_type` of a file whose matrices are float16, as llama.cpp counts.
const MOSTLY_F16: u32 = 1;

/// Standard deviation of the matrices: what initializers of this family use.
const WEIGHT_SCALE: f32 = 0.02;

/// Standard deviation of the norm weights around one: enough that a norm left out would be seen.
const NORM_SCALE: f32 = 0.1;

const SEED: u64 = 20_221_130;

/// Values of the noise that are drawn once; every weight is one of them.
const TABLE_LEN: usize = 1 << 16;

/// Bytes that are made at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Ids of the SentencePiece vocabulary before its first ordinary piece: three markers and the bytes.
const N_MARKERS: usize = 3;
const N_BYTES: usize = 256;

/// `tokenizer.ggml.token_type`, as llama.cpp counts.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// What SentencePiece writes for a space.
const SPACE: &str = "\u{2581}";

/// Everything about the model that is not noise.
#[derive(Debug, Clone, Copy)]
struct Shape {
    n_layers: usize,
    d_model: usize,
    d_mlp: usize,
    n_heads: usize,
    n_kv_heads: usize,
    /// `d_model / n_heads`: the file has no key for another width.
    d_head: usize,
    d_vocab: usize,
    n_context: usize,
}

const SHAPE: Shape = Shape {
    n_layers: 22,
    d_model: 2048,
    d_mlp: 5632,
    n_heads: 32,
    n_kv_heads: 4,
    d_head: 64,
    d_vocab: 32_000,
    n_context: 2048,
};

/// Leaves one file of each type in `dir`; files that are there already are kept.
pub(crate) fn make(dir: &Path, larql: Option<PathBuf>, python: Option<&Path>) -> Result<()> {
    let larql = our_program(larql)?;
    let programs = python
        .map(|python| Programs::find(python, Some(larql.clone())))
        .transpose()?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let file = |name: &str| dir.join(format!("{STEM}-{name}.gguf"));
    let half = file("f16");
    if !half.exists() {
        write_half(&half, &SHAPE)?;
    }
    let mut made = vec![half.clone()];
    for name in QUANTIZED {
        let path = file(name);
        if !path.exists() {
            let mut command = Command::new(&larql);
            command.args(["--quiet", "quantize"]).arg(&half).arg(name);
            process::stdout(command.arg("--out").arg(&path))?;
        }
        made.push(path);
    }
    match programs {
        Some(programs) => check(&programs, &made),
        None => {
            for path in made {
                println!(
                    "{}: not checked; name a Python with --python",
                    path.display()
                );
            }
            Ok(())
        }
    }
}

/// Compares the next token of a text in both programs, for each file.
fn check(programs: &Programs, made: &[PathBuf]) -> Result<()> {
    let mut failed = Vec::new();
    for path in made {
        let answers = programs.answers(path)?;
        println!("{}: {answers}", path.display());
        if !answers.agree() {
            failed.push(path.display().to_string());
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("the programs disagree about {}", failed.join(", "))
    }
}

/// Streams the 16-bit file.
fn write_half(path: &Path, shape: &Shape) -> Result<()> {
    let mut writer = GgufWriter::new(metadata(shape)?, DEFAULT_ALIGNMENT)?;
    let tensors = tensors(shape)?;
    for tensor in &tensors {
        writer.declare(tensor.clone())?;
    }
    let mut noise = Noise::new(SEED);
    publish(path, |out| {
        let mut stream = writer.begin(out)?;
        for tensor in &tensors {
            stream.write_tensor(&tensor.name, |sink| noise.write(tensor, sink))?;
        }
        stream.finish().map(drop)
    })
    .map_err(|error: Error| error.into())
}

fn metadata(shape: &Shape) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    let text = |text: &str| Value::String(text.to_owned());
    let count = |n: usize| Ok::<_, std::num::TryFromIntError>(Value::U32(u32::try_from(n)?));
    let vocabulary = Vocabulary::new(shape.d_vocab)?;
    for (key, value) in [
        ("general.architecture", text("llama")),
        ("general.name", text(STEM)),
        ("general.file_type", Value::U32(MOSTLY_F16)),
        ("llama.context_length", count(shape.n_context)?),
        ("llama.embedding_length", count(shape.d_model)?),
        ("llama.block_count", count(shape.n_layers)?),
        ("llama.feed_forward_length", count(shape.d_mlp)?),
        ("llama.attention.head_count", count(shape.n_heads)?),
        ("llama.attention.head_count_kv", count(shape.n_kv_heads)?),
        ("llama.rope.dimension_count", count(shape.d_head)?),
        ("llama.rope.freq_base", Value::F32(10_000.0)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.vocab_size", count(shape.d_vocab)?),
        ("tokenizer.ggml.model", text("llama")),
        (
            "tokenizer.ggml.tokens",
            Value::Array(Array::Strings(vocabulary.pieces)),
        ),
        (
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(vocabulary.scores)),
        ),
        (
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vocabulary.types)),
        ),
        ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.ggml.add_eos_token", Value::Bool(false)),
    ] {
        metadata.insert(key, value)?;
    }
    Ok(metadata)
}

/// The tensors in the order of the file; matrices are `[out, in]`.
fn tensors(shape: &Shape) -> Result<Vec<TensorInfo>> {
    let Shape {
        n_layers,
        d_model,
        d_mlp,
        n_heads,
        n_kv_heads,
        d_head,
        d_vocab,
        n_context: _,
    } = *shape;
    let (d_q, d_kv) = (n_heads * d_head, n_kv_heads * d_head);
    let matrix = |name: String, out: usize, input: usize| {
        TensorInfo::new(name, Dtype::F16, vec![out as u64, input as u64])
    };
    let norm = |name: String| TensorInfo::new(name, Dtype::F32, vec![d_model as u64]);
    let mut tensors = vec![matrix("token_embd.weight".to_owned(), d_vocab, d_model)?];
    for layer in 0..n_layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        tensors.push(norm(name("attn_norm"))?);
        tensors.push(matrix(name("attn_q"), d_q, d_model)?);
        tensors.push(matrix(name("attn_k"), d_kv, d_model)?);
        tensors.push(matrix(name("attn_v"), d_kv, d_model)?);
        tensors.push(matrix(name("attn_output"), d_model, d_q)?);
        tensors.push(norm(name("ffn_norm"))?);
        tensors.push(matrix(name("ffn_gate"), d_mlp, d_model)?);
        tensors.push(matrix(name("ffn_up"), d_mlp, d_model)?);
        tensors.push(matrix(name("ffn_down"), d_model, d_mlp)?);
    }
    tensors.push(norm("output_norm.weight".to_owned())?);
    tensors.push(matrix("output.weight".to_owned(), d_vocab, d_model)?);
    Ok(tensors)
}

/// A SentencePiece vocabulary that any ASCII text goes through: bytes, characters, and words of up to three letters,
/// each reachable by merging two shorter ones. Earlier pieces win.
struct Vocabulary {
    pieces: StringArray,
    scores: Vec<f32>,
    types: Vec<i32>,
}

impl Vocabulary {
    /// Fails if there are not as many different pieces, or not even room for the bytes.
    fn new(d_vocab: usize) -> Result<Self> {
        ensure!(
            d_vocab > N_MARKERS + N_BYTES,
            "a vocabulary of {d_vocab} has no room for {N_MARKERS} markers and {N_BYTES} bytes"
        );
        let markers = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
        let bytes = (0..N_BYTES).map(|byte| format!("<0x{byte:02X}>"));
        let pieces: StringArray = markers.chain(bytes).chain(words()).take(d_vocab).collect();
        ensure!(
            pieces.len() == d_vocab,
            "a vocabulary of {d_vocab} was asked for, {} pieces are known",
            pieces.len()
        );
        let types = (0..d_vocab).map(|id| match id {
            0 => UNKNOWN,
            _ if id < N_MARKERS => CONTROL,
            _ if id < N_MARKERS + N_BYTES => BYTE,
            _ => NORMAL,
        });
        let first_word = N_MARKERS + N_BYTES;
        let scores = (0..d_vocab).map(|id| -(id.saturating_sub(first_word) as f32));
        Ok(Self {
            pieces,
            scores: scores.collect(),
            types: types.collect(),
        })
    }
}

/// The ordinary pieces without an end that matters, the most wanted first.
fn words() -> impl Iterator<Item = String> {
    let letters = || (b'a'..=b'z').map(char::from);
    let pairs = move || letters().flat_map(move |a| letters().map(move |b| format!("{a}{b}")));
    let triples = move || pairs().flat_map(move |ab| letters().map(move |c| format!("{ab}{c}")));
    let visible = (b'!'..=b'~').map(|byte| char::from(byte).to_string());
    std::iter::once(SPACE.to_owned())
        .chain(visible)
        .chain(letters().map(|a| format!("{SPACE}{a}")))
        .chain(pairs())
        .chain(pairs().map(|ab| format!("{SPACE}{ab}")))
        .chain(triples())
        .chain(triples().map(|abc| format!("{SPACE}{abc}")))
}

/// Weights that look normally distributed and are the same on every machine: no library function takes part.
struct Noise {
    state: u64,
    /// Little-endian float16 of the matrices.
    weights: Vec<[u8; 2]>,
}

impl Noise {
    fn new(seed: u64) -> Self {
        let mut noise = Self {
            state: seed,
            weights: Vec::with_capacity(TABLE_LEN),
        };
        for _ in 0..TABLE_LEN {
            let value = noise.normal() * WEIGHT_SCALE;
            noise.weights.push(f32_to_f16(value).to_le_bytes());
        }
        noise
    }

    /// splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The sum of twelve uniform values less six: variance one, tails end at six.
    fn normal(&mut self) -> f32 {
        let uniform = |bits: u64| (bits & 0xffff) as f32 / 65_536.0;
        let mut sum = -6.0;
        for _ in 0..3 {
            let bits = self.next();
            sum += uniform(bits) + uniform(bits >> 16) + uniform(bits >> 32) + uniform(bits >> 48);
        }
        sum
    }

    /// Writes a matrix of noise, or a norm near one.
    fn write(&mut self, tensor: &TensorInfo, sink: &mut Sink<'_>) -> Result<(), Error> {
        if tensor.dtype == Dtype::F32 {
            for _ in 0..tensor.n_values() {
                sink.put(&(1.0 + self.normal() * NORM_SCALE).to_le_bytes())?;
            }
            return Ok(());
        }
        let mut rest = tensor.n_bytes;
        let mut chunk = vec![0; CHUNK_BYTES];
        while rest > 0 {
            let n_bytes = rest.min(CHUNK_BYTES as u64);
            // At most CHUNK_BYTES, so the cast keeps the value.
            let chunk = &mut chunk[..n_bytes as usize];
            self.fill(chunk);
            sink.put(chunk)?;
            rest -= n_bytes;
        }
        Ok(())
    }

    /// Four float16 values from each number.
    fn fill(&mut self, out: &mut [u8]) {
        for four in out.chunks_mut(8) {
            let bits = self.next();
            for (i, value) in four.chunks_exact_mut(2).enumerate() {
                let idx = (bits >> (16 * i)) & 0xffff;
                value.copy_from_slice(&self.weights[idx as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use larql_formats::gguf::GgufFile;
    use larql_kernels::f16_to_f32;
    use larql_models::Checkpoint;
    use larql_models::tokenizer::{Bos, EncodeSpecial, SpecialText};

    use super::*;

    /// Nothing square, nothing a power of two where it need not be.
    const TINY: Shape = Shape {
        n_layers: 2,
        d_model: 48,
        d_mlp: 80,
        n_heads: 6,
        n_kv_heads: 2,
        d_head: 8,
        d_vocab: 700,
        n_context: 40,
    };

    fn tiny(folder: &Path) -> PathBuf {
        let path = folder.join("tiny.gguf");
        write_half(&path, &TINY).unwrap();
        path
    }
    #[test]
    fn every_tensor_is_one_that_the_family_knows() {
        let folder = tempfile::tempdir().unwrap();
        let path = tiny(folder.path());
        assert_eq!(GgufFile::open(&path).unwrap().tensors().len(), 2 * 9 + 3);
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.ignored().len(), 0);
        let spec = checkpoint.spec();
        assert_eq!((spec.d_model, spec.d_vocab), (48, 700));
        let matrices = 2 * (48 * 48 * 2 + 48 * 16 * 2 + 48 * 80 * 3) + 2 * 700 * 48;
        assert_eq!(checkpoint.n_params(), matrices + 5 * 48);
    }

    #[test]
    fn any_text_goes_through_the_vocabulary() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(&tiny(folder.path())).unwrap();
        let tokenizer = checkpoint.tokenizer().unwrap();
        // Pieces with a space before them, a character of its own, and one that only bytes can spell.
        let text = "an M\u{e4}x";
        let ids = tokenizer
            .encode(text, EncodeSpecial::Plain, Bos::Never)
            .unwrap();
        assert!(ids.len() > 4, "{ids:?}");
        assert_eq!(tokenizer.decode(&ids, SpecialText::Keep), text);
    }

    #[test]
    fn weights_are_spread_like_a_normal_distribution() {
        let folder = tempfile::tempdir().unwrap();
        let file = GgufFile::open(tiny(folder.path())).unwrap();
        let bytes = file.data("output.weight").unwrap();
        let values: Vec<f64> = bytes
            .chunks_exact(2)
            .map(|b| f64::from(f16_to_f32(u16::from_le_bytes([b[0], b[1]]))))
            .collect();
        assert_eq!(values.len(), 700 * 48);
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let deviation = (values.iter().map(|x| x * x).sum::<f64>() / n).sqrt();
        // Five standard errors of each.
        assert!(mean.abs() < 5.0 * 0.02 / n.sqrt(), "{mean}");
        assert!(
            (deviation / 0.02 - 1.0).abs() < 5.0 / (2.0 * n).sqrt(),
            "{deviation}"
        );
        let within = values.iter().filter(|x| x.abs() < 0.02).count() as f64 / n;
        assert!((within - 0.683).abs() < 0.02, "{within}");
        // Most of the table is used, not a corner of it.
        let distinct: std::collections::BTreeSet<u64> =
            values.iter().map(|x| x.to_bits()).collect();
        assert!(distinct.len() > 5_000, "{}", distinct.len());

        let norm = file.data("blk.1.ffn_norm.weight").unwrap();
        let value = |at: usize| f32::from_le_bytes(norm[at..at + 4].try_into().unwrap());
        assert_ne!(value(0), value(4));
        assert!((value(0) - 1.0).abs() < 0.6, "{}", value(0));
    }

    #[test]
    fn the_noise_is_that_of_the_paper() {
        let mut noise = Noise::new(7);
        noise.state = 1_234_567;
        // The reference implementation's first numbers from this seed.
        assert_eq!(noise.next(), 6_457_827_717_110_365_317);
        assert_eq!(noise.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_vocabulary_has_as_many_pieces_as_were_asked_for_and_no_two_alike() {
        let vocabulary = Vocabulary::new(SHAPE.d_vocab).unwrap();
        let mut pieces: Vec<&str> = vocabulary.pieces.iter().collect();
        pieces.sort_unstable();
        pieces.dedup();
        assert_eq!(pieces.len(), 32_000);
        assert_eq!(vocabulary.types[12..14], [BYTE, BYTE]);
        assert_eq!(&vocabulary.pieces[13], "<0x0A>");
        assert!(Vocabulary::new(259).is_err());
        assert!(Vocabulary::new(1 << 20).is_err());
    }
}
