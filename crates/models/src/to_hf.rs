//! How a checkpoint becomes Hugging Face safetensors again: names, shapes and types that the family's class expects.
//!
//! A model that came from such a folder gets its tensors back byte for byte, in the order, the files and the types it had;
//! tensors that cannot be worked out from what acts (a norm whose `+1` has been rounded, a mask nobody reads) must have
//! been kept, and [`Checkpoint::kept_apart`] says which. A model that came from a GGUF file gets the names of the family and
//! one type for its matrices.

use std::collections::{HashMap, HashSet};

use larql_formats::{Bytes, Dtype, Sink, TensorInfo};
use larql_kernels::{Format, decode};

use crate::checkpoint::{Checkpoint, format_of, needs, stored_format};
use crate::error::ModelError;
use crate::families;
use crate::layout::{Form, Layout, arrange};
use crate::roles::{StoredValue, TensorRole};
use crate::write::{Half, LayoutWriter, Passed};

/// The type that matrices without a type of their own get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    /// 32 bits: holds every value of every stored type.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of F32.
    Bf16,
}

impl FloatType {
    /// Every type.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Its name in options and in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::Bf16,
        }
    }
}

/// The tensors of a folder to be, in order.
#[derive(Debug, Clone)]
pub struct HfPlan {
    tensors: Vec<Planned>,
    values: HashMap<TensorRole, StoredValue>,
    n_decoded: usize,
}

#[derive(Debug, Clone)]
struct Planned {
    info: TensorInfo,
    /// `None` where the tensor has to come from elsewhere.
    made: Option<(Layout, Half, Format)>,
}

impl HfPlan {
    /// Plans the tensors that a folder had, by their names, types and shapes. Where the checkpoint holds quantized values
    /// instead of the numbers it was made of, the decoded values are written in `float`, see [`Self::n_decoded`].
    ///
    /// # Errors
    /// If the model's family has no names, or a tensor cannot have the type or the shape that is said.
    pub fn of_folder(
        checkpoint: &Checkpoint,
        wanted: &[TensorInfo],
        float: FloatType,
    ) -> Result<Self, ModelError> {
        let has: HashSet<&str> = wanted.iter().map(|info| info.name.as_str()).collect();
        let (layouts, values) = layouts(checkpoint, &|name| has.contains(name))?;
        let origin = checkpoint.origin().display().to_string();
        let infos = wanted.iter().map(|info| (info.name.as_str(), info));
        let infos: HashMap<&str, &TensorInfo> = infos.collect();
        let mut made: HashMap<String, (Layout, Half)> = HashMap::new();
        for layout in layouts {
            // A folder may have other types and shapes than its names tell of only in a manifest that lies.
            stored_format(&origin, &layout, &infos)?;
            if let Form::Mxfp4Pairs { scales } = &layout.form {
                made.insert(scales.clone(), (layout.clone(), Half::Scales));
            }
            made.insert(layout.name.clone(), (layout, Half::Main));
        }
        let mut n_decoded = 0;
        let tensors = wanted
            .iter()
            .map(|info| {
                let mut info = info.clone();
                let made = match made.remove(&info.name) {
                    None => None,
                    Some((layout, half)) => {
                        if is_requantized(checkpoint, &layout, &info) {
                            n_decoded += 1;
                            let shape = info.shape.clone();
                            info = TensorInfo::new(info.name, float.dtype(), shape)?;
                        }
                        let format = written_format(checkpoint, &layout, &info)?;
                        Some((layout, half, format))
                    }
                };
                Ok(Planned { info, made })
            })
            .collect::<Result<_, ModelError>>()?;
        Ok(Self {
            tensors,
            values,
            n_decoded,
        })
    }

    /// Tensors of a folder that are written as decoded quantized values, and not as they were.
    pub fn n_decoded(&self) -> usize {
        self.n_decoded
    }

    /// Plans the tensors that the family's class expects.
    ///
    /// # Errors
    /// If the family has no name for a tensor.
    pub fn of_family(checkpoint: &Checkpoint, float: FloatType) -> Result<Self, ModelError> {
        // A family may store experts packed or not; packed ones only if they are packed already.
        let packed = |layout: &Layout| {
            let mut formats = layout.runs.iter().map(|run| checkpoint.format(run.role));
            formats.all(|format| format == Some(Format::Mxfp4))
        };
        let (all, _) = layouts(checkpoint, &|_| true)?;
        let refused: HashSet<String> = all
            .iter()
            .filter(|layout| matches!(layout.form, Form::Mxfp4Pairs { .. }) && !packed(layout))
            .map(|layout| layout.name.clone())
            .collect();
        let (layouts, values) = layouts(checkpoint, &|name| !refused.contains(name))?;
        let mut tensors = Vec::new();
        for layout in layouts {
            let info = TensorInfo::new(layout.name.clone(), float.dtype(), layout.shape.clone())?;
            match &layout.form {
                Form::Mxfp4Pairs { scales } => {
                    let shape = &layout.shape[..layout.shape.len() - 1];
                    let scales = TensorInfo::new(scales.clone(), Dtype::U8, shape.to_vec())?;
                    let blocks =
                        TensorInfo::new(layout.name.clone(), Dtype::U8, layout.shape.clone())?;
                    for (info, half) in [(blocks, Half::Main), (scales, Half::Scales)] {
                        let made = Some((layout.clone(), half, Format::Mxfp4));
                        tensors.push(Planned { info, made });
                    }
                }
                Form::Rows | Form::Columns { .. } => {
                    let format = format_of(float.dtype()).expect("a float type is a weight");
                    let made = Some((layout, Half::Main, format));
                    tensors.push(Planned { info, made });
                }
            }
        }
        Ok(Self {
            n_decoded: tensors.len(),
            tensors,
            values,
        })
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter().map(|planned| &planned.info)
    }

