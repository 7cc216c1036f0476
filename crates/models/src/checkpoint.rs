//! A checkpoint on disk: its spec, and each tensor by role.
//!
//! Opening reads headers only. Every tensor of the container is either needed by the spec, or listed as ignored with a
//! reason, or the checkpoint is refused with the full list. Weights are views of the mapped files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larql_formats::gguf::GgufFile;
use larql_formats::{Bytes, Dtype, TensorInfo, safetensors};
use larql_kernels::{Format, decode};
use serde_json::{Map, Value};

use crate::config::RawConfig;
use crate::error::ModelError;
use crate::families::{self, Family, GgufFacts, GgufRopeRows, gguf_name, hf_name};
use crate::roles::{LayerTensor, Needed, TensorRole, needed_tensors};
use crate::spec::{ModelSpec, NormWeight};
use crate::tokenizer::{GgufVocab, HfTokenizerConfig, Tokenizer};

/// Largest JSON file read beside the weights; tokenizers of 262,144 tokens take 35 MB.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// A checkpoint on disk, opened by its headers.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    origin: PathBuf,
    spec: ModelSpec,
    container: Container,
    located: HashMap<TensorRole, Located>,
    ignored: Vec<IgnoredTensor>,
    notes: Vec<String>,
}

/// The files behind a checkpoint.
#[derive(Debug, Clone)]
pub enum Container {
    /// A GGUF file, possibly split.
    Gguf(Arc<GgufFile>),
    /// A Hugging Face folder.
    HuggingFace(Arc<HfFolder>),
}

/// A Hugging Face folder.
#[derive(Debug)]
pub struct HfFolder {
    /// Its path.
    pub path: PathBuf,
    /// Its tensors.
    pub weights: safetensors::Checkpoint,
    /// `config.json`.
    pub config: Map<String, Value>,
}

/// A tensor that the forward pass does not need, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredTensor {
    /// Its name in the container.
    pub name: String,
    /// Why it is not needed.
    pub reason: &'static str,
}

/// Where a role's tensor lies and how its container stores it.
#[derive(Debug, Clone)]
struct Located {
    info: TensorInfo,
    rows: StoredRows,
    norm: StoredNorm,
}

/// Order of a stored tensor's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredRows {
    /// As the engine wants them.
    Canonical,
    /// Within each head of this width, the two halves of RoPE's pairs alternate.
    Interleaved {
        /// Width of a head.
        d_head: u32,
    },
}

/// What a stored norm weight lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredNorm {
    /// Nothing: it multiplies as it is.
    Effective,
    /// One has to be added.
    MinusOne,
}

/// A tensor as it is stored, with what it takes to read it canonically.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// What it is for.
    pub role: TensorRole,
    /// Its name in the container.
    pub name: String,
    /// Its block format.
    pub format: Format,
    /// Logical shape, outermost first.
    pub shape: Vec<u64>,
    /// Order of its rows.
    pub rows: StoredRows,
    /// What its values lack, if it is a norm.
    pub norm: StoredNorm,
    /// Its bytes, mapped.
    pub bytes: Bytes,
}

