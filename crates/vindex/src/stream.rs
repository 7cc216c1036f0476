//! Tensors on their way from a source to a new file: read without piling up pages, hashed, reported.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::rc::Rc;

use larql_formats::gguf::GgufFile;
use larql_formats::{Bytes, Sink, safetensors};
use larql_kernels::Team;
use larql_models::to_gguf::GgufPlan;
use larql_models::{Checkpoint, Container, ModelError};

use crate::digest::{Hashed, HashingWriter, Lent, Reporter};
use crate::error::{VindexError, io_error};

/// Smaller writes are gathered; larger ones go to the disk and the digest as they are.
const BUFFER_BYTES: usize = 64 << 10;

/// After so many bytes of tensors the source is mapped anew.
const REMAP_BYTES: u64 = 128 << 20;

/// Bytes of a tensor that are passed on between two reports.
const PIECE_BYTES: usize = 2 << 20;

/// What the reporter is told.
const STAGE: &str = "weights";

/// Writes a plan to the new file `path`, which messages call `shown`, and hashes it on the way.
pub(crate) fn stream(
    plan: &GgufPlan,
    source: &Checkpoint,
    path: &Path,
    shown: &Path,
    team: Option<&RefCell<Team>>,
    reporter: &mut Reporter<'_>,
) -> Result<Hashed, VindexError> {
    let reader = SourceReader::new(source)?;
    let total = plan.data_bytes();
    hashed(path, shown, total, &reader.lent, reporter, |out| {
        let mut stream = plan.begin(out)?;
        for (idx, info) in plan.tensors().enumerate() {
            stream.write_tensor(&info.name, |sink| {
                plan.write_tensor_from(idx, source, &|name| reader.data(name), team, sink)
            })?;
        }
        stream.finish()?;
        Ok(())
    })
}

/// Passes bytes on in pieces, so that the reporter is asked between them.
pub(crate) fn put_pieces(bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), ModelError> {
    for piece in bytes.chunks(PIECE_BYTES) {
        sink.put(piece)?;
    }
    Ok(())
}

/// Writes a new file of about `total` bytes, reporting on the way; returns its size.
///
/// It does not wait for the disk, as `cp` does not: nothing is replaced, and after a power cut a file that did not get
/// there whole has not the size that the manifest says.
pub(crate) fn watched(
    path: &Path,
    shown: &Path,
    total: u64,
    reporter: &mut Reporter<'_>,
    write: impl FnOnce(&mut dyn Write) -> Result<(), ModelError>,
) -> Result<u64, VindexError> {
    let file = File::create_new(path).map_err(io_error(shown, "create"))?;
    let (_, size) = watch(file, shown, total, reporter, write)?;
    Ok(size)
}

/// As [`watched`], and hashes what is written, which may be a part of what is `lent`.
pub(crate) fn hashed(
    path: &Path,
    shown: &Path,
    total: u64,
    lent: &Rc<Lent>,
    reporter: &mut Reporter<'_>,
    write: impl FnOnce(&mut dyn Write) -> Result<(), ModelError>,
) -> Result<Hashed, VindexError> {
    let file = File::create_new(path).map_err(io_error(shown, "create"))?;
    let (out, _) = watch(
        HashingWriter::of_lent(file, Rc::clone(lent)),
        shown,
        total,
        reporter,
        write,
    )?;
    Ok(out.finish())
}

fn watch<W: Write>(
    out: W,
    shown: &Path,
    total: u64,
    reporter: &mut Reporter<'_>,
    write: impl FnOnce(&mut dyn Write) -> Result<(), ModelError>,
) -> Result<(W, u64), VindexError> {
    let mut watched = Watched {
        out,
        reporter,
        done: 0,
        total,
        stop: None,
    };
    let result = write(&mut BufWriter::with_capacity(BUFFER_BYTES, &mut watched));
    let Watched {
        out, done, stop, ..
    } = watched;
    match stop {
        Some(Stop::Interrupted) => return Err(VindexError::Interrupted { stage: STAGE }),
        Some(Stop::Failed(error)) => return Err(io_error(shown, "write")(error)),
        None => result?,
    }
    Ok((out, done))
}

