//! How a checkpoint becomes a standard GGUF file: names, order, types and metadata that stock tools expect.
//!
//! Matrices keep their stored type and bytes; query and key rows are moved, whole, to the order that the family's GGUF
//! files use; everything with one dimension becomes F32 with the value that acts, so a norm's `+1` is added. Matrices are
//! encoded anew only where a [`Mix`] is asked for. This is not the truth about a model: GGUF metadata has no word for some facts of a
//! [`ModelSpec`] (windows without a period, YaRN without rounding), so whoever writes such a file keeps the spec beside
//! it. [`GgufPlan::differences`] says what a reader of the file alone would believe instead.
//!
//! Cost: planning reads headers; writing reads each tensor once and holds one row of it, or one vector.

mod latents;
mod metadata;
#[cfg(test)]
mod tests;
mod verbatim;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use larql_formats::gguf::{DEFAULT_ALIGNMENT, GgufFile, GgufWriter, Metadata, Value as GgufValue};
use larql_formats::{Bytes, Dtype, Sink, TensorInfo, TensorStream};
use larql_kernels::{Format, Team};

use crate::checkpoint::{Checkpoint, Container, format_of, needs};
use crate::error::{ModelError, ValuePlace};
use crate::families::{self, Family, GgufRopeRows};
use crate::layout::{Form, Layout, Names, arrange};
use crate::quant_mix::{self, Mix, MixChoice, MixFacts, MixTensor};
use crate::roles::{ExpertTensor, LayerTensor, Needed, StoredValue, TensorRole};
use crate::spec::{KvSource, Mixer, ModelSpec, RopeScaling, RopeSpec};
use crate::write::{Half, LayoutWriter, Passed, put_chunks, put_values};

/// Tensor that holds one divisor per RoPE frequency.
const ROPE_DIVISORS: &str = "rope_freqs.weight";
/// The same in long-rope models: beyond the original context, and up to it.
const ROPE_LONG: &str = "rope_factors_long.weight";
const ROPE_SHORT: &str = "rope_factors_short.weight";

/// The embedding, and the head that is not it.
const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

/// A tensor that belongs to RoPE, with its values.
pub(crate) type RopeTable = (&'static str, Vec<f32>);

/// Divisor of a frequency that does not turn, as stock tools have it.
const STANDSTILL: f32 = 1e30;

/// Which tensors a file gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufContent {
    /// All that the forward pass needs.
    Whole,
    /// The same with what llama.cpp wants besides; see [`GgufPlan::peer_notes`].
    Portable,
    /// All but the attention projections, their biases and the norms on queries and keys.
    WithoutAttention,
}

impl GgufContent {
    /// Whether a file with this content has the tensor.
    pub fn includes(self, role: TensorRole) -> bool {
        match (self, role) {
            (Self::Whole | Self::Portable, _) => true,
            (Self::WithoutAttention, TensorRole::Layer(_, tensor)) => !is_mixer(tensor),
            (Self::WithoutAttention, _) => true,
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
    peer_notes: Vec<String>,
    /// Whether other programs are to run the file.
    is_portable: bool,
    /// Whether it has a tensor that the checkpoint has not.
    has_more: bool,
    /// What of floats that are copied: those that are quantized must be finite, and so must those beside them.
    passed: Passed,
    /// Head widths by which the file interleaves rows.
    interleaved: HashMap<TensorRole, u32>,
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
    /// A tensor of the container, as it is.
    Stored,
    /// Rows of roles, in this type.
    Roles(Layout, Format),
    /// Numbers that no file holds.
    Numbers(Vec<f32>),
}

/// A quantization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantization {
    /// Which types the tensors get.
    pub mix: Mix,
    /// Whether tensors that are quantized already may be encoded once more, which adds the second error to the first.
    pub requantize: bool,
}

/// A tensor whose rows are no whole number of blocks of the type that the mix asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The tensor.
    pub tensor: String,
    /// Values in a row.
    pub cols: u64,
    /// The type the mix asks for.
    pub wanted: Format,
    /// The type it gets.
    pub got: Format,
}