impl Checkpoint {
    /// Opens a `.gguf` file or a Hugging Face folder.
    ///
    /// # Errors
    /// Names what is missing, unknown or ambiguous.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if path.is_dir() {
            return Self::open_folder(path);
        }
        if path
            .extension()
            .is_some_and(|ext| ext.eq_ignore_ascii_case("gguf"))
        {
            return Self::from_gguf(GgufFile::open(path)?, path);
        }
        Err(ModelError::NotAModel {
            path: path.to_owned(),
        })
    }

    fn open_folder(path: &Path) -> Result<Self, ModelError> {
        let mut names: Vec<String> = fs::read_dir(path)
            .map_err(|source| ModelError::Io {
                path: path.to_owned(),
                source,
            })?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        let ends_with = |suffix: &str| {
            names
                .iter()
                .filter(|name| name.ends_with(suffix))
                .collect::<Vec<_>>()
        };
        let (ggufs, weights) = (ends_with(".gguf"), ends_with(".safetensors"));
        match (ggufs.as_slice(), weights.is_empty()) {
            ([], true) if names.iter().any(|name| name == "config.json") => {
                Err(ModelError::MissingFile {
                    path: path.to_owned(),
                    file: "model.safetensors",
                })
            }
            ([], true) => Err(ModelError::NotAModel {
                path: path.to_owned(),
            }),
            ([], false) => Self::from_hf(path),
            ([one], true) => Self::open(&path.join(one)),
            ([first, ..], _) => Err(ModelError::Ambiguous {
                path: path.to_owned(),
                gguf: (*first).clone(),
            }),
        }
    }

    /// Opens a Hugging Face folder.
    fn from_hf(path: &Path) -> Result<Self, ModelError> {
        if !path.join("config.json").is_file() {
            return Err(ModelError::MissingFile {
                path: path.to_owned(),
                file: "config.json",
            });
        }
        let config = read_object(&path.join("config.json"))?;
        let origin = path.join("config.json").display().to_string();
        let mut spec = spec_from_config(&origin, &config)?;
        let weights = safetensors::Checkpoint::open(path)?;
        let mut notes = Vec::new();
        if spec.head.tied {
            spec.head.tied = tied_for_real(&weights, &mut notes)?;
        }
        let container = Container::HuggingFace(Arc::new(HfFolder {
            path: path.to_owned(),
            weights,
            config,
        }));
        let mut checkpoint = Self::account(path, spec, container)?;
        notes.extend(strays(path, &checkpoint));
        checkpoint.notes = notes;
        Ok(checkpoint)
    }

    /// Reads a GGUF file's own metadata.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_gguf(file: GgufFile, path: &Path) -> Result<Self, ModelError> {
        let spec = spec_from_gguf(&path.display().to_string(), &file)?;
        Self::account(path, spec, Container::Gguf(Arc::new(file)))
    }

    /// Takes a GGUF file as the weights of a spec that is known from elsewhere, as a vindex does.
    ///
    /// # Errors
    /// Names tensors that do not fit the spec.
    pub fn from_gguf_with_spec(
        file: GgufFile,
        path: &Path,
        spec: ModelSpec,
    ) -> Result<Self, ModelError> {
        Self::account(path, spec, Container::Gguf(Arc::new(file)))
    }

    /// Matches the container's tensors with the spec's needs.
    fn account(path: &Path, spec: ModelSpec, container: Container) -> Result<Self, ModelError> {
        let origin = path.display().to_string();
        let family =
            families::by_name(&spec.family).ok_or_else(|| ModelError::UnknownModelType {
                origin: origin.clone(),
                model_type: spec.family.clone(),
                known: families::FAMILIES
                    .iter()
                    .map(|f| f.name)
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
        let needed = needed_tensors(&spec).map_err(|axis| ModelError::UnknownKeys {
            origin: origin.clone(),
            keys: vec![axis.to_string()],
        })?;
        let infos: HashMap<&str, &TensorInfo> = container
            .tensors()
            .iter()
            .map(|info| (info.name.as_str(), info))
            .collect();
        let prefix = container.hf_prefix();
        let mut located = HashMap::new();
        let (mut used, mut missing) = (HashSet::new(), Vec::new());
        for need in &needed {
            let name = match &container {
                Container::Gguf(_) => gguf_name(need.role),
                Container::HuggingFace(_) => {
                    hf_name(family, prefix, need.role).unwrap_or_else(|| need.role.to_string())
                }
            };
            match infos.get(name.as_str()) {
                None => missing.push(name),
                Some(info) => {
                    located.insert(need.role, locate(&origin, &container, family, need, info)?);
                    used.insert(info.name.clone());
                }
            }
        }
        let (mut ignored, mut unexpected) = (Vec::new(), Vec::new());
        for info in container
            .tensors()
            .iter()
            .filter(|info| !used.contains(&info.name))
        {
            match ignored_because(&info.name, &spec) {
                Some(reason) => ignored.push(IgnoredTensor {
                    name: info.name.clone(),
                    reason,
                }),
                None => unexpected.push(info.name.clone()),
            }
        }
        if !missing.is_empty() || !unexpected.is_empty() {
            return Err(ModelError::Tensors {
                origin,
                missing,
                unexpected,
            });
        }
        Ok(Self {
            origin: path.to_owned(),
            spec,
            container,
            located,
            ignored,
            notes: Vec::new(),
        })
    }

    /// The path it was opened from.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// The model as plain data.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The files behind it.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// Tensors that are present and not needed.
    pub fn ignored(&self) -> &[IgnoredTensor] {
        &self.ignored
    }

    /// Things a user should know about how the files were read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The tokenizer that the files carry.
    ///
    /// # Errors
    /// If there is none, or it cannot be built exactly.
    pub fn tokenizer(&self) -> Result<Tokenizer, ModelError> {
        let origin = self.origin.display().to_string();
        let built = match &self.container {
            Container::Gguf(file) => {
                GgufVocab::from_metadata(file.metadata()).and_then(Tokenizer::from_gguf)
            }
            Container::HuggingFace(folder) => {
                let path = folder.path.join("tokenizer.json");
                if !path.is_file() {
                    return Err(ModelError::NoTokenizer { origin });
                }
                Tokenizer::from_json(&read_limited(&path)?, &folder.tokenizer_files()?)
            }
        };
        built.map_err(|source| ModelError::Tokenizer { origin, source })
    }

    /// Roles present, in the order of use.
    pub fn roles(&self) -> Vec<TensorRole> {
        let mut roles: Vec<_> = self.located.keys().copied().collect();
        roles.sort_unstable();
        roles
    }

    /// A role's tensor.
    ///
    /// # Errors
    /// If the spec does not need the role, or the stored type is no weight.
    pub fn tensor(&self, role: TensorRole) -> Result<StoredTensor, ModelError> {
        let origin = || self.origin.display().to_string();
        let located = self
            .located
            .get(&role)
            .ok_or_else(|| ModelError::NoTensor {
                origin: origin(),
                role: role.to_string(),
            })?;
        let format = format_of(located.info.dtype).ok_or_else(|| ModelError::Dtype {
            origin: origin(),
            tensor: located.info.name.clone(),
            dtype: located.info.dtype.name().to_owned(),
        })?;
        Ok(StoredTensor {
            role,
            name: located.info.name.clone(),
            format,
            shape: located.info.shape.clone(),
            rows: located.rows,
            norm: located.norm,
            bytes: self.container.data(&located.info.name)?,
        })
    }

    /// Bytes of all needed tensors as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.located
            .values()
            .map(|located| located.info.n_bytes)
            .sum()
    }

    /// Elements of all needed tensors.
    pub fn n_params(&self) -> u64 {
        self.located
            .values()
            .map(|located| located.info.shape.iter().product::<u64>())
            .sum()
    }

    /// Elements and bytes by stored type.
    pub fn dtypes(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let mut by_type = BTreeMap::new();
        for located in self.located.values() {
            let entry: &mut (u64, u64) = by_type.entry(located.info.dtype.name()).or_default();
            entry.0 += located.info.shape.iter().product::<u64>();
            entry.1 += located.info.n_bytes;
        }
        by_type
    }
}