    /// Whether tensor `idx` is worked out from the model; others have to come from elsewhere.
    pub fn is_made(&self, idx: usize) -> bool {
        self.tensors[idx].made.is_some()
    }

    /// Streams tensor `idx`, which [`Self::is_made`]; `data` gives the bytes of the checkpoint's own tensors.
    ///
    /// # Errors
    /// If the output cannot be written, a value does not fit the type, or what `data` returns.
    ///
    /// # Panics
    /// If there is no tensor `idx`, or it is not made.
    pub fn write_tensor_from(
        &self,
        idx: usize,
        checkpoint: &Checkpoint,
        data: &dyn Fn(&str) -> Result<Bytes, ModelError>,
        sink: &mut Sink<'_>,
    ) -> Result<(), ModelError> {
        let (layout, half, format) = self.tensors[idx].made.as_ref().expect("the tensor is made");
        LayoutWriter {
            layout,
            half: *half,
            format: *format,
            value: &|role| {
                self.values
                    .get(&role)
                    .copied()
                    .unwrap_or(StoredValue::Effective)
            },
            interleaved: &|_| None,
            checkpoint,
            data,
            team: None,
            passed: Passed::Any,
        }
        .write(sink)
    }
}

impl Checkpoint {
    /// Tensors of a folder that nobody could work out again from what acts: those that no role claims, and those whose
    /// values are changed when they are read in a way that rounding does not undo.
    ///
    /// # Errors
    /// If a tensor cannot be read.
    pub fn kept_apart(&self) -> Result<Vec<String>, ModelError> {
        let mut names: Vec<String> = self
            .ignored()
            .iter()
            .map(|tensor| tensor.name.clone())
            .collect();
        for layout in self.layouts() {
            for run in &layout.runs {
                let stored = self.tensor(run.role)?;
                if stored.value == StoredValue::Effective {
                    continue;
                }
                let mut values = vec![0.0; stored.n_rows() * stored.cols()];
                decode(stored.format, &stored.bytes, &mut values);
                let same = values.iter().all(|value| {
                    let back = stored.value.stored(stored.value.effective(*value));
                    back.to_bits() == value.to_bits()
                });
                if !same {
                    names.push(layout.name.clone());
                    break;
                }
            }
        }
        Ok(names)
    }
}

/// The family's layouts, and how its folders store the values of roles.
fn layouts(
    checkpoint: &Checkpoint,
    exists: &dyn Fn(&str) -> bool,
) -> Result<(Vec<Layout>, HashMap<TensorRole, StoredValue>), ModelError> {
    let (spec, origin) = (checkpoint.spec(), checkpoint.origin().display().to_string());
    let family = families::of_spec(&origin, spec)?;
    let needed = needs(&origin, spec)?;
    let names = family.hf.below(family.hf.prefix(exists));
    let (layouts, missing) = arrange(spec, &needed, &names, exists);
    if let Some(missing) = missing.first() {
        return Err(ModelError::NoTensor {
            origin,
            role: missing.role.to_string(),
        });
    }
    let values = needed.iter().map(|need| (need.role, need.stored)).collect();
    Ok((layouts, values))
}

/// Whether a tensor's numbers are no longer those it had: they were stored in a type that holds fewer of them.
fn is_requantized(checkpoint: &Checkpoint, layout: &Layout, info: &TensorInfo) -> bool {
    let had = match &layout.form {
        Form::Rows | Form::Columns { .. } => format_of(info.dtype),
        Form::Mxfp4Pairs { .. } => Some(Format::Mxfp4),
    };
    let mut stored = layout
        .runs
        .iter()
        .flat_map(|run| checkpoint.stored_formats(run.role));
    stored.any(|format| format != Format::F32 && Some(format) != had)
}

/// The type in which a tensor of a folder is written again.
fn written_format(
    checkpoint: &Checkpoint,
    layout: &Layout,
    info: &TensorInfo,
) -> Result<Format, ModelError> {
    let dtype = || ModelError::Dtype {
        origin: checkpoint.origin().display().to_string(),
        tensor: info.name.clone(),
        dtype: info.dtype.name().to_owned(),
    };
    match &layout.form {
        Form::Rows | Form::Columns { .. } => format_of(info.dtype).ok_or_else(dtype),
        Form::Mxfp4Pairs { .. } => {
            let mut formats = layout.runs.iter().map(|run| checkpoint.format(run.role));
            match formats.all(|format| format == Some(Format::Mxfp4)) {
                true => Ok(Format::Mxfp4),
                false => Err(dtype()),
            }
        }
    }
}