impl GgufPlan {
    /// Plans the file. A GGUF source keeps its metadata, order and bytes; only the keys of a split are dropped, and
    /// tensors that [`Checkpoint::ignored`] lists, but for RoPE divisors, which its metadata need.
    ///
    /// # Errors
    /// If the spec has an axis without tensor list, or a tensor cannot be stored.
    pub fn new(checkpoint: &Checkpoint, content: GgufContent) -> Result<Self, ModelError> {
        let mut plan = match checkpoint.container() {
            Container::Gguf(file) => Self::of_gguf(checkpoint, file, content)?,
            Container::HuggingFace(folder) => {
                let name = folder
                    .path
                    .file_name()
                    .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                Self::of_folder(checkpoint, &name, content)?
            }
        };
        if content == GgufContent::Portable {
            plan.peer_notes = families::reads_otherwise(checkpoint.spec());
            plan.peer_notes
                .extend(families::taken_otherwise(checkpoint.spec()));
            plan.add_wanted_head(checkpoint)?;
            match checkpoint.container() {
                // Which has the form that it came with.
                Container::Gguf(_) => {}
                Container::HuggingFace(_) => plan.split_latents(checkpoint)?,
            }
        }
        Ok(plan)
    }

    /// Stores the embedding once more where llama.cpp asks for a head and the model has none of its own.
    fn add_wanted_head(&mut self, checkpoint: &Checkpoint) -> Result<(), ModelError> {
        let spec = checkpoint.spec();
        if !spec.head.tied
            || !families::wants_head(spec)
            || self.tensors().any(|info| info.name == HEAD)
        {
            return Ok(());
        }
        let Some(at) = self.tensors().position(|info| info.name == EMBEDDING) else {
            return Ok(());
        };
        let Planned { info, content } = self.tensors[at].clone();
        let content = match content {
            Content::Roles(layout, format) => Content::Roles(layout, format),
            Content::Stored => {
                let mut layouts = checkpoint.layouts().iter();
                let layout = layouts.find(|layout| layout.name == EMBEDDING);
                match (layout, format_of(info.dtype)) {
                    (Some(layout), Some(format)) => Content::Roles(layout.clone(), format),
                    (None, _) | (_, None) => return Ok(()),
                }
            }
            Content::Numbers(values) => Content::Numbers(values),
        };
        let info = TensorInfo::new(HEAD, info.dtype, info.shape)?;
        self.tensors.insert(at + 1, Planned { info, content });
        self.has_more = true;
        self.peer_notes.push(format!(
            "{HEAD} repeats the embedding, since llama.cpp asks for a head in this architecture"
        ));
        Ok(())
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
        let kept = |info: &&TensorInfo| {
            let claimed = checkpoint.layouts().iter().any(|layout| {
                layout.name == info.name && layout.runs.iter().all(|run| content.includes(run.role))
            });
            claimed || is_rope_table(&info.name)
        };
        let tensors: Vec<Planned> = file
            .tensors()
            .iter()
            .filter(kept)
            .map(|info| Planned {
                info: info.clone(),
                content: Content::Stored,
            })
            .collect();
        let spec = checkpoint.spec();
        let family = families::of_spec(&checkpoint.origin().display().to_string(), spec)?;
        let infos = || tensors.iter().map(|planned| &planned.info);
        // A vindex knows more of its weights than their metadata can say.
        let differences = metadata::differences(spec, family, &metadata, &rope_tables(spec), infos);
        Ok(Self {
            metadata,
            alignment: file.alignment(),
            tensors,
            differences,
            peer_notes: vec![],
            is_portable: content == GgufContent::Portable,
            has_more: false,
            passed: Passed::Any,
            interleaved: interleaved(checkpoint)?,
        })
    }

    fn of_folder(
        checkpoint: &Checkpoint,
        name: &str,
        content: GgufContent,
    ) -> Result<Self, ModelError> {
        let spec = checkpoint.spec();
        let origin = checkpoint.origin().display().to_string();
        let family = families::of_spec(&origin, spec)?;
        let mut needed = needs(&origin, spec)?;
        needed.retain(|need| content.includes(need.role));
        let mut tensors = Vec::new();
        let layouts = gguf_layouts(&origin, spec, family, &needed)?;
        let borrowed = borrowed(spec, &layouts);
        for layout in layouts.into_iter().chain(borrowed) {
            tensors.push(planned(checkpoint, layout)?);
        }
        let tables = rope_tables(spec);
        for (i, (name, values)) in tables.iter().enumerate() {
            let info = TensorInfo::new(*name, Dtype::F32, vec![values.len() as u64])?;
            let content = Content::Numbers(values.clone());
            tensors.insert(1 + i, Planned { info, content });
        }
        let infos = || tensors.iter().map(|planned: &Planned| &planned.info);
        let metadata = metadata::derive(spec, family, name, &tables, infos)?;
        let differences = metadata::differences(spec, family, &metadata, &tables, infos);
        Ok(Self {
            metadata,
            alignment: DEFAULT_ALIGNMENT,
            tensors,
            differences,
            peer_notes: vec![],
            is_portable: content == GgufContent::Portable,
            has_more: false,
            passed: Passed::Any,
            interleaved: interleaved(checkpoint)?,
        })
    }