impl HfFolder {
    /// What the files beside tokenizer.json say.
    ///
    /// # Errors
    /// If one of them is there and cannot be read.
    pub fn tokenizer_files(&self) -> Result<HfTokenizerConfig, ModelError> {
        let json = |name: &str| -> Result<Option<Value>, ModelError> {
            let path = self.path.join(name);
            if path.is_file() {
                Ok(Some(Value::Object(read_object(&path)?)))
            } else {
                Ok(None)
            }
        };
        let template = self.path.join("chat_template.jinja");
        let chat_template = match template.is_file() {
            false => None,
            true => Some(String::from_utf8_lossy(&read_limited(&template)?).into_owned()),
        };
        Ok(HfTokenizerConfig {
            tokenizer_config: json("tokenizer_config.json")?,
            generation_config: json("generation_config.json")?,
            config: Some(Value::Object(self.config.clone())),
            chat_template,
        })
    }
}

impl Container {
    /// Every tensor of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        match self {
            Self::Gguf(file) => file.tensors(),
            Self::HuggingFace(folder) => folder.weights.tensors(),
        }
    }

    fn data(&self, name: &str) -> Result<Bytes, ModelError> {
        Ok(match self {
            Self::Gguf(file) => file.data(name)?,
            Self::HuggingFace(folder) => folder.weights.data(name)?,
        })
    }

    /// What stands before `layers.0` in the names; wrappers for several modalities nest the decoder.
    fn hf_prefix(&self) -> &'static str {
        const PREFIXES: &[&str] = &["model.", "language_model.model.", "model.language_model."];
        let has = |prefix: &str| {
            self.tensors()
                .iter()
                .any(|info| info.name == format!("{prefix}embed_tokens.weight"))
        };
        PREFIXES
            .iter()
            .copied()
            .find(|prefix| has(prefix))
            .unwrap_or("model.")
    }
}

