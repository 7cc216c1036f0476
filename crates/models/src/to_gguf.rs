//! How a checkpoint becomes a standard GGUF file: names, order, types and metadata that stock tools expect.
//!
//! Matrices keep their stored type and bytes; query and key rows are moved, whole, to the order that the family's GGUF
//! files use; everything with one dimension becomes F32 with the value that acts, so a norm's `+1` is added. Nothing is
//! encoded anew. This is not a quantizer, and not the truth about a model: GGUF metadata has no word for some facts of a
//! [`ModelSpec`] (windows without a period, YaRN without rounding), so whoever writes such a file keeps the spec beside
//! it. [`GgufPlan::differences`] says what a reader of the file alone would believe instead.
//!
//! Cost: planning reads headers; writing reads each tensor once and holds one row of it, or one vector.

mod metadata;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use larql_formats::gguf::{DEFAULT_ALIGNMENT, GgufFile, GgufWriter, Metadata};
use larql_formats::{Bytes, Dtype, Sink, TensorInfo, TensorStream};
use larql_kernels::Format;

use crate::checkpoint::{
    Checkpoint, Container, StoredNorm, StoredRows, StoredTensor, canonical_row, format_of,
};
use crate::error::ModelError;
use crate::families::{self, Family, GgufRopeRows, gguf_name};
use crate::roles::{LayerTensor, Needed, TensorRole, needed_tensors};
use crate::spec::{Mixer, ModelSpec, RopeScaling, RopeSpec};

/// Tensor that holds one divisor per RoPE frequency.
const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// Largest piece of a tensor that is passed on at once, so that a caller can report progress and stop.
const CHUNK_BYTES: usize = 1 << 20;

/// Which tensors a file gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufContent {
    /// All that the forward pass needs.
    Whole,
    /// All but the attention projections, their biases and the norms on queries and keys.
    WithoutAttention,
}

impl GgufContent {
    /// Whether a file with this content has the tensor.
    pub fn includes(self, role: TensorRole) -> bool {
        match (self, role) {
            (Self::Whole, _)
            | (
                Self::WithoutAttention,
                TensorRole::TokenEmbedding | TensorRole::FinalNorm | TensorRole::Head,
            ) => true,
            (Self::WithoutAttention, TensorRole::Layer(_, tensor)) => !is_attention(tensor),
        }
    }
}

/// A GGUF file to be: its metadata and its tensors in order.
#[derive(Debug, Clone)]
pub struct GgufPlan {
    metadata: Metadata,
    alignment: u32,
    tensors: Vec<Planned>,
    differences: Vec<String>,
}

/// A tensor of the file to be.
#[derive(Debug, Clone)]
struct Planned {
    info: TensorInfo,
    content: Content,
}

/// Where a planned tensor's bytes come from.
#[derive(Debug, Clone)]
enum Content {
    /// The role's bytes as they are.
    Stored(TensorRole),
    /// The role's rows, moved within heads of this width.
    Interleaved(TensorRole, u32),
    /// The role's values as they act, in F32, moved within heads of this width where RoPE pairs them.
    Values(TensorRole, Option<u32>),
    /// Bytes of the container that no role claims, by name.
    Unclaimed,
    /// Numbers that no file holds.
    Numbers(Vec<f32>),
}

impl GgufPlan {
    /// Plans the file. A GGUF source keeps its metadata, order and bytes; only the keys of a split are dropped, and
    /// tensors that [`Checkpoint::ignored`] lists, but for RoPE divisors, which its metadata need.
    ///
    /// # Errors
    /// If the spec has an axis without tensor list, or a tensor cannot be stored.
    pub fn new(checkpoint: &Checkpoint, content: GgufContent) -> Result<Self, ModelError> {
        match checkpoint.container() {
            Container::Gguf(file) => Self::of_gguf(checkpoint, file, content),
            Container::HuggingFace(folder) => {
                let name = folder
                    .path
                    .file_name()
                    .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                Self::of_folder(checkpoint, &name, content)
            }
        }
    }

