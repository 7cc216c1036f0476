//! Notes of an export: what the files cannot hold, and one line in place of one per layer.
//!
//! The libraries say what they did; here stands what follows from it for someone who gets the files.

use std::collections::BTreeSet;

use larql_db::{Database, DbError};
use larql_kernels::{Format, bf16_to_f32, decode, f16_to_f32, f32_to_bf16, f32_to_f16};
use larql_models::to_hf::FloatType;
use larql_models::{Checkpoint, ModelError, StoredTensor};
use larql_vindex::VindexError;

use crate::context::Context;
use crate::error::CliError;

/// Blocks decoded at a time while a tensor is looked through.
const BLOCKS_AT_ONCE: usize = 64;

/// Which matrices an export decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// All of them: the source had no types of safetensors.
    All,
    /// Those in block formats: the others get the types they had.
    Quantized,
}

/// Whether the files of a model carry no tokenizer at all.
pub(crate) fn has_no_tokenizer(db: &Database) -> bool {
    matches!(
        db.tokenizer(),
        Err(DbError::Model(ModelError::NoTokenizer { .. })
            | DbError::Vindex(VindexError::NoTokenizer { .. }))
    )
}

/// What a type for decoded matrices costs; nothing if each of their values has it exactly.
///
/// # Errors
/// If a tensor cannot be read, or somebody interrupts.
pub(crate) fn rounding(
    context: &Context,
    checkpoint: &Checkpoint,
    float: FloatType,
    decoded: Decoded,
) -> Result<Option<String>, CliError> {
    let bound = match float {
        FloatType::F32 => return Ok(None),
        FloatType::F16 => "0.05 %, those below 6e-5 by more",
        FloatType::Bf16 => "0.4 %",
    };
    let flag = context.interrupts.flag();
    let (mut all, mut rounded) = (BTreeSet::new(), BTreeSet::new());
    for role in checkpoint.roles() {
        if flag.is_raised() {
            return Err(CliError::interrupted());
        }
        let tensor = checkpoint.tensor(role)?;
        let is_decoded = match decoded {
            Decoded::All => true,
            Decoded::Quantized => tensor.format.block_len() > 1,
        };
        // The values of packed experts are exact in every type.
        if tensor.shape.len() < 2 || !is_decoded || tensor.format == Format::Mxfp4 {
            continue;
        }
        if !rounded.contains(&tensor.name) && rounds(&tensor, float) {
            rounded.insert(tensor.name.clone());
        }
        all.insert(tensor.name);
    }
    Ok((!rounded.is_empty()).then(|| {
        format!(
            "{} of {} matrices are rounded to {}, each value by at most {bound}; --dtype float32 rounds none",
            rounded.len(),
            all.len(),
            float.name()
        )
    }))
}

/// Whether some value of the tensor has no exact form in the type.
fn rounds(tensor: &StoredTensor, float: FloatType) -> bool {
    let format = tensor.format;
    let back = match float {
        FloatType::F32 => return false,
        FloatType::F16 if format == Format::F16 => return false,
        FloatType::Bf16 if format == Format::Bf16 => return false,
        FloatType::F16 => |x: f32| f16_to_f32(f32_to_f16(x)),
        FloatType::Bf16 => |x: f32| bf16_to_f32(f32_to_bf16(x)),
    };
    let mut values = vec![0.0; BLOCKS_AT_ONCE * format.block_len()];
    tensor
        .bytes
        .chunks(BLOCKS_AT_ONCE * format.block_bytes())
        .any(|bytes| {
            let n = bytes.len() / format.block_bytes() * format.block_len();
            decode(format, bytes, &mut values[..n]);
            values[..n].iter().any(|x| back(*x) != *x)
        })
}