    /// Gives every tensor the type that a mix gives it; returns those that get another one because of their width.
    ///
    /// # Errors
    /// If the mix does not know the architecture, or a tensor is quantized already and may not be encoded once more.
    pub fn quantize(
        &mut self,
        checkpoint: &Checkpoint,
        quantization: Quantization,
    ) -> Result<Vec<Fallback>, ModelError> {
        let origin = checkpoint.origin().display().to_string();
        let Quantization { mix, requantize } = quantization;
        let arch = self
            .metadata
            .str("general.architecture")?
            .unwrap_or_default()
            .to_owned();
        let tensors: Vec<MixTensor<'_>> = self
            .tensors()
            .map(|info| {
                let cols = info.shape.last().copied().unwrap_or(1);
                MixTensor {
                    name: &info.name,
                    rows: match info.shape.len() {
                        0 | 1 => 1,
                        _ => info.shape[..info.shape.len() - 1].iter().product(),
                    },
                    cols,
                }
            })
            .collect();
        let number = |key: &str| metadata::first_u32(&self.metadata, &arch, key);
        let facts = MixFacts {
            architecture: &arch,
            n_layers: number("block_count"),
            n_experts: number("expert_count"),
            n_heads: number("attention.head_count"),
            n_kv_heads: number("attention.head_count_kv"),
        };
        let choices = quant_mix::plan(mix, &tensors, &facts).map_err(|source| ModelError::Mix {
            origin: origin.clone(),
            source,
        })?;
        let layouts: HashMap<&str, &Layout> = checkpoint
            .layouts()
            .iter()
            .map(|layout| (layout.name.as_str(), layout))
            .collect();
        let mut fallbacks = Vec::new();
        for (planned, choice) in self.tensors.iter_mut().zip(choices) {
            let MixChoice::Encode {
                format,
                fallback_from,
            } = choice
            else {
                continue;
            };
            let now = format_of(planned.info.dtype);
            if now == Some(format) {
                // It has the other type already.
                if let Some(wanted) = fallback_from {
                    fallbacks.push(Fallback {
                        tensor: planned.info.name.clone(),
                        cols: planned.info.shape.last().copied().unwrap_or(1),
                        wanted,
                        got: format,
                    });
                }
                continue;
            }
            if now.is_some_and(|now| now.block_len() > 1) && !requantize {
                return Err(ModelError::Quantized {
                    origin,
                    tensor: planned.info.name.clone(),
                    format: planned.info.dtype.name().to_owned(),
                });
            }
            let layout = match &planned.content {
                // Blocks run along stored rows, which are the other axis of a transposed matrix.
                Content::Roles(layout, _) if layout.form != Form::Rows => continue,
                Content::Roles(layout, _) => layout.clone(),
                Content::Stored => match layouts.get(planned.info.name.as_str()) {
                    Some(layout) if layout.form == Form::Rows => (*layout).clone(),
                    Some(_) | None => continue,
                },
                Content::Numbers(_) => continue,
            };
            if let Some(wanted) = fallback_from {
                fallbacks.push(Fallback {
                    tensor: planned.info.name.clone(),
                    cols: layout.cols,
                    wanted,
                    got: format,
                });
            }
            planned.info = TensorInfo::new(
                planned.info.name.clone(),
                dtype_of(format),
                planned.info.shape.clone(),
            )?;
            planned.content = Content::Roles(layout, format);
        }
        self.passed = Passed::Finite;
        self.metadata
            .set("general.file_type", GgufValue::U32(mix.file_type()));
        self.metadata.set(
            "general.quantization_version",
            GgufValue::U32(metadata::QUANTIZATION_VERSION),
        );
        Ok(fallbacks)
    }