    fn of_gguf(
        checkpoint: &Checkpoint,
        file: &GgufFile,
        content: GgufContent,
    ) -> Result<Self, ModelError> {
        let mut metadata = Metadata::new();
        for (key, value) in file.metadata().iter() {
            if !key.starts_with("split.") {
                metadata.insert(key, value.clone())?;
            }
        }
        let roles: std::collections::HashMap<String, TensorRole> = checkpoint
            .roles()
            .into_iter()
            .map(|role| (gguf_name(role), role))
            .collect();
        let tensors = file
            .tensors()
            .iter()
            .filter_map(|info| {
                let content = match roles.get(&info.name) {
                    Some(role) if content.includes(*role) => Content::Stored(*role),
                    None if info.name == ROPE_DIVISORS => Content::Unclaimed,
                    Some(_) | None => return None,
                };
                let info = info.clone();
                Some(Planned { info, content })
            })
            .collect();
        Ok(Self {
            metadata,
            alignment: file.alignment(),
            tensors,
            differences: vec![],
        })
    }

    fn of_folder(
        checkpoint: &Checkpoint,
        name: &str,
        content: GgufContent,
    ) -> Result<Self, ModelError> {
        let spec = checkpoint.spec();
        let origin = checkpoint.origin().display().to_string();
        let family = family(&origin, spec)?;
        let mut tensors = Vec::new();
        for need in needs(&origin, spec)? {
            if content.includes(need.role) {
                tensors.push(planned(family, &need, checkpoint.tensor(need.role)?)?);
            }
        }
        let divisors = rope_divisors(spec);
        if let Some(divisors) = &divisors {
            let info = TensorInfo::new(ROPE_DIVISORS, Dtype::F32, vec![divisors.len() as u64])?;
            let content = Content::Numbers(divisors.clone());
            tensors.insert(1, Planned { info, content });
        }
        let infos = || tensors.iter().map(|planned: &Planned| &planned.info);
        let metadata = metadata::derive(spec, family, name, divisors.as_deref(), infos)?;
        let differences = metadata::differences(spec, family, &metadata, divisors.as_deref());
        Ok(Self {
            metadata,
            alignment: DEFAULT_ALIGNMENT,
            tensors,
            differences,
        })
    }

    /// The metadata the file will have.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The same, to add what the weights do not say, for instance a vocabulary.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter().map(|planned| &planned.info)
    }

    /// Bytes of all tensors, without padding.
    pub fn data_bytes(&self) -> u64 {
        self.tensors().map(|info| info.n_bytes).sum()
    }

    /// What someone who reads the file's own metadata takes to be otherwise than the spec says, in sentences.
    /// Empty for a GGUF source, whose metadata are not ours.
    pub fn differences(&self) -> &[String] {
        &self.differences
    }

    /// Writes the header; the tensors follow in order, by [`Self::write_tensor`].
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn begin<W: Write>(&self, out: W) -> Result<TensorStream<W>, ModelError> {
        let mut writer = GgufWriter::new(self.metadata.clone(), self.alignment)?;
        for info in self.tensors() {
            writer.declare(info.clone())?;
        }
        Ok(writer.begin(out)?)
    }

    /// Streams tensor `idx` of [`Self::tensors`] from the checkpoint that was planned.
    ///
    /// # Errors
    /// If the checkpoint lacks the tensor or the output cannot be written.
    ///
    /// # Panics
    /// If there is no tensor `idx`.
    pub fn write_tensor(
        &self,
        idx: usize,
        checkpoint: &Checkpoint,
        sink: &mut Sink<'_>,
    ) -> Result<(), ModelError> {
        let data = |name: &str| container_data(checkpoint.container(), name);
        self.write_tensor_from(idx, checkpoint, &data, sink)
    }

    /// As [`Self::write_tensor`], with the bytes of a container tensor taken from `data`: a caller that maps the files
    /// anew from time to time keeps pages that were read from adding up.
    ///
    /// # Errors
    /// As [`Self::write_tensor`], and what `data` returns.
    ///
    /// # Panics
    /// If there is no tensor `idx`, or `data` returns another number of bytes than the checkpoint has.
    pub fn write_tensor_from(
        &self,
        idx: usize,
        checkpoint: &Checkpoint,
        data: &dyn Fn(&str) -> Result<Bytes, ModelError>,
        sink: &mut Sink<'_>,
    ) -> Result<(), ModelError> {
        let Planned { info, content } = &self.tensors[idx];
        let stored = |role| -> Result<StoredTensor, ModelError> {
            let mut stored = checkpoint.tensor(role)?;
            let bytes = data(&stored.name)?;
            assert_eq!(bytes.len(), stored.bytes.len(), "bytes of {}", stored.name);
            stored.bytes = bytes;
            Ok(stored)
        };
        match content {
            Content::Unclaimed => put_chunks(&data(&info.name)?, sink),
            Content::Stored(role) => put_chunks(&stored(*role)?.bytes, sink),
            Content::Interleaved(role, d_head) => {
                put_interleaved(&stored(*role)?, *d_head as usize, sink)
            }
            Content::Values(role, d_head) => {
                put_values(&stored(*role)?.to_f32(), d_head.map(|d| d as usize), sink)
            }
            Content::Numbers(values) => put_values(values, None, sink),
        }
    }

    /// Writes the whole file.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn write<W: Write>(&self, checkpoint: &Checkpoint, out: W) -> Result<W, ModelError> {
        let mut stream = self.begin(out)?;
        for (idx, planned) in self.tensors.iter().enumerate() {
            stream.write_tensor(&planned.info.name, |sink| {
                self.write_tensor(idx, checkpoint, sink)
            })?;
        }
        Ok(stream.finish()?)
    }
}

