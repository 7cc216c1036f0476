//! [`export_gguf()`] and [`export_safetensors()`]: a model becomes standard files again, whole or not at all.
//!
//! A vindex gives back what it was made of: the same GGUF file, or a folder with the same tensors, byte for byte, in the
//! files and the order they had. Any other direction is a conversion, in which the matrices keep their values and the
//! names, the order of rows and the vocabulary become those that programs for the other format expect.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::Write;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use larql_formats::gguf::GgufFile;
use larql_formats::safetensors::{self, SafetensorsFile};
use larql_formats::{Bytes, Dtype, TensorInfo};
use larql_kernels::Team;
use larql_models::checkpoint::{has_vocabulary, spec_of_config};
use larql_models::hf_config;
use larql_models::to_gguf::Quantization;
use larql_models::to_hf::{FloatType, HfPlan};
use larql_models::tokenizer::{GgufVocab, hf_folder};
use larql_models::{Checkpoint, Container, ModelError};
use tempfile::NamedTempFile;

use crate::Progress;
use crate::digest::{Reporter, hash_file};
use crate::error::{VindexError, io_error};
use crate::extract::{PlanFor, copy_file, place, planned, publish, quantized_types, staging};
use crate::manifest::{
    KEPT, Level, Source, SourceDigest, SourceKind, SourceTensor, TensorPlace, TextFile,
};
use crate::source_digest::{Undigested, digest_now};
use crate::stated_dtype::with_dtype;
use crate::stream::{SourceReader, put_pieces, stream, watched};
use crate::vindex::Vindex;

/// Bytes of weights in one file of a folder that had no files before.
const SHARD_BYTES: u64 = 5 << 30;

/// What says which model a folder holds.
const CONFIG: &str = "config.json";

/// What is exported: a model, and the vindex it lies in, if it does.
#[derive(Debug, Clone, Copy)]
pub struct ExportSource<'a> {
    /// The model.
    pub checkpoint: &'a Checkpoint,
    /// Its vindex.
    pub vindex: Option<&'a Vindex>,
}

/// What an export wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportReport {
    /// The files, by name, with their sizes.
    pub files: Vec<(String, u64)>,
    /// Tensors in them.
    pub n_tensors: usize,
    /// Bits that a value takes on average, of all tensors, if they were quantized.
    pub bits_per_weight: Option<f64>,
    /// How many tensors have each type, most first, if they were quantized.
    pub types: Vec<(String, usize)>,
    /// Things a user should know.
    pub notes: Vec<String>,
}

