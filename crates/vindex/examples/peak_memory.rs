//! Measures the memory that an extraction takes, on a random checkpoint of some 600 MB:
//! `cargo run --release -p larql-vindex --example peak_memory [DIRECTORY]`.
//!
//! The promise is the largest tensor and 300 MB. Linux only: the peak is what the kernel has counted, pages of mapped
//! files included.

#![expect(clippy::print_stdout, reason = "a measurement prints its numbers")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use larql_formats::safetensors::Writer;
use larql_formats::{Dtype, TensorInfo};
use larql_kernels::Team;
use larql_models::Checkpoint;
use larql_vindex::{ExtractOptions, Level, extract, verify};

const D_MODEL: u64 = 1024;
const D_MLP: u64 = 4096;
const D_VOCAB: u64 = 49_152;
const N_LAYERS: u64 = 16;
const D_KV: u64 = 512;

/// Beyond the largest tensor.
const ALLOWANCE_BYTES: u64 = 300_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = match std::env::args().nth(1) {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let source = dir.path().join("source");
    fs::create_dir(&source)?;
    let size = write_checkpoint(&source)?;
    let checkpoint = Checkpoint::open(&source)?;
    let largest = checkpoint
        .container()
        .tensors()
        .iter()
        .map(|info| info.n_bytes)
        .max();
    let largest = largest.unwrap_or(0);
    let before = peak_bytes()?;
    let go_on = &mut |_| ControlFlow::Continue(());
    let out = dir.path().join("out");
    let start = Instant::now();
    extract(
        &checkpoint,
        None,
        &out,
        &ExtractOptions::at(Level::All),
        go_on,
    )?;
    let seconds = start.elapsed().as_secs_f64();
    let peak = peak_bytes()?;
    println!("checkpoint {size} bytes, largest tensor {largest}, peak before {before}");
    println!("folder: peak {peak} bytes, {seconds:.2} s");
    let weights = dir.path().join("model.gguf");
    fs::hard_link(out.join("weights.gguf"), &weights)?;
    let start = Instant::now();
    let gguf = Checkpoint::open(&weights)?;
    extract(
        &gguf,
        None,
        &dir.path().join("linked"),
        &ExtractOptions::at(Level::All),
        go_on,
    )?;
    println!(
        "gguf: peak {} bytes, {:.2} s",
        peak_bytes()?,
        start.elapsed().as_secs_f64()
    );
    let within = peak_bytes()? <= largest + ALLOWANCE_BYTES;
    let start = Instant::now();
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let report = verify(&out, &mut Team::new(threads), go_on)?;
    println!(
        "verify: {}, {:.2} s",
        report.ok(),
        start.elapsed().as_secs_f64()
    );
    if within {
        Ok(())
    } else {
        Err("more than the largest tensor and 300 MB".into())
    }
}

/// `VmHWM` of this process.
fn peak_bytes() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or("no VmHWM")?;
    Ok(kib.parse::<u64>()? * 1024)
}

fn write_checkpoint(dir: &Path) -> Result<u64, Box<dyn Error>> {
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": D_MODEL, "intermediate_size": D_MLP, "vocab_size": D_VOCAB,
        "num_hidden_layers": N_LAYERS, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 2048, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
    });
    fs::write(dir.join("config.json"), config.to_string())?;
    let mut tensors = vec![
        (
            "model.embed_tokens.weight".to_owned(),
            vec![D_VOCAB, D_MODEL],
        ),
        ("lm_head.weight".to_owned(), vec![D_VOCAB, D_MODEL]),
        ("model.norm.weight".to_owned(), vec![D_MODEL]),
    ];
    for layer in 0..N_LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![D_MODEL]),
            ("post_attention_layernorm", vec![D_MODEL]),
            ("self_attn.q_proj", vec![D_MODEL, D_MODEL]),
            ("self_attn.k_proj", vec![D_KV, D_MODEL]),
            ("self_attn.v_proj", vec![D_KV, D_MODEL]),
            ("self_attn.o_proj", vec![D_MODEL, D_MODEL]),
            ("mlp.gate_proj", vec![D_MLP, D_MODEL]),
            ("mlp.up_proj", vec![D_MLP, D_MODEL]),
            ("mlp.down_proj", vec![D_MODEL, D_MLP]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let mut writer = Writer::new(&[("format".to_owned(), "pt".to_owned())].into())?;
    let infos = tensors
        .into_iter()
        .map(|(name, shape)| TensorInfo::new(name, Dtype::Bf16, shape))
        .collect::<Result<Vec<_>, _>>()?;
    for info in &infos {
        writer.declare(info.clone())?;
    }
    let path: PathBuf = dir.join("model.safetensors");
    let mut stream = writer.begin(BufWriter::new(File::create(&path)?))?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chunk = vec![0; 1 << 16];
    for info in &infos {
        stream.write_tensor(&info.name, |sink| -> Result<(), larql_formats::Error> {
            let mut rest = info.n_bytes as usize;
            while rest > 0 {
                let n = rest.min(chunk.len());
                for pair in chunk[..n].chunks_exact_mut(2) {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    // Random mantissa and sign, magnitude between 1/128 and 1/64.
                    let value = (state >> 40) as u16 & 0x807f | 0x3c00;
                    pair.copy_from_slice(&value.to_le_bytes());
                }
                sink.put(&chunk[..n])?;
                rest -= n;
            }
            Ok(())
        })?;
    }
    stream.finish()?.flush()?;
    Ok(fs::metadata(path)?.len())
}