/// Every tensor of a GGUF file that holds a model of this spec, or the part of one that `content` names, by role.
///
/// # Errors
/// Names tensors that are missing, have another shape or cannot be weights.
pub fn gguf_tensors(
    file: &Arc<GgufFile>,
    path: &Path,
    spec: &ModelSpec,
    content: GgufContent,
) -> Result<Vec<StoredTensor>, ModelError> {
    let origin = path.display().to_string();
    let family = family(&origin, spec)?;
    let mut missing = Vec::new();
    let mut tensors = Vec::new();
    for need in needs(&origin, spec)? {
        let name = gguf_name(need.role);
        match (content.includes(need.role), file.tensor(&name)) {
            (false, _) => {}
            (true, None) => missing.push(name),
            (true, Some(info)) => tensors.push(gguf_tensor(&origin, file, family, &need, info)?),
        }
    }
    let known =
        |name: &str| name == ROPE_DIVISORS || tensors.iter().any(|t: &StoredTensor| t.name == name);
    let unexpected: Vec<String> = file
        .tensors()
        .iter()
        .filter(|info| !known(&info.name))
        .map(|info| info.name.clone())
        .collect();
    if missing.is_empty() && unexpected.is_empty() {
        Ok(tensors)
    } else {
        Err(ModelError::Tensors {
            origin,
            missing,
            unexpected,
        })
    }
}

fn gguf_tensor(
    origin: &str,
    file: &GgufFile,
    family: &Family,
    need: &Needed,
    info: &TensorInfo,
) -> Result<StoredTensor, ModelError> {
    if info.shape != need.shape {
        return Err(ModelError::Shape {
            origin: origin.to_owned(),
            tensor: info.name.clone(),
            expected: need.shape.clone(),
            got: info.shape.clone(),
        });
    }
    let format = format_of(info.dtype).ok_or_else(|| ModelError::Dtype {
        origin: origin.to_owned(),
        tensor: info.name.clone(),
        dtype: info.dtype.name().to_owned(),
    })?;
    Ok(StoredTensor {
        role: need.role,
        name: info.name.clone(),
        format,
        shape: info.shape.clone(),
        rows: match interleaved(family, need) {
            Some(d_head) => StoredRows::Interleaved { d_head },
            None => StoredRows::Canonical,
        },
        norm: StoredNorm::Effective,
        bytes: file.data(&info.name)?,
    })
}

fn container_data(container: &Container, name: &str) -> Result<Bytes, ModelError> {
    Ok(match container {
        Container::Gguf(file) => file.data(name)?,
        Container::HuggingFace(folder) => folder.weights.data(name)?,
    })
}

fn family(origin: &str, spec: &ModelSpec) -> Result<&'static Family, ModelError> {
    families::by_name(&spec.family).ok_or_else(|| ModelError::UnknownModelType {
        origin: origin.to_owned(),
        model_type: spec.family.clone(),
        known: families::FAMILIES
            .iter()
            .map(|family| family.name)
            .collect::<Vec<_>>()
            .join(", "),
    })
}

fn needs(origin: &str, spec: &ModelSpec) -> Result<Vec<Needed>, ModelError> {
    needed_tensors(spec).map_err(|axis| ModelError::UnknownKeys {
        origin: origin.to_owned(),
        keys: vec![axis.to_string()],
    })
}

/// Head width by which the family's GGUF files interleave the tensor's rows, if they do.
fn interleaved(family: &Family, need: &Needed) -> Option<u32> {
    match family.gguf_rope_rows {
        GgufRopeRows::Split => None,
        GgufRopeRows::Interleaved => need.rope_head,
    }
}

