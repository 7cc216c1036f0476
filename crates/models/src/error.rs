//! What can be wrong with a checkpoint, one variant per thing a caller could do differently.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use larql_kernels::Format;
use thiserror::Error;

use crate::tokenizer::TokenizerError;

/// Where a value lies in a tensor: one form for whoever reads, writes or verifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValuePlace {
    /// The tensor that is written or read; rows and columns are its own.
    pub tensor: String,
    /// The source's tensor that it is made of, where that has another name and is only one.
    pub source_tensor: Option<String>,
    /// Row, over all axes but the last; a vector is one row.
    pub row: u64,
    /// Index along the last axis.
    pub column: u64,
}

impl Display for ValuePlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            tensor,
            source_tensor,
            row,
            column,
        } = self;
        write!(f, "tensor `{tensor}`")?;
        if let Some(source) = source_tensor {
            write!(f, " (of `{source}`)")?;
        }
        write!(f, ", row {row}, column {column}")
    }
}

/// A checkpoint that cannot be used, and why.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The container itself is unreadable.
    #[error(transparent)]
    Container(#[from] larql_formats::Error),
    /// Neither a GGUF file nor a folder with `config.json`.
    #[error(
        "{path}: not a model: expected a .gguf file or a folder with config.json and safetensors"
    )]
    NotAModel {
        /// What was given.
        path: PathBuf,
    },
    /// A folder that holds both a GGUF and safetensors.
    #[error("{path}: the folder holds both safetensors and {gguf}; name the one you mean")]
    Ambiguous {
        /// The folder.
        path: PathBuf,
        /// The GGUF file in it.
        gguf: String,
    },
    /// A folder with an adapter, which other programs apply to the weights beside it.
    #[error("{path}: the folder holds an adapter (adapter_config.json) beside the model")]
    Adapter {
        /// The folder.
        path: PathBuf,
    },
    /// A file of a Hugging Face folder is missing.
    #[error("{path}: missing {file}")]
    MissingFile {
        /// The folder.
        path: PathBuf,
        /// The missing file.
        file: &'static str,
    },
    /// A file could not be read.
    #[error("{path}: cannot be read")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A JSON file does not parse.
    #[error("{path}: not valid JSON")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where.
        #[source]
        source: serde_json::Error,
    },
    /// A model type that no family row names.
    #[error("{origin}: unknown model type `{model_type}`; known: {known}")]
    UnknownModelType {
        /// The file that says so.
        origin: String,
        /// What it says.
        model_type: String,
        /// What would work.
        known: String,
    },
    /// A key without which the forward pass cannot be known.
    #[error("{origin}: missing key `{key}`")]
    MissingKey {
        /// The file.
        origin: String,
        /// The key.
        key: String,
    },
    /// A key whose value has the wrong type or an impossible value.
    #[error("{origin}: key `{key}` is {got}, expected {expected}")]
    BadKey {
        /// The file.
        origin: String,
        /// The key.
        key: String,
        /// What it holds.
        got: String,
        /// What would work.
        expected: String,
    },
    /// Keys that may change the forward pass and that nobody here understands.
    #[error("{origin}: key{} not understood: {}", if keys.len() == 1 { "" } else { "s" }, keys.join(", "))]
    UnknownKeys {
        /// The file.
        origin: String,
        /// The keys.
        keys: Vec<String>,
    },
    /// The tensors of the file are not those the model needs.
    #[error("{origin}: {}", accounting(missing, unexpected))]
    Tensors {
        /// The file or folder.
        origin: String,
        /// Needed and absent.
        missing: Vec<String>,
        /// Present and neither used nor known to be unused.
        unexpected: Vec<String>,
    },
    /// A description of a model that contradicts itself.
    #[error("{origin}: no such model")]
    Spec {
        /// The file that holds it.
        origin: String,
        /// What contradicts what.
        #[source]
        source: crate::roles::InvalidSpec,
    },
    /// A tensor that cannot be written in the wanted type, whatever its values.
    #[error("{origin}: tensor `{tensor}` cannot be encoded")]
    Encode {
        /// The file or folder.
        origin: String,
        /// The tensor to be written.
        tensor: String,
        /// Why.
        #[source]
        source: larql_kernels::EncodeError,
    },
    /// A value that is no number, or infinite.
    #[error("{at}: {value} is not finite")]
    NotFinite {
        /// Where.
        at: ValuePlace,
        /// The value.
        value: f32,
    },
    /// A value beyond the largest one of the wanted type.
    #[error("{at}: {value:e} is too large for {format}")]
    TooLarge {
        /// Where.
        at: ValuePlace,
        /// The value.
        value: f32,
        /// The type it was to get.
        format: Format,
    },
    /// A block of values whose scale is beyond half precision.
    #[error(
        "{at}: the weights of the {format} block that begins here, up to {magnitude:e}, need a scale beyond half precision"
    )]
    ScaleTooLarge {
        /// Where the block begins.
        at: ValuePlace,
        /// The largest magnitude in it.
        magnitude: f32,
        /// The type it was to get.
        format: Format,
    },
    /// A tensor that is quantized already.
    #[error("{origin}: tensor `{tensor}` is quantized already ({format})")]
    Quantized {
        /// The file or folder.
        origin: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        format: String,
    },
    /// A folder whose weights are packed in a way that is not read.
    #[error("{origin}: the weights are quantized ({method}), which is not read from safetensors")]
    QuantizedFolder {
        /// The file that says so, or the folder.
        origin: String,
        /// With what, and the tensor that shows it where no file says so.
        method: String,
    },
    /// A mix of block formats that cannot be planned.
    #[error("{origin}: cannot be quantized")]
    Mix {
        /// The file or folder.
        origin: String,
        /// Why.
        #[source]
        source: crate::quant_mix::MixError,
    },
    /// A tensor with another shape than the model needs.
    #[error("{origin}: tensor `{tensor}` has shape {got:?}, the configuration needs {expected:?}")]
    Shape {
        /// The file or folder.
        origin: String,
        /// The tensor.
        tensor: String,
        /// Shape the configuration implies.
        expected: Vec<u64>,
        /// Shape in the file.
        got: Vec<u64>,
    },
    /// A tensor stored in a type that is not a weight here.
    #[error(
        "{origin}: tensor `{tensor}` is stored as {dtype}, which cannot be used as weights here"
    )]
    Dtype {
        /// The file or folder.
        origin: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// A tensor that the checkpoint does not have.
    #[error("{origin}: no tensor for {role}")]
    NoTensor {
        /// The file or folder.
        origin: String,
        /// The role asked for.
        role: String,
    },
    /// No configuration of the family's class says what the model is.
    #[error("{origin}: {family} has no config.json that says: {difference}")]
    NoConfig {
        /// The file or folder.
        origin: String,
        /// The family.
        family: String,
        /// What it would have to say.
        difference: String,
    },
    /// The tokenizer cannot be built.
    #[error("{origin}: {source}")]
    Tokenizer {
        /// The file or folder.
        origin: String,
        /// Why.
        #[source]
        source: TokenizerError,
    },
    /// No tokenizer beside or inside the weights.
    #[error("{origin}: no tokenizer: expected tokenizer.json, or tokenizer.ggml.* keys in a GGUF")]
    NoTokenizer {
        /// The file or folder.
        origin: String,
    },
}

