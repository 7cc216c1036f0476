//! Latents in the form that llama.cpp caches: what they expand to in two tensors, the keys' half transposed.
//!
//! A vindex keeps both halves in one tensor, which is read without a copy. Files for other programs get the two of the
//! stock converter, and the widths of what is cached; with the one tensor, which older files have, llama.cpp computes the
//! same and caches the keys and values of every head.

use larql_formats::gguf::Metadata;

use super::{GgufPlan, Planned, metadata, planned};
use crate::checkpoint::{Checkpoint, needs};
use crate::error::ModelError;
use crate::families::LATENT_HALVES;
use crate::layout::{Names, arrange};
use crate::roles::{LayerTensor, TensorRole};

/// What latents expand to, in one tensor.
const WHOLE: &str = "attn_kv_b.weight";

fn is_whole(planned: &Planned) -> bool {
    planned.info.name.ends_with(WHOLE)
}

impl GgufPlan {
    /// Puts what latents expand to into two tensors. Blocks run along rows, which the keys' half does not keep: tensors in
    /// block formats stay in one piece.
    ///
    /// # Errors
    /// If a tensor cannot be stored.
    pub fn split_latents(&mut self, checkpoint: &Checkpoint) -> Result<(), ModelError> {
        let mut whole = self.tensors.iter().filter(|planned| is_whole(planned));
        if whole.clone().next().is_none() || whole.any(|p| p.info.dtype.block_len() > 1) {
            return Ok(());
        }
        let spec = checkpoint.spec();
        let mut needed = needs(&checkpoint.origin().display().to_string(), spec)?;
        needed.retain(|need| matches!(need.role, TensorRole::Layer(_, LayerTensor::KvB)));
        let names = Names {
            prefix: "",
            layers: "blk.",
            rules: &[LATENT_HALVES],
        };
        let (halves, _) = arrange(spec, &needed, &names, &|_| true);
        let mut tensors = Vec::with_capacity(self.tensors.len() + halves.len());
        for tensor in self.tensors.drain(..) {
            let Some(layer) = tensor.info.name.strip_suffix(WHOLE) else {
                tensors.push(tensor);
                continue;
            };
            for half in halves.iter().filter(|half| half.name.starts_with(layer)) {
                tensors.push(planned(checkpoint, half.clone())?);
            }
        }
        self.tensors = tensors;
        self.has_more = true;
        let arch = self.metadata.str("general.architecture")?;
        let arch = arch.unwrap_or_default().to_owned();
        let stated = std::mem::replace(&mut self.metadata, Metadata::new());
        self.metadata = metadata::with_cached_latents(stated, &arch, spec);
        Ok(())
    }

    /// What a file costs that has latents in one tensor.
    pub(super) fn whole_latents(&self) -> Option<String> {
        self.tensors.iter().any(is_whole).then(|| {
            format!(
                "{WHOLE} is the form of older files: llama.cpp computes the same with it, and caches the keys and values \
                 of every head in place of the latents"
            )
        })
    }
}