fn planned(family: &Family, need: &Needed, stored: StoredTensor) -> Result<Planned, ModelError> {
    let name = gguf_name(need.role);
    let moved = interleaved(family, need);
    if need.shape.len() == 1 {
        let info = TensorInfo::new(name, Dtype::F32, need.shape.clone())?;
        let content = Content::Values(need.role, moved);
        return Ok(Planned { info, content });
    }
    let info = TensorInfo::new(name, dtype_of(stored.format), need.shape.clone())?;
    let content = match moved {
        Some(d_head) => Content::Interleaved(need.role, d_head),
        None => Content::Stored(need.role),
    };
    Ok(Planned { info, content })
}

fn is_attention(tensor: LayerTensor) -> bool {
    match tensor {
        LayerTensor::Q
        | LayerTensor::K
        | LayerTensor::V
        | LayerTensor::O
        | LayerTensor::QBias
        | LayerTensor::KBias
        | LayerTensor::VBias
        | LayerTensor::OBias
        | LayerTensor::QNorm
        | LayerTensor::KNorm => true,
        LayerTensor::MixerNorm
        | LayerTensor::MixerPostNorm
        | LayerTensor::FfnNorm
        | LayerTensor::FfnPostNorm
        | LayerTensor::Gate
        | LayerTensor::Up
        | LayerTensor::Down
        | LayerTensor::GateBias
        | LayerTensor::UpBias
        | LayerTensor::DownBias => false,
    }
}

fn dtype_of(format: Format) -> Dtype {
    Dtype::ALL
        .into_iter()
        .find(|dtype| format_of(*dtype) == Some(format))
        .expect("every kernel format has a stored type")
}

/// The ropes of the attention layers, with whether the layer has a window.
fn ropes(spec: &ModelSpec) -> impl Iterator<Item = (&RopeSpec, bool)> {
    spec.layers.iter().filter_map(|layer| match &layer.mixer {
        Mixer::Attention(attn) => attn.rope.as_ref().map(|rope| (rope, attn.window.is_some())),
        Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    })
}

/// The rope that a file's main keys state: that of the layers without a window, if there are any.
fn global_rope(spec: &ModelSpec) -> Option<&RopeSpec> {
    let unwindowed = ropes(spec).find(|(_, windowed)| !windowed);
    unwindowed
        .or_else(|| ropes(spec).next())
        .map(|(rope, _)| rope)
}

/// What `rope_freqs.weight` holds: unscaled frequency divided by scaled frequency.
fn rope_divisors(spec: &ModelSpec) -> Option<Vec<f32>> {
    let rope = global_rope(spec)?;
    match &rope.scaling {
        RopeScaling::Divisors { divisors } => Some(divisors.clone()),
        RopeScaling::Llama3 { .. } => {
            let plain = RopeSpec {
                scaling: RopeScaling::Unscaled,
                ..rope.clone()
            };
            let scaled = rope.frequencies(0);
            let divisor = |(plain, scaled): (f64, f64)| (plain / scaled) as f32;
            Some(
                plain
                    .frequencies(0)
                    .into_iter()
                    .zip(scaled)
                    .map(divisor)
                    .collect(),
            )
        }
        RopeScaling::Unscaled
        | RopeScaling::Linear { .. }
        | RopeScaling::Yarn { .. }
        | RopeScaling::LongRope { .. }
        | RopeScaling::Proportional { .. } => None,
    }
}

fn put_chunks(bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), ModelError> {
    for chunk in bytes.chunks(CHUNK_BYTES) {
        sink.put(chunk)?;
    }
    Ok(())
}

/// Row `r` of the output is the canonical row that an interleaved file keeps at `r`.
fn put_interleaved(
    stored: &StoredTensor,
    d_head: usize,
    sink: &mut Sink<'_>,
) -> Result<(), ModelError> {
    match stored.rows {
        StoredRows::Interleaved { .. } => return put_chunks(&stored.bytes, sink),
        StoredRows::Canonical => {}
    }
    let n_rows = stored.shape.first().map_or(0, |rows| *rows as usize);
    let row_bytes = stored.bytes.len() / n_rows.max(1);
    for row in 0..n_rows {
        let at = canonical_row(row, d_head) * row_bytes;
        sink.put(&stored.bytes[at..at + row_bytes])?;
    }
    Ok(())
}

fn put_values(
    values: &[f32],
    d_head: Option<usize>,
    sink: &mut Sink<'_>,
) -> Result<(), ModelError> {
    let at = |i: usize| d_head.map_or(i, |d_head| canonical_row(i, d_head));
    let bytes: Vec<u8> = (0..values.len())
        .flat_map(|i| values[at(i)].to_le_bytes())
        .collect();
    put_chunks(&bytes, sink)
}
