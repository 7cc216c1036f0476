//! [`extract()`]: a checkpoint becomes a vindex, whole or not at all.
//!
//! Everything is written into a hidden sibling directory, flushed, opened once as a reader would, and takes its name by
//! one rename; whatever goes wrong before that, the sibling is removed. A single GGUF file is linked, not copied, and
//! read once for its digest. A folder of safetensors is streamed into GGUF, row by row where rows move, and hashed on
//! the way out.
//!
//! Memory: the largest tensor and some buffers. Tensors that pass as they are are read, piece by piece, and no page of a map
//! is touched; for the others source files are mapped anew from time to time, because pages of a map that have been read
//! count as memory until it goes.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use larql_formats::{TensorInfo, safetensors};
use larql_kernels::Team;
use larql_models::checkpoint::has_vocabulary;
use larql_models::to_gguf::{Fallback, GgufContent, GgufPlan, Quantization};
use larql_models::tokenizer::{Tokenizer, TokenizerError};
use larql_models::{Checkpoint, Container, ModelError};
use tempfile::TempDir;

use crate::Progress;
use crate::background::Digests;
use crate::digest::{Hashed, Reporter, hash_bytes, hash_file};
use crate::error::{VindexError, io_error};
use crate::manifest::{
    CreatedBy, FORMAT_VERSION, FileEntry, Ignored, KEPT, Level, MANIFEST, MANIFEST_BYTES_MAX,
    Manifest, SOURCE_TEXTS, Source, SourceDigest, SourceFile, SourceKind, SourceTensor, TOKENIZER,
    TensorPlace, TextFile, TokenizerEntry, TokenizerPlace, WEIGHTS,
};
use crate::source_digest::Undigested;
use crate::stream::{SourceReader, hashed, put_pieces, stream};
use crate::vindex::Vindex;

/// Bytes that are copied between two reports.
const COPY_BYTES: u64 = 16 << 20;

/// Names of files listed before the rest is only counted.
const LEFT_OUT_MAX: usize = 12;

/// Files that say in another form what `tokenizer.json` says.
const OTHER_TOKENIZERS: [&str; 3] = ["merges.txt", "tokenizer.model", "vocab.json"];

/// What a caller decides about an extraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtractOptions {
    /// How much goes in.
    pub level: Level,
    /// Which types the weights get; `None` leaves them as they are.
    pub quantization: Option<Quantization>,
    /// Threads that encode.
    pub n_threads: NonZeroUsize,
}

impl ExtractOptions {
    /// Everything of a level, in the types it has.
    pub fn at(level: Level) -> Self {
        Self {
            level,
            quantization: None,
            n_threads: NonZeroUsize::MIN,
        }
    }
}

/// How the weights got into the vindex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightsPlacement {
    /// They are the source file under a second name: changing that file in place would damage the vindex.
    Linked,
    /// A copy of the source file, which lies on another file system.
    Copied,
    /// Written tensor by tensor.
    Written,
}

/// What an extraction did.
#[derive(Debug, Clone, PartialEq)]
pub struct ExtractReport {
    /// What is inside.
    pub level: Level,
    /// Identifies the model.
    pub digest: String,
    /// Tensors of the source.
    pub n_source_tensors: usize,
    /// Matrices and vectors that are used; a tensor of the source may hold several.
    pub n_used: usize,
    /// Tensors of the source that the forward pass does not need, and why.
    pub ignored: Vec<Ignored>,
    /// Bits that a value takes on average, of all tensors of the weights, if they were quantized.
    pub bits_per_weight: Option<f64>,
    /// How many tensors of the weights have each type, most first, if they were quantized.
    pub types: Vec<(String, usize)>,
    /// Things a user should know.
    pub notes: Vec<String>,
    /// How the weights got there.
    pub weights: WeightsPlacement,
    /// Bytes that were written; a linked file adds none.
    pub bytes_written: u64,
    /// Bytes of all files of the vindex, linked ones included.
    pub bytes: u64,
}