impl StoredTensor {
    /// All values as the engine wants them: rows in canonical order, norms as they multiply.
    ///
    /// # Panics
    /// If the bytes are fewer than the shape needs, which opening has checked.
    pub fn to_f32(&self) -> Vec<f32> {
        let n = usize::try_from(self.shape.iter().product::<u64>())
            .expect("a mapped tensor fits memory");
        let mut values = vec![0.0; n];
        decode(self.format, &self.bytes, &mut values);
        match self.norm {
            StoredNorm::Effective => {}
            StoredNorm::MinusOne => values.iter_mut().for_each(|w| *w += 1.0),
        }
        match self.rows {
            StoredRows::Canonical => values,
            StoredRows::Interleaved { d_head } => {
                let width =
                    values.len() / self.shape.first().map_or(1, |rows| (*rows).max(1) as usize);
                let mut canonical = vec![0.0; values.len()];
                for (stored, row) in values.chunks_exact(width.max(1)).enumerate() {
                    let logical = canonical_row(stored, d_head as usize);
                    canonical[logical * width..(logical + 1) * width].copy_from_slice(row);
                }
                canonical
            }
        }
    }
}

/// Canonical index of an interleaved row: within a head, row `2 i + j` is dimension `j * d_head / 2 + i`.
pub fn canonical_row(stored: usize, d_head: usize) -> usize {
    let (head, within) = (stored / d_head, stored % d_head);
    head * d_head + (within % 2) * (d_head / 2) + within / 2
}

fn locate(
    origin: &str,
    container: &Container,
    family: &Family,
    need: &Needed,
    info: &TensorInfo,
) -> Result<Located, ModelError> {
    if info.shape != need.shape {
        return Err(ModelError::Shape {
            origin: origin.to_owned(),
            tensor: info.name.clone(),
            expected: need.shape.clone(),
            got: info.shape.clone(),
        });
    }
    if format_of(info.dtype).is_none() {
        return Err(ModelError::Dtype {
            origin: origin.to_owned(),
            tensor: info.name.clone(),
            dtype: info.dtype.name().to_owned(),
        });
    }
    let (rows, norm) = match container {
        Container::Gguf(_) => {
            let rows = match (need.rope_head, family.gguf_rope_rows) {
                (Some(d_head), GgufRopeRows::Interleaved) => StoredRows::Interleaved { d_head },
                (Some(_), GgufRopeRows::Split) | (None, _) => StoredRows::Canonical,
            };
            (rows, StoredNorm::Effective)
        }
        Container::HuggingFace(_) => {
            let norm = match need.norm {
                Some(NormWeight::PlusOne) => StoredNorm::MinusOne,
                Some(NormWeight::Plain | NormWeight::Absent) | None => StoredNorm::Effective,
            };
            (StoredRows::Canonical, norm)
        }
    };
    Ok(Located {
        info: info.clone(),
        rows,
        norm,
    })
}

