//! What a checkpoint means: [`ModelSpec`], tensor roles, families, tokenizer and chat template.
//!
//! Useful for: opening a Hugging Face folder or a GGUF file and asking which forward pass it describes and where its
//! tensors are. Not useful for: running it (the engine's work) or keeping it (the vindex's).
//! Cost: opening reads headers; weights stay mapped.
#![forbid(unsafe_code)]

pub mod chat;
pub mod checkpoint;
mod config;
pub mod error;
mod families;
pub mod hf_config;
pub mod layout;
mod notes;
mod packed;
pub mod quant_mix;
pub mod roles;
pub mod rope;
pub mod spec;
pub mod stored;
mod strict_json;
pub mod to_gguf;
pub mod to_hf;
pub mod tokenizer;
mod write;

pub use checkpoint::{Checkpoint, Container};
pub use error::{ModelError, ValuePlace};
pub use notes::fold_layers;
pub use roles::{LayerTensor, TensorRole, needed_tensors};
pub use spec::ModelSpec;
pub use stored::{StoredRows, StoredTensor};