/// Makes the vindex `out` from a checkpoint. `tokenizer` is the checkpoint's own, or `None` if it has none.
///
/// # Errors
/// [`VindexError::Exists`] if `out` exists, [`VindexError::Interrupted`] when `progress` breaks, or what is wrong with
/// the source or the disk. Nothing is left behind.
pub fn extract(
    source: &Checkpoint,
    tokenizer: Option<&Tokenizer>,
    out: &Path,
    options: &ExtractOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<ExtractReport, VindexError> {
    let (parent, name) = place(out)?;
    let staging = staging(&parent, &name, out)?;
    let mut job = Job {
        source,
        options: *options,
        level: options.level,
        staging: staging.path(),
        out,
        reporter: Reporter { call: progress },
    };
    let way = job.way()?;
    let places = job.places(&way)?;
    let digests = job.source_digests(&way, &places)?;
    let weights = job.weights(way)?;
    let (tokenizer_file, entry) = job.tokenizer(tokenizer)?;
    let kept_file = job.kept(&places.kept)?;
    let files: Vec<FileEntry> = [Some(weights.entry), tokenizer_file, kept_file]
        .into_iter()
        .flatten()
        .collect();
    let mut notes = source.notes().to_vec();
    notes.extend(job.left_out());
    notes.extend(weights.notes);
    notes.extend(
        tokenizer
            .iter()
            .flat_map(|tokenizer| tokenizer.warnings())
            .map(ToString::to_string),
    );
    let mut manifest = Manifest {
        format_version: FORMAT_VERSION,
        created_by: CreatedBy {
            name: "larql".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        digest: String::new(),
        level: options.level,
        files,
        tokenizer: entry,
        source: job.source_entry(&weights.hashed, digests, &places)?,
        ignored: ignored(source),
        notes,
        spec: source.spec().clone(),
        checksum: String::new(),
    };
    manifest.seal();
    let manifest_bytes = job.manifest(&manifest)?;
    publish(staging, out)?;
    let written: u64 = manifest.files.iter().map(|file| file.size).sum();
    let linked = match weights.placement {
        WeightsPlacement::Linked => weights.hashed.size,
        WeightsPlacement::Copied | WeightsPlacement::Written => 0,
    };
    Ok(ExtractReport {
        level: options.level,
        digest: manifest.digest,
        n_source_tensors: source.container().tensors().len(),
        n_used: weights.n_used,
        ignored: manifest.ignored,
        bits_per_weight: weights.bits_per_weight,
        types: weights.types,
        notes: manifest.notes,
        weights: weights.placement,
        bytes_written: written - linked + manifest_bytes,
        bytes: written + manifest_bytes,
    })
}

/// The directory that will hold `out`, and its name there.
pub(crate) fn place(out: &Path) -> Result<(PathBuf, String), VindexError> {
    let name = out.file_name().ok_or_else(|| VindexError::BadName {
        path: out.to_owned(),
    })?;
    if fs::symlink_metadata(out).is_ok() {
        return Err(VindexError::Exists {
            path: out.to_owned(),
        });
    }
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        Some(_) | None => PathBuf::from("."),
    };
    if !parent.is_dir() {
        return Err(VindexError::NoFolder { path: parent });
    }
    Ok((parent, name.to_string_lossy().into_owned()))
}

/// How the name of the directory begins in which a vindex of this name is written until it is whole.
pub fn staging_prefix(name: &str) -> String {
    format!(".{name}.partial-")
}

pub(crate) fn staging(parent: &Path, name: &str, out: &Path) -> Result<TempDir, VindexError> {
    let prefix = staging_prefix(name);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix);
    readable_by_all(&mut builder);
    builder
        .tempdir_in(parent)
        .map_err(io_error(out, "create a directory for"))
}

/// Temporary directories are private by default; a published one obeys the umask like any other.
#[cfg(unix)]
fn readable_by_all(builder: &mut tempfile::Builder<'_, '_>) {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(fs::Permissions::from_mode(0o777));
}

