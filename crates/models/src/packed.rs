//! Which packed form the tensors of a folder show, where its configuration does not say.
//!
//! Names and types alone decide; no value is looked at. Nothing is unpacked here: the answer is part of a refusal.

use std::collections::HashMap;

use larql_formats::{Dtype, TensorInfo};

/// The name of the form, as `quantization_config` would give it, and a tensor that shows it.
pub(crate) fn packed_form<'a>(
    infos: &HashMap<&str, &'a TensorInfo>,
) -> Option<(&'static str, &'a str)> {
    let shown = infos
        .values()
        .filter_map(|info| Some((form_of(info, infos)?, info.name.as_str())));
    shown.min_by_key(|(_, name)| *name)
}

fn form_of(info: &TensorInfo, infos: &HashMap<&str, &TensorInfo>) -> Option<&'static str> {
    let sibling = |stem: &str, suffix: &str| infos.get(format!("{stem}{suffix}").as_str()).copied();
    let name = info.name.as_str();
    if matches!(info.dtype, Dtype::F8E4M3 | Dtype::F8E5M2) {
        let scales = ["_scale_inv", "_scale"].map(|suffix| sibling(name, suffix));
        return scales.iter().flatten().next().map(|_| "fp8");
    }
    if info.dtype == Dtype::U32 {
        let stem = name.strip_suffix(".weight")?;
        return sibling(stem, ".scales").map(|_| "mlx");
    }
    if info.dtype == Dtype::I32 {
        let stem = name.strip_suffix(".qweight")?;
        let scales = sibling(stem, ".scales")?;
        sibling(stem, ".qzeros")?;
        // Both pack eight numbers of four bits into one: GPTQ along the inputs, AWQ along the outputs, which the last axis
        // of the scales counts.
        let along_inputs = info.shape.last() == scales.shape.last();
        let is_gptq = sibling(stem, ".g_idx").is_some() || along_inputs;
        return Some(if is_gptq { "gptq" } else { "awq" });
    }
    None
}