/// Writes the model as a GGUF file.
///
/// # Errors
/// [`VindexError::Exists`] if `out` exists, [`VindexError::NotAGgufName`] if it would not be recognized,
/// [`VindexError::Interrupted`] when `progress` breaks, or what is wrong with the model or the disk. Nothing is left
/// behind.
pub fn export_gguf(
    source: ExportSource<'_>,
    out: &Path,
    quantization: Option<Quantization>,
    n_threads: NonZeroUsize,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<ExportReport, VindexError> {
    let mut reporter = Reporter { call: progress };
    let (parent, name) = place(out)?;
    check_gguf_name(out)?;
    check_digests(source, &mut reporter)?;
    let staged = NamedTempFile::with_prefix_in(".larql-export-", &parent)
        .map_err(io_error(out, "create a file for"))?;
    let path = staged.path().to_owned();
    drop(staged);
    let guard = RemoveOnDrop(path.clone());
    let is_own_file = source
        .vindex
        .is_some_and(|vindex| vindex.manifest().source.kind == SourceKind::HuggingFace);
    let reader = PlanFor::Others { is_own_file };
    let (plan, notes) = planned(source.checkpoint, reader, quantization)?;
    let (bits_per_weight, types) = quantized_types(&plan, quantization);
    let n_tensors = match (source.checkpoint.container(), quantization) {
        (Container::Gguf(file), None) if file.paths().len() == 1 && !plan.has_more() => {
            copy_file(&file.paths()[0], &path, out, &mut reporter)?;
            file.tensors().len()
        }
        (Container::Gguf(_) | Container::HuggingFace(_), _) => {
            let team = quantization.map(|_| RefCell::new(Team::new(n_threads)));
            stream(
                &plan,
                source.checkpoint,
                &path,
                out,
                team.as_ref(),
                &mut reporter,
            )?;
            plan.tensors().len()
        }
    };
    let size = fs::metadata(&path)
        .map_err(io_error(out, "read the size of"))?
        .len();
    // A link fails where the name has been taken meanwhile; a rename would replace what has it.
    fs::hard_link(&path, out).or_else(|_| match fs::symlink_metadata(out) {
        Ok(_) => Err(VindexError::Exists {
            path: out.to_owned(),
        }),
        Err(_) => fs::rename(&path, out).map_err(io_error(out, "give its name to")),
    })?;
    drop(guard);
    Ok(ExportReport {
        files: vec![(name, size)],
        n_tensors,
        bits_per_weight,
        types,
        notes,
    })
}

/// Writes the model as a Hugging Face folder; `float` is the type of matrices that had none of their own, F32 by default.
///
/// # Errors
/// As [`export_gguf`].
pub fn export_safetensors(
    source: ExportSource<'_>,
    out: &Path,
    float: Option<FloatType>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<ExportReport, VindexError> {
    let mut reporter = Reporter { call: progress };
    let (parent, name) = place(out)?;
    check_digests(source, &mut reporter)?;
    let folder = Folder::of(source, float.unwrap_or(FloatType::F32))?;
    if float.is_some() && folder.plan.n_decoded() == 0 {
        return Err(VindexError::NothingToConvert);
    }
    let directory = staging(&parent, &name, out)?;
    let mut writing = Writing {
        source,
        folder: &folder,
        staging: directory.path(),
        out,
        files: Vec::new(),
        notes: folder.notes.clone(),
    };
    writing.weights(&mut reporter)?;
    for text in &folder.texts {
        writing.text(&text.name, text.text.as_bytes())?;
    }
    for (name, bytes) in &folder.binaries {
        writing.text(name, bytes)?;
    }
    let Writing { files, notes, .. } = writing;
    publish(directory, out)?;
    Ok(ExportReport {
        files,
        n_tensors: folder.plan.tensors().len(),
        bits_per_weight: None,
        types: vec![],
        notes,
    })
}

/// Refuses a name by which nothing would open the file again.
fn check_gguf_name(out: &Path) -> Result<(), VindexError> {
    let names_a_folder = out
        .as_os_str()
        .to_string_lossy()
        .ends_with(std::path::is_separator);
    let is_gguf = out
        .extension()
        .is_some_and(|ext| ext.eq_ignore_ascii_case("gguf"));
    if names_a_folder || !is_gguf {
        return Err(VindexError::NotAGgufName {
            path: out.to_owned(),
        });
    }
    Ok(())
}

/// Refuses to pass on what is no longer what the manifest says.
fn check_digests(source: ExportSource<'_>, reporter: &mut Reporter<'_>) -> Result<(), VindexError> {
    let Some(vindex) = source.vindex else {
        return Ok(());
    };
    for file in &vindex.manifest().files {
        let path = vindex.path().join(&file.name);
        let hashed = hash_file(&path, "digest", reporter)?;
        if hashed.sha256 != file.sha256 {
            return Err(VindexError::Changed { path });
        }
    }
    Ok(())
}

/// Whether the folder that a vindex was made of can be written again; what it would be, or what is in the way.
pub(crate) fn check_source(vindex: &Vindex) -> Result<String, String> {
    if !records_shapes(&vindex.manifest().source) {
        return Ok("shapes are not recorded: no folder can be written".to_owned());
    }
    let checkpoint = vindex.checkpoint().map_err(|error| error.to_string())?;
    let folder = Folder::of_vindex(vindex, &checkpoint, FloatType::F32);
    let folder = folder.map_err(|error| error.to_string())?;
    Ok(format!(
        "{} in {}, {}",
        counted(folder.plan.tensors().len(), "tensor"),
        counted(folder.shards.len(), "file"),
        counted(folder.texts.len(), "text")
    ))
}

/// An error and what led to it, as one sentence.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Version 0.1.0 did not.
fn records_shapes(source: &Source) -> bool {
    source.tensors.iter().any(|tensor| !tensor.shape.is_empty())
}

/// Refuses a `config.json` that is not the one that the spec was read from.
fn check_config(vindex: &Vindex) -> Result<(), VindexError> {
    let manifest = vindex.manifest();
    let wrong = |problem: String| VindexError::Manifest {
        path: vindex.path().to_owned(),
        field: Some("source.texts".to_owned()),
        problem,
    };
    let text = manifest.source.text(CONFIG);
    let text = text.ok_or_else(|| wrong(format!("{CONFIG} is missing")))?;
    let mut said =
        spec_of_config(Path::new(CONFIG), text).map_err(|error| wrong(error.to_string()))?;
    // What the file calls tied may have a head of its own in the tensors.
    said.head.tied &= manifest.spec.head.tied;
    if said != manifest.spec {
        return Err(wrong(format!(
            "{CONFIG} tells of another model than `spec`"
        )));
    }
    Ok(())
}

/// A folder to be.
struct Folder {
    plan: HfPlan,
    /// Name of each weights file, and which tensors of the plan it gets.
    shards: Vec<(String, Vec<usize>)>,
    /// Tensors that were kept as they were.
    kept: Option<SafetensorsFile>,
    texts: Vec<TextFile>,
    binaries: Vec<(String, Vec<u8>)>,
    notes: Vec<String>,
}

impl Folder {
    fn of(source: ExportSource<'_>, float: FloatType) -> Result<Self, VindexError> {
        match (source.vindex, source.checkpoint.container()) {
            (Some(vindex), _) if vindex.manifest().source.kind == SourceKind::HuggingFace => {
                Self::of_vindex(vindex, source.checkpoint, float)
            }
            (_, Container::Gguf(file)) => Self::of_gguf(source.checkpoint, file, float),
            (_, Container::HuggingFace(folder)) => Err(VindexError::NothingToExport {
                path: folder.path.clone(),
            }),
        }
    }

    /// What the vindex was made of.
    fn of_vindex(
        vindex: &Vindex,
        checkpoint: &Checkpoint,
        float: FloatType,
    ) -> Result<Self, VindexError> {
        vindex.requires(Level::All)?;
        let source = &vindex.manifest().source;
        let unknown = |what: String| VindexError::Manifest {
            path: vindex.path().to_owned(),
            field: Some("source.tensors".to_owned()),
            problem: what,
        };
        if !records_shapes(source) {
            return Err(unknown(
                "made by a version that did not record shapes; extract the model again".to_owned(),
            ));
        }
        check_config(vindex)?;
        let mut infos = Vec::with_capacity(source.tensors.len());
        let mut shards: Vec<(String, Vec<usize>)> = source
            .files
            .iter()
            .map(|file| (file.name.clone(), vec![]))
            .collect();
        for (idx, tensor) in source.tensors.iter().enumerate() {
            let dtype = Dtype::from_name(&tensor.dtype)
                .ok_or_else(|| unknown(format!("type {} of {}", tensor.dtype, tensor.name)))?;
            let info = TensorInfo::new(&*tensor.name, dtype, tensor.shape.clone())?;
            let shard = shards
                .get_mut(tensor.file as usize)
                .ok_or_else(|| unknown(format!("{} is in file {}", tensor.name, tensor.file)))?;
            shard.1.push(idx);
            infos.push(info);
        }
        let plan = HfPlan::of_folder(checkpoint, &infos, float)?;
        let kept = match vindex.manifest().file(KEPT) {
            None => None,
            Some(_) => Some(SafetensorsFile::open(vindex.path().join(KEPT))?),
        };
        for (idx, tensor) in source.tensors.iter().enumerate() {
            let there = kept.as_ref().and_then(|kept| kept.tensor(&tensor.name));
            match (tensor.place, there) {
                (TensorPlace::Kept, Some(info)) if *info == infos[idx] => {}
                (TensorPlace::Kept, Some(info)) => {
                    return Err(unknown(format!(
                        "{} is {} {:?}, but {} {:?} in {KEPT}",
                        tensor.name,
                        tensor.dtype,
                        tensor.shape,
                        info.dtype.name(),
                        info.shape
                    )));
                }
                (TensorPlace::Weights | TensorPlace::Changed, Some(_)) => {
                    return Err(unknown(format!("{} is in {KEPT} too", tensor.name)));
                }
                (TensorPlace::Weights | TensorPlace::Changed, None) if plan.is_made(idx) => {}
                (TensorPlace::Kept | TensorPlace::Weights | TensorPlace::Changed, None) => {
                    return Err(unknown(format!("{} is nowhere", tensor.name)));
                }
            }
        }
        let stray = kept.iter().flat_map(SafetensorsFile::tensors).find(|info| {
            let is_known = |tensor: &SourceTensor| tensor.name == info.name;
            !source.tensors.iter().any(is_known)
        });
        if let Some(info) = stray {
            return Err(unknown(format!(
                "{} in {KEPT} is not a tensor of the source",
                info.name
            )));
        }
        let mut notes = Vec::new();
        if plan.n_decoded() > 0 {
            notes.push(format!(
                "the weights were quantized when the vindex was made: {} tensors hold decoded values in {}, not what the source held",
                plan.n_decoded(),
                float.name()
            ));
        }
        let mut texts = source.texts.clone();
        if plan.n_decoded() > 0
            && let Some(config) = texts.iter_mut().find(|text| text.name == CONFIG)
            && let Some((text, stated)) = with_dtype(&config.text, float.name())
        {
            notes.push(format!(
                "{CONFIG} states {} where the source had {stated}: loaders convert all weights to what it states",
                float.name()
            ));
            config.text = text;
        }
        if let Some(tokenizer) = vindex.tokenizer_json()? {
            texts.push(TextFile {
                name: "tokenizer.json".to_owned(),
                text: tokenizer,
            });
        }
        Ok(Self {
            plan,
            shards,
            kept,
            texts,
            binaries: vec![],
            notes,
        })
    }

    /// What the family's class expects, made of a GGUF file.
    fn of_gguf(
        checkpoint: &Checkpoint,
        file: &GgufFile,
        float: FloatType,
    ) -> Result<Self, VindexError> {
        let plan = HfPlan::of_family(checkpoint, float)?;
        let shards = sharded(&plan);
        let mut notes = Vec::new();
        let (mut texts, mut binaries) = (Vec::new(), Vec::new());
        let mut add = |name: &str, value: &serde_json::Value| {
            let mut text = serde_json::to_string_pretty(value).expect("a JSON value is JSON");
            text.push('\n');
            texts.push(TextFile {
                name: name.to_owned(),
                text,
            });
        };
        let mut config = hf_config::config(checkpoint, float)?;
        match GgufVocab::from_metadata(file.metadata()).and_then(hf_folder) {
            Err(_) if !has_vocabulary(file) => {
                notes.push("the folder has no tokenizer files, as its source had none".to_owned());
            }
            Err(error) if error.is_of_another_kind() => {
                notes.push(format!("no tokenizer files: {}", with_causes(&error)));
            }
            Err(source) => {
                return Err(ModelError::Tokenizer {
                    origin: checkpoint.origin().display().to_string(),
                    source,
                }
                .into());
            }
            Ok(tokenizer) => {
                hf_config::add_tokens(&mut config, &tokenizer);
                add("tokenizer_config.json", &tokenizer.tokenizer_config);
                let generation = hf_config::generation(&tokenizer);
                if !generation.is_empty() {
                    add(
                        "generation_config.json",
                        &serde_json::Value::Object(generation),
                    );
                }
                binaries.extend(
                    tokenizer
                        .sentencepiece
                        .map(|bytes| ("tokenizer.model".to_owned(), bytes)),
                );
                binaries.push((
                    "tokenizer.json".to_owned(),
                    tokenizer.tokenizer_json.into_bytes(),
                ));
                if let Some(template) = tokenizer.chat_template {
                    binaries.push(("chat_template.jinja".to_owned(), template.into_bytes()));
                }
            }
        }
        add(CONFIG, &serde_json::Value::Object(config));
        if shards.len() > 1 {
            add("model.safetensors.index.json", &index(&plan, &shards));
        }
        Ok(Self {
            plan,
            shards,
            kept: None,
            texts,
            binaries,
            notes,
        })
    }
}

/// Tensors in files of at most [`SHARD_BYTES`], under the names that readers of an index expect.
fn sharded(plan: &HfPlan) -> Vec<(String, Vec<usize>)> {
    let mut groups: Vec<Vec<usize>> = vec![vec![]];
    let mut size = 0;
    for (idx, info) in plan.tensors().enumerate() {
        if size > 0 && size + info.n_bytes > SHARD_BYTES {
            groups.push(vec![]);
            size = 0;
        }
        size += info.n_bytes;
        groups.last_mut().expect("there is a group").push(idx);
    }
    let n = groups.len();
    let name = |i: usize| match n {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
    };
    groups
        .into_iter()
        .enumerate()
        .map(|(i, group)| (name(i), group))
        .collect()
}

fn index(plan: &HfPlan, shards: &[(String, Vec<usize>)]) -> serde_json::Value {
    let infos: Vec<&TensorInfo> = plan.tensors().collect();
    let mut map = BTreeMap::new();
    for (name, group) in shards {
        for idx in group {
            map.insert(infos[*idx].name.clone(), name.clone());
        }
    }
    let total: u64 = infos.iter().map(|info| info.n_bytes).sum();
    serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map })
}