/// The source's files, mapped apart from the caller's own maps and anew after every [`REMAP_BYTES`].
pub(crate) struct SourceReader<'a> {
    container: &'a Container,
    open: RefCell<Opened>,
    read: Cell<u64>,
    /// The file of a folder that was read last.
    file: RefCell<Option<(usize, Rc<File>)>>,
    /// What was asked for last.
    pub(crate) lent: Rc<Lent>,
}

enum Opened {
    Gguf(GgufFile),
    HuggingFace(safetensors::Checkpoint),
}

impl<'a> SourceReader<'a> {
    pub(crate) fn new(source: &'a Checkpoint) -> Result<Self, VindexError> {
        let container = source.container();
        Ok(Self {
            container,
            open: RefCell::new(Opened::new(container)?),
            read: Cell::new(0),
            file: RefCell::new(None),
            lent: Rc::default(),
        })
    }

    pub(crate) fn data(&self, name: &str) -> Result<Bytes, ModelError> {
        if self.read.get() >= REMAP_BYTES {
            self.open.replace(Opened::new(self.container)?);
            // Of the same moment as the map.
            self.file.replace(None);
            self.read.set(0);
        }
        let bytes = match &*self.open.borrow() {
            Opened::Gguf(file) => file.data(name)?,
            Opened::HuggingFace(weights) => weights.data(name)?,
        };
        self.read
            .set(self.read.get().saturating_add(bytes.len() as u64));
        self.lent
            .set(self.file(name)?.map(|file| (bytes.clone(), file)));
        Ok(bytes)
    }

    /// The file of a folder that has the tensor.
    fn file(&self, name: &str) -> Result<Option<Rc<File>>, ModelError> {
        let Opened::HuggingFace(weights) = &*self.open.borrow() else {
            return Ok(None);
        };
        let Some(idx) = weights.file_of(name) else {
            return Ok(None);
        };
        let mut last = self.file.borrow_mut();
        if let Some((last, file)) = &*last
            && *last == idx
        {
            return Ok(Some(Rc::clone(file)));
        }
        let path = &weights.paths()[idx];
        let file = File::open(path).map_err(|source| larql_formats::Error::Io {
            path: path.clone(),
            action: "open",
            source,
        })?;
        let file = Rc::new(file);
        *last = Some((idx, Rc::clone(&file)));
        Ok(Some(file))
    }
}

impl Opened {
    fn new(container: &Container) -> Result<Self, ModelError> {
        Ok(match container {
            Container::Gguf(file) => Self::Gguf(GgufFile::open(&file.paths()[0])?),
            Container::HuggingFace(folder) => {
                Self::HuggingFace(safetensors::Checkpoint::open(&folder.path)?)
            }
        })
    }
}

/// Why an output refuses to take more.
enum Stop {
    Interrupted,
    Failed(io::Error),
}

/// An output that reports each write, and remembers why it stopped, which the layers above do not carry.
struct Watched<'r, 'c, W> {
    out: W,
    reporter: &'r mut Reporter<'c>,
    done: u64,
    total: u64,
    stop: Option<Stop>,
}

impl<W: Write> Write for Watched<'_, '_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stopped = || io::Error::other("stopped");
        if self.stop.is_some() {
            return Err(stopped());
        }
        // The header comes on top of the tensors, which the total counts.
        let done = self.done.min(self.total);
        if self.reporter.tell(STAGE, done, self.total).is_err() {
            self.stop = Some(Stop::Interrupted);
            return Err(stopped());
        }
        match self.out.write(bytes) {
            Ok(n) => {
                self.done += n as u64;
                Ok(n)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                self.stop = Some(Stop::Failed(error));
                Err(stopped())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