#[cfg(not(unix))]
fn readable_by_all(_: &mut tempfile::Builder<'_, '_>) {}

/// Gives a finished directory its name.
pub(crate) fn publish(staging: TempDir, out: &Path) -> Result<(), VindexError> {
    // A rename would silently replace an empty directory that has appeared meanwhile.
    if fs::symlink_metadata(out).is_ok() {
        return Err(VindexError::Exists {
            path: out.to_owned(),
        });
    }
    fs::rename(staging.path(), out).map_err(|error| match error.kind() {
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => VindexError::Exists {
            path: out.to_owned(),
        },
        _ => io_error(out, "give its name to")(error),
    })?;
    // The directory is no longer temporary.
    let _ = staging.keep();
    Ok(())
}

/// Copies a file; the standard library lets the file system share blocks where it can. It does not wait for the disk, see
/// [`watched`](crate::stream::watched).
pub(crate) fn copy_file(
    from: &Path,
    to: &Path,
    shown: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<(), VindexError> {
    let mut input = File::open(from).map_err(io_error(from, "open"))?;
    let total = input
        .metadata()
        .map_err(io_error(from, "read the size of"))?
        .len();
    let mut output = File::create_new(to).map_err(io_error(shown, "create"))?;
    let mut done = 0;
    loop {
        reporter.tell("copy", done, total)?;
        let n = io::copy(&mut (&mut input).take(COPY_BYTES), &mut output)
            .map_err(io_error(shown, "write"))?;
        if n == 0 {
            break;
        }
        done += n;
    }
    Ok(())
}

fn ignored(source: &Checkpoint) -> Vec<Ignored> {
    let entry = |tensor: &larql_models::checkpoint::IgnoredTensor| Ignored {
        name: tensor.name.clone(),
        reason: tensor.reason.to_owned(),
    };
    source.ignored().iter().map(entry).collect()
}

/// The weights of the new vindex.
struct Weights {
    entry: FileEntry,
    hashed: Hashed,
    placement: WeightsPlacement,
    n_used: usize,
    bits_per_weight: Option<f64>,
    types: Vec<(String, usize)>,
    notes: Vec<String>,
}

/// How the weights get into the vindex.
enum Way {
    /// The one file of the source is taken as it is.
    Taken(PathBuf),
    /// A plan is written; with what a user should know about it.
    Written(Box<GgufPlan>, Vec<String>),
}

/// Tensors of a folder whose bytes are in the vindex as they were.
#[derive(Default)]
struct Places {
    /// In the weights.
    verbatim: HashSet<String>,
    /// Apart, in their order.
    kept: Vec<String>,
}

impl Places {
    fn of(&self, name: &str) -> TensorPlace {
        if self.kept.iter().any(|kept| kept == name) {
            TensorPlace::Kept
        } else if self.verbatim.contains(name) {
            TensorPlace::Weights
        } else {
            TensorPlace::Changed
        }
    }
}

struct Job<'a> {
    source: &'a Checkpoint,
    options: ExtractOptions,
    level: Level,
    staging: &'a Path,
    /// The final path, which messages name.
    out: &'a Path,
    reporter: Reporter<'a>,
}