    /// Bits that a value takes on average, of all tensors.
    pub fn bits_per_weight(&self) -> f64 {
        let bytes: u64 = self.tensors().map(|info| info.n_bytes).sum();
        let values = self
            .tensors()
            .map(|info| info.shape.iter().product::<u64>());
        bytes as f64 * 8.0 / values.sum::<u64>().max(1) as f64
    }

    /// How many tensors have each type, most first.
    pub fn types(&self) -> Vec<(String, usize)> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for info in self.tensors() {
            *counts.entry(info.dtype.name()).or_default() += 1;
        }
        let mut types: Vec<(String, usize)> = counts
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count))
            .collect();
        types.sort_by_key(|(_, count)| Reverse(*count));
        types
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

    /// What llama.cpp and transformers make otherwise of the model whatever its file says, in sentences that begin with
    /// their name, and what the file has for llama.cpp's sake; only for [`GgufContent::Portable`].
    pub fn peer_notes(&self) -> Vec<String> {
        let whole = self.whole_latents().filter(|_| self.is_portable);
        self.peer_notes.iter().cloned().chain(whole).collect()
    }

    /// Whether the file gets a tensor that the checkpoint has not.
    pub fn has_more(&self) -> bool {
        self.has_more
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
        let data = |name: &str| checkpoint.container().data(name);
        self.write_tensor_from(idx, checkpoint, &data, None, sink)
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
        team: Option<&RefCell<Team>>,
        sink: &mut Sink<'_>,
    ) -> Result<(), ModelError> {
        let Planned { info, content } = &self.tensors[idx];
        match content {
            Content::Stored => {
                let bytes = data(&info.name)?;
                if let Some(format) = format_of(info.dtype) {
                    let cols = info.shape.last().copied().unwrap_or(1);
                    if let Some((row, column, value)) =
                        self.passed.first_refused(format, cols, &bytes)
                    {
                        let at = ValuePlace {
                            tensor: info.name.clone(),
                            source_tensor: None,
                            row: row as u64,
                            column: column as u64,
                        };
                        return Err(ModelError::NotFinite { at, value });
                    }
                }
                put_chunks(&bytes, sink)
            }
            Content::Roles(layout, format) => LayoutWriter {
                layout,
                half: Half::Main,
                format: *format,
                value: &|_| StoredValue::Effective,
                interleaved: &|role| self.interleaved.get(&role).copied(),
                checkpoint,
                data,
                team,
                passed: self.passed,
            }
            .write(sink),
            Content::Numbers(values) => put_values(values, sink),
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

/// Head widths by which the family's GGUF files interleave rows.
fn interleaved(checkpoint: &Checkpoint) -> Result<HashMap<TensorRole, u32>, ModelError> {
    let origin = checkpoint.origin().display().to_string();
    let family = families::of_spec(&origin, checkpoint.spec())?;
    match family.gguf_rope_rows {
        GgufRopeRows::Canonical => Ok(HashMap::new()),
        GgufRopeRows::Interleaved => Ok(needs(&origin, checkpoint.spec())?
            .into_iter()
            .filter_map(|need| Some((need.role, need.rope_head?)))
            .collect()),
    }
}

/// The tensors of the family's GGUF files.
fn gguf_layouts(
    origin: &str,
    spec: &ModelSpec,
    family: &Family,
    needed: &[Needed],
) -> Result<Vec<Layout>, ModelError> {
    let names = Names {
        prefix: "",
        layers: "blk.",
        rules: &family.gguf_names(),
    };
    let (layouts, missing) = arrange(spec, needed, &names, &|_| true);
    match missing.first() {
        None => Ok(layouts),
        Some(missing) => Err(ModelError::NoTensor {
            origin: origin.to_owned(),
            role: missing.role.to_string(),
        }),
    }
}

/// Copies for layers that take the keys and values of another one. Stock tools that run parallel streams want the
/// tensors in every layer, as published files have them, though they use them no more than this crate does.
fn borrowed(spec: &ModelSpec, layouts: &[Layout]) -> Vec<Layout> {
    let mut copies = Vec::new();
    for (i, layer) in spec.layers.iter().enumerate() {
        let Mixer::Attention(attention) = &layer.mixer else {
            continue;
        };
        let (KvSource::SharedFrom(donor), true) = (attention.kv, spec.altup.is_some()) else {
            continue;
        };
        let is_lent = |layout: &&Layout| {
            layout.runs.iter().all(|run| {
                let TensorRole::Layer(of, tensor) = run.role else {
                    return false;
                };
                of == donor
                    && matches!(tensor, LayerTensor::K | LayerTensor::V | LayerTensor::KNorm)
            })
        };
        for layout in layouts.iter().filter(is_lent) {
            let name = layout
                .name
                .replacen(&format!("blk.{donor}."), &format!("blk.{i}."), 1);
            copies.push(Layout {
                name,
                ..layout.clone()
            });
        }
    }
    copies
}

/// Decides the type of a tensor: vectors and what stock tools want in F32 become F32, the rest stays as it is.
fn planned(checkpoint: &Checkpoint, layout: Layout) -> Result<Planned, ModelError> {
    let mut formats = layout
        .runs
        .iter()
        .filter_map(|run| checkpoint.format(run.role));
    let first = formats.next().unwrap_or(Format::F32);
    let is_mixed = formats.any(|format| format != first);
    let is_vector = layout.cols == 1;
    let format = if is_vector || is_mixed || layout.runs.iter().any(|run| wants_f32(run.role)) {
        Format::F32
    } else {
        first
    };
    let info = TensorInfo::new(layout.name.clone(), dtype_of(format), layout.shape.clone())?;
    Ok(Planned {
        info,
        content: Content::Roles(layout, format),
    })
}

/// Small matrices that stock tools compute with in F32.
fn wants_f32(role: TensorRole) -> bool {
    const LAYER: &[LayerTensor] = &[
        LayerTensor::Router,
        LayerTensor::SharedRouter,
        LayerTensor::ConvQ,
        LayerTensor::ConvK,
        LayerTensor::ConvV,
        LayerTensor::AltUpCorrect,
        LayerTensor::AltUpPredict,
        LayerTensor::AltUpRouter,
    ];
    const EXPERT: &[ExpertTensor] = &[
        ExpertTensor::GateBias,
        ExpertTensor::UpBias,
        ExpertTensor::DownBias,
    ];
    match role {
        TensorRole::PositionEmbedding => true,
        TensorRole::Layer(_, tensor) => LAYER.contains(&tensor),
        TensorRole::Expert(_, _, tensor) => EXPERT.contains(&tensor),
        TensorRole::TokenEmbedding
        | TensorRole::PerLayerEmbedding
        | TensorRole::PerLayerProjection
        | TensorRole::PerLayerProjectionNorm
        | TensorRole::AltUpProjection(_)
        | TensorRole::AltUpUnembedding(_)
        | TensorRole::FinalNorm
        | TensorRole::FinalNormBias
        | TensorRole::Head
        | TensorRole::HeadBias => false,
    }
}

/// Tensors that belong to RoPE rather than to a role.
fn is_rope_table(name: &str) -> bool {
    name == ROPE_DIVISORS || name.starts_with("rope_factors_")
}

/// Whether the tensor belongs to what mixes positions.
fn is_mixer(tensor: LayerTensor) -> bool {
    tensor.name().starts_with("attn.")
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

/// The tensors that belong to RoPE.
pub(crate) fn rope_tables(spec: &ModelSpec) -> Vec<RopeTable> {
    let Some(rope) = global_rope(spec) else {
        return Vec::new();
    };
    match &rope.scaling {
        RopeScaling::Divisors { .. }
        | RopeScaling::Llama3 { .. }
        | RopeScaling::Proportional { .. } => {
            vec![(ROPE_DIVISORS, divisors(rope))]
        }
        RopeScaling::LongRope { short, long, .. } => {
            let narrow = |list: &[f64]| list.iter().map(|divisor| *divisor as f32).collect();
            vec![(ROPE_LONG, narrow(long)), (ROPE_SHORT, narrow(short))]
        }
        RopeScaling::Unscaled | RopeScaling::Linear { .. } | RopeScaling::Yarn { .. } => Vec::new(),
    }
}

/// Unscaled frequency divided by scaled frequency.
pub(crate) fn divisors(rope: &RopeSpec) -> Vec<f32> {
    if let RopeScaling::Divisors { divisors } = &rope.scaling {
        return divisors.clone();
    }
    let plain = RopeSpec {
        scaling: RopeScaling::Unscaled,
        ..rope.clone()
    };
    let scaled = rope.frequencies(0);
    let pairs = plain.frequencies(0).into_iter().zip(scaled);
    pairs
        .map(|(plain, scaled)| match scaled {
            0.0 => STANDSTILL,
            scaled => (plain / scaled) as f32,
        })
        .collect()
}