/// Names that are known to leave the forward pass alone.
fn ignored_because(name: &str, spec: &ModelSpec) -> Option<&'static str> {
    if name.ends_with("rotary_emb.inv_freq") {
        return Some("RoPE frequencies are computed from the configuration");
    }
    if name == "rope_freqs.weight" {
        return Some("RoPE divisors are part of the spec");
    }
    if name == "lm_head.weight" && spec.head.tied {
        return Some("identical to the embedding, which serves as head");
    }
    if name.contains("vision_tower.") || name.contains("multi_modal_projector.") {
        return Some("vision tower: only text runs here");
    }
    None
}

/// Weight files of the folder that do not belong to the checkpoint, as other releases of a model often lie beside it.
fn strays(path: &Path, checkpoint: &Checkpoint) -> Vec<String> {
    const WEIGHT_FILES: &[&str] = &[
        "model",
        "consolidated",
        "pytorch_model",
        "diffusion_pytorch_model",
    ];
    let Container::HuggingFace(folder) = &checkpoint.container else {
        return Vec::new();
    };
    let mut names: Vec<String> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            name.ends_with(".safetensors")
                && WEIGHT_FILES.iter().any(|start| name.starts_with(start))
        })
        .filter(|name| {
            !folder
                .weights
                .paths()
                .iter()
                .any(|own| own.file_name().is_some_and(|own| own == name.as_str()))
        })
        .collect();
    names.sort();
    names
        .iter()
        .map(|name| format!("{name} is not part of the checkpoint: not read"))
        .collect()
}

/// A tied checkpoint may still store a head: identical bytes are the embedding, others win over the flag.
fn tied_for_real(
    weights: &safetensors::Checkpoint,
    notes: &mut Vec<String>,
) -> Result<bool, ModelError> {
    if weights.tensor("lm_head.weight").is_none() {
        return Ok(true);
    }
    let embedding = weights
        .tensors()
        .iter()
        .find(|info| info.name.ends_with("embed_tokens.weight"));
    let Some(embedding) = embedding else {
        return Ok(true);
    };
    if *weights.data("lm_head.weight")? == *weights.data(&embedding.name)? {
        return Ok(true);
    }
    notes.push("config.json says the head is tied, but lm_head.weight differs from the embedding: it is used".to_owned());
    Ok(false)
}

fn spec_from_config(origin: &str, config: &Map<String, Value>) -> Result<ModelSpec, ModelError> {
    let outer = RawConfig::new(origin, config);
    let model_type = outer
        .opt_str("model_type")?
        .ok_or_else(|| outer.missing("model_type"))?;
    let family = families::by_model_type(origin, model_type)?;
    match outer.object("text_config")? {
        None => (family.from_config)(&RawConfig::new(origin, config)),
        Some(text) => {
            let mut spec = (family.from_config)(&text)?;
            spec.head.tied = outer.bool_or("tie_word_embeddings", spec.head.tied)?;
            Ok(spec)
        }
    }
}