impl Job<'_> {
    fn way(&self) -> Result<Way, VindexError> {
        let quantization = self.options.quantization;
        match (self.source.container(), self.level) {
            (Container::Gguf(file), Level::Inference | Level::All)
                if file.paths().len() == 1 && quantization.is_none() =>
            {
                Ok(Way::Taken(file.paths()[0].clone()))
            }
            (Container::Gguf(_) | Container::HuggingFace(_), _) => {
                let content = PlanFor::Vindex(self.level.content());
                let (plan, notes) = planned(self.source, content, quantization)?;
                Ok(Way::Written(Box::new(plan), notes))
            }
        }
    }

    /// Where the tensors of a folder will be.
    fn places(&self, way: &Way) -> Result<Places, VindexError> {
        match (self.source.container(), way) {
            (Container::Gguf(_), _) | (Container::HuggingFace(_), Way::Taken(_)) => {
                Ok(Places::default())
            }
            (Container::HuggingFace(_), Way::Written(plan, _)) => Ok(Places {
                verbatim: plan.verbatim(self.source)?,
                kept: match self.level {
                    Level::Browse | Level::Inference => vec![],
                    Level::All => self.source.kept_apart()?,
                },
            }),
        }
    }

    fn weights(&mut self, way: Way) -> Result<Weights, VindexError> {
        let roles = self.source.roles();
        let content = self.level.content();
        let n_used = roles
            .into_iter()
            .filter(|role| content.includes(*role))
            .count();
        let quantization = self.options.quantization;
        let (mut bits_per_weight, mut types) = (None, vec![]);
        let (hashed, placement, notes) = match way {
            Way::Taken(path) => {
                let (hashed, placement) = self.take(&path)?;
                (hashed, placement, vec![])
            }
            Way::Written(plan, notes) => {
                (bits_per_weight, types) = quantized_types(&plan, quantization);
                let team = quantization.map(|_| RefCell::new(Team::new(self.options.n_threads)));
                let hashed = stream(
                    &plan,
                    self.source,
                    &self.staging.join(WEIGHTS),
                    &self.out.join(WEIGHTS),
                    team.as_ref(),
                    &mut self.reporter,
                )?;
                (hashed, WeightsPlacement::Written, notes)
            }
        };
        Ok(Weights {
            entry: entry(WEIGHTS.to_owned(), &hashed),
            hashed,
            placement,
            n_used,
            bits_per_weight,
            types,
            notes,
        })
    }

    /// One sentence about the files of a folder that a vindex of all of it has no place for.
    fn left_out(&self) -> Option<String> {
        let Container::HuggingFace(folder) = self.source.container() else {
            return None;
        };
        if self.level != Level::All {
            return None;
        }
        let weights: Vec<String> = folder
            .weights
            .paths()
            .iter()
            .map(|p| file_name(p))
            .collect();
        let mut names: Vec<String> = fs::read_dir(&folder.path)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            // Weights that are not read have a note of their own.
            .filter(|name| !name.starts_with('.') && !name.ends_with(".safetensors"))
            .filter(|name| name != TOKENIZER && !weights.contains(name))
            .filter(|name| !SOURCE_TEXTS.contains(&name.as_str()))
            .collect();
        names.sort();
        let reads_json = folder.path.join(TOKENIZER).is_file()
            && names
                .iter()
                .any(|name| OTHER_TOKENIZERS.contains(&name.as_str()));
        let more = names.len().saturating_sub(LEFT_OUT_MAX);
        names.truncate(LEFT_OUT_MAX);
        let mut note = format!("left out of the vindex: {}", names.join(", "));
        if more > 0 {
            note.push_str(&format!(" and {more} more"));
        }
        if reads_json {
            note.push_str(" (tokenizer.json is what is read)");
        }
        (!names.is_empty()).then_some(note)
    }

    /// Keeps the tensors of a folder that nothing else could be made of again.
    fn kept(&mut self, names: &[String]) -> Result<Option<FileEntry>, VindexError> {
        let Container::HuggingFace(folder) = self.source.container() else {
            return Ok(None);
        };
        if names.is_empty() {
            return Ok(None);
        }
        let mut writer = safetensors::Writer::new(&BTreeMap::new())?;
        let infos: Vec<&TensorInfo> = names
            .iter()
            .filter_map(|name| folder.weights.tensor(name))
            .collect();
        for info in &infos {
            writer.declare((*info).clone())?;
        }
        let total = infos.iter().map(|info| info.n_bytes).sum();
        let reader = SourceReader::new(self.source)?;
        let (path, shown) = (self.staging.join(KEPT), self.out.join(KEPT));
        let (lent, reporter) = (&reader.lent, &mut self.reporter);
        let hashed = hashed(&path, &shown, total, lent, reporter, |out| {
            let mut stream = writer.begin(out)?;
            for info in infos {
                stream.write_tensor(&info.name, |sink| {
                    put_pieces(&reader.data(&info.name)?, sink)
                })?;
            }
            stream.finish()?;
            Ok(())
        })?;
        Ok(Some(entry(KEPT.to_owned(), &hashed)))
    }

    /// Takes a file as it is: by a second name if that is possible, else by a copy.
    fn take(&mut self, file: &Path) -> Result<(Hashed, WeightsPlacement), VindexError> {
        // A link to a symbolic link would depend on what that points to.
        let real = fs::canonicalize(file).map_err(io_error(file, "find"))?;
        let target = self.staging.join(WEIGHTS);
        let placement = match fs::hard_link(&real, &target) {
            Ok(()) => WeightsPlacement::Linked,
            // Another file system, or one without links.
            Err(_) => {
                copy_file(&real, &target, &self.out.join(WEIGHTS), &mut self.reporter)?;
                WeightsPlacement::Copied
            }
        };
        let hashed = hash_file(&target, "digest", &mut self.reporter)?;
        Ok((hashed, placement))
    }

    fn tokenizer(
        &mut self,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(Option<FileEntry>, Option<TokenizerEntry>), VindexError> {
        let Some(tokenizer) = tokenizer else {
            return Ok((None, None));
        };
        let text = match self.source.container() {
            Container::Gguf(file) if has_vocabulary(file) => None,
            Container::Gguf(_) => Some(self.written(tokenizer)?),
            Container::HuggingFace(folder) => {
                let path = folder.path.join(TOKENIZER);
                match fs::read(&path) {
                    Ok(text) => Some(text),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        Some(self.written(tokenizer)?)
                    }
                    Err(error) => return Err(io_error(&path, "read")(error)),
                }
            }
        };
        let place = match text {
            Some(_) => TokenizerPlace::File,
            None => TokenizerPlace::Weights,
        };
        let file = match text {
            Some(text) => Some(self.put(TOKENIZER, &text)?),
            None => None,
        };
        let entry = TokenizerEntry {
            place,
            special: tokenizer.special().clone(),
            chat_template: tokenizer.chat_template().map(ToOwned::to_owned),
        };
        Ok((file, Some(entry)))
    }

    fn written(&self, tokenizer: &Tokenizer) -> Result<Vec<u8>, VindexError> {
        let path = || self.out.join(TOKENIZER);
        let text = tokenizer.to_json();
        Ok(text
            .map_err(|source| VindexError::Tokenizer {
                path: path(),
                source: Box::new(source),
            })?
            .into_bytes())
    }

    /// Writes a small file.
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<FileEntry, VindexError> {
        let size = bytes.len() as u64;
        self.reporter.tell("files", 0, size)?;
        let shown = self.out.join(name);
        let mut file =
            File::create_new(self.staging.join(name)).map_err(io_error(&shown, "create"))?;
        file.write_all(bytes).map_err(io_error(&shown, "write"))?;
        self.reporter.tell("files", size, size)?;
        Ok(FileEntry {
            name: name.to_owned(),
            size,
            sha256: hash_bytes(bytes),
        })
    }

    /// Writes the manifest, and reads the whole directory back as its first reader will.
    fn manifest(&mut self, manifest: &Manifest) -> Result<u64, VindexError> {
        let text = manifest.encode();
        let size = text.len() as u64;
        if size > MANIFEST_BYTES_MAX {
            return Err(VindexError::ManifestSize {
                path: self.out.join(MANIFEST),
                size,
                limit: MANIFEST_BYTES_MAX,
            });
        }
        self.put(MANIFEST, text.as_bytes())?;
        let reopened = Vindex::open(self.staging)?;
        assert_eq!(
            reopened.manifest(),
            manifest,
            "a strict reader understands what was meant"
        );
        reopened.tensors()?;
        Ok(size)
    }

    /// Begins to compute the digests of the source's files that are not our own weights, beside the writing of these.
    fn source_digests(&self, way: &Way, places: &Places) -> Result<Digests, VindexError> {
        let files = match (self.source.container(), way) {
            (_, Way::Taken(_)) => vec![],
            (Container::Gguf(file), Way::Written(..)) => {
                let paths = file.paths().iter();
                paths
                    .map(|path| Undigested::whole(path))
                    .collect::<Result<_, _>>()?
            }
            (Container::HuggingFace(folder), Way::Written(..)) => {
                let unchanged = |name: &str| places.of(name) != TensorPlace::Changed;
                let paths = folder.weights.paths().iter();
                paths
                    .map(|path| Undigested::of_safetensors(path, &unchanged))
                    .collect::<Result<_, _>>()?
            }
        };
        Ok(Digests::start(files))
    }

    fn source_entry(
        &mut self,
        weights: &Hashed,
        digests: Digests,
        places: &Places,
    ) -> Result<Source, VindexError> {
        let origin = self.source.origin();
        let real = fs::canonicalize(origin).unwrap_or_else(|_| origin.to_owned());
        let mut files = digests.finish(&mut self.reporter)?;
        let (kind, texts, tensors) = match self.source.container() {
            Container::Gguf(file) => {
                if files.is_empty() {
                    files.push(SourceFile {
                        name: file_name(&file.paths()[0]),
                        size: weights.size,
                        digest: SourceDigest::Whole {
                            sha256: weights.sha256.clone(),
                        },
                    });
                }
                (SourceKind::Gguf, vec![], vec![])
            }
            Container::HuggingFace(folder) => {
                let (texts, tensors) = match self.level {
                    Level::Browse | Level::Inference => (vec![], vec![]),
                    Level::All => (
                        texts(&folder.path)?,
                        source_tensors(&folder.weights, places),
                    ),
                };
                (SourceKind::HuggingFace, texts, tensors)
            }
        };
        Ok(Source {
            kind,
            name: file_name(&real),
            files,
            texts,
            tensors,
        })
    }
}

