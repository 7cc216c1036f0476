//! What a reader of the metadata alone would get wrong.

use larql_formats::TensorInfo;
use larql_formats::gguf::Metadata;

use super::read_back;
use crate::families::{self, Family};
use crate::notes::fold_layers;
use crate::spec::ModelSpec;
use crate::to_gguf::RopeTable;

/// Differences listed before the rest is only counted.
const DIFFERENCES_MAX: usize = 8;

/// Sentences about facts that the metadata do not carry.
pub(in crate::to_gguf) fn differences<'a, I: Iterator<Item = &'a TensorInfo>>(
    spec: &ModelSpec,
    family: &Family,
    metadata: &Metadata,
    tables: &[RopeTable],
    tensors: impl Fn() -> I,
) -> Vec<String> {
    let believed = match read_back(spec, family, metadata, tables, &tensors) {
        Ok(believed) => believed,
        Err(error) => {
            return vec![format!(
                "the weights file cannot be read without the manifest: {error}"
            )];
        }
    };
    let mut found = fold_layers(families::differences(spec, &believed));
    let more = found.len().saturating_sub(DIFFERENCES_MAX);
    found.truncate(DIFFERENCES_MAX);
    let mut notes: Vec<String> = found
        .into_iter()
        .map(|what| format!("the weights file alone would be read differently: {what}"))
        .collect();
    if more > 0 {
        notes.push(format!(
            "the weights file alone would be read differently in {more} more places"
        ));
    }
    notes
}