fn spec_from_gguf(origin: &str, file: &GgufFile) -> Result<ModelSpec, ModelError> {
    let missing = |key: &str| ModelError::MissingKey {
        origin: origin.to_owned(),
        key: key.to_owned(),
    };
    let metadata = file.metadata();
    let arch = metadata
        .str("general.architecture")?
        .ok_or_else(|| missing("general.architecture"))?;
    let family = families::by_gguf_arch(origin, arch)?;
    let embedding_name = gguf_name(TensorRole::TokenEmbedding);
    let embedding = file
        .tensor(&embedding_name)
        .ok_or_else(|| ModelError::Tensors {
            origin: origin.to_owned(),
            missing: vec![embedding_name.clone()],
            unexpected: vec![],
        })?;
    let d_vocab = embedding
        .shape
        .first()
        .and_then(|rows| u32::try_from(*rows).ok());
    let d_vocab = d_vocab
        .filter(|rows| embedding.shape.len() == 2 && *rows > 0)
        .ok_or_else(|| ModelError::Shape {
            origin: origin.to_owned(),
            tensor: embedding_name.clone(),
            expected: vec![0, 0],
            got: embedding.shape.clone(),
        })?;
    let rope_divisors = match file.tensor("rope_freqs.weight") {
        None => None,
        Some(info) if info.dtype == Dtype::F32 => {
            let bytes = file.data(&info.name)?;
            let mut values = vec![0.0; bytes.len() / 4];
            decode(Format::F32, &bytes, &mut values);
            Some(values)
        }
        Some(info) => {
            return Err(ModelError::Dtype {
                origin: origin.to_owned(),
                tensor: info.name.clone(),
                dtype: info.dtype.name().to_owned(),
            });
        }
    };
    let from_gguf = family
        .from_gguf
        .expect("the lookup returns only rows that read GGUF");
    let has_bias = |tensor| {
        file.tensor(&gguf_name(TensorRole::Layer(0, tensor)))
            .is_some()
    };
    let mut spec = from_gguf(&GgufFacts {
        origin,
        metadata,
        d_vocab,
        has_head: file.tensor(&gguf_name(TensorRole::Head)).is_some(),
        rope_divisors,
    })?;
    // GGUF metadata does not say which projections have biases; the tensors do.
    families::set_biases(
        &mut spec,
        has_bias(LayerTensor::QBias),
        has_bias(LayerTensor::OBias),
    );
    Ok(spec)
}

/// The kernel format of a stored type, if it is a weight.
pub(crate) fn format_of(dtype: Dtype) -> Option<Format> {
    Some(match dtype {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::Bf16 => Format::Bf16,
        Dtype::Q4_0 => Format::Q4_0,
        Dtype::Q4_1 => Format::Q4_1,
        Dtype::Q5_0 => Format::Q5_0,
        Dtype::Q5_1 => Format::Q5_1,
        Dtype::Q8_0 => Format::Q8_0,
        Dtype::Q2K => Format::Q2K,
        Dtype::Q3K => Format::Q3K,
        Dtype::Q4K => Format::Q4K,
        Dtype::Q5K => Format::Q5K,
        Dtype::Q6K => Format::Q6K,
        Dtype::Iq4Nl => Format::Iq4Nl,
        Dtype::Iq4Xs => Format::Iq4Xs,
        Dtype::Mxfp4 => Format::Mxfp4,
        _ => return None,
    })
}

/// Reads a JSON object from a file of bounded size.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    serde_json::from_slice(&read_limited(path)?).map_err(|source| ModelError::Json {
        path: path.to_owned(),
        source,
    })
}

/// Reads a file of bounded size.
fn read_limited(path: &Path) -> Result<Vec<u8>, ModelError> {
    let io = |source| ModelError::Io {
        path: path.to_owned(),
        source,
    };
    let metadata = fs::metadata(path).map_err(io)?;
    let size = metadata.len();
    if !metadata.is_file() {
        return Err(larql_formats::Error::NotAFile {
            path: path.to_owned(),
        }
        .into());
    }
    if size > JSON_BYTES_MAX {
        return Err(ModelError::BadKey {
            origin: path.display().to_string(),
            key: "file size".to_owned(),
            got: size.to_string(),
            expected: format!("at most {JSON_BYTES_MAX} bytes"),
        });
    }
    fs::read(path).map_err(io)
}