fn entry(name: String, hashed: &Hashed) -> FileEntry {
    FileEntry {
        name,
        size: hashed.size,
        sha256: hashed.sha256.clone(),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// The small files of a folder that a copy of it would need.
fn texts(folder: &Path) -> Result<Vec<TextFile>, VindexError> {
    let mut texts = Vec::new();
    for name in SOURCE_TEXTS {
        let path = folder.join(name);
        let size = match fs::metadata(&path) {
            Ok(stat) => stat.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(io_error(&path, "read the size of")(error)),
        };
        if size > MANIFEST_BYTES_MAX {
            return Err(VindexError::ManifestSize {
                path,
                size,
                limit: MANIFEST_BYTES_MAX,
            });
        }
        let text = fs::read_to_string(&path).map_err(io_error(&path, "read"))?;
        texts.push(TextFile {
            name: name.to_owned(),
            text,
        });
    }
    Ok(texts)
}

fn source_tensors(weights: &safetensors::Checkpoint, places: &Places) -> Vec<SourceTensor> {
    weights
        .tensors()
        .iter()
        .map(|info| SourceTensor {
            name: info.name.clone(),
            dtype: info.dtype.name().to_owned(),
            shape: info.shape.clone(),
            file: weights.file_of(&info.name).map_or(0, |file| {
                u32::try_from(file).expect("checkpoints have few files")
            }),
            place: places.of(&info.name),
        })
        .collect()
}

/// What a report says of the types of weights that were quantized.
pub(crate) fn quantized_types(
    plan: &GgufPlan,
    quantization: Option<Quantization>,
) -> (Option<f64>, Vec<(String, usize)>) {
    match quantization {
        None => (None, vec![]),
        Some(_) => (Some(plan.bits_per_weight()), plan.types()),
    }
}

/// Who gets a weights file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PlanFor {
    /// A vindex, with so much of the model.
    Vindex(GgufContent),
    /// Other programs; what is exported is the file of a vindex that was made of a folder, if this holds.
    Others { is_own_file: bool },
}

/// The weights file to be, with its vocabulary, and what a user should know about it.
pub(crate) fn planned(
    source: &Checkpoint,
    reader: PlanFor,
    quantization: Option<Quantization>,
) -> Result<(GgufPlan, Vec<String>), VindexError> {
    let (mut plan, file) = match reader {
        PlanFor::Vindex(content) => (
            GgufPlan::new(source, content)?,
            "weights.gguf, for programs that read it alone",
        ),
        PlanFor::Others { is_own_file } => {
            let mut plan = GgufPlan::new(source, GgufContent::Portable)?;
            if is_own_file {
                plan.split_latents(source)?;
            }
            (plan, "the exported file")
        }
    };
    let mut notes = [plan.differences(), &plan.peer_notes()].concat();
    if let Container::HuggingFace(folder) = source.container() {
        match folder.gguf_tokenizer(source.spec().d_vocab)? {
            None => {}
            Some(Err(error)) => notes.push(without_vocabulary(source, reader, error)?),
            Some(Ok(tokenizer)) => {
                for (key, value) in tokenizer.metadata.iter() {
                    plan.metadata_mut().set(key, value.clone());
                }
                // A vindex has tokenizer.json, of which nothing is lost.
                let of_file = |note| format!("{file}: {note}");
                notes.extend(tokenizer.notes.into_iter().map(of_file));
            }
        }
    }
    if let Some(quantization) = quantization {
        let fallbacks = plan.quantize(source, quantization)?;
        notes.push(format!(
            "quantized to {}: {:.3} bits per weight",
            quantization.mix,
            plan.bits_per_weight()
        ));
        notes.extend(fallback_notes(&fallbacks));
    }
    Ok((plan, notes))
}

/// What is said of a tokenizer that the weights file cannot carry; one that nothing could run is an error.
fn without_vocabulary(
    source: &Checkpoint,
    reader: PlanFor,
    error: TokenizerError,
) -> Result<String, VindexError> {
    // A vindex has a tokenizer of its own, which its maker was asked for.
    if let PlanFor::Others { .. } = reader {
        match source.tokenizer() {
            Err(ModelError::Tokenizer { source, .. }) if source.is_of_another_kind() => {}
            Err(broken) => return Err(broken.into()),
            // It runs without such an id, but the file would have to state it.
            Ok(_) if matches!(error, TokenizerError::IdOutOfRange { .. }) => {
                return Err(ModelError::Tokenizer {
                    origin: source.origin().display().to_string(),
                    source: error,
                }
                .into());
            }
            Ok(_) => {}
        }
    }
    Ok(format!(
        "the weights file carries no vocabulary, other programs run it on token ids only: {error}"
    ))
}

/// One sentence for all tensors of the same width that got another type than the mix asks for.
fn fallback_notes(fallbacks: &[Fallback]) -> Vec<String> {
    let mut groups: BTreeMap<(u64, &str, &str), Vec<&str>> = BTreeMap::new();
    for fallback in fallbacks {
        let key = (fallback.cols, fallback.wanted.name(), fallback.got.name());
        groups.entry(key).or_default().push(&fallback.tensor);
    }
    groups
        .into_iter()
        .map(|((cols, wanted, got), tensors)| {
            let (count, verb, more) = match tensors.len() {
                1 => ("1 tensor".to_owned(), "is", ""),
                n => (format!("{n} tensors"), "are", " and others"),
            };
            format!(
                "{count} with rows of {cols} {verb} {got} instead of {wanted}, whose blocks do not divide them ({}{more})",
                tensors[0]
            )
        })
        .collect()
}