struct Writing<'a> {
    source: ExportSource<'a>,
    folder: &'a Folder,
    staging: &'a Path,
    out: &'a Path,
    files: Vec<(String, u64)>,
    notes: Vec<String>,
}

impl Writing<'_> {
    fn weights(&mut self, reporter: &mut Reporter<'_>) -> Result<(), VindexError> {
        let reader = SourceReader::new(self.source.checkpoint)?;
        let infos: Vec<&TensorInfo> = self.folder.plan.tensors().collect();
        for (name, group) in &self.folder.shards {
            let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
            let mut writer = safetensors::Writer::new(&metadata)?;
            for idx in group {
                writer.declare(infos[*idx].clone())?;
            }
            let total = group.iter().map(|idx| infos[*idx].n_bytes).sum();
            let (path, shown) = (self.staging.join(name), self.out.join(name));
            let size = watched(&path, &shown, total, reporter, |out| {
                let mut stream = writer.begin(out)?;
                for idx in group {
                    stream.write_tensor(&infos[*idx].name, |sink| {
                        self.tensor(*idx, infos[*idx], &reader, sink)
                    })?;
                }
                stream.finish()?;
                Ok(())
            })?;
            let difference = self.difference(name, &path, reporter)?;
            self.notes.extend(difference.map(|difference| {
                format!("{name} is not byte for byte the file of the source: {difference}")
            }));
            self.files.push((name.clone(), size));
        }
        Ok(())
    }

    /// What sets the file that lies at `path` apart from the one of this name that was read; `None` where nothing does, or
    /// where not all tensors can come back.
    fn difference(
        &self,
        name: &str,
        path: &Path,
        reporter: &mut Reporter<'_>,
    ) -> Result<Option<&'static str>, VindexError> {
        let source = self.source.vindex.map(|vindex| &vindex.manifest().source);
        let read = source.and_then(|source| {
            let idx = source.files.iter().position(|file| file.name == name)?;
            Some((source, idx))
        });
        let Some((source, idx)) = read.filter(|_| self.folder.plan.n_decoded() == 0) else {
            return Ok(None);
        };
        let recorded = &source.files[idx].digest;
        let written = match recorded {
            SourceDigest::Whole { .. } => Undigested::whole(path)?,
            SourceDigest::Parts { .. } => {
                let changed: HashSet<&str> = source
                    .tensors
                    .iter()
                    .filter(|tensor| tensor.place == TensorPlace::Changed)
                    .map(|tensor| tensor.name.as_str())
                    .collect();
                Undigested::of_safetensors(path, &|name| !changed.contains(name))?
            }
        };
        let written = digest_now(&written, "digest", reporter)?;
        Ok(difference(recorded, &written))
    }

    fn tensor(
        &self,
        idx: usize,
        info: &TensorInfo,
        reader: &SourceReader<'_>,
        sink: &mut larql_formats::Sink<'_>,
    ) -> Result<(), ModelError> {
        let kept: Option<Bytes> = match &self.folder.kept {
            Some(kept) if kept.tensor(&info.name).is_some() => Some(kept.data(&info.name)?),
            Some(_) | None => None,
        };
        match kept {
            Some(bytes) => put_pieces(&bytes, sink),
            None => {
                let data = |name: &str| reader.data(name);
                self.folder
                    .plan
                    .write_tensor_from(idx, self.source.checkpoint, &data, sink)
            }
        }
    }

    fn text(&mut self, name: &str, bytes: &[u8]) -> Result<(), VindexError> {
        let shown = self.out.join(name);
        let mut file =
            File::create_new(self.staging.join(name)).map_err(io_error(&shown, "create"))?;
        file.write_all(bytes).map_err(io_error(&shown, "write"))?;
        self.files.push((name.to_owned(), bytes.len() as u64));
        Ok(())
    }
}

/// What is said of a file whose digest is another one than that of the source's.
fn difference(recorded: &SourceDigest, written: &SourceDigest) -> Option<&'static str> {
    let changed = |digest: &SourceDigest| match digest {
        SourceDigest::Whole { .. } => None,
        SourceDigest::Parts { changed_sha256, .. } => changed_sha256.clone(),
    };
    if recorded == written {
        None
    } else if changed(recorded) != changed(written) {
        Some("it has other tensors")
    } else {
        Some("its tensors come back, its header was laid out in another way")
    }
}

/// Removes a file that has not got its name.
struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        // Gone already where the rename took it.
        let _ = fs::remove_file(&self.0);
    }
}
