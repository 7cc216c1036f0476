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
use crate::families::{self, Family, GgufFacts, GgufRopeRows};
use crate::layout::{Form, Layout, Names, Run, arrange};
use crate::packed::packed_form;
use crate::roles::{Needed, StoredValue, TensorRole, needed_tensors};
use crate::spec::ModelSpec;
use crate::stored::{Piece, StoredRows, StoredTensor, gather, row_bytes};
use crate::strict_json;
use crate::to_gguf::GgufContent;
use crate::tokenizer::{
    GgufTokenizer, GgufVocab, HfTokenizerConfig, HfTokenizerFiles, Tokenizer, TokenizerError,
    gguf_metadata,
};

/// Metadata key of a vocabulary inside a GGUF.
const GGUF_VOCABULARY: &str = "tokenizer.ggml.tokens";

/// Largest JSON file read beside the weights; tokenizers of 262,144 tokens take 35 MB.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// A checkpoint on disk, opened by its headers.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    origin: PathBuf,
    spec: ModelSpec,
    container: Container,
    located: Arc<HashMap<TensorRole, Located>>,
    layouts: Arc<Vec<Layout>>,
    /// Types of the tensors of the layouts.
    formats: Arc<Vec<Format>>,
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
    /// Index among the layouts, and the rows there.
    pieces: Vec<(usize, Run)>,
    format: Format,
    shape: Vec<u64>,
    rows: StoredRows,
    value: StoredValue,
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
        if !path.join("config.json").exists() {
            return Err(ModelError::MissingFile {
                path: path.to_owned(),
                file: "config.json",
            });
        }
        if path.join("adapter_config.json").is_file() {
            return Err(ModelError::Adapter {
                path: path.to_owned(),
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
        let mut checkpoint = Self::account(path, spec, container, GgufContent::Whole)?;
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
        Self::from_gguf_with_spec(file, path, spec, GgufContent::Whole)
    }

    /// Takes a GGUF file as the weights of a spec that is known from elsewhere, as a vindex does; `content` says how much
    /// of the model it holds.
    ///
    /// # Errors
    /// Names tensors that do not fit the spec.
    pub fn from_gguf_with_spec(
        file: GgufFile,
        path: &Path,
        spec: ModelSpec,
        content: GgufContent,
    ) -> Result<Self, ModelError> {
        Self::account(path, spec, Container::Gguf(Arc::new(file)), content)
    }

    /// Matches the container's tensors with the spec's needs.
    fn account(
        path: &Path,
        spec: ModelSpec,
        container: Container,
        content: GgufContent,
    ) -> Result<Self, ModelError> {
        let origin = path.display().to_string();
        let family = families::of_spec(&origin, &spec)?;
        let mut needed = needs(&origin, &spec)?;
        needed.retain(|need| content.includes(need.role));
        let infos: HashMap<&str, &TensorInfo> = container
            .tensors()
            .iter()
            .map(|info| (info.name.as_str(), info))
            .collect();
        let exists = |name: &str| infos.contains_key(name);
        let (layouts, missing) = match &container {
            Container::Gguf(_) => {
                let names = Names {
                    prefix: "",
                    layers: "blk.",
                    rules: &family.gguf_names(),
                };
                arrange(&spec, &needed, &names, &exists)
            }
            Container::HuggingFace(_) => {
                let names = family.hf.below(family.hf.prefix(&exists));
                arrange(&spec, &needed, &names, &exists)
            }
        };
        let mut used: HashSet<&str> = HashSet::new();
        for layout in &layouts {
            used.insert(&layout.name);
            if let Form::Mxfp4Pairs { scales } = &layout.form {
                used.insert(scales);
            }
        }
        let (mut ignored, mut unexpected) = (Vec::new(), Vec::new());
        for info in container.tensors() {
            if used.contains(info.name.as_str()) {
                continue;
            }
            match ignored_because(&info.name, &spec, family) {
                Some(reason) => ignored.push(IgnoredTensor {
                    name: info.name.clone(),
                    reason,
                }),
                None => unexpected.push(info.name.clone()),
            }
        }
        if !missing.is_empty() || !unexpected.is_empty() {
            if let Container::HuggingFace(_) = &container
                && let Some((form, tensor)) = packed_form(&infos)
            {
                return Err(ModelError::QuantizedFolder {
                    origin,
                    method: format!("{form}, as tensor `{tensor}` shows"),
                });
            }
            return Err(ModelError::Tensors {
                origin,
                missing: missing.into_iter().map(|missing| missing.name).collect(),
                unexpected,
            });
        }
        let formats = layouts
            .iter()
            .map(|layout| stored_format(&origin, layout, &infos))
            .collect::<Result<Vec<_>, _>>()?;
        let located = locate(&container, family, &needed, &layouts, &formats);
        Ok(Self {
            origin: path.to_owned(),
            spec,
            located: Arc::new(located),
            layouts: Arc::new(layouts),
            formats: Arc::new(formats),
            container,
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
            Container::Gguf(file) if !has_vocabulary(file) => {
                return Err(ModelError::NoTokenizer { origin });
            }
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
    /// If the spec does not need the role.
    pub fn tensor(&self, role: TensorRole) -> Result<StoredTensor, ModelError> {
        self.tensor_from(role, &|name| self.container.data(name))
    }

    /// As [`Self::tensor`], with the bytes of a container's tensor taken from `data`: a caller that maps the files anew
    /// from time to time keeps pages that were read from adding up.
    ///
    /// # Errors
    /// As [`Self::tensor`], and what `data` returns.
    pub fn tensor_from(
        &self,
        role: TensorRole,
        data: &dyn Fn(&str) -> Result<Bytes, ModelError>,
    ) -> Result<StoredTensor, ModelError> {
        let located = self
            .located
            .get(&role)
            .ok_or_else(|| ModelError::NoTensor {
                origin: self.origin.display().to_string(),
                role: role.to_string(),
            })?;
        let pieces: Vec<Piece<'_>> = located
            .pieces
            .iter()
            .map(|(layout, run)| Piece {
                layout: &self.layouts[*layout],
                run: *run,
                stored: self.formats[*layout],
                format: located.format,
            })
            .collect();
        Ok(StoredTensor {
            role,
            name: pieces[0].layout.name.clone(),
            format: located.format,
            shape: located.shape.clone(),
            rows: located.rows,
            value: located.value,
            bytes: gather(&pieces, data)?,
        })
    }

    /// Stored type of a role's tensor, without touching its bytes.
    pub fn format(&self, role: TensorRole) -> Option<Format> {
        self.located.get(&role).map(|located| located.format)
    }

    /// Stored types of the tensors that hold a role's rows; [`Self::format`] is the one in which it is read.
    pub fn stored_formats(&self, role: TensorRole) -> impl Iterator<Item = Format> {
        let pieces = self.located.get(&role).map(|located| located.pieces.iter());
        pieces
            .into_iter()
            .flatten()
            .map(|(layout, _)| self.formats[*layout])
    }

    /// How the container's tensors are made of roles.
    pub fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Bytes of all needed tensors as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.located.values().map(Located::n_bytes).sum()
    }

    /// Elements of all needed tensors.
    pub fn n_params(&self) -> u64 {
        self.located.values().map(Located::n_values).sum()
    }

    /// Elements and bytes by stored type.
    pub fn dtypes(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let mut by_type = BTreeMap::new();
        for located in self.located.values() {
            let entry: &mut (u64, u64) = by_type.entry(located.format.name()).or_default();
            entry.0 += located.n_values();
            entry.1 += located.n_bytes();
        }
        by_type
    }
}

impl Located {
    fn n_values(&self) -> u64 {
        self.shape.iter().product()
    }

    fn n_bytes(&self) -> u64 {
        let cols = self.shape[1..].iter().product();
        self.shape[0] * row_bytes(self.format, cols) as u64
    }
}

impl HfFolder {
    /// The tokenizer as the keys that a GGUF file carries, if the folder has one; the inner error is a tokenizer that GGUF
    /// cannot hold.
    ///
    /// # Errors
    /// If a file is there and cannot be read.
    pub fn gguf_tokenizer(
        &self,
        d_vocab: u32,
    ) -> Result<Option<Result<GgufTokenizer, TokenizerError>>, ModelError> {
        let json = self.path.join("tokenizer.json");
        if !json.is_file() {
            return Ok(None);
        }
        let pieces = self.path.join("tokenizer.model");
        let pieces = match pieces.is_file() {
            true => Some(read_limited(&pieces)?),
            false => None,
        };
        let files = HfTokenizerFiles {
            tokenizer_json: &read_limited(&json)?,
            config: &self.tokenizer_files()?,
            sentencepiece: pieces.as_deref(),
        };
        Ok(Some(gguf_metadata(&files, d_vocab)))
    }

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

    pub(crate) fn data(&self, name: &str) -> Result<Bytes, ModelError> {
        Ok(match self {
            Self::Gguf(file) => file.data(name)?,
            Self::HuggingFace(folder) => folder.weights.data(name)?,
        })
    }
}

/// Every tensor that a spec needs.
pub(crate) fn needs(origin: &str, spec: &ModelSpec) -> Result<Vec<Needed>, ModelError> {
    needed_tensors(spec).map_err(|source| ModelError::Spec {
        origin: origin.to_owned(),
        source,
    })
}

/// Finds each role's rows.
fn locate(
    container: &Container,
    family: &Family,
    needed: &[Needed],
    layouts: &[Layout],
    formats: &[Format],
) -> HashMap<TensorRole, Located> {
    let mut pieces: HashMap<TensorRole, Vec<(usize, Run)>> = HashMap::new();
    for (idx, layout) in layouts.iter().enumerate() {
        for run in &layout.runs {
            pieces.entry(run.role).or_default().push((idx, *run));
        }
    }
    let mut located = HashMap::with_capacity(needed.len());
    for need in needed {
        let mut pieces = pieces
            .remove(&need.role)
            .expect("a role without a tensor is missing");
        pieces.sort_by_key(|(_, run)| run.first);
        let (rows, value) = match container {
            Container::Gguf(_) => {
                let rows = match (need.rope_head, family.gguf_rope_rows) {
                    (Some(d_head), GgufRopeRows::Interleaved) => StoredRows::Interleaved { d_head },
                    (Some(_), GgufRopeRows::Canonical) | (None, _) => StoredRows::Canonical,
                };
                (rows, StoredValue::Effective)
            }
            Container::HuggingFace(_) => (StoredRows::Canonical, need.stored),
        };
        let first = formats[pieces[0].0];
        // Pieces of unequal types, and blocks that run along the other axis, can only be read as numbers.
        let as_stored = pieces.iter().all(|(layout, _)| {
            let is_columns = matches!(layouts[*layout].form, Form::Columns { .. });
            formats[*layout] == first && !(is_columns && first.block_len() > 1)
        });
        let format = if as_stored { first } else { Format::F32 };
        located.insert(
            need.role,
            Located {
                pieces,
                format,
                shape: need.shape.clone(),
                rows,
                value,
            },
        );
    }
    located
}

/// The type in which the rows of a tensor are read, once its shape is found to fit.
pub(crate) fn stored_format(
    origin: &str,
    layout: &Layout,
    infos: &HashMap<&str, &TensorInfo>,
) -> Result<Format, ModelError> {
    let info = infos[layout.name.as_str()];
    let shape_error = |info: &TensorInfo, expected: &[u64]| ModelError::Shape {
        origin: origin.to_owned(),
        tensor: info.name.clone(),
        expected: expected.to_vec(),
        got: info.shape.clone(),
    };
    let dtype_error = |info: &TensorInfo| ModelError::Dtype {
        origin: origin.to_owned(),
        tensor: info.name.clone(),
        dtype: info.dtype.name().to_owned(),
    };
    if !layout.fits(&info.shape) {
        return Err(shape_error(info, &layout.shape));
    }
    match &layout.form {
        Form::Rows => {
            let format = format_of(info.dtype).ok_or_else(|| dtype_error(info))?;
            if !layout.cols.is_multiple_of(format.block_len() as u64) {
                return Err(dtype_error(info));
            }
            Ok(format)
        }
        Form::Columns { out } => match format_of(info.dtype) {
            Some(format) if out.is_multiple_of(format.block_len() as u64) => Ok(format),
            Some(_) | None => Err(dtype_error(info)),
        },
        Form::Mxfp4Pairs { scales } => {
            let exponents = infos
                .get(scales.as_str())
                .ok_or_else(|| ModelError::Tensors {
                    origin: origin.to_owned(),
                    missing: vec![scales.clone()],
                    unexpected: vec![],
                })?;
            let expected = &layout.shape[..layout.shape.len() - 1];
            if exponents.shape != expected {
                return Err(shape_error(exponents, expected));
            }
            for info in [info, exponents] {
                if info.dtype != Dtype::U8 {
                    return Err(dtype_error(info));
                }
            }
            if !layout.cols.is_multiple_of(32) {
                return Err(shape_error(info, &layout.shape));
            }
            Ok(Format::Mxfp4)
        }
    }
}

/// Names that are known to leave the forward pass alone.
fn ignored_because(name: &str, spec: &ModelSpec, family: &Family) -> Option<&'static str> {
    if name.ends_with("rotary_emb.inv_freq") {
        return Some("RoPE frequencies are computed from the configuration");
    }
    if name == "rope_freqs.weight" || name.starts_with("rope_factors_") {
        return Some("RoPE divisors are part of the spec");
    }
    if name == "lm_head.weight" && spec.head.tied {
        return Some("identical to the embedding, which serves as head");
    }
    if name.contains("vision_tower.") || name.contains("multi_modal_projector.") {
        return Some("vision tower: only text runs here");
    }
    family.hf.ignored_because(name, spec)
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

/// Layers a file may claim; far above any model, far below what exhausts memory.
pub(crate) const LAYERS_MAX: u32 = 4096;

fn too_many_layers(origin: &str, key: &str, got: u64) -> ModelError {
    ModelError::BadKey {
        origin: origin.to_owned(),
        key: key.to_owned(),
        got: got.to_string(),
        expected: format!("1 to {LAYERS_MAX}"),
    }
}

/// The one quantization of safetensors that families may read.
const PACKED_MXFP4: &str = "mxfp4";

/// What a configuration says its weights are quantized with.
fn quantized_by(config: &Map<String, Value>) -> Option<String> {
    // MLX writes the first key, transformers the second.
    if let Some(mlx) = config.get("quantization").and_then(Value::as_object) {
        let bits = mlx.get("bits").map_or("?".to_owned(), Value::to_string);
        return Some(format!("mlx, {bits} bits"));
    }
    let quantization = config.get("quantization_config")?.as_object()?;
    let method = quantization.get("quant_method").and_then(Value::as_str);
    Some(method.unwrap_or("an unnamed method").to_owned())
}

/// What the text of a `config.json` says the model is; whether the head is really tied, only the tensors can say.
///
/// # Errors
/// As [`Checkpoint::open`], for everything but the tensors.
pub fn spec_of_config(path: &Path, text: &str) -> Result<ModelSpec, ModelError> {
    let config = object_of(path, text.as_bytes())?;
    spec_from_config(&path.display().to_string(), &config)
}

pub(crate) fn spec_from_config(
    origin: &str,
    config: &Map<String, Value>,
) -> Result<ModelSpec, ModelError> {
    let outer = RawConfig::new(origin, config);
    let model_type = outer
        .opt_str("model_type")?
        .ok_or_else(|| outer.missing("model_type"))?;
    let family = families::by_model_type(origin, model_type)?;
    let text_config = config.get("text_config").and_then(Value::as_object);
    for part in text_config.into_iter().chain([config]) {
        if let Some(method) = quantized_by(part)
            && (method != PACKED_MXFP4 || text_config.is_some())
        {
            return Err(ModelError::QuantizedFolder {
                origin: origin.to_owned(),
                method,
            });
        }
    }
    for part in text_config.into_iter().chain([config]) {
        for key in ["num_hidden_layers", "n_layer"] {
            let stated = part.get(key).and_then(Value::as_u64).unwrap_or(0);
            if stated > u64::from(LAYERS_MAX) {
                return Err(too_many_layers(origin, key, stated));
            }
        }
    }
    own_code(&outer, model_type)?;
    match outer.object("text_config")? {
        None => (family.from_config)(&RawConfig::new(origin, config)),
        Some(text) => {
            agrees_outside(&outer, &text, family)?;
            let mut spec = (family.from_config)(&text)?;
            only_inside(&outer, &text, family, &spec)?;
            spec.head.tied = outer.bool_or("tie_word_embeddings", spec.head.tied)?;
            Ok(spec)
        }
    }
}

/// Refuses files that bring code of their own for a class that is not the one of their `model_type`.
fn own_code(config: &RawConfig<'_>, model_type: &str) -> Result<(), ModelError> {
    let Some(code) = config.get("auto_map") else {
        return Ok(());
    };
    let names = config.opt_strings("architectures")?.unwrap_or_default();
    let is_known = |name: &&str| families::is_class_of(model_type, name);
    if !names.is_empty() && names.iter().all(is_known) {
        return Ok(());
    }
    let class = match names.as_slice() {
        [] => "the class".to_owned(),
        names => names.join(", "),
    };
    let expected =
        format!("no key, as {class} is code of the files' own and not the class of {model_type}");
    Err(config.bad("auto_map", code, &expected))
}

/// Refuses a fact beside `text_config` that the model would be another with, were it inside: there a default is used.
fn only_inside(
    outer: &RawConfig<'_>,
    text: &RawConfig<'_>,
    family: &Family,
    spec: &ModelSpec,
) -> Result<(), ModelError> {
    let inside: Map<String, Value> = text
        .entries()
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    for (key, value) in outer.facts().filter(|(key, _)| !inside.contains_key(*key)) {
        let mut both = inside.clone();
        both.insert(key.to_owned(), value.clone());
        match (family.from_config)(&RawConfig::new("", &both)) {
            Ok(other) if other != *spec => {
                return Err(outer.bad(key, value, "this key in text_config, or nowhere"));
            }
            // A key that the family does not know is none of the model's facts.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Refuses a nested configuration of another model than the outer one, or a fact of it that stands outside too and is another
/// one there.
fn agrees_outside(
    outer: &RawConfig<'_>,
    text: &RawConfig<'_>,
    family: &Family,
) -> Result<(), ModelError> {
    if let Some(inner) = text.opt_str("model_type")?
        && !family.hf_model_types.contains(&inner)
    {
        let expected = family.hf_model_types.join(" or ");
        return Err(text.bad("model_type", &inner.into(), &expected));
    }
    // Of which the outer one wins.
    const WHOLE: &str = "tie_word_embeddings";
    let inner: BTreeMap<&str, &Value> = text.facts().collect();
    for (key, value) in outer.facts().filter(|(key, _)| *key != WHOLE) {
        if let Some(inner) = inner.get(key)
            && *inner != value
        {
            let expected = format!("{inner}, as text_config says, or no key");
            return Err(outer.bad(key, value, &expected));
        }
    }
    Ok(())
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
    if let Some(kind) = metadata.str("general.type")?
        && kind != "model"
    {
        return Err(ModelError::BadKey {
            origin: origin.to_owned(),
            key: "general.type".to_owned(),
            got: kind.to_owned(),
            expected: "model".to_owned(),
        });
    }
    let family = families::by_gguf_arch(origin, arch)?;
    let embedding_name = "token_embd.weight".to_owned();
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
    let floats = |name: &str| match file.tensor(name) {
        None => Ok(None),
        Some(info) if info.dtype == Dtype::F32 => {
            let bytes = file.data(name)?;
            let mut values = vec![0.0; bytes.len() / 4];
            decode(Format::F32, &bytes, &mut values);
            Ok(Some(values))
        }
        Some(info) => Err(ModelError::Dtype {
            origin: origin.to_owned(),
            tensor: info.name.clone(),
            dtype: info.dtype.name().to_owned(),
        }),
    };
    let block_count = format!("{arch}.block_count");
    if let Some(n) = metadata.u32(&block_count)?
        && n > LAYERS_MAX
    {
        return Err(too_many_layers(origin, &block_count, u64::from(n)));
    }
    family.read_gguf(&GgufFacts {
        origin,
        metadata,
        d_vocab,
        shape: &|name| file.tensor(name).map(|info| info.shape.clone()),
        floats: &floats,
    })
}

/// Whether a GGUF file carries a vocabulary.
pub fn has_vocabulary(file: &GgufFile) -> bool {
    file.metadata().get(GGUF_VOCABULARY).is_some()
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
    object_of(path, &read_limited(path)?)
}

fn object_of(path: &Path, text: &[u8]) -> Result<Map<String, Value>, ModelError> {
    strict_json::object(text).map_err(|source| ModelError::Json {
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