impl ModelError {
    /// What a user can do about it, if anything is known to help.
    pub fn hint(&self) -> Option<String> {
        match self {
            // Keys of a GGUF file are no text that one edits.
            Self::UnknownKeys { origin, keys } if origin.ends_with(".json") => {
                let (do_not, it) = match keys.len() {
                    1 => ("the key does not matter", "it"),
                    _ => ("the keys do not matter", "them"),
                };
                Some(format!(
                    "if {do_not} to the model's forward pass, remove {it} from {origin}: that is your statement, nothing here can check it"
                ))
            }
            Self::Adapter { .. } => Some(
                "transformers would apply it: merge it into the weights first (peft: merge_and_unload), or move it away"
                    .to_owned(),
            ),
            Self::NoTokenizer { origin } if !origin.ends_with(".gguf") => Some(format!(
                "put the model's tokenizer.json beside its config.json; transformers makes it of other tokenizer files: AutoTokenizer.from_pretrained({origin:?}).save_pretrained({origin:?})"
            )),
            _ => None,
        }
    }
}

/// Names listed in full up to this many, so that a message stays readable.
const LISTED_NAMES_MAX: usize = 12;

fn accounting(missing: &[String], unexpected: &[String]) -> String {
    let list = |names: &[String]| {
        let shown = names
            .iter()
            .take(LISTED_NAMES_MAX)
            .map(|name| {
                if name.is_empty() {
                    "(no name)".to_owned()
                } else {
                    name.escape_debug().to_string()
                }
            })
            .collect::<Vec<_>>()
            .join(", ");
        match names.len().saturating_sub(LISTED_NAMES_MAX) {
            0 => shown,
            more => format!("{shown} and {more} more"),
        }
    };
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!(
            "{} tensors missing: {}",
            missing.len(),
            list(missing)
        ));
    }
    if !unexpected.is_empty() {
        parts.push(format!(
            "{} tensors not accounted for: {}",
            unexpected.len(),
            list(unexpected)
        ));
    }
    parts.join("; ")
}
